#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts dependent stages over the depth of a network; called by run.sh --stages.

Writes the table of the README as stages.json and its picture as stages.png, side by side.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy/demo'))
sys.path.insert(0, str(ROOT / 'deploy/models/digits'))

import cpu_tables  # noqa: E402
import measure_cpu  # noqa: E402
import plot  # noqa: E402
import result_file  # noqa: E402

GREY, BLUE, RED = (120, 120, 120), (30, 90, 200), (200, 60, 30)
COLOURS = {'relu': BLUE, 'tanh': RED}
NOTE = ('Dependent stages of one request, counted as the loops run: no clock, and the same on every '
        'machine of one instruction set. Sequential needs L. Residual networks z + f(W z + b) / '
        'sqrt(L) with random weights of standard deviation gain / sqrt(D), D = 16; of four inputs the one with the most '
        'stages. Newton from a constant guess, rtol 1e-4; best C: the power of two with the fewest '
        'stages. Iterations: with new Jacobians + chord corrections. Every answer was compared with '
        'that of sequential.')


def stages_of(count):
    return count['dependent_stages'] if count['converged'] else 'did not converge'


def iterations_of(count):
    return f"{count['iterations']} + {count['chord_corrections']}"


def table_of(rows):
    lines = []
    for row in rows:
        published, best = row['published'], row['best']
        fewer = row['num_layers'] / best['dependent_stages'] if best['converged'] else ''
        lines.append([row['family'], row['num_layers'], stages_of(published),
                      iterations_of(published), best['shooting_interval'], stages_of(best),
                      iterations_of(best), fewer])
    return {'name': 'cpu-stages', 'note': NOTE,
            'columns': ['f', 'L = stages, sequential', 'stages, C = 1', 'iterations', 'best C',
                        'stages, best C', 'iterations', 'fewer by'],
            'rows': lines}


def picture_of(rows):
    depths = sorted({row['num_layers'] for row in rows})
    series = {'sequential': (GREY, False, [(depth, depth) for depth in depths])}
    for name, colour in COLOURS.items():
        chosen = [row for row in rows if row['family'].startswith(name)]
        for label, key, dashed in (('C = 1', 'published', True), ('best C', 'best', False)):
            series[f'{name}, {label}'] = (colour, dashed,
                                          [(row['num_layers'], row[key]['dependent_stages'])
                                           for row in chosen if row[key]['converged']])
    return plot.log_log(series, 'L', 'dependent stages')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'tests/bench/results/cpu')
    parser.add_argument('--command', default='tests/bench/run.sh --stages',
                        help='as the reader ran it')
    arguments = parser.parse_args()
    counted = subprocess.run([str(arguments.build.resolve() / 'tests/bench/stages_bench')],
                             check=True, stdout=subprocess.PIPE, text=True)
    rows = json.loads(counted.stdout)
    table = table_of(rows)
    result = {'date': datetime.date.today().isoformat(),
              'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores',
              'commit': measure_cpu.commit(), 'command': arguments.command, 'tables': [table],
              'stages': rows}
    cpu_tables.print_table(table)
    result_file.write(arguments.out / 'stages.json', result)
    picture_of(rows).save(arguments.out / 'stages.png')
    print(f'\nwrote {os.path.relpath(arguments.out, ROOT)}/stages.json and stages.png')


if __name__ == '__main__':
    main()
