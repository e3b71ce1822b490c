# SPDX-License-Identifier: Apache-2.0
"""DeepPCR Serve in the caller's process, through libdeeppcr."""

import ctypes
import pathlib
import sys

import numpy as np

import native
from calls import NotOffered, Setting

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'testing'))

from c_structures import EngineOptions, Inputs, Outputs, Report, RunOptions, sized  # noqa: E402

SAMPLES_OF_NEWTON = (1, 8)  # beyond, one thread only solves them one after the other


class Library:
    """An engine of one thread. `plans`: a folder that keeps plans, or None."""

    def __init__(self, path, plans=None):
        if path is None or not path.exists():
            raise NotOffered('libdeeppcr is not built')
        self.functions = ctypes.CDLL(str(path))
        for name in ('deeppcr_last_error', 'deeppcr_version', 'deeppcr_engine_device'):
            getattr(self.functions, name).restype = ctypes.c_char_p
        self.functions.deeppcr_engine_device.argtypes = [ctypes.c_void_p]
        options = sized(EngineOptions, backend=b'cpu', num_threads=1,
                        plan_cache_dir=str(plans).encode() if plans else None,
                        max_model_bytes=1 << 30, max_workspace_bytes=1 << 28,
                        max_unplanned_bytes=1 << 29)
        self.engine = ctypes.c_void_p()
        self.check(self.functions.deeppcr_engine_create(ctypes.byref(options),
                                                        ctypes.byref(self.engine)))

    def check(self, status):
        if status:
            raise RuntimeError(self.functions.deeppcr_last_error().decode())

    def version(self):
        device = self.functions.deeppcr_engine_device(self.engine).decode()
        return f'{self.functions.deeppcr_version().decode()} ({device})'

    def load(self, folder):
        model = ctypes.c_void_p()
        self.check(self.functions.deeppcr_model_load(self.engine, str(folder).encode(), None,
                                                     ctypes.byref(model)))
        return model


class OurCall(native.NativeCall):
    """deeppcr_run with one set of options on one batch."""

    def __init__(self, library, model, libraries, solver, problem, x, noise):
        given = [None if array is None else native.aligned(array) for array in (x, noise)]
        pointers = [None if array is None else array.ctypes.data for array in given]
        outputs = native.aligned(np.zeros((len(x), native.output_dim(problem))))
        self.reports = (Report * len(x))()
        options = sized(RunOptions, solver=solver.encode(), rtol=1e-4, atol=1e-6, warm_sweeps=-1)
        handed = sized(Inputs, num_samples=len(x))
        if problem.kind == 'stack':
            handed.inputs = pointers[0]
        else:
            handed.initial_noise, handed.step_noise = pointers
        results = sized(Outputs, outputs=outputs.ctypes.data, report_size=ctypes.sizeof(Report),
                        reports=ctypes.addressof(self.reports))
        super().__init__(native.load_library('c_loop', libraries), library.functions.deeppcr_run,
                         [model.value, *map(ctypes.addressof, (options, handed, results))],
                         outputs, (library, given, options, handed, results),
                         lambda _: RuntimeError(library.functions.deeppcr_last_error().decode()))

    def remark(self):
        """Who answered."""
        report = self.reports[0]
        fell_back = sum(r.fallback for r in self.reports)
        return (report.solver.decode()
                + (f', {fell_back} of {len(self.reports)} fell back' if fell_back else ''))


def call(context, solver, problem, x, noise, plans=None):
    library = Library(context.library, plans)
    return OurCall(library, library.load(problem.folder), context.libraries, solver, problem, x,
                   noise)


def yardstick(context, problem, x, noise):
    """What others take turns with: its plan is measured once and kept."""
    plans = context.scratch / 'plans'
    plans.mkdir(exist_ok=True)
    return call(context, 'auto', problem, x, noise, plans)


def settings(candidate, context, problem, x, noise):
    """The load is a first one, which measures a plan where the model comes with none that fits."""
    if candidate == 'newton' and len(x) not in SAMPLES_OF_NEWTON:
        raise NotOffered('one thread solves the samples one after the other')
    return [Setting(candidate, lambda: call(context, candidate, problem, x, noise))]


def version(context):
    return Library(context.library).version()
