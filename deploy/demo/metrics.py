#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what the shadow pairs in a server's /metrics say, and waits until there are some.

usage: metrics.py URL [WAIT_SECONDS]

Exits 1 if the paired speed-up or the paired error histogram has no samples by then.
"""

import re
import sys
import time
import urllib.request

HISTOGRAMS = {
    'deeppcr_speedup_ratio': 'sequential seconds / parallel seconds',
    'deeppcr_shadow_relative_error': 'relative difference of the states from sequential',
}
SAMPLE = re.compile(r'^(\w+)\{([^}]*)\} (\S+)$', re.MULTILINE)


def read(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def totals(text, name):
    """(count, sum) by (model, solver) of a histogram; series without samples are left out."""
    found = {}
    for series, labels, value in SAMPLE.findall(text):
        if series in (f'{name}_count', f'{name}_sum'):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            way = 'back ' if pairs.get('method') == 'Gradient' else ''
            key = pairs.get('model', ''), way + pairs.get('solver', '')
            entry = found.setdefault(key, {'_count': 0.0, '_sum': 0.0})
            entry[series[len(name):]] += float(value)
    return {key: (int(entry['_count']), entry['_sum']) for key, entry in found.items()
            if entry['_count'] > 0}


def main(arguments):
    url, wait = arguments[0], float(arguments[1]) if len(arguments) > 1 else 0.0
    deadline = time.monotonic() + wait
    while True:
        text = read(url)
        tables = {name: totals(text, name) for name in HISTOGRAMS}
        if all(tables.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for name, meaning in HISTOGRAMS.items():
        print(f'{name} ({meaning}):')
        for (model, solver), (count, total) in sorted(tables[name].items()):
            print(f'  {model:<18}{solver:<14}{count:>6} samples, mean {total / count:.3g}')
        if not tables[name]:
            print('  no samples')
    return 0 if all(tables.values()) else 1


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
