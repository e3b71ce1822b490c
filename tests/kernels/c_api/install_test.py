#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs libdeeppcr, looks at what it exports, and builds and runs the example outside this tree."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / 'deploy/models/repository/digits-resnet/1'
FLAGS = argparse.Namespace()


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          **options)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


class InstallTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.top = pathlib.Path(cls.folder.name)
        cls.prefix = cls.top / 'installed here'  # with a blank
        run(FLAGS.cmake, '--install', FLAGS.build, '--component', 'c_api', '--prefix', cls.prefix)
        cls.library = next(cls.prefix.rglob('libdeeppcr.so'))
        cls.example = cls.top / 'example'
        shutil.copytree(ROOT / 'kernels/c_api/example', cls.example)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_exports_the_functions_of_the_header_alone(self):
        header = (ROOT / 'kernels/c_api/deeppcr.h').read_text(encoding='utf-8')
        header = re.sub(r'/\*.*?\*/', '', header, flags=re.DOTALL)
        declared = set(re.findall(r'\b(deeppcr_\w+)\(', header))
        lines = run('nm', '-D', '--defined-only', '--with-symbol-versions', self.library).splitlines()
        symbols = {line.split()[-1] for line in lines if line.split()[-2] != 'A'}
        self.assertEqual(symbols, {f'{name}@@DEEPPCR_0' for name in declared})
        self.assertGreater(len(declared), 10)

    def test_has_a_soname(self):
        self.assertIn('libdeeppcr.so.0', run('readelf', '-d', self.library))

    def run_example(self, program):
        environment = {**os.environ, 'LD_LIBRARY_PATH': str(self.library.parent)}
        printed = run(program, MODEL, 50, env=environment)
        self.assertIn('resnet with 1024 steps of width 16', printed)
        self.assertRegex(printed, r'answered by \w+, \w+; first output -?[0-9.e-]+')
        self.assertRegex(printed, r'50 calls: median [0-9.]+ us, of which the engine [0-9.]+ us')

    def test_builds_by_cmake(self):
        build = self.top / 'build'
        run(FLAGS.cmake, '-S', self.example, '-B', build, f'-DCMAKE_PREFIX_PATH={self.prefix}',
            '-DCMAKE_C_FLAGS=-std=c99 -pedantic -Wall -Wextra -Werror')
        run(FLAGS.cmake, '--build', build)
        self.run_example(build / 'control_loop')

    def test_builds_by_pkg_config(self):
        if shutil.which('pkg-config') is None:
            self.skipTest('no pkg-config')
        environment = {**os.environ, 'PKG_CONFIG_PATH': str(self.library.parent / 'pkgconfig')}
        flags = run('pkg-config', '--cflags', '--libs', 'deeppcr', env=environment)
        program = self.top / 'by_pkg_config'
        run('sh', '-c', f'cc -std=c99 "$1" -o "$2" {flags}', 'sh', self.example / 'control_loop.c', program)
        self.run_example(program)

    def test_cplusplus_takes_the_header(self):
        run('sh', '-c', 'echo "#include <deeppcr.h>\nint main() { return deeppcr_version()[0] == 0; }" | '
            'c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$1" -x c++ -', 'sh',
            self.prefix / 'include')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--cmake', required=True)
    parser.add_argument('--build', required=True)
    parser.parse_known_args(namespace=FLAGS)
    unittest.main(argv=sys.argv[:1])
