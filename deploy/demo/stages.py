#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says in words what a Compare reply means for a CPU and for a GPU.

usage: stages.py MODEL COMPARE.json

Every figure is taken from the reply: `deeppcr compare --json`.
"""

import json
import sys


def name_of(row):
    interval = row['shooting_interval']
    return f'{row["requested_solver"]} (C = {interval})' if interval else row['requested_solver']


def main(arguments):
    model, path = arguments
    with open(path, encoding='utf-8') as file:
        reply = json.load(file)
    rows = [row for row in reply['rows'] if not row.get('error')]
    fastest = min(rows, key=lambda row: row['median_seconds'])
    sequential = next(row for row in rows if row['requested_solver'] == 'sequential')
    candidates = [row for row in rows if row['solver'] != 'sequential' and row['converged']]

    print(f'{model} on {reply["device"]}: {name_of(fastest)} was the fastest, at '
          f'{fastest["median_seconds"] * 1e3:.3g} ms.')
    if fastest['solver'] == 'sequential' and reply['device'].startswith('cpu'):
        print('On a CPU `sequential` nearly always wins: the parallel solvers do more arithmetic, '
              'and a few cores have none to spare.')
    if not candidates:
        print('No parallel solver converged here: sequential is the right answer for this model.')
        return 0
    least = min(candidates, key=lambda row: row['dependent_stages'])
    ratio = sequential['dependent_stages'] / least['dependent_stages']
    stages = (f'Dependent stages, which is what a GPU waits for: {sequential["dependent_stages"]} '
              f'by sequential, {least["dependent_stages"]} by {name_of(least)}')
    if ratio > 1:
        print(f'{stages}: {ratio:.1f} times fewer.')
    else:
        print(f'{stages}, no fewer: sequential is the right answer for this model.')
    return 0


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
