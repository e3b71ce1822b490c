#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What train_deep.sh found: checks, tables as a result file, and the loss curves as a picture."""

import argparse
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / 'tests/bench'), str(ROOT / 'deploy/demo'),
                str(ROOT / 'deploy/models/digits')]

import cpu_tables  # noqa: E402
import experiment  # noqa: E402
import measure_cpu  # noqa: E402
import plot  # noqa: E402
import result_file  # noqa: E402

COMPARED = 100
LEAST_ACCURACY, MOST_BYPASSED, MOST_APART = 0.95, 0.5, 1e-3
# Drawn in this order, the later ones thinner, so that curves that agree are all seen.
LINES = {'sequential': ((150, 190, 240), 7), 'parallel': ((30, 70, 170), 3),
         'PyTorch': ((210, 60, 30), 1)}
TITLES = {'sequential': 'sequential gradients', 'parallel': 'parallel gradients',
          'PyTorch': 'PyTorch, eager'}
NOTE = ('digits-resnet (L = 1024, D = 16, relu), batch 64, AdamW, from nothing: the same first '
        'parameters and batches for all. The input layer writes half of the state, the output layer '
        'reads the other half; "bypassed" takes z_0 straight to the trained output layer. Loss: mean '
        'of the last 20 steps. Times are of whole steps in runs one after another; the gradient '
        'benchmark (tests/bench) has ratios measured in turns.')


def device_of(runs, name, torch_python):
    if name == 'PyTorch':
        found = subprocess.run([torch_python, '-c', 'import torch; print(torch.__version__)'],
                               check=True, capture_output=True, text=True)
        return f'torch-{found.stdout.strip()}'
    return re.search(r' steps on (\S+) in ', (runs / f'{name}.txt').read_text())[1]


def row_of(name, device, run, steps):
    # The last batch of an epoch is smaller.
    seconds = [s for i, s in enumerate(run['seconds']) if (i + 1) % experiment.STEPS_PER_EPOCH]
    return [TITLES[name], device, steps, 1e3 * statistics.median(seconds), 1e3 * min(seconds),
            statistics.mean(list(run['losses'].values())[-20:]),
            f"{100 * run['held_out'][steps]:.1f}", f"{100 * run['bypassed']:.1f}"]


def smoothed(losses):
    """(step, mean of the batches up to it that make an epoch)."""
    every = [losses[step] for step in sorted(losses)]
    begin = experiment.STEPS_PER_EPOCH
    return [(step, statistics.mean(every[step - begin:step]))
            for step in range(begin, len(every) + 1)]


def apart(first, second):
    steps = min(COMPARED, len(first['losses']))
    return max(abs(first['losses'][s] - second['losses'][s]) for s in range(1, steps + 1))


def checks_of(found, killed, steps, same_bits):
    """[what, wanted, got, met]; accuracy is asked for after all steps only."""
    checks = [[f'losses of both ways, first {min(COMPARED, steps)} steps', f'<= {MOST_APART:g} apart',
               f"{apart(found['sequential'], found['parallel']):.1e}",
               apart(found['sequential'], found['parallel']) <= MOST_APART]]
    for name in found if steps == experiment.FULL_STEPS else []:
        held_out, bypassed = found[name]['held_out'][steps], found[name]['bypassed']
        checks.append([f'{TITLES[name]}: held-out digits', f'>= {100 * LEAST_ACCURACY:g} %',
                       f'{100 * held_out:.1f} %', held_out >= LEAST_ACCURACY])
        checks.append([f'{TITLES[name]}: without the layers', f'<= {100 * MOST_BYPASSED:g} %',
                       f'{100 * bypassed:.1f} %', bypassed <= MOST_BYPASSED])
    repeated = len(killed['seconds']) - len(killed['losses'])
    checks.append(['killed by SIGKILL and resumed: steps done again', '<= 1', repeated,
                   repeated <= 1])
    checks.append(['and the weights that it publishes', 'same bits', 'same' if same_bits else 'others',
                   same_bits])
    return {'name': 'train-deep-checks', 'note': '', 'columns': ['check', 'wanted', 'got', 'met'],
            'rows': checks}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--runs', type=pathlib.Path, required=True)
    parser.add_argument('--steps', type=int, required=True)
    parser.add_argument('--same_bits', choices=['true', 'false'], required=True)
    parser.add_argument('--torch_python', default='')
    parser.add_argument('--threads', type=int, required=True)
    parser.add_argument('--commit', required=True)
    parser.add_argument('--command', required=True)
    parser.add_argument('--results', type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    names = [n for n in LINES if n != 'PyTorch' or arguments.torch_python]
    found = {n: experiment.read_log(arguments.runs / f'{n}.jsonl') for n in names}
    killed = experiment.read_log(arguments.runs / 'killed.jsonl')
    devices = {n: device_of(arguments.runs, n, arguments.torch_python) for n in names}
    table = {'name': 'train-deep', 'note': NOTE,
             'columns': ['gradients by', 'device', 'steps', 'median ms per step', 'min ms per step',
                         'loss', 'held out %', 'bypassed %'],
             'rows': [row_of(n, devices[n], found[n], arguments.steps) for n in names]}
    checks = checks_of(found, killed, arguments.steps, arguments.same_bits == 'true')
    result = {'date': datetime.date.today().isoformat(),
              'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores, {arguments.threads} '
                         f"used ({'; '.join(dict.fromkeys(devices.values()))})",
              'commit': arguments.commit, 'command': arguments.command,
              'tables': [table, checks],
              'most_iterations': found['parallel']['iterations'],
              'fallbacks': found['parallel']['fallbacks'],
              'loss_every_20_steps': {n: list(run['losses'].values())[::20]
                                      for n, run in found.items()}}
    cpu_tables.print_table(table)
    cpu_tables.print_table(checks)
    result_file.write(arguments.results, result)
    picture = plot.semi_log({n: (*LINES[n], smoothed(run['losses'])) for n, run in found.items()},
                            'step', 'loss, mean over the batches of an epoch')
    picture.save(arguments.results.with_suffix('.png'))
    print(f"\nwrote {arguments.results} and {arguments.results.with_suffix('.png').name}")
    return 0 if all(row[-1] for row in checks['rows']) else 1


if __name__ == '__main__':
    sys.exit(main())
