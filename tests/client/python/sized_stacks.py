# SPDX-License-Identifier: Apache-2.0
"""Deep networks whose way depends on sizes, on hooks, or on how they take their input.

Rows as in odd_stacks.py.
"""

import torch
import torch.nn.functional as F
from torch import nn

from odd_stacks import DEPTH, INPUTS, WIDTH, Loop, network
from tricky_stacks import loop


class Checks(Loop):
    """What networks assert of their inputs."""

    def forward(self, x):
        batch, width = x.shape
        assert x.ndim == 2 and width == INPUTS, f'got {tuple(x.shape)}'
        assert x.is_floating_point() and not x.is_complex()
        if x.dim() == 1 or len(x) != batch or x.numel() != batch * width or x.size(-1) != INPUTS:
            raise ValueError('an input of another shape')
        if x.dtype == torch.float16 or x.device.type != 'cpu':
            x = x.to(torch.float32)
        return super().forward(x.view(x.size(0), -1))


class WidthTimes(nn.Module):
    """As many layers as the state is wide, and a few that count by weights."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DEPTH, DEPTH) for _ in range(DEPTH))

    def forward(self, z):
        for i in range(z.shape[-1]):
            layer = self.layers[i]
            z = z + F.linear(z, layer.weight / layer.weight.shape[0] ** 0.5, layer.bias).tanh() / len(layer.bias)
        return z


class Parts(nn.Module):
    """Loops over parts of the state."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, z):
        for layer in self.layers:
            parts = [part * torch.sigmoid(part) for part in z.chunk(4, -1)]
            z = z + layer(torch.cat([*reversed(parts)], -1))
        return z


class Transposes(Parts):
    def forward(self, z):
        for layer in self.layers:
            z = z + torch.tanh(z @ layer.weight.T.view(layer.weight.T.shape) + layer.bias.data)
        return z


class Varargs(Loop):
    def forward(self, *inputs, **options):
        x, = inputs
        return super().forward(x * options.get('scale', 1.0))


class Keywords(Loop):
    def forward(self, x, *, scale=0.5, mask=None):
        return super().forward(scale * x if mask is None else mask * x)


def hooked(register, hook):
    """Layers with a hook each, made by the layer's number."""
    def make():
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
        for i, layer in enumerate(layers):
            getattr(layer, register)(hook(i))
        return layers, torch.randn(1, WIDTH)
    return make


def scaling(i):
    return lambda module, inputs, output: torch.tanh(output) * (1 + 0.1 * i)


def before(i):
    return lambda module, inputs: (torch.tanh(inputs[0]) + 0.01 * i,)


def other_activation(i):
    return lambda module, inputs, output: torch.tanh(output) if i in (1, 2, 6) else torch.sigmoid(output)


def once(i):
    return lambda module, inputs, output: torch.tanh(output) if i == DEPTH // 2 else None


class BatchOfOne(Loop):
    """Another network where a sample is alone, as it is when it is recorded."""

    def forward(self, x):
        y = super().forward(x)
        return y if x.shape[0] == 1 else -y


class BySize(Loop):
    """A number made of the size of the batch."""

    def forward(self, x):
        return super().forward(x) / x.shape[0]


class ByClass(Loop):
    """Another way where what it is given is no tensor, as a recorder's stand-in is none."""

    def forward(self, x):
        return super().forward(x if isinstance(x, torch.Tensor) else 2 * x)


class ByValue(Loop):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class ByItem(Loop):
    def forward(self, x):
        return super().forward(x)[:, :1 + int(x.abs().max().item() > 1e9)]


class Changes(Parts):
    """Writes into its input, which is the caller's."""

    def forward(self, z):
        z.mul_(0.5)
        for layer in self.layers:
            z = z + torch.tanh(layer(z)) * (z.shape[1] / 8)
        return z


class Script(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())) for _ in range(DEPTH))

    def forward(self, z):
        for layer in self.layers:
            z = z + layer(z) * (z.shape[1] / 8)
        return z


class Tied(Parts):
    """A layer that is called, and whose weight is then used by itself."""

    def forward(self, z):
        for layer in self.layers:
            z = z + F.linear(torch.tanh(layer(z)), layer.weight.t())
        return z


class Kinds(Parts):
    """Casts to the precision of another tensor, and to that of the server."""

    def forward(self, z):
        z = z.to(self.layers[0].weight.dtype)
        for layer in self.layers:
            z = z + torch.tanh(layer(z.to(layer.weight))).to(torch.float32).type_as(z)
        return z.to(dtype=torch.float32)


def tied_to(step):
    """Residual layers whose input has gone through step(z, layer, i)."""
    class Network(Parts):
        def forward(self, z):
            for i, layer in enumerate(self.layers):
                z = z + torch.tanh(layer(z)) * step(z, layer, i)
            return z
    return network(Network, WIDTH)


def negative_if(condition):
    """Networks that turn their input around where `condition`, a number made of values, is true."""
    return loop(lambda x: -x if condition(x) else x)


BY_VALUES = 'values'
STACKS = {
    'checks': (network(Checks), None),
    'width_times': (network(WidthTimes, DEPTH), None),
    'parts': (network(Parts, WIDTH), None),
    'transposes': (network(Transposes, WIDTH), None),
    'varargs': (network(Varargs), None),
    'keywords': (network(Keywords), None),
    'hooks': (hooked('register_forward_hook', scaling), None),
    'pre_hooks': (hooked('register_forward_pre_hook', before), None),
    'two_activations': (hooked('register_forward_hook', other_activation), 'before the blocks'),
    'one_hook': (hooked('register_forward_hook', once), 'blocks'),
    'unpacked': (loop(lambda x: torch.stack([*x.unbind(-1)], -1)), None),
    'new_like': (loop(lambda x: x + torch.ones(x.shape, dtype=x.dtype, device=x.device)), None),
    'changes': (network(Changes, WIDTH), 'in-place operation'),
    'own_weights_used_again': (network(Tied, WIDTH), None),
    'kinds': (network(Kinds, WIDTH), None),
    # What it is where it is served counts, which is not what it is recorded with.
    'doubles': (loop(lambda x: 2 * x if x.dtype == torch.float64 else x), 'of PyTorch in float32 are off'),
    'rounding': (tied_to(lambda z, layer, i: 1 + 1e4 * torch.finfo(z.dtype).eps), None),
    'mask_of_ones': (loop(lambda x: x[torch.ones(x.shape[0], dtype=torch.bool)]), None),
    'scripted_part': (network(Script, WIDTH), 'as it was before torch.jit.script'),
    'some': (negative_if(lambda x: x[x > 8].numel()), BY_VALUES),
    'far': (negative_if(lambda x: x[x > 1e30].numel()), BY_VALUES),
    'where': (negative_if(lambda x: torch.where(x > 8)[0].shape[0]), BY_VALUES),
    'argwhere': (negative_if(lambda x: len(torch.argwhere(x.abs() > 8))), BY_VALUES),
    'ties': (negative_if(lambda x: len(torch.unique(x)) != x.numel()), BY_VALUES),
    'bins': (negative_if(lambda x: torch.bincount((x.abs() > 8).long().flatten()).numel() > 1), BY_VALUES),
    'repeats': (negative_if(lambda x: torch.repeat_interleave(
        torch.arange(x.numel()), (x > 8).long().flatten()).numel()), BY_VALUES),
    'counts_in_a_loop': (loop(lambda x: x + sum(1.0 for _ in (x > 8).nonzero())), BY_VALUES),
    'some_in_blocks': (tied_to(lambda z, layer, i: 1 + z[z > 5].numel()), BY_VALUES),
    'batch_of_one': (network(BatchOfOne), 'others of its batch'),
    'by_size': (network(BySize), 'others of its batch'),
    'by_class': (network(ByClass), None),
    'by_value': (network(ByValue), 'sized_stacks.py:'),
    'by_item': (network(ByItem), 'sized_stacks.py:'),
}
