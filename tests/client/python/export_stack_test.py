#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deeppcr.export of deep networks against the real server, with Debian's PyTorch or a newer one.

usage: export_stack_test.py SERVER [unittest arguments]
"""

import copy
import json
import pathlib
import sys
import tempfile
import threading
import unittest
import unittest.mock

import numpy as np
import torch
from torch import nn

import augmented_stacks
import cards
import installed
import odd_stacks
import rows

installed.sources_on_path()

import deeppcr  # noqa: E402

SERVER = ''


class ExportStackTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def export(self, module, example, name='model', **how):
        return deeppcr.export(module, None, self.folder / name, example=example, binary=SERVER, **how)

    def test_odd_stacks_are_exported_right_or_refused_by_name(self):
        for name, (make, refusal) in rows.STACKS.items():
            with self.subTest(name):
                module, example = make()
                before = {key: value.clone() for key, value in module.state_dict().items()}
                training = module.training
                if refusal is None:
                    report = self.export(module, example, name)
                    self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
                    self.assertIn(f'stack of {odd_stacks.DEPTH} layers', report.model)
                else:
                    with self.assertRaises(deeppcr.ExportError) as raised:
                        self.export(module, example, name)
                    self.assertIn(refusal.lower(), str(raised.exception).lower())
                    self.assertFalse((self.folder / name).exists(), 'what is refused leaves nothing')
                self.assertEqual(module.training, training)
                for key, value in module.state_dict().items():
                    self.assertTrue(torch.equal(value, before[key]), key)

    def test_answers_of_every_solver_are_those_of_the_module_in_double(self):
        module, example = odd_stacks.STACKS['activated_input'][0]()
        self.export(module, example)
        x = torch.randn(7, odd_stacks.INPUTS)
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            exact = copy.deepcopy(module).double()(x.double()).numpy()
            own = abs(module(x).numpy() - exact).max() / abs(exact).max()
            for solver in ('sequential', 'newton'):
                answers = server.client().forward('model', x, solver=solver, rtol=1e-6)
                off = abs(answers - exact).max() / abs(exact).max()
                self.assertLessEqual(off, max(1e-5, 2 * own), solver)

    def test_who_shares_a_tensor_that_is_changed_shares_the_change(self):
        module, example = augmented_stacks.STACKS['shared_with_its_skip'][0]()
        self.export(module, example)
        x = torch.randn(3, odd_stacks.WIDTH)
        x[:, ::2] = -1
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            answers, exact = server.client().forward('model', x), module(x)
        self.assertLessEqual(abs(answers - exact.numpy()).max(), 1e-5 * exact.abs().max())

    def test_other_threads_keep_their_floats(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        kinds, done = set(), threading.Event()

        def watch():
            while not done.is_set():
                kinds.add(torch.ones(1).float().dtype)

        watcher = threading.Thread(target=watch)
        exports = [threading.Thread(target=self.export, args=(copy.deepcopy(module), example, f'm{i}'))
                   for i in range(3)]
        watcher.start()
        for thread in exports:
            thread.start()
        for thread in exports:
            thread.join()
        done.set()
        watcher.join()
        self.assertEqual(kinds, {torch.float32})
        self.assertEqual(torch.ones(1).float().dtype, torch.float32)
        self.assertEqual(len(list(self.folder.glob('m*/1'))), 3)

    def test_names_are_those_that_servers_take(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        for name in ('my model+1', 'réseau', '.hidden', 'n' * 129):
            with self.assertRaisesRegex(deeppcr.ExportError, "path: expected a model's name"):
                self.export(module, example, name)
        report = self.export(module, example, max_batch_size=np.int64(7))
        self.assertEqual(json.loads((report.path / 'config.json').read_text())['max_batch_size'], 7)

    def test_a_thousand_layers(self):
        module = nn.Sequential(*(odd_stacks.Gate() for _ in range(1000)))
        report = self.export(module, torch.randn(1, odd_stacks.WIDTH))
        self.assertIn('stack of 1000 layers', report.model)

    def test_what_layers_share_is_kept_once(self):
        module, example = odd_stacks.STACKS['tied'][0]()
        self.export(module, example)
        config = json.loads((self.folder / 'model/1/config.json').read_text())
        self.assertEqual(len(config['shared_weights']), 6)
        self.assertLess((self.folder / 'model/1/model.safetensors').stat().st_size, 100)

    def test_weights_of_a_checkpoint(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        trained = odd_stacks.Loop()
        path = self.folder / 'checkpoint.pt'
        torch.save({'step': 7, 'ema': {f'net.{key}': value
                                       for key, value in trained.state_dict().items()}}, path)
        self.export(module, example, 'ema', weights=path, prefix='ema/net.')
        x = torch.randn(3, odd_stacks.INPUTS)
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            off = abs(server.client().forward('ema', x) - trained(x).numpy()).max()
        self.assertLess(off, 1e-5)
        for prefix, problem in (('net.', 'missing: first.weight'), ('model/net.', "'model' is not there"),
                                ('ema/', 'not of the module: net.first.weight')):
            with self.assertRaisesRegex(deeppcr.ExportError, problem):
                self.export(module, example, 'other', weights=path, prefix=prefix)
        for prefix in ('', 'ema', 'ema.'):
            with self.assertRaisesRegex(deeppcr.ExportError, "for those in 'ema' begin the prefix with 'ema/'"):
                self.export(module, example, 'other', weights=path, prefix=prefix)
        wide = odd_stacks.Loop(outputs=4)
        with self.assertRaisesRegex(deeppcr.ExportError, r'of other shapes: last.weight \(\[4, 8\]'):
            self.export(module, example, 'other', weights=wide.state_dict())
        state = trained.state_dict()
        compiled = {f'_orig_mod.{key}': 2 * value for key, value in state.items()}
        for several, problem in ((state | compiled, 'there with _orig_mod. and without: first.bias'),
                                 ({key: value + 2j for key, value in state.items()}, 'complex: first.weight')):
            with self.assertRaisesRegex(deeppcr.ExportError, problem):
                self.export(module, example, 'other', weights=several)
        for wrong, problem in ((module, 'expected a state_dict or the path'), (7, 'got a int')):
            with self.assertRaisesRegex(deeppcr.ExportError, problem):
                self.export(module, example, 'other', weights=wrong)
        with self.assertRaisesRegex(deeppcr.ExportError, 'prefix: expected a str, got a NoneType'):
            self.export(module, example, 'other', weights=path, prefix=None)
        with self.assertRaisesRegex(deeppcr.ExportError, "expected a state_dict as 'step'"):
            self.export(module, example, 'other', weights=path, prefix='step/')
        self.export(module, example, 'arrays', weights={key: value.numpy() for key, value
                                                        in trained.state_dict().items()})
        path.write_bytes(b'no checkpoint')
        with self.assertRaisesRegex(deeppcr.ExportError, 'weights: .*checkpoint.pt'):
            self.export(module, example, 'other', weights=path)
        self.assertFalse((self.folder / 'other').exists())

    def test_epsilons_of_double_are_none_of_the_server(self):
        class Norm(nn.Module):
            """As PyTorch 2 has it."""

            def __init__(self, size, eps=None):
                super().__init__()
                self.eps = eps

            def forward(self, x):
                eps = self.eps or torch.finfo(x.dtype).eps
                return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)

        module, example = odd_stacks.STACKS['loop'][0]()
        with unittest.mock.patch.object(nn, 'RMSNorm', getattr(nn, 'RMSNorm', Norm), create=True):
            module = nn.Sequential(nn.RMSNorm(odd_stacks.INPUTS), module).double()
            with self.assertRaisesRegex(deeppcr.ExportError, '0: RMSNorm without eps'):
                self.export(module, example.double())

    def test_a_card_says_what_was_exported(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        report = self.export(module, example)
        card = (self.folder / 'model/README.md').read_text()
        self.assertIn('library_name: deeppcr', card)
        self.assertIn('A stack of 12 layers of 8 values, made of `Loop`', card)
        self.assertIn(f'{report.error:.1e}', card)
        cards.run(card, self.folder, SERVER)
        odd = self.folder / 'the "best"\nmodels'
        deeppcr.export(module, None, odd / 'model', example=example, binary=SERVER)
        cards.run((odd / 'model/README.md').read_text(), odd, SERVER)

    def test_validate_lists_all_problems(self):
        module, example = odd_stacks.STACKS['loop'][0]()
        self.export(module, example)
        version = self.folder / 'model/1'
        self.assertEqual(deeppcr.validate(version, SERVER), [])
        config = json.loads((version / 'config.json').read_text())
        (version / 'config.json').write_text(json.dumps(config | {'num_layers': 13, 'depth': 3}))
        problems = deeppcr.validate(version, SERVER)
        self.assertTrue(any('depth' in problem for problem in problems), problems)
        self.assertTrue(deeppcr.validate(self.folder / 'nothing', SERVER))


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
