#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the marked blocks of the READMEs with measured figures, so that none is typed by hand.

usage: readme_tables.py [--check] [--readme FILE]... [--results FOLDER]

A block is what stands between `<!-- measured: NAME -->` and `<!-- end measured -->`. It is filled
from the committed result files FOLDER/*/*.json (default: tests/bench/results). A result file holds
  {"date": "YYYY-MM-DD", "machine": "one line", "commit": "...", "how": "Measured",
   "tables": [{"name": NAME, "note": "...", "columns": [...],
               "rows": [[text or number, ...], ...]}]}
and the newest date that has a table of that name wins. Without one the block says "Not yet
measured." A block may select: `<!-- measured: NAME; COLUMN = text / text; columns = a / b -->`
keeps the rows that have one of the texts in COLUMN (repeatable), and the columns that are listed,
and leaves the note to the whole table. --check writes nothing and exits 1 where a README is not what
would be written.
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
READMES = [ROOT / 'README.md', ROOT / 'deploy/models/README.md', ROOT / 'tests/bench/README.md',
           ROOT / 'tests/gpu/README.md']
BLOCK = re.compile(r'(<!-- measured: ([\w-]+)((?:; [^;>]+? = [^;>]+?)*) -->\n)(.*?)'
                   r'(<!-- end measured -->)', re.DOTALL)
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


def selected(table, selection):
    """The table's rows and columns that "; COLUMN = text / text; columns = a / b" asks for."""
    rows, shown = table['rows'], list(range(len(table['columns'])))
    for part in selection.split('; ')[1:]:
        if part.startswith('columns = '):
            texts = part.removeprefix('columns = ').split(' / ')
            require(table, texts, table['columns'], 'among its columns')
            shown = [table['columns'].index(text) for text in texts]
            continue
        # A name may hold " = " itself.
        names = [name for name in table['columns'] if part.startswith(name + ' = ')]
        if not names:
            sys.exit(f'table {table["name"]}: no column for "{part}" in {table["columns"]}')
        column = max(names, key=len)
        texts, at = part.removeprefix(column + ' = ').split(' / '), table['columns'].index(column)
        require(table, texts, [cell(row[at]) for row in table['rows']], f'in column {column}')
        rows = [row for row in rows if cell(row[at]) in texts]
    return {'columns': [table['columns'][i] for i in shown],
            'rows': [[row[i] for i in shown] for row in rows]}


def require(table, texts, known, where):
    missing = [text for text in texts if text not in known]
    if missing:
        sys.exit(f'table {table["name"]}: no {missing} {where}')


def markdown(result, table, path, selection):
    width = len(table['columns'])
    for row in table['rows']:
        if len(row) != width:
            sys.exit(f'{path}: table {table["name"]}: {len(row)} cells in a row of {width} columns')
    how = result.get('how', 'Measured')
    source = f'{how} {result["date"]} on {result["machine"]}, commit {result["commit"]} (`{path}`).'
    if selection:
        table = selected(table, selection)
    elif table.get('note'):
        source += ' ' + table['note']
    return '\n'.join(markdown_rows(table)) + '\n\n' + source + '\n'


def newest_tables(folder):
    """(result, table, path) by table name."""
    found = {}
    for path in sorted(folder.glob('*/*.json')):
        result = json.loads(path.read_text(encoding='utf-8'))
        for table in result.get('tables', []):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
            if table['name'] not in found or result['date'] >= found[table['name']][0]['date']:
                found[table['name']] = result, table, shown
    return found


def fill(text, tables):
    def filled(block):
        if block[2] not in tables:
            return block[1] + NOT_MEASURED + block[5]
        return block[1] + markdown(*tables[block[2]], block[3]) + block[5]
    return BLOCK.sub(filled, text)


def update(readme, tables, check):
    """True unless `check` finds something to write."""
    text = readme.read_text(encoding='utf-8')
    names = BLOCK.findall(text)
    if not names or text.count('<!-- measured:') != len(names):
        sys.exit(f'{readme}: a block is missing, or opened and never closed')
    filled = fill(text, tables)
    shown = readme.relative_to(ROOT) if readme.is_relative_to(ROOT) else readme.name
    if filled == text:
        print(f'{shown}: {len(names)} blocks of measured figures are up to date')
        return True
    if check:
        print(f'{shown}: not what the result files say; run deploy/readme_tables.py')
        return False
    readme.write_text(filled, encoding='utf-8')
    print(f'{shown}: rewrote its blocks of measured figures')
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--readme', type=pathlib.Path, action='append')
    parser.add_argument('--results', type=pathlib.Path, default=ROOT / 'tests/bench/results')
    arguments = parser.parse_args()

    tables = newest_tables(arguments.results)
    up_to_date = [update(readme, tables, arguments.check)
                  for readme in arguments.readme or READMES]
    return 0 if all(up_to_date) else 1


if __name__ == '__main__':
    sys.exit(main())
