#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves public models, written anew, trained for seconds and exported, and judges the answers.

usage: models_test.py --server_binary PATH --client_binary PATH [--sizes small|published]
                      [--exporters torchscript dynamo] [--models NAME...] [--rows N]

Each module of zoo.py is trained, written by torch.onnx.export as it is, put into a folder with two
small JSON files, and served. On the same noise:
  the answer of every solver is as near to the module and a plain sampler in float64 as
  max(1e-5, 2 x what their own float32 loop is), by max|a - b| / max|b|;
  newton and picard are within rtol of sequential, and converge by themselves;
  certificates keep what tests/kernels/conformance/certificate_test.cc asks of them.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

# One thread, or the libraries' threads wait for each other beside other tests.
for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ.setdefault(_variable, '1')

import numpy as np  # noqa: E402
import torch  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'bench/models'))

import described  # noqa: E402
import exporting  # noqa: E402
import sampler  # noqa: E402
import serving  # noqa: E402
import zoo  # noqa: E402

LEAST_TOLERANCE = 1e-5
RTOL, ATOL = 1e-4, 1e-6
ITERATIVE = ('newton', 'picard')
# The contract of certificates, as in tests/kernels/conformance/certificate_test.cc: the error against
# exact arithmetic is at most so many times rtol, and an estimate is so near to it.
EXACT_PER_RTOL, ERROR_PER_ESTIMATE = 1.5, 10


def error(got, wanted):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return np.abs(got - wanted).max() / np.abs(wanted).max()


class Truth:
    """What a module and a plain sampler say on some noise: in float64, and in their own float32."""

    def __init__(self, model, sizes, module, rows):
        torch.manual_seed(2)
        self.x, self.noise, self.others = exporting.inputs_of(model, sizes, rows)
        schedule = sampler.steps_of(model.scheduler, model.steps)
        own = sampler.states(module, schedule, self.x, self.noise, self.others)
        exact = sampler.states(module.double(), schedule, self.x.double(), self.noise.double(),
                               [o.double() if o.is_floating_point() else o for o in self.others])
        module.float()
        self.samples = exact[-1].numpy()
        self.states = torch.stack([state.flatten(1) for state in exact], 1).numpy()
        self.own_error = error(own[-1].numpy(), self.samples)

    def asked(self, server, name, solver):
        return server.generate(name, solver, self.x.numpy(), self.noise.numpy(),
                               [other.numpy() for other in self.others], RTOL)


def errors_of_ends(states, wanted, interval):
    """Of each sample: the largest relative error at the ends of shooting intervals."""
    last = states.shape[1] - 1
    ends = sorted({min(end, last) for end in range(interval, last + interval, interval)})
    difference = np.abs(states[:, ends].astype(np.float64) - wanted[:, ends]).max(2)
    return (difference / (np.abs(wanted[:, ends]).max(2) + ATOL / RTOL)).max(1)


class Judge:
    """Collects what is wrong with the answers for a model."""

    def __init__(self, name):
        self.name, self.wrong = name, []
        self.worst_claim = 0  # largest error against float64, in units of what was claimed

    def expect(self, right, what):
        if not right:
            self.wrong.append(f'{self.name}: {what}')

    def certificates(self, solver, answer, truth, sequential):
        interval = answer.report['shooting_interval']
        to_truth = errors_of_ends(answer.states, truth.states, interval)
        to_sequential = errors_of_ends(answer.states, sequential.states, interval)
        for i, sample in enumerate(answer.report['samples']):
            of = f'{solver}, sample {i}'
            self.expect(sample['converged'] and not sample['fallback'],
                        f'{of}: ended as {sample["termination"]}, answered by {sample["solver"]}')
            self.expect(to_sequential[i] <= RTOL,
                        f'{of}: {to_sequential[i]:.1e} from sequential')
            claimed = sample.get('error_estimate') or 0
            self.expect(to_truth[i] <= min(EXACT_PER_RTOL * RTOL, ERROR_PER_ESTIMATE * claimed),
                        f'{of}: {to_truth[i]:.1e} from float64, {claimed:.1e} claimed')
            self.worst_claim = max(self.worst_claim, to_truth[i] / claimed if claimed else 0)

    def answers(self, server, truth):
        """Errors against float64 by solver."""
        found = {'own': truth.own_error}
        allowed = max(LEAST_TOLERANCE, 2 * truth.own_error)
        sequential = truth.asked(server, self.name, 'sequential')
        for solver in ('sequential', *ITERATIVE):
            answer = sequential
            if solver in ITERATIVE:
                answer = truth.asked(server, self.name, solver)
                self.certificates(solver, answer, truth, sequential)
            found[solver] = error(answer.samples, truth.samples)
            self.expect(found[solver] <= allowed,
                        f'{solver}: {found[solver]:.1e} from float64, {allowed:.1e} allowed')
        return found


def check(binary, folder):
    """What --check says is wrong with a folder, or nothing."""
    done = subprocess.run([binary, '--check', folder], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return '' if done.returncode == 0 else done.stdout.decode()


def arithmetic(binary, name, folder):
    """What is wrong with what a program leaves in the step: an embedding of the time is not in it, and
    most of it are layers that multiply with the state."""
    program = described.describe(binary, folder)
    layers = program.step_numbers / program.optimised[-1]
    right = (program.optimised[0] > 0 and 0 < program.left <= program.written_share
             and 0.5 < layers <= 1)
    return [] if right else [f'{name}: {program}']


def judged(flags, exporter, folder):
    """Everything that is wrong with the models of one exporter."""
    wrong, truths = [], {}
    repository = folder / 'models'
    for name in flags.models:
        model = zoo.MODELS[name]
        sizes = getattr(model, flags.sizes)
        module, (first, last) = exporting.make(model, sizes, repository / name, exporter)
        refusal = check(flags.server_binary, repository / name / '1')
        wrong += [f'{name}: {refusal}'] if refusal else arithmetic(
            flags.server_binary, name, repository / name / '1')
        wrong += [] if last < first else [f'{name}: training did nothing, {first} to {last}']
        truths[name] = Truth(model, sizes, module, flags.rows)
    with serving.Server(flags.server_binary, flags.client_binary, repository, folder,
                        ['--allow_failed=true']) as server:
        for name, truth in truths.items():
            judge = Judge(name)
            try:
                found = judge.answers(server, truth)
                print(f'{exporter:11} {name:16}',
                      *(f'{who} {value:.1e}' for who, value in found.items()),
                      f'error/claim {judge.worst_claim:.2g}', flush=True)
            except RuntimeError as failed:
                judge.expect(False, str(failed))
            wrong += judge.wrong
    return [f'{exporter}: {what}' for what in wrong]


def verdict(flags, judge):
    """Judges the exports of each exporter in a folder of their own; what to exit with."""
    torch.set_num_threads(1)
    wrong = []
    for exporter in flags.exporters:
        with tempfile.TemporaryDirectory() as folder:
            wrong += judge(flags, exporter, pathlib.Path(folder))
    print('\n'.join(wrong))
    return 1 if wrong else 0


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--server_binary', required=True)
    parser.add_argument('--client_binary', required=True)
    parser.add_argument('--sizes', choices=['small', 'published'], default='small')
    parser.add_argument('--exporters', nargs='+', default=['torchscript'])
    parser.add_argument('--models', nargs='+', default=list(zoo.MODELS))
    parser.add_argument('--rows', type=int, default=3)
    flags = parser.parse_args(arguments)
    print(f'PyTorch {torch.__version__}, {flags.sizes} sizes; max|a - b| / max|b| against float64',
          flush=True)
    return verdict(flags, judged)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
