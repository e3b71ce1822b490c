# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: the steps as a Scan, as a Loop, one after the other, or as calls of a session."""

import onnxruntime

import onnx_models
from calls import PythonCall, Setting

A_CALL_PER_STEP = 'a session call per step'


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=['CPUExecutionProvider'])


def whole(form, problem, x, noise, products):
    made = session(onnx_models.FORMS[form](problem, x, noise, products))
    given = {'x': x} if noise is None else {'x': x, 'noise': noise}
    return PythonCall(lambda: made.run(None, given)[0])


def by_steps(problem, x, noise, products):
    first, last = (model and session(model)
                   for model in onnx_models.ends_models(problem, x, products))
    step = session(onnx_models.step_model(problem, x, noise, products))
    arrays = onnx_models.step_arrays(problem)
    states = [{name: array[i] for name, array in arrays.items()} for i in range(problem.steps())]

    def call():
        z = first.run(None, {'x': x})[0] if first else x
        for i, state in enumerate(states):
            given = state if noise is None else state | {'noise': noise[:, i]}
            z = step.run(None, given | {'z': z})[0]
        return last.run(None, {'x': z})[0] if last else z
    return PythonCall(call)


def settings(candidate, _, problem, x, noise):
    def build(products):
        if candidate == A_CALL_PER_STEP:
            return by_steps(problem, x, noise, products)
        return whole(candidate, problem, x, noise, products)
    return [Setting(products, lambda products=products: build(products))
            for products in onnx_models.PRODUCTS]


def version(_):
    return onnxruntime.__version__
