#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples as somebody would who has installed the package and found a server.

usage: examples_test.py SERVER [NAME...]

The package is built as a wheel and installed into a new virtual environment, which sees of other
packages only those beside the PyTorch of the Python that runs this. Without names all examples run.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import installed

SERVER, NAMES = '', []
# What the last lines of an example say, and bounds of the numbers in them.
EXPECTED = {
    'quickstart': (r'steps of DDIM +error (\S+),', lambda error: error <= 1e-5),
    'resnet': (r'(\d+)% of 64 points right', lambda percent: percent >= 80),
    'policy': (r'(\d+) actions at 200 Hz', lambda actions: actions > 0),
    'token_head': (r'guidance 1.0, temperature 1.0: mean token off by (\S+),', lambda off: off < 0.5),
    'table': (r'class 0: means \[ *(\S+)', lambda mean: 1.5 < mean < 2.5),
    'tiny_diffusion': (r'version 4: points are off the ring by (\S+)', lambda off: off < 0.3),
    'steering': (r'at first, (\S+) in the end', lambda distance: distance < 0.2),
}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, **options)


def environment(folder):
    """The Python of a new environment with the package."""
    source = installed.copy_of_package(folder / 'checkout')
    made = run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation',
               '-w', folder / 'dist', source)
    assert made.returncode == 0, made.stderr
    (wheel,) = (folder / 'dist').glob('*.whl')
    python = folder / 'venv/bin/python'
    made = run(sys.executable, '-m', 'venv', folder / 'venv')
    assert made.returncode == 0, made.stderr
    (site,) = (folder / 'venv').glob('lib/python3*/site-packages')
    beside = pathlib.Path(importlib.util.find_spec('torch').origin).parents[1]
    (site / 'beside_torch.pth').write_text(f'{beside}\n')
    made = run(python, '-m', 'pip', 'install', '-q', '--no-index', '--disable-pip-version-check', wheel)
    assert made.returncode == 0, made.stderr
    return python


class ExamplesTest(unittest.TestCase):

    def test_examples_do_what_they_say(self):
        with tempfile.TemporaryDirectory() as folder:
            python = environment(pathlib.Path(folder))
            for name in NAMES or EXPECTED:
                with self.subTest(name):
                    self.check(python, name)

    def check(self, python, name):
        result = run(python, installed.PACKAGE / 'examples' / f'{name}.py',
                     env={**os.environ, 'DEEPPCR_SERVER_BINARY': SERVER, 'OMP_NUM_THREADS': '1',
                          'PYTHONDONTWRITEBYTECODE': '1'})
        print(result.stdout)
        self.assertEqual(result.returncode, 0, result.stderr)
        pattern, holds = EXPECTED[name]
        found = re.search(pattern, result.stdout)
        self.assertTrue(found, result.stdout)
        self.assertTrue(holds(float(found[1])), result.stdout)

    def test_every_example_is_tested(self):
        names = {path.stem for path in (installed.PACKAGE / 'examples').glob('*.py')}
        self.assertEqual(names, set(EXPECTED))


if __name__ == '__main__':
    SERVER, *NAMES = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
