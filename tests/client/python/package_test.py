#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package as it is built: wheel and source distribution, types and style."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

import installed


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, **options)


class PackageTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.source = installed.copy_of_package(self.path / 'checkout')

    def wheel_of(self, source, name):
        result = run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation',
                     '-w', self.path / name, source)
        self.assertEqual(result.returncode, 0, result.stderr)
        (wheel,) = (self.path / name).glob('*.whl')
        return wheel

    def test_the_wheel_has_what_it_needs_and_no_more(self):
        wheel = self.wheel_of(self.source, 'wheels')
        names = set(zipfile.ZipFile(wheel).namelist())
        modules = {str(path.relative_to(self.source))
                   for path in (self.source / 'deeppcr').rglob('*.py')}
        self.assertLessEqual(modules | {'deeppcr/protocol.binpb', 'deeppcr/py.typed'}, names)
        self.assertFalse([name for name in names
                          if not name.startswith(('deeppcr/', 'deeppcr-'))], names)

    def test_a_source_distribution_needs_no_checkout(self):
        made = run(sys.executable, 'setup.py', '-q', 'sdist', '-d', self.path / 'sdist',
                   cwd=self.source)
        self.assertEqual(made.returncode, 0, made.stderr)
        (archive,) = (self.path / 'sdist').glob('*.tar.gz')
        site = self.path / 'site'
        installed.install(self.wheel_of(archive, 'again'), site)
        said = run(sys.executable, '-c', 'import deeppcr; print(deeppcr.Client("localhost:1"))',
                   env={**os.environ, 'PYTHONPATH': str(site)}, cwd=self.path)
        self.assertEqual(said.stdout, '<deeppcr.Client of localhost:1>\n', said.stderr)

    def test_types_hold_for_every_python(self):
        for version in ('3.10', '3.13'):
            result = run(sys.executable, '-m', 'mypy', '--python-version', version, cwd=self.source)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_style(self):
        for command in (('check',), ('format', '--check')):
            result = run(sys.executable, '-m', 'ruff', *command, '.', cwd=self.source)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
