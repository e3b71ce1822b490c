# SPDX-License-Identifier: Apache-2.0
"""Deep networks with statements as `z += y`, which change a tensor and whoever else has it, with
numbers that they compute of weights, and with what they keep for later.

Rows as in odd_stacks.py.
"""

import torch
import torch.nn.functional as F
from torch import nn

from kept_or_changed import with_zero_for_missing
from odd_stacks import DEPTH, WIDTH, Loop, in_rows, network
from tricky_stacks import loop


class Identity(nn.Module):
    """The residual block of torchvision, with linear layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, z):
        identity = z
        out = F.relu(self.first(z))
        out = self.last(out)
        out += identity
        return F.relu(out)


def of_blocks(block):
    return lambda: (nn.Sequential(*(block() for _ in range(DEPTH))), in_rows(WIDTH))


def scaled(layer, z):
    h = torch.tanh(layer(z))
    h *= 0.5
    h -= h.mean(-1, keepdim=True)
    h /= 1.5
    h += z
    return h


def squared(layer, z):
    h = torch.tanh(layer(z))
    h **= 2
    return z + 0.1 * h


class RunsOneBlock(Loop):
    """A loop over one layer that changes its state in place."""

    def forward(self, x):
        z = self.first(x)
        for _ in self.layers:
            z += torch.tanh(self.layers[0](z))
        return self.last(z)


class SharedWithItsSkip(nn.Module):
    """What is missing is left out of the skip too, as that is the same tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, z):
        h = z * 1.0
        skip = h
        h *= (h != -1).float()
        return skip + torch.tanh(self.layer(h))


def whose_skip_alone_is_read(layer, z):
    h = z * 1.0
    skip = h
    h += torch.tanh(layer(h))
    return skip


class Gated(Loop):
    """Gates that are nearly closed: 1 - g has few digits in float32."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Parameter(torch.linspace(4, 9, DEPTH))

    def forward(self, x):
        z = self.first(x)
        for layer, gate in zip(self.layers, self.gates):
            g = torch.sigmoid(gate)
            z = g * z + (1 - g) * torch.tanh(layer(z)) + torch.exp(-12 * g) * z
        return self.last(z)


class OnAGrid(Loop):
    """Steps of a grid of times, which are small differences of a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer('times', torch.sin(1 + 1e-3 * torch.arange(DEPTH + 1)))

    def forward(self, x):
        z = self.first(x)
        for i, layer in enumerate(self.layers):
            z = z + (self.times[i + 1] - self.times[i]) * torch.tanh(layer(z))
        return self.last(z)


class Kept(Loop):
    """Constants of the form of its first input, and the last features for others."""

    mask, features = None, None

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = torch.ones_like(x)
        if x.shape not in self.kept:
            self.kept[x.shape] = x.new_full((x.shape[1],), 0.5)
        y = super().forward(x * self.mask + self.kept[x.shape])
        self.features = y
        return y


class Tiny(Loop):
    """A normalisation that adds the smallest number of a buffer's precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer('one', torch.ones(1))

    def block(self, layer, z):
        y = layer(z)
        length = y.square().sum(1, keepdim=True).add(1).sqrt()
        return z + y / (length + torch.finfo(self.one.dtype).tiny)


class PrecisionOfWeights(Loop):
    """What it does in float32 alone."""

    def block(self, layer, z):
        if next(self.parameters()).dtype == torch.float32:
            z = with_zero_for_missing(z)
        return z + torch.tanh(layer(z))


class EpsilonOfWeights(Loop):
    def block(self, layer, z):
        y = torch.log((z != -1).to(z.dtype) + torch.finfo(next(self.parameters()).dtype).eps)
        return z + 0.1 * torch.tanh(layer(y))


def mark(mask, z):
    mask |= z == -1


def marked(layer, z):
    mask = torch.zeros(len(z), WIDTH, dtype=torch.bool)
    mark(mask, z)
    return z + torch.tanh(layer(z.masked_fill(mask, 0)))


def marked_in_a_list(layer, z):
    masks = [torch.zeros(len(z), WIDTH, dtype=torch.bool)]
    for mask in masks:
        mask |= z == -1
    return z + torch.tanh(layer(z.masked_fill(masks[0], 0)))


def sums_in_place(layer, z):
    total = torch.zeros(len(z), WIDTH)
    total += layer(z)
    return z + torch.tanh(total)


def another_name_of_a_constant(layer, z):
    bias = layer.bias.expand(len(z), -1).clone()
    same = bias
    bias += 5.0 * (z == -1)
    return z + torch.tanh(layer(same)) * bias


def used_for_its_size(layer, z):
    h = z * 1.0
    skip = h
    h *= (h != -1).float()
    return z + torch.tanh(layer(skip)) / torch.numel(h[:1])


STACKS = {
    'identity': (of_blocks(Identity), None),
    'scaled_in_place': (loop(block=scaled), None),
    'squared_in_place': (loop(block=squared), None),
    'runs_one_block': (network(RunsOneBlock), None),
    'shared_with_its_skip': (of_blocks(SharedWithItsSkip), None),
    'whose_skip_alone_is_read': (loop(block=whose_skip_alone_is_read), 'in-place operation to be used'),
    'missing_before_in_place': (loop(lambda x: with_zero_for_missing(x).mul_(2)), 'before the blocks'),
    'gated_by_weights': (network(Gated), None),
    'on_a_grid': (network(OnAGrid), None),
    'kept_features': (network(Kept), None),
    'tiny_of_a_buffer': (network(Tiny), 'as it runs, and'),
    'precision_of_weights': (network(PrecisionOfWeights), 'as it runs, and'),
    'epsilon_of_weights': (network(EpsilonOfWeights), 'from the dtype of the state'),
    'marked': (loop(block=marked), 'in-place operation'),
    'marked_in_a_list': (loop(block=marked_in_a_list), 'in-place operation'),
    'sums_in_place': (loop(block=sums_in_place), 'changes a constant by the state'),
    'another_name_of_a_constant': (loop(block=another_name_of_a_constant),
                                   'changes a constant by the state'),
    'used_for_its_size': (loop(block=used_for_its_size), 'in-place operation to be used'),
}
