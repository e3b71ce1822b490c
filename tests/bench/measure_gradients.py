#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures gradients and training steps on one core; called by run.sh --gradients.

gradient_bench (once per instruction set) and torch_gradients.py run as processes of their own on one
core, in turns, as in measure_cpu.py: a ratio is formed within a round, and within a process where
both sides are ours.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy/models/digits'))

import cpu_tables  # noqa: E402
import measure_cpu  # noqa: E402
import result_file  # noqa: E402

NETWORK, PROCESS, TRAINING = 'digits-resnet', 'digits-ddpm', 'digits-resnet, training'
NOTE = ('One core, one sample; training steps of 64. Network: digits-resnet (L = 1024, D = 16); '
        'process: digits-ddpm (1000 steps of DDPM). Back to the inputs or the initial noise from one '
        'cotangent of the outputs; "parameters too" forms the gradients of all weights and biases; '
        'the Jacobian is all 16 x 16 derivatives of the last state by the first. PyTorch goes back '
        'through a graph that is kept; "forward and backward" makes it anew. Whole calls with host '
        'buffers, and every gradient was compared with that of the reference backend in double, and '
        "PyTorch's with ours, before it was timed. \"Times forward\" is against the sequential "
        'forward of the same device and model. Ratios are medians of those of the rounds.')


def collect(followers):
    rows = []
    for follower in followers:
        cpu_tables.collect(follower, rows)
    return rows


def find(rows, device, model, name):
    return next((r for r in rows if r['device'] == device and r['model'] == model
                 and r['name'] == name), None)


def ratios(above, below):
    """(median of the rounds' ratios, [least, largest], ratio of the minima)."""
    of_rounds = cpu_tables.ratios_of(above, below)
    return (statistics.median(of_rounds), [min(of_rounds), max(of_rounds)],
            above['min_seconds'] / below['min_seconds'])


def figures_table(rows):
    lines = []
    for row in rows:
        forward = find(rows, row['device'], row['model'], 'forward')
        times = ratios(row, forward)[0] if forward else ''
        lines.append([row['model'], row['device'], row['name'], 1e6 * row['median_seconds'],
                      1e6 * row['min_seconds'], times])
    order = [NETWORK, PROCESS, TRAINING]
    return {'name': 'cpu-gradients', 'note': NOTE,
            'columns': ['model', 'device', 'what', 'median us', 'min us', 'times forward'],
            'rows': sorted(lines, key=lambda line: order.index(line[0]))}  # a stable sort


def target(title, wanted, pair, at_least, why):
    """A row; both the median ratio and that of the minima have to reach the target."""
    if None in pair:
        return [title, f"{'>=' if at_least else '<='} {wanted}x", 'no PyTorch', 'not measured', '']
    median, spread, quiet = ratios(*pair)
    met = min(median, quiet) >= wanted if at_least else max(median, quiet) <= wanted
    got = f'{median:.3g}x ({cpu_tables.spread(spread)}; of the minima {quiet:.3g}x)'
    return [title, f"{'>=' if at_least else '<='} {wanted}x", got, met, '' if met else why]


def fastest(rows, model, names):
    """PyTorch's, whichever BLAS was the faster one."""
    found = [r for r in rows if r['device'].startswith('torch') and r['model'] == model
             and r['name'] in names]
    return min(found, key=lambda r: r['median_seconds']) if found else None


def targets_of(rows, device, phases):
    def ours(model, name):
        return find(rows, device, model, name)
    backward, step = ours(NETWORK, 'backward'), ours(TRAINING, 'training step')
    lines = [
        target(f'{device}: ResNet-1024 backward, PyTorch eager / ours', 200,
               (fastest(rows, NETWORK, ['backward']), backward), True, BOUNDS['backward']),
        target(f'{device}: the same, PyTorch functional / ours', 200,
               (fastest(rows, NETWORK, ['backward, functional']), backward), True,
               BOUNDS['backward']),
        target(f'{device}: ResNet-1024 backward / forward', 4,
               (backward, ours(NETWORK, 'forward')), False, BOUNDS['backward']),
        target(f'{device}: DDPM-1000 forward and vector-Jacobian product / forward', 3,
               (ours(PROCESS, 'forward and backward'), ours(PROCESS, 'forward')), False,
               BOUNDS['process']),
        target(f'{device}: 16 x 16 Jacobian of ResNet-1024 / forward',
               12 if device == 'cpu-avx2' else 8,
               (ours(NETWORK, 'Jacobian'), ours(NETWORK, 'forward')), False, BOUNDS['jacobian'])]
    for name in ('list of nn.Linear', 'stacked weights'):
        lines.append(target(f'{device}: training step, PyTorch eager ({name}) / ours', 20,
                            (fastest(rows, TRAINING, [f'training step, {name}']), step), True,
                            shares_of(phases)))
    return lines


# What a target that is missed hangs on.
BOUNDS = {
    'backward': 'a chain of 1024 dependent products, as forward',
    'process': 'the values of every step are computed again, as only the states are kept',
    'jacobian': '16 columns are 16 times the multiply-adds of forward, in a chain as long',
}
PHASES = {'pack': 'packing weights', 'forward': 'forward', 'loss': 'loss',
          'backward': 'backward and gradients', 'update': 'norm and AdamW'}


def shares_of(phases):
    """The median shares of a training step, as a text."""
    medians = {name: statistics.median(taken) for name, taken in phases.items()}
    return ', '.join(f'{PHASES[name]} {100 * value / sum(medians.values()):.0f} %'
                     for name, value in medians.items() if name != 'loss')


def tables_of(rows, devices, phases):
    columns = ['target', 'wanted', 'got', 'met', 'what bounds it']
    return [{'name': 'cpu-gradient-targets', 'note': '', 'columns': columns,
             'rows': [line for device in devices for line in targets_of(rows, device, phases[device])]},
            figures_table(rows)]


def followers_of(arguments, folder):
    common = ['--core', str(arguments.core), '--outputs_dir', folder]
    bench = [str(arguments.build / 'tests/bench/gradient_bench'), '--seconds',
             str(arguments.seconds), *common]
    followers = [measure_cpu.Follower('gradient_bench', bench)]
    if followers[0].description['device'] == 'cpu-avx512':
        followers.append(measure_cpu.Follower('gradient_bench (AVX2)', bench,
                                              {'DEEPPCR_CPU_ISA': 'avx2'}))
    for blas in [] if arguments.no_torch else arguments.blas:
        followers.append(measure_cpu.Follower(f'torch_gradients.py ({blas})', [
            sys.executable, str(ROOT / 'tests/bench/torch_gradients.py'), '--seconds',
            str(10 * arguments.seconds), *common],
            {'LD_LIBRARY_PATH': str(blas)} if blas else None))
    return followers


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--seconds', type=float, default=0.05)
    parser.add_argument('--core', type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument('--blas', type=pathlib.Path, action='append')
    parser.add_argument('--no_torch', action='store_true')
    parser.add_argument('--command', default='tests/bench/run.sh --gradients')
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.blas = arguments.blas or [f for f in measure_cpu.BLAS_FOLDERS if f.exists()] or [None]
    os.chdir(ROOT)
    commit = measure_cpu.commit()
    with tempfile.TemporaryDirectory() as folder:
        followers = followers_of(arguments, folder)
        for number in range(arguments.rounds):
            print(f'round {number + 1} of {arguments.rounds}', file=sys.stderr, flush=True)
            turn = number % len(followers)
            for follower in followers[turn:] + followers[:turn]:
                follower.run_round()
        for follower in followers:
            follower.close()
        devices = [f.description['device'] for f in followers
                   if f.description['device'].startswith('cpu')]
        phases = {device: json.loads((pathlib.Path(folder) / f'training-phases-{device}.json')
                                     .read_text(encoding='utf-8')) for device in devices}
    rows = collect(followers)
    tables = tables_of(rows, devices, phases)
    result = {'date': datetime.date.today().isoformat(),
              'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores'
                         + measure_cpu.used_by_ladder(followers).replace('the ladder', 'this'),
              'commit': commit, 'command': arguments.command,
              'rounds': arguments.rounds, 'tables': tables, 'rungs': rows}
    for table in tables:
        cpu_tables.print_table(table)
    print()
    measure_cpu.write_json(arguments.out.resolve(), measure_cpu.without_rounds(result))


if __name__ == '__main__':
    main()
