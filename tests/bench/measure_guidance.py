#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what classifier-free guidance costs; called by run.sh --guidance.

A server on one core answers the same request with guidance and without, in turns: MAR's heads at
their published widths and a small one, written by the Python of deploy/models/recipes/mar_head.md
with drawn weights. A ratio is formed within a turn, of the seconds that the server says a solve took.
"""

import argparse
import datetime
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('tests/models', 'deploy/models/digits')]

for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ[_variable] = '1'

import numpy as np  # noqa: E402
import torch  # noqa: E402

import cpu_tables  # noqa: E402
import measure_cpu  # noqa: E402
import recipes  # noqa: E402
import recipes_test  # noqa: E402
import serving  # noqa: E402

# Widths, blocks and conditions of the recipe's page, of mar_base's, mar_large's and mar_huge's loss.
HEADS = {'mar-page': (1024, 3, 1024), 'mar-base': (1024, 6, 768), 'mar-large': (1280, 8, 1024),
         'mar-huge': (1536, 12, 1280), 'small': (64, 3, 64)}
DIM, SCALE, WANTED = 16, 2.9, 1.6
SAMPLES = {'mar-large': (1,), 'mar-huge': (1,)}  # of others one and eight
NOTE = ('One core, sequential solver, 100 steps. "Guided" evaluates the network with the condition and '
        'without it in every step; both evaluations read every layer\'s weights once. Ratios are medians '
        'of those of the turns, with the least and the largest. The target is for MAR\'s heads at B = 1.')


def write_heads(folder):
    recipes_test.offer_safetensors()
    page = next(recipe for recipe in recipes.RECIPES if recipe.page == 'mar_head')
    for name, (width, blocks, condition) in HEADS.items():
        torch.manual_seed(7)
        network = recipes.MarHead(DIM, condition, width, blocks)
        sizes = {'dim': DIM, 'condition': condition, 'width': width, 'blocks': blocks}
        page.sizes.clear()
        page.sizes.update(sizes)
        recipes_test.write(page, network, folder / name / '1')


def conditions(server, name, samples, guided):
    """The flags of a request."""
    rows = np.random.default_rng(5).standard_normal((2, samples, HEADS[name][2]))
    flags = ['--num', str(samples), '--seed', '3', '--json', server.folder / 'out.json',
             '--conditioning', server.saved('c', rows[0])]
    if not guided:
        return flags
    return [*flags, '--null_conditioning', server.saved('null', rows[1]),
            '--guidance_scale', str(SCALE)]


def seconds_of(server, name, samples, guided):
    answer = server.ask('generate', name, 'sequential', 1e-4,
                        conditions(server, name, samples, guided))
    return answer.report['solve_seconds']


def measure(server, name, samples, rounds):
    for guided in (True, False):
        seconds_of(server, name, samples, guided)  # makes the guided system, and fills the caches
    pairs = [(seconds_of(server, name, samples, False), seconds_of(server, name, samples, True))
             for _ in range(rounds)]
    ratios = [guided / plain for plain, guided in pairs]
    return {'model': name, 'samples': samples,
            'plain_seconds': statistics.median(plain for plain, _ in pairs),
            'guided_seconds': statistics.median(guided for _, guided in pairs),
            'ratio': statistics.median(ratios), 'spread': [min(ratios), max(ratios)]}


def rows_of(arguments, isa, folder):
    """Every model by a server that may use instructions of `isa` at most."""
    os.environ['DEEPPCR_CPU_ISA'] = isa
    found = []
    with serving.Server(str(arguments.build / 'server/deeppcr-server'),
                        str(arguments.build / 'client/deeppcr'), folder / 'models', folder,
                        ['--threads=1']) as server:
        for name in HEADS:
            for samples in SAMPLES.get(name, (1, 8)):
                print(f'{isa}: {name}, {samples}', file=sys.stderr, flush=True)
                row = {'device': f'cpu-{isa}', **measure(server, name, samples, arguments.rounds)}
                found.append(row)
    return found


def table_of(rows):
    lines = []
    for row in rows:
        judged = row['samples'] == 1 and row['model'].startswith('mar')
        lines.append([row['device'], row['model'], row['samples'], 1e3 * row['plain_seconds'],
                      1e3 * row['guided_seconds'],
                      f"{row['ratio']:.3g}x ({cpu_tables.spread(row['spread'])})",
                      row['ratio'] <= WANTED if judged else ''])
    return {'name': 'cpu-guidance', 'note': NOTE,
            'columns': ['device', 'model', 'samples', 'plain ms', 'guided ms', 'guided / plain',
                        f'<= {WANTED}x'], 'rows': lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--core', type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument('--command', default='tests/bench/run.sh --guidance')
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    os.chdir(ROOT)
    commit = measure_cpu.commit()
    os.sched_setaffinity(0, {arguments.core})  # of the programs that are started too
    with open('/proc/cpuinfo', encoding='ascii') as cpuinfo:
        sets = ('avx512', 'avx2') if 'avx512f' in cpuinfo.read() else ('avx2',)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_heads(folder / 'models')
        rows = [row for isa in sets for row in rows_of(arguments, isa, folder)]
    table = table_of(rows)
    cpu_tables.print_table(table)
    measure_cpu.write_json(arguments.out.resolve(), {
        'date': datetime.date.today().isoformat(),
        'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores',
        'commit': commit, 'command': arguments.command, 'rounds': arguments.rounds,
        'tables': [table], 'measurements': rows})


if __name__ == '__main__':
    main()
