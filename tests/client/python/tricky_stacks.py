# SPDX-License-Identifier: Apache-2.0
"""Deep networks that an exporter gets wrong without a word, or refuses without a reason.

Rows as in odd_stacks.py: each was found by somebody who looked for what an earlier exporter got wrong.
"""

import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from odd_stacks import DEPTH, INPUTS, OUTPUTS, WIDTH, Loop, network


def loop(before=None, after=None, block=None):
    """A residual Loop with functions before its first layer, after its last one, and as its block."""

    class Network(Loop):
        def block(self, layer, z):
            return block(layer, z) if block else z + torch.tanh(layer(z))

        def forward(self, x):
            y = super().forward(before(x) if before else x)
            return after(y) if after else y

    return network(Network)


class ClippedLayer(Loop):
    """What is a relu for values below 100."""

    def forward(self, x):
        z = F.hardtanh(self.first(x), 0, 100)
        for layer in self.layers:
            z = z + torch.tanh(layer(z))
        return self.last(z)


class Rates(nn.Module):
    """Dropout that grows with the depth."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.drops = nn.ModuleList(nn.Dropout(0.1 * i / DEPTH) for i in range(DEPTH))

    def forward(self, z):
        for i, layer in enumerate(self.layers):
            z = z + self.drops[i](F.dropout(torch.tanh(layer(z)), 0.01 * i, self.training))
        return z


class Residual(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.layer, self.drop = nn.Linear(WIDTH, WIDTH), drop

    def forward(self, z):
        return z + self.drop(torch.tanh(self.layer(z)))


class RateOfAModule(Residual):
    def forward(self, z):
        return z + F.dropout(torch.tanh(self.layer(z)), p=self.drop.p, training=self.training)


def one_dropout(block):
    """Blocks that share what drops, as one module."""

    def make():
        drop = nn.Dropout(0.1)
        return nn.Sequential(nn.Linear(INPUTS, WIDTH), *(block(drop) for _ in range(DEPTH)),
                             nn.Linear(WIDTH, OUTPUTS))

    return network(make)


def low_rank():
    """A first layer whose directions rounding alone tells apart."""
    return nn.Sequential(nn.Linear(32, 4), nn.Linear(4, WIDTH),
                         *(Residual(nn.Identity()) for _ in range(DEPTH)))


def one_output(seed):
    def make():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 32), *(Deep() for _ in range(DEPTH)), nn.Linear(32, 1))

    return network(make, 8)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, z):
        return z + torch.tanh(self.layer(z))


class InPlaceStatement(Loop):
    def forward(self, x):
        z = self.first(x)
        for layer in self.layers:
            y = layer(z)
            F.relu(y, inplace=True)
            z = z + y
        return self.last(z)


class Momenta(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH, momentum=0.1 / (i + 1)) for i in range(DEPTH))

    def forward(self, z):
        for layer, norm in zip(self.layers, self.norms):
            z = z + torch.tanh(norm(layer(z)))
        return z


class Spectral(Loop):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            parametrizations.spectral_norm(layer)


class Glu(nn.Module):
    """Halves by slices of a size that is asked for."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(DEPTH))

    def forward(self, z):
        for layer in self.layers:
            y = layer(z)
            half = y.shape[-1] // 2
            z = z + y[:, :half] * torch.sigmoid(y[:, half:])
        return z


class GluOfOneSize(Glu):
    def forward(self, z):
        half = self.layers[0](z).shape[-1] // 2
        for layer in self.layers:
            y = layer(z)
            z = z + y[:, :half] * torch.sigmoid(y[:, half:])
        return z


class PlainTensors(nn.Module):
    """Matrices that are neither weights nor buffers."""

    def __init__(self):
        super().__init__()
        self.matrices = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(DEPTH)]

    def forward(self, z):
        for matrix in self.matrices:
            z = z + torch.tanh(z @ matrix)
        return z


class Names(nn.Module):
    """Lists with the names of what torch.fx and ONNX call theirs."""

    def __init__(self):
        super().__init__()
        self.prediction = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.x = nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(DEPTH))

    def forward(self, z):
        for layer, bias in zip(self.prediction, self.x):
            z = z + torch.tanh(layer(z) + bias)
        return z


class Scalars(nn.Module):
    """Norms of layers as scalars of their modules, of a network that is chaotic."""

    def __init__(self, depth=200):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(depth):
            layer = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH), dim=None)
            layer.weight_g.data.fill_(5.0 + 5.0 * (i % 2))
            self.layers.append(layer)

    def forward(self, z):
        for layer in self.layers:
            z = torch.tanh(layer(z))
        return z


class Chaos(nn.Module):
    """The logistic map: nothing is wrong with it, and nothing can be compared."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.rates = nn.ParameterList(nn.Parameter(torch.full((1,), 3.99)) for _ in range(100))

    def forward(self, x):
        z = torch.sigmoid(self.first(x))
        for rate in self.rates:
            z = rate * z * (1 - z)
        return z


class Locked(Loop):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Mask(Loop):
    def forward(self, x, mask=None):
        y = super().forward(x)
        return y if mask is None else y * mask


def checked(x):
    assert isinstance(x, torch.Tensor)
    return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(DEPTH))

    def forward(self, z):
        for layer in self.layers:
            z = torch.tanh(layer(z)[0])
        return z.softmax(-1)


STACKS = {
    'normalised': (loop(lambda x: (x - 3.0) / 0.5), None),
    'dropout_rates': (network(Rates, WIDTH), None),
    'one_dropout': (one_dropout(Residual), None),
    'rate_of_a_module': (one_dropout(RateOfAModule), None),
    'low_rank': (network(low_rank, 32), None),
    **{f'one_output_{seed}': (one_output(seed), None) for seed in range(6)},
    'in_place_statement': (network(InPlaceStatement), 'in-place operation'),
    'momenta': (network(Momenta, WIDTH), None),
    'spectral_norm': (network(Spectral), None),
    'glu': (network(Glu, WIDTH), None),
    'glu_of_one_size': (network(GluOfOneSize, WIDTH), None),
    'plain_tensors': (network(PlainTensors, WIDTH), None),
    'names': (network(Names, WIDTH), None),
    # A block may clip: only the ends may not.
    'clipped_blocks': (loop(block=lambda layer, z: (z + layer(z)).clamp(-2, 3)), None),
    'clipped_inputs': (loop(lambda x: (x / 100).clamp(-10, 10)), 'before the blocks'),
    'clipped_outputs': (loop(after=lambda y: (0.01 * y).clamp(-1, 1)), 'after the blocks'),
    'dead_zone': (loop(lambda x: F.hardshrink(x, 1e-3)), 'before the blocks'),
    'clipped_layer': (network(ClippedLayer), 'before the blocks'),
    'one_sided_clip': (loop(lambda x: x.clamp(max=5e4)), 'before the blocks'),
    'angles': (loop(lambda x: torch.remainder(x + 1000, 2000) - 1000), 'before the blocks'),
    'far_mean': (loop(lambda x: (x - 1e5) / 1.0), 'about the mean that the first layer subtracts'),
    'pressures': (loop(lambda x: (x - 101325) / 10.0), 'about the mean that the first layer subtracts'),
    'scalars_of_modules': (network(Scalars, WIDTH), 'differ in a scalar'),
    'chaos': (network(Chaos), 'as sensitive as that'),
    'locks': (network(Locked), None),
    'optional_mask': (network(Mask), None),
    'assertions': (loop(checked), None),
    'batches_of_one': (loop(lambda x: x.view(1, INPUTS)), 'a batch of random inputs'),
    'squeezed': (loop(after=lambda y: y.squeeze()), 'one for each sample'),
    'sums': (loop(after=lambda y: y.sum()), 'one for each sample'),
    'numbers_of_classes': (loop(after=lambda y: y.argmax(-1)), 'got torch.int64'),
    'gru': (network(Recurrent, 3, WIDTH), 'tuple'),
}

