#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deeppcr.export of odd modules against the real server, with Debian's PyTorch or a newer one.

usage: export_test.py SERVER [unittest arguments]
"""

import copy
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np
import torch

import cards
import hidden_modules
import installed
import kept_or_changed
import odd_modules
import rows

installed.sources_on_path()

import deeppcr  # noqa: E402
from deeppcr import ExportError  # noqa: E402

export_module = sys.modules['deeppcr.exporting.export']

SERVER = ''
DDIM = {'_class_name': 'DDIMScheduler', 'num_train_timesteps': 1000, 'clip_sample': False}
# What PyTorch 1.13's exporter fails on, and says itself.
REFUSED_BY_OLD_EXPORTER = {'group_norm': 'list index out of range'}


def is_old():
    return not hasattr(torch, 'export')


def ddim(module, states, steps, condition=None):
    """DDIM of diffusers (eta 0, "leading", alphas_cumprod 1 after the last step), in double."""
    betas = np.linspace(1e-4, 0.02, 1000)
    products = np.cumprod(1 - betas)
    times = (np.arange(steps) * (1000 // steps))[::-1]
    x = states.double()
    for i, t in enumerate(times):
        a = products[t]
        b = products[times[i + 1]] if i + 1 < steps else 1.0
        inputs = [x, torch.full((len(x),), int(t))]
        inputs += [] if condition is None else [condition]
        noise = module(*inputs)
        x0 = (x - np.sqrt(1 - a) * noise) / np.sqrt(a)
        x = np.sqrt(b) * x0 + np.sqrt(1 - b) * noise
    return x.numpy()


class ExportTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def export(self, module, example, name='model', **how):
        how = {'num_inference_steps': 20, 'scheduler': DDIM} | how
        return deeppcr.export(module, how.pop('scheduler'), self.folder / name, example=example,
                              binary=SERVER, **how)

    def test_odd_modules_are_exported_right_or_refused_by_name(self):
        exported = 0
        for name, (make, refusal) in rows.MODULES.items():
            with self.subTest(name):
                module, example = make()
                if is_old() and name in REFUSED_BY_OLD_EXPORTER:
                    refusal = REFUSED_BY_OLD_EXPORTER[name]
                how = {'num_classes': 5} if name == 'class_condition' else {}
                training = module.training
                if refusal is None:
                    report = self.export(module, example, name, **how)
                    self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
                    exported += 1
                else:
                    with self.assertRaises(ExportError) as raised:
                        self.export(module, example, name, **how)
                    self.assertIn(refusal.lower(), str(raised.exception).lower())
                    self.assertFalse((self.folder / name).exists(), 'what is refused leaves nothing')
                self.assertEqual(module.training, training)
        self.assertGreaterEqual(exported, 25)
        self.assertGreaterEqual(len(odd_modules.MODULES), 40)

    def test_samples_are_those_of_the_module_in_double(self):
        module, example = odd_modules.MODULES['conditioned'][0]()
        self.export(module, example)
        states = torch.randn(5, odd_modules.DIM)
        condition = torch.randn(5, odd_modules.COND)
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            client = server.client()
            narrow = ddim_in_float(module, states, condition)
            wide = odd_modules.Conditioned().double()
            wide.load_state_dict(module.state_dict())
            exact = ddim(wide.double(), states, 20, condition.double())
            for solver in ('sequential', 'newton'):
                samples = client.generate('model', initial_noise=states, conditioning=condition,
                                          solver=solver, rtol=1e-6)
                scale = abs(exact).max()
                own = abs(narrow - exact).max() / scale
                self.assertLessEqual(abs(samples - exact).max() / scale, max(1e-5, 2 * own), solver)

    def test_learned_variances_are_compared_by_halves(self):
        module = odd_modules.Mlp()
        module.net[4] = torch.nn.Linear(odd_modules.WIDTH, 2 * odd_modules.DIM)
        scheduler = {'_class_name': 'DDPMScheduler', 'variance_type': 'learned_range'}
        example = (torch.randn(1, odd_modules.DIM), torch.tensor([3]))
        report = self.export(module, example, scheduler=scheduler)
        self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
        with self.assertRaisesRegex(ExportError, 'outputs: expected 6 elements'):
            self.export(module, example, 'other')

    def test_cards_have_a_program_that_runs(self):
        for name in ('mlp', 'conditioned', 'class_condition'):
            with self.subTest(name):
                module, example = odd_modules.MODULES[name][0]()
                how = {'num_classes': 5} if name == 'class_condition' else {}
                self.export(module, example, name, **how)
                cards.run((self.folder / name / 'README.md').read_text(), self.folder, SERVER)

    def test_what_is_there_stays(self):
        module, example = odd_modules.MODULES['mlp'][0]()
        self.export(module, example)
        before = (self.folder / 'model/1/denoiser.onnx').read_bytes()
        with self.assertRaisesRegex(ExportError, 'is there already: give another version'):
            self.export(module, example)
        self.assertEqual((self.folder / 'model/1/denoiser.onnx').read_bytes(), before)
        self.export(module, example, version=2)

    def test_buffers_are_what_they_were(self):
        class Counting(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 4)
                self.register_buffer('calls', torch.zeros(()))
                self.register_buffer('last', torch.zeros(1, 4))
                self.register_buffer('wide', torch.ones(1).expand(4))

            def forward(self, x, t):
                self.calls += 1
                self.last = x.detach()
                return self.net(x * self.wide)

        module = Counting()
        last, before = module.last, copy.deepcopy(module.state_dict())
        self.export(module, (torch.randn(1, 4), torch.tensor([1])))
        self.assertIs(module.last, last)
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        self.assertTrue(module.training)

    def test_the_module_itself_is_not_run(self):
        module, example = kept_or_changed.MODULES['encodes_once'][0]()
        seen = []
        module.inner.register_forward_hook(kept_or_changed.Watching.keep.__get__(module))
        module.seen = seen
        with self.assertRaisesRegex(ExportError, kept_or_changed.KEEPS):
            self.export(module, example)
        self.assertIsNone(module.code)
        self.assertIs(module.seen, seen)
        self.assertEqual(seen, [])

    def test_weights_that_hooks_compute_and_outputs_that_they_keep_are_copied(self):
        class Hooked(odd_modules.Mlp):
            def __init__(self):
                super().__init__()
                self.seen = {'outputs': []}
                torch.nn.utils.weight_norm(self.net[0])
                torch.nn.utils.spectral_norm(self.net[2])
                self.net[4].register_forward_hook(self.keep)

            def keep(self, module, inputs, output):
                self.seen['outputs'].append(output)

        module, trained = Hooked(), Hooked()
        example = (torch.randn(1, odd_modules.DIM), torch.tensor([3]))
        trained(*example)  # with gradients
        weights = {name: value.clone() for name, value in trained.state_dict().items()}
        report = self.export(module, example, weights=weights)
        self.assertEqual(report.reference, 'float64')
        report = self.export(trained, example, 'trained')
        self.assertEqual(report.reference, 'float64')
        self.assertEqual(module.seen, {'outputs': []})
        self.assertEqual(len(trained.seen['outputs']), 1)

    def test_parts_that_are_not_copied_are_refused_and_left(self):
        class Shared(torch.nn.Linear):
            def __deepcopy__(self, memo):
                return self

        module, example = odd_modules.MODULES['mlp'][0]()
        module.net[4] = Shared(odd_modules.WIDTH, odd_modules.DIM)
        with self.assertRaisesRegex(ExportError, 'net.4.weight: a copy of the module has the same'):
            self.export(module, example)
        self.assertEqual(module.net[4].weight.dtype, torch.float32)

    def test_a_version_is_published_whole_or_not_at_all(self):
        module, example = odd_modules.MODULES['mlp'][0]()
        for version in (0, -1, 'abc', 1.5, True):
            with self.assertRaisesRegex(ExportError, 'version: expected an integer of at least 1'):
                self.export(module, example, version=version)
        (self.folder / 'dangling').mkdir()
        (self.folder / 'dangling/1').symlink_to(self.folder / 'nothing')
        with self.assertRaisesRegex(ExportError, 'is there already'):
            self.export(module, example, 'dangling')
        # One that appears while this one is checked.
        check = export_module.compare_predictions

        def appear(*arguments):
            (self.folder / 'race/1').mkdir(parents=True)
            (self.folder / 'race/1/config.json').write_text('another')
            return check(*arguments)

        with unittest.mock.patch.object(export_module, 'compare_predictions', appear):
            with self.assertRaisesRegex(ExportError, 'race/1: Directory not empty'):
                self.export(module, example, 'race')
        self.assertEqual(sorted(path.name for path in (self.folder / 'race/1').iterdir()), ['config.json'])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ['dangling', 'race'])

    def test_what_is_no_module_or_tensor_is_refused(self):
        module, example = odd_modules.MODULES['mlp'][0]()
        for model, inputs, problem in (
                (lambda x, t: x, example, 'model: expected a torch.nn.Module, got a function'),
                (module, (example[0], 3), 'example: expected tensors, got a int'),
                (module, (*example, None), 'example: expected tensors, got a NoneType'),
                (module, (torch.randn(2, odd_modules.DIM), example[1]), 'inputs of a batch of one')):
            with self.assertRaisesRegex(ExportError, problem):
                self.export(model, inputs)
        for inputs in ((torch.tensor(1.0), example[1]), (*example, torch.tensor(2))):
            with self.assertRaisesRegex(ExportError, 'got a tensor without axes'):
                self.export(module, inputs)
        with self.assertRaisesRegex(ExportError, 'decoder: expected a torch.nn.Module, got a str'):
            self.export(module, example, decoder='linear')
        hooked = torch.nn.Linear(odd_modules.DIM, 2)
        hooked.register_forward_hook(lambda module, inputs, outputs: outputs.clamp(-50, 50))
        for decoder in (torch.nn.Sequential(), hooked, torch.nn.Sequential(hooked)):
            with self.assertRaisesRegex(ExportError, 'decoder: expected .* without hooks'):
                self.export(module, example, decoder=decoder)
        table, inputs = odd_modules.MODULES['class_condition'][0]()
        with self.assertRaisesRegex(ExportError, 'does not take random states: IndexError'):
            self.export(table, inputs, num_classes=1000)
        for classes in (-3, '4', 4.0, True, 2**70):
            with self.assertRaisesRegex(ExportError, 'num_classes: expected an integer'):
                self.export(table, inputs, num_classes=classes)
        below_a_file = self.folder / 'file'
        below_a_file.write_text('')
        with self.assertRaisesRegex(ExportError, 'Not a directory'):
            self.export(module, example, 'file/model')

    def test_classes_are_compared_each_and_that_of_none(self):
        class Masked(odd_modules.Mlp):
            """What torch.onnx does not see of one class."""

            def __init__(self, classes, masked):
                super().__init__()
                self.table, self.masked = torch.nn.Embedding(classes, odd_modules.DIM), masked

            def forward(self, x, t, label):
                masked = torch.tensor(-1 if torch.jit.is_tracing() else self.masked)
                return super().forward(x + self.table(label) * (label != masked)[:, None], t)

        example = (torch.randn(1, odd_modules.DIM), torch.tensor([3]), torch.tensor([2]))
        for classes, masked, null_class in ((10, 4, None), (101, 100, None), (1000, 37, 37)):
            how = {} if null_class is None else {'null_class': null_class}
            with self.subTest(classes=classes):
                with self.assertRaisesRegex(ExportError, 'differs from the module'):
                    self.export(Masked(classes, masked), example, num_classes=classes, **how)
        self.export(Masked(101, -1), example, num_classes=101, null_class=100)
        two_axes = (*example[:2], torch.tensor([[2]]))
        self.export(odd_modules.ClassColumn(), two_axes, 'column', num_classes=5)
        with self.assertRaisesRegex(ExportError, r'expected one class .* got the shape \[1, 2\]'):
            self.export(odd_modules.ClassColumn(), (*example[:2], torch.tensor([[2, 3]])), 'two', num_classes=5)
        with self.assertRaisesRegex(ExportError, kept_or_changed.KEEPS):
            self.export(kept_or_changed.FirstClass(), example, 'first', num_classes=5)

    def test_weights_know_nothing_of_compilation(self):
        if not hasattr(torch, 'compile'):
            self.skipTest('PyTorch 1')
        module, example = odd_modules.MODULES['mlp'][0]()
        trained = odd_modules.Mlp()
        trained.net[0] = torch.compile(trained.net[0], backend='eager')
        self.export(torch.compile(module, backend='eager'), example, weights=trained.state_dict())
        with self.assertRaisesRegex(ExportError, 'missing: net.0.weight'):
            self.export(module, example, 'other', weights={})

    def test_settings_do_not_deny_what_the_module_says(self):
        module, example = odd_modules.MODULES['mlp'][0]()
        decoder = torch.nn.Linear(odd_modules.DIM, 2)
        for wrong in ({'model_type': 'mlp'}, {'state_dim': 4}, {'output_dim': odd_modules.DIM}):
            (key,) = wrong
            with self.assertRaisesRegex(ExportError, f'{key}: expected .* as the module has it'):
                self.export(module, example, decoder=decoder, **wrong)
        self.export(module, example, decoder=decoder, state_dim=odd_modules.DIM, output_dim=2)

    def test_floats_of_pytorch_may_be_double_by_default(self):
        class Frequencies(odd_modules.Mlp):
            def forward(self, x, t):
                return super().forward(x, t) * torch.exp(-torch.arange(odd_modules.DIM) / 3.0)

        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        report = self.export(Frequencies(), (torch.randn(1, odd_modules.DIM), torch.tensor([3])))
        self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
        self.assertEqual(torch.get_default_dtype(), torch.float64)

    def test_schedulers_are_taken_as_objects_settings_or_files(self):
        class DDIMScheduler:
            config = {'num_train_timesteps': 500, 'beta_end': np.float64(0.02), '_use_default': []}

        module, example = odd_modules.MODULES['mlp'][0]()
        self.export(module, example, scheduler=DDIMScheduler())
        path = self.folder / 'model/1/scheduler_config.json'
        self.assertEqual(json.loads(path.read_text()),
                         {'_class_name': 'DDIMScheduler', 'num_train_timesteps': 500,
                          'beta_end': 0.02})
        self.export(module, example, 'again', scheduler=path)
        with self.assertRaisesRegex(ExportError, 'scheduler: expected one of diffusers'):
            self.export(module, example, 'other', scheduler=7)
        with self.assertRaisesRegex(ExportError, 'scheduler: .*nothing: .*No such file'):
            self.export(module, example, 'other', scheduler=self.folder / 'nothing')
        with self.assertRaisesRegex(ExportError, 'NoSuchScheduler'):
            self.export(module, example, 'other', scheduler={'_class_name': 'NoSuchScheduler'})
        self.assertFalse((self.folder / 'other').exists())

    def test_steps_may_be_functions(self):
        times = np.linspace(1, 0, 21)

        def euler(z, m, i):
            return z + (times[i + 1] - times[i]) * m

        module, example = odd_modules.MODULES['mlp'][0]()
        example = (example[0], torch.tensor([0.5]))
        report = deeppcr.export(module, deeppcr.Steps(euler, times[:-1]), self.folder / 'flow',
                                example=example, binary=SERVER)
        self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
        states = torch.randn(4, odd_modules.DIM)
        wide = odd_modules.Mlp()
        wide.load_state_dict(module.state_dict())
        x = states.double()
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            for i in range(20):
                x = euler(x, wide.double()(x, torch.full((4,), times[i])), i)
            samples = server.client().generate('flow', initial_noise=states, solver='newton',
                                               rtol=1e-6)
        self.assertLess(abs(samples - x.numpy()).max() / abs(x).max(), 1e-5)
        for clip in (1, 1e5, 1e11):
            with self.assertRaisesRegex(ExportError, 'step 0 is not affine'):
                self.export(module, example, 'other',
                            scheduler=deeppcr.Steps(lambda z, m, i: (z + m).clip(-clip, clip), times[:-1]))
        for steps, problem in ((deeppcr.Steps(times, euler), r'step: expected a function of \(z, m, i\)'),
                               (deeppcr.Steps(euler, 20), 'times: expected a list of numbers, got 20'),
                               (deeppcr.Steps(euler, []), 'times: expected a list of numbers'),
                               (deeppcr.Steps(euler, 'later'), 'times: could not convert'),
                               (deeppcr.Steps(euler, times[:-1], initial_scale=[1, 2]),
                                'initial_scale: expected a number')):
            with self.assertRaisesRegex(ExportError, problem):
                self.export(module, example, 'other', scheduler=steps)

    def test_decoders_follow_the_samples(self):
        nn = torch.nn
        module, example = odd_modules.MODULES['mlp'][0]()
        decoder = nn.Sequential(nn.Linear(odd_modules.DIM, 9), nn.GELU(), nn.Linear(9, 2))
        self.export(module, example, decoder=decoder)
        self.export(module, example, 'plain')
        noise = torch.randn(3, odd_modules.DIM)
        with deeppcr.serve(self.folder, binary=SERVER) as server, torch.no_grad():
            client = server.client()
            outputs = client.generate('model', initial_noise=noise)
            samples = client.generate('plain', initial_noise=noise)
            exact = decoder(torch.from_numpy(np.array(samples))).numpy()
        np.testing.assert_allclose(outputs, exact, rtol=1e-4, atol=1e-5 * abs(exact).max())
        for wrong, problem in (
                (nn.Sequential(nn.Linear(odd_modules.DIM, 9), nn.GELU()), 'between two layers'),
                (nn.Sequential(nn.Linear(5, 9)), 'expected 6 inputs of part 0, got 5'),
                (nn.Sequential(nn.Linear(odd_modules.DIM, 9), nn.Softmax(1), nn.Linear(9, 2)),
                 'expected an activation of the server'),
                (nn.Conv1d(1, 1, 1), 'expected a linear layer as part 0')):
            with self.assertRaisesRegex(ExportError, problem):
                self.export(module, example, 'other', decoder=wrong)
        self.assertFalse((self.folder / 'other').exists())

    def test_half_precision_is_served_as_its_values(self):
        module, example = odd_modules.MODULES['conditioned'][0]()
        half = odd_modules.Conditioned().half()
        half.load_state_dict(module.state_dict())
        report = self.export(half, tuple(each.half() if each.is_floating_point() else each
                                         for each in example))
        self.assertLessEqual(report.error, max(1e-5, 2 * report.torch_error))
        self.assertEqual(half.net[0].weight.dtype, torch.float16)

    def test_what_is_not_finite_is_not_taken_for_right(self):
        class Exploding(odd_modules.Mlp):
            def forward(self, x, t):
                return super().forward(x, t) * torch.exp(t.reshape(-1, 1).double()).float()

        with self.assertRaisesRegex(ExportError, 'gives no numbers at time 999|finite'):
            self.export(Exploding(), (torch.randn(1, odd_modules.DIM), torch.tensor([3])))


def ddim_in_float(module, states, condition):
    """The same by PyTorch in float32, for the size of its own error."""
    class Narrow(torch.nn.Module):
        def forward(self, x, t, c):
            return module(x.float(), t, c).double()

    return ddim(Narrow(), states, 20, condition)


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
