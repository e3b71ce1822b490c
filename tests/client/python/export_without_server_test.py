#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deeppcr.export where no server is at hand: the package onnx evaluates what is written.

usage: export_without_server_test.py SERVER [unittest arguments]

SERVER says at the end whether it takes what was written without it, and makes the same of it.
"""

import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import numpy as np
import torch

import installed
import odd_modules
import odd_stacks
import rows

installed.sources_on_path()

import deeppcr  # noqa: E402
from deeppcr.exporting import answers_of_numpy  # noqa: E402

export_module = sys.modules['deeppcr.exporting.export']

SERVER = ''
DDIM = {'_class_name': 'DDIMScheduler', 'num_train_timesteps': 1000, 'clip_sample': False}


class ExportWithoutServerTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        found = unittest.mock.patch.object(export_module, 'server_at_hand', lambda binary: None)
        found.start()
        self.addCleanup(found.stop)

    def export(self, module, scheduler, name, example, **how):
        with self.assertWarnsRegex(UserWarning, 'no deeppcr-server was found'):
            return deeppcr.export(module, scheduler, self.folder / name, example=example, **how)

    def check(self, report, name):
        self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
        self.assertEqual(report.answers, 'onnx.reference')
        self.assertIn('by onnx.reference without a server', repr(report))
        self.assertIn('answers of onnx.reference', (self.folder / name / 'README.md').read_text())

    def check_all(self, modules, scheduler, **settings):
        """NumPy takes what servers take, and what it takes beyond that a server refuses."""
        for name, (make, refusal) in modules.items():
            with self.subTest(name):
                module, example = make()
                how = {'num_classes': 5} if name == 'class_condition' else {}
                try:
                    report = self.export(module, scheduler, name, example, **settings, **how)
                except deeppcr.ExportError as error:
                    self.assertIsNotNone(refusal, error)
                    self.assertFalse((self.folder / name).exists())
                    continue
                self.check(report, name)
                problems = deeppcr.validate(report.path, SERVER)
                self.assertEqual(problems == [], refusal is None, problems)

    def test_denoisers(self):
        self.check_all(rows.MODULES, DDIM, num_inference_steps=20)

    def test_stacks(self):
        self.check_all(rows.STACKS, None)

    def test_files_are_the_bytes_that_a_server_would_have_compared(self):
        for module, example, scheduler in (
                (*odd_modules.MODULES['conditioned'][0](), DDIM),
                (*odd_stacks.STACKS['activated_input'][0](), None)):
            alone = self.export(module, scheduler, 'alone', example, version=len(example[0])).path
            with unittest.mock.patch.object(export_module, 'server_at_hand', pathlib.Path):
                served = deeppcr.export(module, scheduler, self.folder / 'served', example=example,
                                        binary=SERVER, version=len(example[0])).path
            for path in served.iterdir():
                self.assertEqual((alone / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_decoders_of_every_activation_and_learned_variances(self):
        nn = torch.nn
        for activation in (nn.Identity(), nn.ReLU(), nn.LeakyReLU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(),
                           nn.GELU(approximate='tanh'), nn.ELU(), nn.Softplus(), nn.Mish()):
            name = str(activation).translate({ord(each): '_' for each in "()'= ,"})
            with self.subTest(name):
                module, example = odd_modules.MODULES['mlp'][0]()
                layers = nn.Sequential(nn.Linear(odd_modules.DIM, 32), activation, nn.Linear(32, 5))
                self.check(self.export(module, DDIM, name, example, decoder=layers), name)
        module = odd_modules.Mlp()
        module.net[4] = nn.Linear(odd_modules.WIDTH, 2 * odd_modules.DIM)
        scheduler = {'_class_name': 'DDPMScheduler', 'variance_type': 'learned_range'}
        example = (torch.randn(1, odd_modules.DIM), torch.tensor([3]))
        self.check(self.export(module, scheduler, 'learned', example), 'learned')

    def test_what_is_written_wrong_is_refused(self):
        write = export_module.write_safetensors

        def write_wrong(path, tensors):
            wrong = {name: np.array(each) for name, each in tensors.items()}
            next(iter(wrong.values())).flat[0] += 1
            write(path, wrong)

        module, example = odd_stacks.STACKS['loop'][0]()
        with unittest.mock.patch.object(export_module, 'write_safetensors', write_wrong):
            with self.assertRaisesRegex(deeppcr.ExportError, 'differs from the module'):
                self.export(module, None, 'wrong', example)
        module, example = odd_modules.MODULES['mlp'][0]()
        write_onnx = export_module.write_onnx

        def write_other(_, inputs, path):
            torch.manual_seed(2)
            return write_onnx(odd_modules.Mlp(), inputs, path)

        with unittest.mock.patch.object(export_module, 'write_onnx', write_other):
            with self.assertRaisesRegex(deeppcr.ExportError, 'differs from the module'):
                self.export(module, DDIM, 'wrong', example)
        self.assertFalse((self.folder / 'wrong').exists())

    def test_a_server_that_is_named_has_to_be_there(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        with unittest.mock.patch.object(export_module, 'server_at_hand', deeppcr.serving.server_at_hand):
            with self.assertRaisesRegex(FileNotFoundError, 'nothing: no such server'):
                deeppcr.export(module, None, self.folder / 'model', example=example,
                               binary=self.folder / 'nothing')
            text = self.folder / 'text'
            text.write_text('no program')
            with self.assertRaisesRegex(PermissionError, 'text: expected a server, and it cannot be executed'):
                deeppcr.export(module, None, self.folder / 'model', example=example, binary=text)
        with unittest.mock.patch.object(answers_of_numpy, 'is_available', lambda: False):
            with self.assertRaisesRegex(FileNotFoundError, '(?s)was found.*onnx>=1.13'):
                deeppcr.export(module, None, self.folder / 'model', example=example)


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    warnings.simplefilter('ignore', DeprecationWarning)
    unittest.main()
