#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the stacks that tests/kernels/conformance/exported_stacks_test.cc loads and solves.

usage: make_stacks.py [DIR]   (Debian's python3-torch 1.13; DIR: default is this file's folder)

Each NAME is a model folder: block.onnx as torch.onnx.export writes it for the first block,
model.safetensors with every block's parameters stacked by their names, config.json; and golden.json
with inputs and what the blocks, one after another in float64, make of them.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'models'))

import stacking  # noqa: E402  pylint: disable=wrong-import-position

EPSILON = 2.0 ** -17  # exact in float32, near 1e-5


class PreNorm(nn.Module):
    """A pre-norm block of expansion 4, as IDQL's."""

    def __init__(self, width=6):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width, eps=EPSILON), nn.Dropout(0.1),
                                 nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + 0.5 * self.net(x)


class Bottleneck(nn.Module):
    def __init__(self, width=9):
        super().__init__()
        self.down, self.up = nn.Linear(width, 3), nn.Linear(3, width, bias=False)

    def forward(self, x):
        return x + self.up(torch.relu(self.down(torch.relu(x))))


class Gated(nn.Module):
    """Two rows that share their weights, an RMS norm, a gated unit, and a scale of each layer."""

    def __init__(self, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.scale = nn.Parameter(torch.full((width,), 0.25))
        self.gate, self.up = (nn.Linear(width, 6, bias=False) for _ in range(2))
        self.down = nn.Linear(6, width, bias=False)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight
        return x + self.scale * self.down(torch.sigmoid(self.gate(h)) * self.up(h))


class Tied(nn.Module):
    """One matrix for all layers, and a bias of each."""

    def __init__(self, width=5):
        super().__init__()
        self.shared = nn.Linear(width, width, bias=False)
        self.own = nn.Parameter(torch.zeros(1, width))

    def forward(self, x):
        return torch.tanh(self.shared(x) + self.own)


class ResidualLayer(nn.Module):
    """A layer of the named family `resnet`, called otherwise."""

    def __init__(self, width=7):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + 0.25 * torch.tanh(self.fc(x))


# Name, block, shape of the state, layers, input and output dimensions (0: no such layer), shared
# parameters, opset, constants folded.
CASES = [
    ('prenorm', PreNorm, (6,), 24, 5, 3, [], 17, True),
    ('bottleneck', Bottleneck, (9,), 33, 0, 0, [], 13, False),
    ('gated', Gated, (2, 4), 20, 0, 4, [], 14, False),
    ('tied', Tied, (5,), 40, 3, 0, ['shared.weight'], 11, False),
    ('residual', ResidualLayer, (7,), 50, 0, 2, [], 17, True),
]


def write(case, root):
    name, make, shape, layers, input_dim, output_dim, shared, opset, folded = case
    folder = root / name
    folder.mkdir(exist_ok=True)
    torch.manual_seed(len(name))
    blocks = [make().eval() for _ in range(layers)]
    with torch.no_grad():
        for block in blocks:
            for parameter in block.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for key in shared:
            for block in blocks[1:]:
                dict(block.named_parameters())[key].copy_(dict(blocks[0].named_parameters())[key])
    torch.onnx.export(blocks[0], torch.randn(1, *shape), str(folder / 'block.onnx'),
                      opset_version=opset, do_constant_folding=folded, input_names=['z'],
                      output_names=['next'])
    size = int(np.prod(shape))
    tensors = stacking.stacked(blocks, shared)
    outer = {}
    if input_dim:
        outer['input'] = nn.Linear(input_dim, size)
    if output_dim:
        outer['output'] = nn.Linear(size, output_dim)
    for key, layer in outer.items():
        tensors[f'{key}.weight'], tensors[f'{key}.bias'] = layer.weight, layer.bias
    stacking.write_safetensors(folder / 'model.safetensors', tensors)
    config = {'model_type': 'stack', 'input_dim': input_dim or size, 'output_dim': output_dim or size,
              'state_dim': size, 'num_layers': layers}
    if shared:
        config['shared_weights'] = shared
    (folder / 'config.json').write_text(json.dumps(config) + '\n', encoding='utf-8')
    x = torch.randn(4, input_dim or size)
    z = x.double()
    with torch.no_grad():
        if 'input' in outer:
            z = outer['input'].double()(z)
        z = z.view(-1, *shape)
        for block in blocks:
            z = block.double()(z)
        z = z.reshape(4, size)
        if 'output' in outer:
            z = outer['output'].double()(z)
    golden = {'inputs': x.tolist(), 'outputs': z.tolist()}
    (folder / 'golden.json').write_text(json.dumps(golden) + '\n', encoding='utf-8')


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for case in CASES:
        write(case, root)


if __name__ == '__main__':
    main()
