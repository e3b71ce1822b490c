#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that prose in Markdown keeps to 120 columns. Tables, code and measured figures may not.

usage: markdown_lines.py FILE...
"""

import pathlib
import re
import sys

WIDTH = 120
UNWRAPPABLE = re.compile(r'```.*?^ *```|^<!-- measured:.*?^<!-- end measured -->|^\|.*?$|^!\[.*?$',
                         re.DOTALL | re.MULTILINE)


def long_lines(text):
    """Numbers of the lines of prose that are too long."""
    prose = UNWRAPPABLE.sub(lambda match: '\n' * match[0].count('\n'), text)
    return [number for number, line in enumerate(prose.split('\n'), 1) if len(line) > WIDTH]


def main():
    complaints = [f'{path}:{number}: longer than {WIDTH} columns' for path in sys.argv[1:]
                  for number in long_lines(pathlib.Path(path).read_text(encoding='utf-8'))]
    print(*complaints, f'Markdown lines: {len(sys.argv) - 1} files, {len(complaints)} complaints',
          sep='\n')
    return 1 if complaints else 0


if __name__ == '__main__':
    sys.exit(main())
