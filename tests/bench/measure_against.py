#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures this tree against older commits; called by run.sh --against COMMIT,...

One process of each solves the same requests, in turns, and a ratio to the first commit is formed within a
turn. Older commits are built in build/against/COMMIT, with the program of this tree (old_commit.cmake).
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'deploy/models/digits'))

import cpu_tables  # noqa: E402
import ladder_models  # noqa: E402
import measure_cpu  # noqa: E402

DIGITS = ROOT / 'deploy/models/repository'
# Models with threads, samples, repetitions of a turn, and turns.
CASES = (('digits-resnet', 1, 8, 300, 7), ('digits-resnet', 1, 64, 60, 7), ('digits-ddpm', 1, 64, 3, 7),
         (ladder_models.WIDE_MODEL, 1, 64, 1, 3), (ladder_models.WIDE_MODEL, 1, 1, 12, 5),
         (ladder_models.WIDE_MODEL, 2, 1, 12, 5))


class Program:
    """engine_turns of one commit with one model."""

    def __init__(self, binary, model, threads, cores):
        self.process = subprocess.Popen(
            ['taskset', '-c', ','.join(map(str, cores[-threads:])), binary, model, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.device = self.process.stdout.readline().split()[1]

    def solve(self, samples, repetitions):
        """Least and median seconds, and the hash of the outputs."""
        self.process.stdin.write(f'sequential {samples} {repetitions}\n')
        self.process.stdin.flush()
        least, median, digest = self.process.stdout.readline().split()
        return float(least), float(median), digest

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def measure(binaries, folder, case, cores):
    """A row for every commit, of whom `binaries` has the program by name."""
    model, threads, samples, repetitions, turns = case
    path = folder / model / '1' if model == ladder_models.WIDE_MODEL else DIGITS / model / '1'
    with contextlib.ExitStack() as stack:
        programs = {commit: stack.enter_context(Program(binary, path, threads, cores))
                    for commit, binary in binaries.items()}
        found = {commit: [] for commit in programs}
        for turn in range(turns):
            for commit in list(programs)[::1 if turn % 2 == 0 else -1]:
                found[commit].append(programs[commit].solve(samples, repetitions))
        device = programs[next(reversed(programs))].device
    for commit, answers in found.items():
        if len({answer[2] for answer in answers}) > 1:
            sys.exit(f'{commit} has answered {model} in two ways')
    first = found[next(iter(found))]
    least = {commit: min(answer[0] for answer in answers) for commit, answers in found.items()}
    return [[device, model, threads, samples, commit, 1e3 * least[commit],
             min(answer[0] for answer in first) / least[commit],
             statistics.median(old[1] / new[1] for old, new in zip(first, answers)), answers[0][2]]
            for commit, answers in found.items()]


def build_old(commit, folder):
    """Builds the program with the engine of another commit; returns its path."""
    tree = folder / 'tree'
    if not tree.exists():
        subprocess.run(['git', 'clone', '-q', '--no-checkout', ROOT, tree], check=True)
    subprocess.run(['git', '-C', tree, 'checkout', '-q', commit], check=True)
    subprocess.run(['cmake', '--preset', 'bench', '-B', folder / 'build',
                    '-DDEEPPCR_ENABLE_CUDA=OFF',  # the CPU is what is measured
                    f'-DCMAKE_PROJECT_INCLUDE={ROOT}/tests/bench/old_commit.cmake'],
                   cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['cmake', '--build', folder / 'build', '--target', 'engine_turns'], check=True)
    return next((folder / 'build').rglob('engine_turns'))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--against', required=True,
                        help='the older commits; the others are compared with the first')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--command', default='tests/bench/run.sh --against COMMIT,...')
    arguments = parser.parse_args()
    os.chdir(ROOT)
    with open('/proc/cpuinfo', encoding='ascii') as cpuinfo:
        sets = ('avx512', 'avx2') if 'avx512f' in cpuinfo.read() else ('avx2',)
    commit = measure_cpu.commit()
    binaries = {}
    for older in arguments.against.split(','):
        name = subprocess.run(['git', 'rev-parse', '--short=12', older], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()
        if name in (*binaries, commit):
            sys.exit(f'{name} is there twice')
        binaries[name] = build_old(name, ROOT / 'build/against' / name)
    binaries[commit] = arguments.build.resolve() / 'tests/bench/engine_turns'
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ladder_models.write_wide_model(folder)
        rows = []
        for isa in sets:
            os.environ['DEEPPCR_CPU_ISA'] = isa
            for case in CASES:
                for row in measure(binaries, folder, case, sorted(os.sched_getaffinity(0))):
                    rows.append(row)
                    print(*row, file=sys.stderr, flush=True)
    table = {'name': 'cpu-against',
             'note': 'Sequential solves by commits that take turns, in process. Medians: of the ratios to '
                     'the first commit within turns. Equal hashes: the outputs have the same bits. Diffusion '
                     'models are step programs since 2026-11-25, whose sums have an order of their own.',
             'columns': ['device', 'model', 'threads', 'samples', 'commit', 'least ms', 'first / it, minima',
                         'first / it, medians', 'hash of outputs'], 'rows': rows}
    cpu_tables.print_table(table)
    measure_cpu.write_json(arguments.out.resolve(), {
        'date': datetime.date.today().isoformat(),
        'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores',
        'commit': commit, 'command': arguments.command, 'tables': [table]})


if __name__ == '__main__':
    main()
