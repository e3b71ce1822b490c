#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a struct or class of a namespace is defined in one file: the linker would take the
functions of either for both, where a program has two.

usage: one_definition.py [ROOT]
"""

import collections
import pathlib
import re
import sys

FOLDERS = ('kernels', 'server', 'client', 'tests')
NAMESPACE = re.compile(r'^namespace ?([\w:]*) ?\{')
END = re.compile(r'^\} *// namespace')
TYPE = re.compile(r'^(?:template <.*> )?(?:struct|class) (?:alignas\(.*?\) )?(\w+)(?: final)?(?: ?: [^;]*)?'
                  r'(?: ?\{.*)?$')


def types_of(text):
    """Full names of the types that are defined outside of unnamed namespaces."""
    inside, found = [], []
    for line in text.split('\n'):
        if begun := NAMESPACE.match(line):
            inside.append(begun[1])
        elif END.match(line) and inside:
            inside.pop()
        elif (defined := TYPE.match(line)) and '' not in inside:
            found.append('::'.join([*inside, defined[1]]))
    return found


def complaints_about(files):
    """files: pairs of a name and a text."""
    places = collections.defaultdict(set)
    for name, text in files:
        for defined in types_of(text):
            places[defined].add(name)
    return [f'{", ".join(sorted(names))}: each defines {defined}'
            for defined, names in sorted(places.items()) if len(names) > 1]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.')
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob('*'))
             if path.suffix in ('.h', '.cc', '.cu')]
    complaints = complaints_about((str(path.relative_to(root)), path.read_text(encoding='utf-8'))
                                  for path in paths)
    print(*complaints, f'definitions: {len(paths)} files, {len(complaints)} complaints', sep='\n')
    return 1 if complaints else 0


if __name__ == '__main__':
    sys.exit(main())
