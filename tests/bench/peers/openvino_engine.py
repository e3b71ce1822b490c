# SPDX-License-Identifier: Apache-2.0
"""OpenVINO on the same ONNX models."""

import io

import openvino
from openvino import properties
from openvino.properties import hint

import onnx_models
from calls import NotOffered, PythonCall, Setting



def compiled(form, problem, x, noise, products):
    model = onnx_models.FORMS[form](problem, x, noise, products)
    core = openvino.Core()
    made = core.compile_model(
        core.read_model(io.BytesIO(model.SerializeToString())), 'CPU',
        {properties.inference_num_threads(): 1, properties.num_streams(): 1,
         hint.performance_mode(): hint.PerformanceMode.LATENCY,
         hint.inference_precision(): openvino.Type.f32,
         hint.execution_mode(): hint.ExecutionMode.ACCURACY})
    request = made.create_infer_request()
    given = {'x': x} if noise is None else {'x': x, 'noise': noise}
    return PythonCall(lambda: request.infer(given, share_inputs=True)[made.output(0)])


def settings(candidate, _, problem, x, noise):
    long = candidate == 'unrolled' and problem.kind != 'stack'
    if long and len(x) > 1:
        raise NotOffered('it takes minutes to compile')
    return [Setting(products, lambda products=products:
                    compiled(candidate, problem, x, noise, products))
            for products in onnx_models.PRODUCTS[:1 if long else None]]


def version(_):
    return openvino.__version__.split('-')[0]
