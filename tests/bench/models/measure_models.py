#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures public models as torch.onnx.export writes them; called by run.sh --models.

Each model of tests/models/zoo.py is trained for seconds at its published size and exported. Our
engine, the projects' own loop in PyTorch, and ONNX Runtime called per step then answer in turns, by
one thread each on one core, in this process; every answer is compared with float64 first. Writes
models.json after every model, and models-arithmetic.json, in which nothing is timed.
"""

import argparse
import datetime
import os
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in
                ('tests/bench/models', 'tests/bench/peers', 'tests/bench', 'tests/models',
                 'deploy/models/digits')]

for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ[_variable] = '1'

import numpy as np  # noqa: E402
import torch  # noqa: E402

import cpu_tables  # noqa: E402
import described  # noqa: E402
import engines  # noqa: E402
import exporting  # noqa: E402
import measure_cpu  # noqa: E402
import model_tables  # noqa: E402
import native  # noqa: E402
import ours  # noqa: E402
import protocol  # noqa: E402
import result_file  # noqa: E402
import sampler  # noqa: E402
import zoo  # noqa: E402

SAMPLES = (1, 8, 64)


class Prepared:
    """A model's folder, its module in float32, and what its step has."""

    def __init__(self, arguments, model):
        self.model = model
        self.folder = arguments.scratch / 'models' / model.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.module, _ = exporting.make(model, model.published, self.folder, 'torchscript')
        self.folder /= '1'
        self.program = described.describe(arguments.server_binary, self.folder)
        self.schedule = sampler.steps_of(model.scheduler, model.steps)

    def inputs(self, samples):
        torch.manual_seed(2)
        x, noise, others = exporting.inputs_of(self.model, self.model.published, samples)
        return [array.numpy() for array in (x, noise)], [other.numpy() for other in others]

    def answer(self, x, noise, others):
        """In float64."""
        given = [torch.from_numpy(array) for array in (x, noise, *others)]
        given = [array.double() if array.is_floating_point() else array for array in given]
        states = sampler.states(self.module.double(), self.schedule, *given[:2], given[2:])
        self.module.float()
        return states[-1].flatten(1).numpy()


def error(got, wanted):
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def checked(calls, wanted):
    """Errors against float64, by engine; a wrong answer ends everything."""
    errors = {name: error(call.answer(), wanted) for name, call in calls.items()}
    wrong = {name: found for name, found in errors.items() if not found <= protocol.TOLERANCE}
    if wrong:
        sys.exit(f'measure_models.py: wrong answers: {wrong}')
    return errors


def measured_row(arguments, prepared, made, samples):
    library, loaded, session, reader, multiplier = made
    (x, noise), others = prepared.inputs(samples)
    calls = {
        'ours': engines.our_call(library, loaded, arguments.scratch / 'lib', x, noise, others),
        'PyTorch': engines.torch_call(prepared.module, prepared.schedule, x, noise, others),
        'ONNX Runtime': engines.ort_call(session, prepared.schedule, x, noise, others)}
    errors = checked(calls, prepared.answer(x, noise, others))
    numbers = prepared.program.step_numbers
    calls['reading'] = engines.reading_call(reader, numbers, prepared.model.steps)
    calls['multiplying'] = engines.multiplying_call(multiplier, numbers, prepared.model.steps,
                                                    samples)
    taken = protocol.measured(calls, arguments.seconds)
    return {'model': prepared.model.name, 'title': prepared.model.title, 'samples': samples,
            'steps': prepared.model.steps, 'step_bytes': 4 * numbers, 'errors': errors,
            'turns': len(taken['ours']),
            'min_us': {name: 1e6 * min(seconds) for name, seconds in taken.items()},
            'times': {name: protocol.ratios(taken, name, 'ours') for name in taken
                      if name != 'ours'}}


def result(arguments, tables, **others):
    return {'date': datetime.date.today().isoformat(),
            'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores, one used',
            'commit': measure_cpu.commit(), 'command': arguments.command, **others,
            'tables': tables}


def measure(arguments, models):
    library = ours.Library(arguments.library)
    reader, multiplier = (
        getattr(native.load_library(name, arguments.scratch / 'lib'), symbol)
        for name, symbol in (('weight_bytes', 'weight_bytes_read'),
                             ('multiply_adds', 'multiply_adds_run')))
    versions = (f'{library.version()}; PyTorch {torch.__version__}; '
                f'ONNX Runtime {engines.onnxruntime.__version__}')
    cache, rows = model_tables.second_level_cache(), []
    for prepared in models:
        made = (library, library.load(prepared.folder),
                engines.session_of(prepared.folder / 'denoiser.onnx'), reader, multiplier)
        for samples in arguments.samples:
            row = measured_row(arguments, prepared, made, samples)
            rows.append(row)
            print(f'{row["model"]}, {samples} samples:',
                  ', '.join(f'{name} {us:.0f} us' for name, us in row['min_us'].items()),
                  file=sys.stderr, flush=True)
            tables = [model_tables.times_table(rows, cache, versions)]
            result_file.write(arguments.out, result(arguments, tables, rows=rows))
        library.functions.deeppcr_model_destroy(made[1])
    cpu_tables.print_table(tables[0])


def count(arguments, models):
    table = model_tables.arithmetic_table(models)
    cpu_tables.print_table(table)
    result_file.write(arguments.out.with_name(f'{arguments.out.stem}-arithmetic.json'),
                      result(arguments, [table]))


def parsed():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', type=pathlib.Path, required=True, help='libdeeppcr.so')
    parser.add_argument('--server_binary', type=pathlib.Path, required=True)
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--scratch', type=pathlib.Path, required=True)
    parser.add_argument('--models', type=lambda text: text.split(','), default=list(zoo.MODELS))
    parser.add_argument('--samples', type=lambda text: [int(n) for n in text.split(',')],
                        default=list(SAMPLES))
    parser.add_argument('--seconds', type=float, default=3, help='of turns for each row')
    parser.add_argument('--core', type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument('--no_times', action='store_true', help='count the arithmetic alone')
    parser.add_argument('--command', default='tests/bench/run.sh --models')
    arguments = parser.parse_args()
    for name in ('library', 'server_binary', 'out', 'scratch'):
        setattr(arguments, name, getattr(arguments, name).resolve())
    return arguments


def main():
    arguments = parsed()
    os.sched_setaffinity(0, {arguments.core})
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    for name in ('c_loop', 'weight_bytes', 'multiply_adds'):
        problem = native.compile_library(name, arguments.scratch / 'lib')
        if problem:
            sys.exit(f'measure_models.py: {problem}')
    models = [Prepared(arguments, zoo.MODELS[name]) for name in arguments.models]
    count(arguments, models)
    if not arguments.no_times:
        measure(arguments, models)


if __name__ == '__main__':
    main()
