#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The id of a build follows the bytes of its sources, and nothing else.

usage: build_id_test.py CMAKE_COMMAND BUILD_DIRECTORY
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE.parent.parent / 'kernels' / 'build_id.cmake'
KERNELS = HERE.parent.parent / 'kernels'
CMAKE = 'cmake'
BUILD = pathlib.Path('build')


def build_id(root, names, flags='GNU 12 -O3'):
    """What the script makes of these sources."""
    with tempfile.TemporaryDirectory() as folder:
        listing = pathlib.Path(folder) / 'sources.txt'
        output = pathlib.Path(folder) / 'build_id.cc'
        listing.write_text('\n'.join(names) + '\n')
        subprocess.run([CMAKE, '-D', f'SOURCES={listing}', '-D', f'ROOT={root}', '-D',
                        'VERSION=1.2.3', '-D', f'FLAGS={flags}', '-D', f'OUTPUT={output}', '-P',
                        SCRIPT], check=True)
        return re.search(r'kBuildId\[\] = "(.*)"', output.read_text()).group(1)


class BuildIdTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / 'a.cc').write_text('int a;\n')
        (self.root / 'b.h').write_text('int b;\n')

    def test_is_version_and_hash(self):
        self.assertRegex(build_id(self.root, ['a.cc', 'b.h']), r'^1\.2\.3\+[0-9a-f]{16}$')

    def test_follows_the_bytes_of_every_source(self):
        before = build_id(self.root, ['a.cc', 'b.h'])
        self.assertEqual(build_id(self.root, ['b.h', 'a.cc']), before)
        (self.root / 'b.h').write_text('int b ;\n')
        self.assertNotEqual(build_id(self.root, ['a.cc', 'b.h']), before)

    def test_follows_names_and_flags(self):
        before = build_id(self.root, ['a.cc', 'b.h'])
        (self.root / 'c.h').write_text('int b;\n')
        self.assertNotEqual(build_id(self.root, ['a.cc', 'c.h']), before)
        self.assertNotEqual(build_id(self.root, ['a.cc', 'b.h'], 'GNU 13 -O3'), before)

    def test_is_the_same_wherever_the_sources_lie(self):
        before = build_id(self.root, ['a.cc', 'b.h'])
        with tempfile.TemporaryDirectory() as other:
            for name in ('a.cc', 'b.h'):
                (pathlib.Path(other) / name).write_bytes((self.root / name).read_bytes())
            self.assertEqual(build_id(other, ['a.cc', 'b.h']), before)

    def test_the_build_lists_every_source_of_the_library(self):
        listed = set((BUILD / 'kernels' / 'build_id_sources.txt').read_text().split())
        there = {str(path.relative_to(KERNELS)) for ending in ('cc', 'h', 'cu', 'cuh')
                 for path in KERNELS.rglob(f'*.{ending}')}
        self.assertGreater(len(there), 100)
        self.assertEqual(there - listed, set())


if __name__ == '__main__':
    CMAKE, BUILD = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
