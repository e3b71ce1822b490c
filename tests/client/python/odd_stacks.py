# SPDX-License-Identifier: Apache-2.0
"""Deep networks as people write them, odd ones among them, and what an exporter has to make of each.

Listed before the exporter was written. A row: the name, a function that makes (module, example), and
None where the network has to be exported right, or what the refusal has to name.
"""

import torch
import torch.nn.functional as F
from torch import nn

INPUTS, WIDTH, OUTPUTS, DEPTH = 5, 8, 3, 12


class Loop(nn.Module):
    """Input layer, a list of linear layers, output layer; others inherit from it."""

    def __init__(self, inputs=INPUTS, outputs=OUTPUTS):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, outputs)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def block(self, layer, z):
        return torch.tanh(layer(z))

    def forward(self, x):
        z = self.first(x)
        for layer in self.layers:
            z = self.block(layer, z)
        return self.last(z)


class ScaledResidual(Loop):
    def block(self, layer, z):
        return z + 0.25 * F.relu(layer(z))


class ActivatedInput(Loop):
    def forward(self, x):
        z = F.silu(self.first(x))
        for layer in self.layers:
            z = z + F.silu(layer(z))
        return self.last(z)


class NormalisedInput(Loop):
    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.randn(INPUTS))
        self.register_buffer('std', torch.rand(INPUTS) + 0.5)

    def forward(self, x):
        return super().forward((x - self.mean) / self.std) * 2 - 1


class Images(Loop):
    def __init__(self):
        super().__init__(2 * 3)

    def forward(self, x):
        return super().forward(x.flatten(1))


class PreNorm(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = norm or nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, z):
        return z + self.dropout(self.down(F.gelu(self.up(self.norm(z)))))


class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, z):
        return self.weight * z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Rms()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, z):
        y = self.norm(z)
        return z + self.down(F.silu(self.gate(y)) * self.up(y))


class Gate(nn.Module):
    """A learned scalar for the layer, as ReZero has it."""

    def __init__(self):
        super().__init__()
        self.linear, self.gate = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.rand(()))

    def forward(self, z):
        return z + self.gate * torch.tanh(self.linear(z))


class Stacked(nn.Module):
    """Weights of all layers in one tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DEPTH, WIDTH, WIDTH) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.randn(DEPTH, WIDTH))

    def forward(self, z):
        for i in range(DEPTH):
            z = torch.tanh(F.linear(z, self.weight[i], self.bias[i]))
        return z


class Products(Stacked):
    """The same by matrix products, with weights that are transposed on the way."""

    def forward(self, z):
        for i in range(DEPTH):
            z = torch.tanh(z @ self.weight[i].t() + self.bias[i])
        return z


class Tied(nn.Module):
    """One block again and again."""

    def __init__(self):
        super().__init__()
        self.block = PreNorm()

    def forward(self, z):
        for _ in range(DEPTH):
            z = self.block(z)
        return z


class PartlyTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))

    def forward(self, z):
        for norm in self.norms:
            z = z + torch.tanh(self.shared(norm(z)))
        return z


class StepSizes(Loop):
    """A number of its own for each layer, as the steps of an integrator."""

    def forward(self, x):
        z = self.first(x)
        for i, layer in enumerate(self.layers):
            z = z + 1 / (1 + i) * torch.tanh(layer(z))
        return self.last(z)


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.even = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.odd = nn.ModuleList(SwiGlu() for _ in range(DEPTH))

    def forward(self, z):
        for even, odd in zip(self.even, self.odd):
            z = odd(z + torch.sigmoid(even(z)))
        return z


class Mixer(nn.Module):
    """States of tokens and channels."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.ModuleList(nn.Linear(4, 4) for _ in range(DEPTH))
        self.channels = nn.ModuleList(nn.Linear(6, 6) for _ in range(DEPTH))

    def forward(self, z):
        for tokens, channels in zip(self.tokens, self.channels):
            z = z + torch.tanh(tokens(z.transpose(1, 2))).transpose(1, 2)
            z = z + torch.tanh(channels(z))
        return z


class ShapesFromOutside(Loop):
    def forward(self, x):
        rows = x.shape[0]
        z = self.first(x)
        for layer in self.layers:
            z = torch.tanh(layer(z)).reshape(rows, WIDTH)
        return self.last(z)


class WithoutStatistics(Loop):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def block(self, layer, z):
        return z + self.norm(torch.tanh(layer(z)))


class InputInEachLayer(Loop):
    def forward(self, x):
        start = z = self.first(x)
        for layer in self.layers:
            z = torch.tanh(layer(z) + start)
        return self.last(z)


class Momentum(Loop):
    """A state of two layers."""

    def forward(self, x):
        before = z = self.first(x)
        for layer in self.layers:
            before, z = z, z + 0.5 * (z - before) + torch.tanh(layer(z))
        return self.last(z)


class LongSkips(Loop):
    def forward(self, x):
        z, kept = self.first(x), []
        for layer in self.layers[:DEPTH // 2]:
            kept.append(z)
            z = torch.tanh(layer(z))
        for layer in self.layers[DEPTH // 2:]:
            z = torch.tanh(layer(z)) + kept.pop()
        return self.last(z)


class Branch(Loop):
    def block(self, layer, z):
        return torch.tanh(layer(z)) if z.sum() > 0 else z


class Noisy(Loop):
    def block(self, layer, z):
        return torch.tanh(layer(z)) + 0.1 * torch.randn_like(z)


class Probabilities(Loop):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class SquaredInput(Loop):
    def forward(self, x):
        return super().forward(x * x)


class Embedded(Loop):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(10, WIDTH)


class Widths(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(part for width in range(4, 9)
                                   for part in (nn.Linear(width, width + 1), nn.Tanh())))

    def forward(self, x):
        return self.net(x)


class Slopes(Loop):
    """Layers that differ in an argument that is no factor."""

    def forward(self, x):
        z = self.first(x)
        for i, layer in enumerate(self.layers):
            z = F.leaky_relu(layer(z), 0.01 * (1 + i))
        return self.last(z)


class Statistics(nn.Module):
    """Statistics of training that were kept."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, z):
        return z + torch.relu(self.norm(self.linear(z)))


def in_rows(*shape):
    return torch.randn(1, *shape)


def sequence(make):
    return lambda: (nn.Sequential(*(make() for _ in range(DEPTH))), in_rows(WIDTH))


def network(make, *shape):
    return lambda: (make(), in_rows(*(shape or (INPUTS,))))


def with_ends():
    pairs = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), *pairs, nn.Linear(WIDTH, OUTPUTS))


def wrapped():
    """Sequences in sequences, and a head that normalises nothing."""
    blocks = nn.Sequential(*(nn.Sequential(PreNorm(), nn.Identity()) for _ in range(DEPTH)))
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), blocks, nn.Linear(WIDTH, OUTPUTS))


def weight_norm():
    return nn.Sequential(*(part for _ in range(DEPTH) for part in (
        nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())))


STACKS = {
    'sequential_blocks': (sequence(PreNorm), None),
    'pairs_with_ends': (network(with_ends), None),
    'sequences_in_sequences': (network(wrapped), None),
    'loop': (network(Loop), None),
    'scaled_residual': (network(ScaledResidual), None),
    'activated_input': (network(ActivatedInput), None),
    'normalised_input': (network(NormalisedInput), None),
    'flattened_input': (network(Images, 2, 3), None),
    'swiglu': (sequence(SwiGlu), None),
    'scalar_gate': (sequence(Gate), None),
    'stacked_weights': (network(Stacked, WIDTH), None),
    'matrix_products': (network(Products, WIDTH), None),
    'tied': (network(Tied, WIDTH), None),
    'partly_tied': (network(PartlyTied, WIDTH), None),
    'step_sizes': (network(StepSizes), None),
    'alternating': (network(Alternating, WIDTH), None),
    'tokens': (network(Mixer, 4, 6), None),
    'shapes_from_outside': (network(ShapesFromOutside), None),
    'batch_norm': (sequence(Statistics), None),
    'weight_norm': (network(weight_norm, WIDTH), None),
    'dropout_left_on': (lambda: (sequence(PreNorm)()[0].train(), in_rows(WIDTH)), None),
    'half_precision': (lambda: (sequence(PreNorm)()[0].half(), in_rows(WIDTH).half()), None),
    'double_precision': (lambda: (Loop().double(), in_rows(INPUTS).double()), None),
    'batch_statistics': (network(WithoutStatistics), 'batch'),
    'input_in_each_layer': (network(InputInEachLayer), 'more than one state'),
    'momentum': (network(Momentum), 'more than one state'),
    'long_skips': (network(LongSkips), 'more than one state'),
    'branch_on_state': (network(Branch), 'odd_stacks.py:'),
    'random_numbers': (network(Noisy), 'random'),
    'softmax_at_the_end': (network(Probabilities), 'after the blocks'),
    'squared_input': (network(SquaredInput), 'before the blocks'),
    'integers': (lambda: (Embedded(), torch.tensor([3])), 'example'),
    'widths': (network(Widths, 4), 'no equal blocks'),
    'slopes': (network(Slopes), 'leaky_relu'),
    'convolutions': (lambda: (nn.Sequential(*(nn.Conv1d(2, 2, 3, padding=1) for _ in range(4))),
                              in_rows(2, 6)), 'Conv'),
}
