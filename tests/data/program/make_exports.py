#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the exports that tests/kernels/program/exports_test.cc lowers and evaluates.

usage: make_exports.py [DIR]   (Debian's python3-torch 1.13; DIR: default is this file's folder)

Each is a denoiser of a public project, rewritten from its published code (most in tests/models)
with tiny sizes: NAME.onnx as torch.onnx.export writes it, and NAME.json with inputs and the module's
outputs in float64.
Weights and epsilons are exact in float32, as LinearLayer and ONNX's attributes hold them; modules
that compute constants (frequencies of a time embedding) are exported in float64, as in float32
their exports hold other numbers than the module.
"""

import json
import math
import pathlib
import sys

import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'models'))

import denoisers  # noqa: E402  pylint: disable=wrong-import-position
from denoisers import modulate  # noqa: E402  pylint: disable=wrong-import-position

EPSILON = 2.0 ** -17  # exact in float32, near 1e-5


def small(kind, **sizes):
    return lambda: kind(**sizes)


class AdaLnBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x, y):
        shift, scale, gate = self.ada(y).chunk(3, dim=-1)
        return x + gate * self.mlp(modulate(self.norm(x), shift, scale))


class SimpleMlpAdaLn(nn.Module):
    """MAR's."""

    def __init__(self):
        super().__init__()
        width = 8
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.cond = nn.Linear(6, width)
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList(AdaLnBlock(width) for _ in range(2))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=EPSILON)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.last = nn.Linear(width, 4)

    def forward(self, x, t, c):
        half = 4
        freqs = torch.exp(-math.log(10000) * torch.arange(start=0, end=half, dtype=x.dtype) / half)
        args = t[:, None].to(x.dtype) * freqs[None]
        y = self.time(torch.cat([torch.cos(args), torch.sin(args)], dim=-1)) + self.cond(c)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, y)
        shift, scale = self.ada(y).chunk(2, dim=-1)
        return self.last(modulate(self.norm(x), shift, scale))


class GroupNorm(nn.GroupNorm):
    """Of rows, with two more axes: PyTorch 1.13 cannot export it without."""

    def forward(self, x):
        return super().forward(x[:, :, None, None]).flatten(1)


class GroupNormMlp(nn.Module):
    """CleanDiffuser's PearceMlp: x and t go into every layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(w, 8), GroupNorm(4, 8, eps=EPSILON),
                                                   nn.LeakyReLU(0.25))
                                     for w in (3 + 1, 8 + 3 + 1)])
        self.last = nn.Linear(8 + 3 + 1, 3)

    def forward(self, x, t):
        t = t.to(x.dtype).view(-1, 1) * self.scale
        h = self.layers[0](torch.cat([x, t], -1))
        h = self.layers[1](torch.cat([h / 1.5, x, t], -1)) + h / 1.5
        return self.last(torch.cat([h, x, t], -1))


TINY = {'size': 8, 'hidden': 12, 'layers': 2}
IDQL = {'action': 3, 'observation': 4, 'time': 8, 'hidden': 12, 'blocks': 2, 'epsilon': EPSILON}

# Name, module, shapes of state and condition, kind of time, classes, opset, type of the export.
CASES = [
    ('tiny_identity', small(denoisers.TinyDiffusion, inputs='identity', **TINY), (2,), None, 'int',
     0, 17, torch.float64),
    ('tiny_sinusoidal', small(denoisers.TinyDiffusion, inputs='sinusoidal', **TINY), (2,), None,
     'int', 0, 17, torch.float64),
    ('diffusion_ql', small(denoisers.DiffusionQl, action=3, observation=5, time=8, hidden=16), (3,),
     (5,), 'int', 0, 14, torch.float64),
    ('dppo', small(denoisers.Dppo, steps=2, action=3, observation=5, time=8, hidden=16), (2, 3),
     (1, 5), 'int', 0, 17, torch.float32),
    ('tabddpm', small(denoisers.TabDdpm, columns=5, classes=3, dim=8, widths=(16, 12)), (5,), None,
     'int', 3, 11, torch.float64),
    ('idql', small(denoisers.Idql, **IDQL), (3,), (4,), 'int', 0, 17, torch.float32),
    ('idql_decomposed', small(denoisers.Idql, **IDQL), (3,), (4,), 'int', 0, 14, torch.float32),
    ('swiglu_head', small(denoisers.SwigluHead, dim=4, condition=6, time=8, width=8, layers=2,
                          epsilon=EPSILON, time_scale=1000), (4,), (6,), 'float', 0, 13,
     torch.float64),
    ('mar', SimpleMlpAdaLn, (4,), (6,), 'int', 0, 16, torch.float64),
    ('group_norm', GroupNormMlp, (3,), None, 'int', 0, 9, torch.float32),
]


def make_inputs(case, batch, dtype):
    _, _, state, condition, time, classes, _, _ = case
    inputs = {'state': torch.randn(batch, *state, dtype=torch.float64).to(dtype)}
    if time == 'int':
        inputs['time'] = torch.randint(0, 100, (batch,))
    else:
        inputs['time'] = torch.randint(0, 64, (batch,)).to(dtype) / 64
    if condition is not None:
        inputs['condition'] = torch.randn(batch, *condition, dtype=torch.float64).to(dtype)
    if classes:
        inputs['label'] = torch.randint(0, classes, (batch,))
    return inputs


def write(case, folder):
    name, make, _, _, _, _, opset, dtype = case
    torch.manual_seed(len(name))
    module = make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    module = module.to(dtype)
    example = make_inputs(case, 2, dtype)
    torch.onnx.export(module, tuple(example.values()), str(folder / f'{name}.onnx'),
                      opset_version=opset, input_names=list(example), output_names=['prediction'],
                      dynamic_axes={key: {0: 'batch'} for key in [*example, 'prediction']})
    inputs = make_inputs(case, 4, torch.float64)
    with torch.no_grad():
        outputs = module.double()(*inputs.values())
    rows = [{**{key: value[i].flatten().tolist() for key, value in inputs.items()},
             'prediction': outputs[i].flatten().tolist()} for i in range(4)]
    (folder / f'{name}.json').write_text(json.dumps({'rows': rows}) + '\n', encoding='utf-8')


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for case in CASES:
        write(case, folder)


if __name__ == '__main__':
    main()
