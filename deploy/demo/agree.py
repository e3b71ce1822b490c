#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: agree.py LIMIT NAME=FILE.npy NAME=FILE.npy...

Prints how far the samples of each file are from those of the first, relative to the largest value.
Exit status: 0 only if none is further than LIMIT.
"""

import sys

import numpy as np


def main(arguments):
    limit = float(arguments[0])
    (first, expected), *others = ((name, np.load(path)) for name, path in
                                  (argument.split('=', 1) for argument in arguments[1:]))
    size = np.abs(expected).max()
    met = bool(np.isfinite(expected).all())
    for name, samples in others:
        difference = np.abs(samples - expected).max() / size
        close = bool(difference <= limit)  # False for NaN
        met = met and close
        print(f'{name}: {len(samples)} samples within {difference:.1e} of {first}, element by element'
              + ('' if close else f'; {limit:.0e} was wanted'))
    return 0 if met else 1


if __name__ == '__main__':
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
