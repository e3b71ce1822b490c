#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the marked blocks of README.md with measured figures, so that none is typed by hand.

usage: readme_tables.py [--check] [--readme FILE] [--results FOLDER]

A block is what stands between `<!-- measured: NAME -->` and `<!-- end measured -->`. It is filled
from the committed result files FOLDER/*/*.json (default: tests/bench/results). A result file holds
  {"date": "YYYY-MM-DD", "machine": "one line", "commit": "...",
   "tables": [{"name": NAME, "note": "...", "columns": [...],
               "rows": [[text or number, ...], ...]}]}
and the newest date that has a table of that name wins. Without one the block says "Not yet
measured." --check writes nothing and exits 1 where the README is not what would be written.
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r'(<!-- measured: ([\w-]+) -->\n)(.*?)(<!-- end measured -->)', re.DOTALL)
NOT_MEASURED = 'Not yet measured.\n'


def cell(value):
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.3g}' if abs(value) < 1000 else f'{value:.0f}'
    return str(value).replace('|', '\\|')


def markdown_rows(table):
    """The columns and rows alone, as lines."""
    return ['| ' + ' | '.join(map(cell, table['columns'])) + ' |',
            '|---' * len(table['columns']) + '|',
            *('| ' + ' | '.join(map(cell, row)) + ' |' for row in table['rows'])]


def markdown(result, table, path):
    width = len(table['columns'])
    for row in table['rows']:
        if len(row) != width:
            sys.exit(f'{path}: table {table["name"]}: {len(row)} cells in a row of {width} columns')
    source = (f'Measured {result["date"]} on {result["machine"]}, commit {result["commit"]} '
              f'(`{path}`).')
    if table.get('note'):
        source += ' ' + table['note']
    return '\n'.join(markdown_rows(table)) + '\n\n' + source + '\n'


def newest_tables(folder):
    """Markdown by table name."""
    found = {}
    for path in sorted(folder.glob('*/*.json')):
        result = json.loads(path.read_text(encoding='utf-8'))
        for table in result.get('tables', []):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
            entry = result['date'], markdown(result, table, shown)
            if table['name'] not in found or entry[0] >= found[table['name']][0]:
                found[table['name']] = entry
    return {name: text for name, (_, text) in found.items()}


def fill(text, tables):
    return BLOCK.sub(lambda block: block[1] + tables.get(block[2], NOT_MEASURED) + block[4], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--readme', type=pathlib.Path, default=ROOT / 'README.md')
    parser.add_argument('--results', type=pathlib.Path, default=ROOT / 'tests/bench/results')
    arguments = parser.parse_args()

    text = arguments.readme.read_text(encoding='utf-8')
    names = [block[1] for block in BLOCK.findall(text)]
    if not names or text.count('<!-- measured:') != len(names):
        sys.exit(f'{arguments.readme}: a block is missing, or opened and never closed')
    filled = fill(text, newest_tables(arguments.results))
    if filled == text:
        print(f'{arguments.readme.name}: {len(names)} blocks of measured figures are up to date')
        return 0
    if arguments.check:
        print(f'{arguments.readme.name}: not what the result files say; '
              'run deploy/readme_tables.py')
        return 1
    arguments.readme.write_text(filled, encoding='utf-8')
    print(f'{arguments.readme.name}: rewrote its blocks of measured figures')
    return 0


if __name__ == '__main__':
    sys.exit(main())
