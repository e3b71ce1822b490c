#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheels of deploy/wheels.sh in a new virtual environment: server and engine from there alone.

usage: wheels_test.py SERVER
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import installed

SERVER = ''
MODEL = installed.ROOT / 'deploy/models/repository/digits-ddpm/1'
SCRIPT = '''
import json, sys
import deeppcr
engine = deeppcr.Engine()
model = engine.load(sys.argv[1])
ours = model.generate(5, seed=3, solver="newton", return_trajectory=True)
with deeppcr.serve(model_dir=sys.argv[1], model_name="m") as server:
    theirs = server.client().generate("m", 5, seed=3, solver="newton", return_trajectory=True)
print(json.dumps({
    "server": str(deeppcr.find_server()), "library": engine._calls._name,
    "ours": ours.tolist(), "theirs": theirs.tolist(),
    "trajectories": bool((ours.trajectory == theirs.trajectory).all()),
    "samples": [str(a) == str(b) for a, b in zip(ours.report.samples, theirs.report.samples)],
}))
'''


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                            **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class WheelsTest(unittest.TestCase):

    def test_pip_installs_the_server_and_the_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            run(installed.ROOT / 'deploy/wheels.sh', '--build_dir', pathlib.Path(SERVER).parents[1],
                '--dist', path / 'dist')
            (wheel,) = (path / 'dist').glob('deeppcr_server-*.whl')
            self.assertIn('manylinux_2_', wheel.name)
            run(sys.executable, '-m', 'venv', path / 'venv')
            (site,) = (path / 'venv').glob('lib/python3*/site-packages')
            beside = pathlib.Path(np.__file__).parents[1]
            (site / 'others.pth').write_text(f'{beside}\n')
            python = path / 'venv/bin/python'
            run(python, '-m', 'pip', 'install', '-q', '--no-index', '--disable-pip-version-check',
                '--find-links', path / 'dist', 'deeppcr[server]')
            said = json.loads(run(python, '-c', SCRIPT, MODEL, cwd=path,
                                  env={name: os.environ[name] for name in ('HOME', 'LANG')
                                       if name in os.environ} | {'PATH': '/nonexistent'}))
            for name in ('server', 'library'):
                needed = [line.strip() for line in run('ldd', said[name]).splitlines()]
                ours = [line for line in needed if line.startswith(('libgrpc', 'libabsl', 'libproto'))]
                self.assertTrue(ours)
                for line in ours:
                    self.assertIn('deeppcr_server.libs', line, name)
        self.assertTrue(said['server'].startswith(str(site)), said['server'])
        self.assertTrue(said['library'].startswith(str(site)), said['library'])
        self.assertEqual(said['ours'], said['theirs'])
        self.assertTrue(said['trajectories'])
        self.assertEqual(said['samples'], [True] * 5)


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
