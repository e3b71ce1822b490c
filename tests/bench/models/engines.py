# SPDX-License-Identifier: Apache-2.0
"""Who answers: our engine in this process, the projects' own loop in PyTorch, ONNX Runtime by steps.

Every candidate gets the same noise and answers with the samples [n, D]. Ours is timed in C, the others
where they are called, in Python.
"""

import ctypes

import numpy as np
import onnxruntime
import torch

import native
import ours
import sampler
from calls import PythonCall


def our_call(library, model, libraries, x, noise, others):
    """deeppcr_run, step by step, by one thread; timed without Python."""
    given = [native.aligned(array) for array in (x, noise)]
    samples = native.aligned(np.zeros((len(x), x[0].size)))
    options = ours.sized(ours.RunOptions, solver=b'sequential', rtol=1e-4, atol=1e-6, warm_sweeps=-1)
    handed = ours.sized(ours.Inputs, num_samples=len(x), initial_noise=given[0].ctypes.data,
                        step_noise=given[1].ctypes.data)
    for other in others:
        is_label = np.issubdtype(other.dtype, np.integer)
        given.append(other.astype(np.int32) if is_label else native.aligned(other))
        setattr(handed, 'class_labels' if is_label else 'inputs', given[-1].ctypes.data)
    results = ours.sized(ours.Outputs, outputs=samples.ctypes.data,
                         report_size=ctypes.sizeof(ours.Report))
    return native.NativeCall(
        native.load_library('c_loop', libraries), library.functions.deeppcr_run,
        [model.value, *map(ctypes.addressof, (options, handed, results))], samples,
        (library, given, options, handed, results),
        lambda _: RuntimeError(library.functions.deeppcr_last_error().decode()))


def torch_call(module, schedule, x, noise, others):
    x, noise, *others = (torch.from_numpy(array) for array in (x, noise, *others))
    return PythonCall(
        lambda: sampler.states(module, schedule, x, noise, others)[-1].flatten(1).numpy())


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    return onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])


def ort_call(session, schedule, x, noise, others):
    """The loop around the session's calls is NumPy's, which costs less than PyTorch's."""
    fixed = dict(zip(('c',), others))

    def call():
        z = x
        for i, (t, step) in enumerate(zip(*schedule)):
            m = session.run(None, {'x': z, 't': np.full(len(z), t), **fixed})[0]
            z = advanced(step, z, m, noise[:, i])
        return z.reshape(len(z), -1)
    return PythonCall(call)


def advanced(step, z, m, noise):
    x0 = step.by_x * z + step.by_m * m
    if step.limit is not None:
        x0 = np.clip(x0, -step.limit, step.limit)
    after = step.mean_x0 * x0 + step.mean_x * z
    if step.mean_m:
        after = after + step.mean_m * m
    return after + np.float32(step.sigma) * noise if step.sigma else after


def reading_call(reader, numbers, steps):
    """Reads as many numbers as the step's layers have, once for each step."""
    whole = 128 * max(1, round(numbers / 128))
    weights = native.aligned(np.ones(whole))
    reader.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return PythonCall(lambda: (reader(weights.ctypes.data, whole, steps), weights)[0])


def multiplying_call(multiplier, numbers, steps, samples):
    """Multiplies and adds as often as the step's layers do, for all samples and steps."""
    multiplier.argtypes, multiplier.restype = [ctypes.c_int64], ctypes.c_float
    return PythonCall(lambda: multiplier(numbers * steps * samples))
