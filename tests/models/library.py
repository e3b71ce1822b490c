# SPDX-License-Identifier: Apache-2.0
"""libdeeppcr through ctypes, as far as gradients need it: the structures of kernels/c_api/deeppcr.h."""

import ctypes
import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'testing'))

import c_structures  # noqa: E402
from c_structures import Inputs, Outputs, RunOptions, sized  # noqa: E402


class EngineOptions(c_structures.EngineOptions):
    """With what an engine of gradients takes."""
    _fields_ = [('gradients', ctypes.c_int32)]


class BackwardOptions(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('way', ctypes.c_int32),
                ('shooting_interval', ctypes.c_int32), ('num_inference_steps', ctypes.c_int64),
                ('timeout_seconds', ctypes.c_double), ('token', ctypes.c_void_p)]


class Cotangents(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('states', ctypes.c_void_p),
                ('columns', ctypes.c_int64), ('of_outputs', ctypes.c_void_p),
                ('of_final_states', ctypes.c_void_p)]


class Gradients(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('inputs', ctypes.c_void_p),
                ('initial_states', ctypes.c_void_p), ('step_noise', ctypes.c_void_p),
                ('seconds', ctypes.c_double), ('dependent_stages', ctypes.c_int64)]


WAYS = {'sequential': 0, 'parallel': 1}


def _data(array):
    """The address of numbers in C order, which the caller keeps; None for None."""
    return None if array is None else array.ctypes.data


class Library:
    """An engine of libdeeppcr that loads models with their backward passes."""

    def __init__(self, path):
        self.calls = ctypes.CDLL(str(path))
        self.calls.deeppcr_last_error.restype = ctypes.c_char_p
        self.engine = ctypes.c_void_p()
        options = sized(EngineOptions, backend=b'cpu', num_threads=1, max_model_bytes=1 << 30,
                        max_workspace_bytes=1 << 28, max_unplanned_bytes=1 << 29, gradients=1)
        self.check(self.calls.deeppcr_engine_create(ctypes.byref(options),
                                                    ctypes.byref(self.engine)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(f'{status}: {self.calls.deeppcr_last_error().decode()}')

    def load(self, folder):
        model = ctypes.c_void_p()
        self.check(self.calls.deeppcr_model_load(self.engine, str(folder).encode(), None,
                                                 ctypes.byref(model)))
        return model

    def gradients(self, model, request, of_outputs, ways):
        """The outputs and states of `request` (dim, steps, x, noise, condition, labels), and by way
        what the cotangents [n, m, output_dim] become: by the condition, by x, by the noise."""
        n, m, out = of_outputs.shape
        dim, steps = request['dim'], request['steps']
        kept = [None if request.get(name) is None else np.ascontiguousarray(request[name], kind)
                for name, kind in (('condition', np.float32), ('labels', np.int32),
                                   ('x', np.float32), ('noise', np.float32))]
        condition, labels, x, noise = kept
        inputs = sized(Inputs, num_samples=n, inputs=_data(condition), class_labels=_data(labels),
                       initial_noise=_data(x), step_noise=_data(noise))
        outputs = np.empty((n, out), np.float32)
        states = np.empty((n, steps + 1, dim), np.float32)
        run = sized(RunOptions, solver=b'sequential', rtol=1e-4, atol=1e-6, warm_sweeps=-1)
        answer = sized(Outputs, outputs=_data(outputs), trajectory=_data(states))
        self.check(self.calls.deeppcr_run(model, ctypes.byref(run), ctypes.byref(inputs),
                                          ctypes.byref(answer)))
        of_outputs = np.ascontiguousarray(of_outputs, np.float32)
        found = {}
        for way in ways:
            by_condition = None if condition is None else np.empty((n, m, condition.shape[1]),
                                                                   np.float32)
            by_x = np.empty((n, m, dim), np.float32)
            by_noise = np.empty((n, m, steps, dim), np.float32)
            options = sized(BackwardOptions, way=WAYS[way])
            back = sized(Cotangents, states=_data(states), columns=m, of_outputs=_data(of_outputs))
            to = sized(Gradients, inputs=_data(by_condition), initial_states=_data(by_x),
                       step_noise=_data(by_noise))
            self.check(self.calls.deeppcr_go_back(model, ctypes.byref(options), ctypes.byref(inputs),
                                                  ctypes.byref(back), ctypes.byref(to)))
            found[way] = (by_condition, by_x, by_noise)
        return outputs, states, found
