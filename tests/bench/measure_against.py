#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures this tree against an older commit; called by run.sh --against COMMIT.

One process of each solves the same requests, in turns, and a ratio is formed within a turn. The older
commit is built in build/against/COMMIT, with the program of this tree (old_commit.cmake).
"""

import argparse
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
    model, threads, samples, repetitions, turns = case
    path = folder / model / '1' if model == ladder_models.WIDE_MODEL else DIGITS / model / '1'
    with Program(binaries[0], path, threads, cores) as old, Program(binaries[1], path, threads, cores) as new:
        found = []
        for turn in range(turns):
            first, second = (old, new) if turn % 2 == 0 else (new, old)
            answers = {first: first.solve(samples, repetitions), second: second.solve(samples, repetitions)}
            found.append((answers[old], answers[new]))
    least = [min(pair[k][0] for pair in found) for k in range(2)]
    ratios = [pair[0][1] / pair[1][1] for pair in found]
    return [new.device, model, threads, samples, 1e3 * least[0], 1e3 * least[1], least[0] / least[1],
            statistics.median(ratios), found[0][0][2] == found[0][1][2]]


def build_old(commit, folder):
    """Builds the program with the engine of another commit; returns its path."""
    tree = folder / 'tree'
    if not tree.exists():
        subprocess.run(['git', 'clone', '-q', '--no-checkout', ROOT, tree], check=True)
    subprocess.run(['git', '-C', tree, 'checkout', '-q', commit], check=True)
    subprocess.run(['cmake', '--preset', 'bench', '-B', folder / 'build',
                    f'-DCMAKE_PROJECT_INCLUDE={ROOT}/tests/bench/old_commit.cmake'],
                   cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['cmake', '--build', folder / 'build', '--target', 'engine_turns'], check=True)
    return next((folder / 'build').rglob('engine_turns'))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--against', required=True, help='the older commit')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--command', default='tests/bench/run.sh --against COMMIT')
    arguments = parser.parse_args()
    os.chdir(ROOT)
    with open('/proc/cpuinfo', encoding='ascii') as cpuinfo:
        sets = ('avx512', 'avx2') if 'avx512f' in cpuinfo.read() else ('avx2',)
    commit = measure_cpu.commit()
    old = subprocess.run(['git', 'rev-parse', '--short=12', arguments.against], check=True,
                         stdout=subprocess.PIPE, text=True).stdout.strip()
    binaries = (build_old(old, ROOT / 'build/against' / old),
                arguments.build.resolve() / 'tests/bench/engine_turns')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ladder_models.write_wide_model(folder)
        rows = []
        for isa in sets:
            os.environ['DEEPPCR_CPU_ISA'] = isa
            for case in CASES:
                rows.append(measure(binaries, folder, case, sorted(os.sched_getaffinity(0))))
                print(*rows[-1], file=sys.stderr, flush=True)
    table = {'name': 'cpu-against',
             'note': f'Sequential solves by {old} and by this commit, in turns, in process. Medians: of the '
                     'ratios within turns. Diffusion models are step programs since 2026-11-25, whose sums '
                     'have an order of their own.',
             'columns': ['device', 'model', 'threads', 'samples', 'old, least ms', 'new, least ms',
                         'old / new, minima', 'old / new, medians', 'same bits'], 'rows': rows}
    cpu_tables.print_table(table)
    measure_cpu.write_json(arguments.out.resolve(), {
        'date': datetime.date.today().isoformat(),
        'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores',
        'commit': commit, 'command': arguments.command, 'tables': [table]})


if __name__ == '__main__':
    main()
