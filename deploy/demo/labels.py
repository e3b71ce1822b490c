#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges what several solvers answered for the held-out digits, and draws some of them.

usage: labels.py --inputs X.npy --labels Y.npy --picture OUT.png --must_agree newton,auto
                 SOLVER=OUTPUTS.npy...

The first SOLVER is the baseline. Prints one line per solver: accuracy against the true labels, and
how many labels differ from the baseline's. Exits 1 if a solver of --must_agree differs anywhere.
"""

import argparse
import sys

import numpy as np

import picture

PICTURED = 40
COLUMNS = 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--inputs', required=True)
    parser.add_argument('--labels', required=True)
    parser.add_argument('--picture', required=True)
    parser.add_argument('--must_agree', default='', help='solvers, separated by commas')
    parser.add_argument('outputs', nargs='+', metavar='SOLVER=OUTPUTS.npy')
    return parser.parse_args()


def read_labels(arguments, count):
    """Predicted labels by solver, in the order given."""
    labels = {}
    for argument in arguments:
        solver, _, path = argument.partition('=')
        scores = np.load(path)
        if scores.ndim != 2 or scores.shape[0] != count:
            sys.exit(f'{path}: expected {count} rows of scores, got shape {scores.shape}')
        if not np.isfinite(scores).all():
            sys.exit(f'{path}: {solver} answered with values that are not finite')
        labels[solver] = scores.argmax(axis=1)
    return labels


def main():
    arguments = parse_arguments()
    inputs = np.load(arguments.inputs)
    true = np.load(arguments.labels)
    labels = read_labels(arguments.outputs, len(inputs))
    baseline_name, baseline = next(iter(labels.items()))

    print(f'{"solver":<14}{"accuracy":>10}{"unlike " + baseline_name:>28}')
    for solver, predicted in labels.items():
        accuracy = f'{(predicted == true).mean():.2%}'
        differing = int((predicted != baseline).sum())
        print(f'{solver:<14}{accuracy:>10}{f"{differing} of {len(true)}":>28}')

    count = min(PICTURED, len(inputs))
    digits = picture.digits_picture(inputs[:count], baseline[:count], true[:count], COLUMNS)
    digits.save(arguments.picture)

    status = 0
    for solver in filter(None, arguments.must_agree.split(',')):
        if solver not in labels:
            sys.exit(f'--must_agree names {solver}, which answered nothing')
        for index in np.flatnonzero(labels[solver] != baseline):
            print(f'digit {index}: {solver} says {labels[solver][index]}, '
                  f'{baseline_name} says {baseline[index]}')
            status = 1
    return status


if __name__ == '__main__':
    sys.exit(main())
