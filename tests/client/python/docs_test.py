#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site of the Python package: its code is executed, its links and references are checked.

usage: docs_test.py SERVER LIBRARY PYTHON

The blocks of a page are one program, which PYTHON, one with PyTorch, runs where `models` is a copy of
the demo models. What runs this has client/python/docs/requirements.txt.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import installed

installed.sources_on_path()

SERVER, LIBRARY, PYTHON = '', '', ''
DOCS = installed.PACKAGE / 'docs'
MODELS = installed.ROOT / 'deploy/models/repository'


def program_of(page):
    blocks = re.findall(r'^```python\n(.*?)^```', page.read_text(encoding='utf-8'), re.M | re.S)
    return '\n'.join(blocks)


# What the lines of the README take for the reader's own, and what they have in the end.
READERS_OWN = """
import torch

class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(11, 16), torch.nn.SiLU(), torch.nn.Linear(16, 6))

    def forward(self, x, t, c):
        return self.net(torch.cat([x, t[:, None] / 1000, c], 1))

module, x, t, condition = Policy(), torch.randn(1, 6), torch.tensor([3]), torch.randn(1, 4)
observation = condition.numpy()
"""
READERS_SAMPLES = 'assert samples.shape == (16, 6), samples.shape'


class DocsTest(unittest.TestCase):

    def run_in_models(self, code):
        """Runs code where `models` is a copy of the demo models."""
        with tempfile.TemporaryDirectory() as folder:
            for model in ('digits-ddpm', 'digits-resnet', 'digits-mlp'):
                shutil.copytree(MODELS / model, pathlib.Path(folder) / 'models' / model)
            program = pathlib.Path(folder) / 'page.py'
            program.write_text(code, encoding='utf-8')
            result = subprocess.run(
                [PYTHON, str(program)], cwd=folder, capture_output=True, text=True, check=False,
                env={**os.environ, 'DEEPPCR_SERVER_BINARY': SERVER,
                     'LD_LIBRARY_PATH': str(pathlib.Path(LIBRARY).parent),
                     'PYTHONPATH': sys.path[0], 'PYTHONDONTWRITEBYTECODE': '1'})
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_code_of_every_page_runs(self):
        pages = [page for page in sorted(DOCS.glob('*.md')) if program_of(page)]
        self.assertGreaterEqual(len(pages), 5)
        for page in pages:
            with self.subTest(page.name):
                self.run_in_models(program_of(page))

    def test_the_lines_of_the_readme_run(self):
        lines = program_of(installed.ROOT / 'README.md')
        self.assertEqual(lines.count('deeppcr.export('), 1)
        self.run_in_models('\n'.join([READERS_OWN, lines, READERS_SAMPLES]))

    def test_the_site_is_built_and_every_link_has_an_end(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = installed.copy_of_package(folder)
            result = subprocess.run([sys.executable, '-m', 'mkdocs', 'build', '--strict', '-d', f'{folder}/site'], cwd=copy,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            reference = (pathlib.Path(folder) / 'site/reference.html').read_text(encoding='utf-8')
            for name in ('deeppcr.client.Client.generate', 'deeppcr.exporting.export.export'):
                self.assertIn(f'id="{name}"', reference)


if __name__ == '__main__':
    SERVER, LIBRARY, PYTHON = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
