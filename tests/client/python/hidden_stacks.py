# SPDX-License-Identifier: Apache-2.0
"""Deep networks that do something which only far from the usual inputs, or somewhere else than in
their forward, shows.

Rows as in odd_stacks.py.
"""

import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from odd_stacks import INPUTS, OUTPUTS, Loop, network
from tricky_stacks import loop


def changed(change):
    """A Loop that somebody has changed after it was made."""

    def make():
        torch.manual_seed(1)
        module, example = network(Loop)()
        change(module)
        return module, example

    return make


def clipped_forward(self, x):
    return Loop.forward(self, x).clamp(-20, 20)


class OwnCall(Loop):
    def __call__(self, *args):
        return super().__call__(*args).clamp(-20, 20)


def clipped_leaf(module):
    """One layer has a forward of its own."""
    module.layers[1].forward = types.MethodType(
        lambda self, x: nn.Linear.forward(self, x).clamp(-100, 100), module.layers[1])


def in_place(change):
    """Blocks whose states are changed by a statement whose result nobody uses."""

    def block(layer, z):
        y = layer(z)
        change(y)
        return z + 0.1 * y

    return loop(block=block)


def of_a_view(layer, z):
    y = layer(z)
    y[:, :4].clamp_(-100, 100)
    return z + 0.1 * y


def compiled(compile_it):
    """A Loop as torch.compile gives it, which PyTorch 1 does not have."""

    def make():
        module, example = network(Loop)()
        return compile_it(module), example

    return make


def eagerly(module):
    return torch.compile(module, backend='eager') if hasattr(torch, 'compile') else module


def with_compiled_layers(module):
    module.layers = nn.ModuleList(eagerly(layer) for layer in module.layers)
    return module


def with_a_hook(module):
    module = eagerly(module)
    module.register_forward_hook(lambda m, inputs, outputs: 3 * outputs)
    return module


class Initialised(Loop):
    """Activation normalisation, which its first input initialises."""

    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(1, OUTPUTS))
        self.register_buffer('is_set', torch.zeros(()))

    def forward(self, x):
        y = super().forward(x)
        if self.is_set.item() == 0:
            self.mean.copy_(y.mean(0, keepdim=True))
            self.is_set.fill_(1)
        return y - self.mean


class Counted(Loop):
    """What counts its calls, as nothing depends on it."""

    def __init__(self):
        super().__init__()
        self.register_buffer('calls', torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Cached(Loop):
    """Constants by the size of the batch, which it keeps."""

    kept = {}

    def forward(self, x):
        ones = self.kept.setdefault(len(x), torch.ones(len(x), 1).long().float())
        return super().forward(x * ones)


@torch.jit.script
def scripted_swish(x):
    return x * torch.sigmoid(x)


class DeadColumn(Loop):
    """A normalisation with a column that never varied, and blocks that square what comes of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer('deviation', torch.rand(INPUTS) + 0.5)
        self.deviation[1] = 0

    def block(self, layer, z):
        return z + layer(F.layer_norm(z, z.shape[1:]))

    def forward(self, x):
        return super().forward(x / (self.deviation + 1e-8))


class Periodic(Loop):
    """Whose float32 has no right digits for large inputs, but some by chance."""

    def block(self, layer, z):
        return torch.sin(3 * layer(z))


class SoftmaxByHand(Loop):
    """Overflows for large inputs, before which something else is lost."""

    def block(self, layer, z):
        h = layer(z)
        weights = torch.exp(z)
        clipped = h.view(-1).clamp_(-6, 6)
        return z + 0.1 * h + 0.1 * weights / weights.sum(-1, keepdim=True) + 0 * clipped.view_as(h)


class SmallRms(Loop):
    """Root mean squares as small as the epsilon that PyTorch takes of the precision."""

    def block(self, layer, z):
        norm = getattr(F, 'rms_norm', F.layer_norm)
        return z + 0.1 * norm(1e-3 * layer(z), z.shape[1:])


class Seeded(Loop):
    """Constants of a generator with a seed."""

    def block(self, layer, z):
        noise = torch.randn(z.shape[-1], generator=torch.Generator().manual_seed(0))
        return z + 0.1 * torch.tanh(layer(z) * noise)


OTHERS = "the network's own hooks"

STACKS = {
    'root_hook': (changed(lambda m: m.register_forward_hook(lambda m, i, o: o.clamp(-20, 20))), OTHERS),
    'root_pre_hook': (changed(lambda m: m.register_forward_pre_hook(lambda m, i: (i[0].clamp(-9, 9),))), OTHERS),
    'set_forward': (changed(lambda m: setattr(m, 'forward', types.MethodType(clipped_forward, m))), OTHERS),
    'own_call': (network(OwnCall), OTHERS),
    'leaf_forward': (changed(clipped_leaf), 'before the blocks'),
    'clamp_': (in_place(lambda y: torch.clamp_(y, -100, 100)), 'in-place'),
    'hardtanh_': (in_place(lambda y: F.hardtanh_(y, -100, 100)), 'in-place'),
    'out': (in_place(lambda y: torch.clamp(y, -100, 100, out=y)), 'in-place'),
    'setitem': (in_place(lambda y: y.__setitem__((slice(None), 0), 0.0)), 'in-place'),
    'of_a_view': (loop(block=of_a_view), 'in-place'),
    'used_view': (loop(block=lambda layer, z: z + 0.1 * torch.cat(
        [layer(z)[:, :4].clamp_(-100, 100), layer(z)[:, 4:]], 1)), None),
    'logsigmoid': (loop(block=lambda layer, z: z + 0.1 * F.logsigmoid(layer(z))), 'large inputs'),
    'softplus': (loop(block=lambda layer, z: z + 0.1 * F.softplus(layer(z), 0.001, 20)), None),
    'sentinel': (loop(lambda x: torch.where(x == -999.0, torch.zeros_like(x), x)), 'before the blocks'),
    'masked': (loop(lambda x: x.masked_fill(x == -1.0, 0.5)), 'before the blocks'),
    'far_clip': (loop(lambda x: x.clamp(-1e10, 1e10)), 'before the blocks'),
    'all_positive': (loop(lambda x: torch.where((x > 0).all(1, keepdim=True), 3 * x, x)), 'before the blocks'),
    'far_outputs': (loop(after=lambda y: torch.where(y.abs() > 1e12, 0 * y, y)), 'after the blocks'),
    'batch_of_two': (loop(after=lambda y: -y if len(y) == 2 else y), 'batch of 2'),
    'large_batch': (loop(after=lambda y: y - y.mean(0) if len(y) > 8 else y), 'batch of 9'),
    'named_results': (loop(block=lambda layer, z: z + 0.1 * (layer(z) - layer(z).max(1, keepdim=True).values)), None),
    'data': (loop(block=lambda layer, z: z + 0.1 * layer(z).tanh().data), None),
    'compiled': (compiled(eagerly), None),
    'compiled_layers': (compiled(with_compiled_layers), None),
    'numpy_scalars': (loop(block=lambda layer, z: (z + np.sqrt(0.5) * torch.tanh(layer(z)) * np.float32(0.5)
                                                   + np.log(2)) / np.sqrt(2)), None),
    'scripted': (loop(block=lambda layer, z: z + 0.1 * scripted_swish(layer(z))), 'a function is scripted'),
    'dead_column': (network(DeadColumn), None),
    'periodic': (lambda: (Periodic(outputs=1), torch.randn(1, INPUTS)), None),
    'softmax_by_hand': (network(SoftmaxByHand), 'in-place'),
    'small_rms': (network(SmallRms), None),
    'seeded': (network(Seeded), None),
    'compiled_with_a_hook': (compiled(with_a_hook), OTHERS),
    'tanh_at_the_end': (loop(after=torch.tanh), 'got last, tanh'),
    'initialised': (network(Initialised), 'after another input'),
    'counted': (network(Counted), None),
    'cached': (network(Cached), None),
}
