#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the exports that tests/kernels/program/exports_test.cc lowers and evaluates.

usage: make_exports.py [DIR]   (Debian's python3-torch 1.13; DIR: default is this file's folder)

Each is a denoiser of a public project, rewritten from its published code with tiny sizes: NAME.onnx
as torch.onnx.export writes it, and NAME.json with inputs and the module's outputs in float64.
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
from torch.nn import functional as F

EPSILON = 2.0 ** -17  # exact in float32, near 1e-5


def frequencies(half, divisor, dtype):
    return torch.exp(torch.arange(half, dtype=dtype) * -(math.log(10000) / divisor))


class SinusoidalPosEmb(nn.Module):
    """Of Diffusion-QL, DPPO and CleanDiffuser; tiny-diffusion's has a scale too."""

    def __init__(self, dim, scale=1.0):
        super().__init__()
        self.dim, self.scale = dim, scale

    def forward(self, x, dtype):
        half = self.dim // 2
        e = (x * self.scale).unsqueeze(-1) * frequencies(half, half - 1, dtype).unsqueeze(0)
        return torch.cat((torch.sin(e), torch.cos(e)), dim=-1)


class TinyDiffusion(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        size, hidden = 8, 12
        self.sinusoidal = inputs == 'sinusoidal'
        self.time = SinusoidalPosEmb(size)
        self.input = SinusoidalPosEmb(size, 25.0)
        self.first = nn.Linear(size + 2 * (size if self.sinusoidal else 1), hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.last = nn.Linear(hidden, 2)

    def forward(self, x, t):
        parts = [x[:, 0], x[:, 1]]
        parts = [self.input(p, x.dtype) if self.sinusoidal else p.unsqueeze(-1) for p in parts]
        h = F.gelu(self.first(torch.cat((*parts, self.time(t, x.dtype)), dim=-1)))
        for block in self.blocks:
            h = h + F.gelu(block(h))
        return self.last(h)


class DiffusionQl(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = SinusoidalPosEmb(8)
        self.time = nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 8))
        self.mid = nn.Sequential(nn.Linear(3 + 8 + 5, 16), nn.Mish(), nn.Linear(16, 16), nn.Mish(),
                                 nn.Linear(16, 16), nn.Mish())
        self.last = nn.Linear(16, 3)

    def forward(self, x, t, c):
        return self.last(self.mid(torch.cat([x, self.time(self.embed(t, x.dtype)), c], dim=1)))


class PreActivationPair(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.l1, self.l2 = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.l2(F.relu(self.l1(F.relu(x)))) + x


class Dppo(nn.Module):
    """Action chunks [B, T, D]; frequencies are a buffer, so that a float32 export has them."""

    def __init__(self):
        super().__init__()
        self.register_buffer('freqs', frequencies(4, 3, torch.float32))
        self.time = nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 8))
        self.layers = nn.Sequential(nn.Linear(2 * 3 + 8 + 5, 16), PreActivationPair(16),
                                    nn.Linear(16, 6))

    def forward(self, x, t, c):
        batch, steps, dim = x.shape
        e = t.to(x.dtype)[:, None] * self.freqs[None, :]
        e = self.time(torch.cat((e.sin(), e.cos()), dim=-1)).view(batch, 8)
        h = self.layers(torch.cat([x.view(batch, -1), e, c.view(batch, -1)], dim=-1))
        return h.view(batch, steps, dim)


class TabDdpm(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.label = nn.Embedding(3, 8)
        self.proj = nn.Linear(5, 8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12),
                                    nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 5))

    def forward(self, x, t, y):
        half = 4
        freqs = torch.exp(-math.log(10000) * torch.arange(0, half, dtype=x.dtype) / half)
        args = t[:, None].to(x.dtype) * freqs[None]
        e = self.time(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        e = e + F.silu(self.label(y))
        return self.layers(self.proj(x) + e)


class IdqlBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width, eps=EPSILON), nn.Dropout(0.1),
                                 nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.net(x)


class Idql(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('freqs', frequencies(4, 3, torch.float32))
        self.time = nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 8))
        self.first = nn.Linear(3 + 8 + 4, 12)
        self.blocks = nn.Sequential(IdqlBlock(12), IdqlBlock(12))
        self.last = nn.Sequential(nn.Mish(), nn.Linear(12, 3))

    def forward(self, x, t, c):
        e = t.to(x.dtype).unsqueeze(1) * self.freqs
        e = self.time(torch.cat([e.cos(), e.sin()], -1))
        return self.last(self.blocks(self.first(torch.cat([x, e, c], -1))))


class RmsNorm(nn.Module):
    def __init__(self, width, affine=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
        return y if self.weight is None else y * self.weight


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


class SwigluLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norm = RmsNorm(width)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width, bias=False))

    def forward(self, x, c):
        shift, scale, gate = self.ada(c).chunk(3, dim=-1)
        h = modulate(self.norm(x), shift, scale)
        return x + gate * self.down(F.silu(self.gate(h)) * self.up(h))


class SwigluHead(nn.Module):
    """VibeVoice's diffusion head; a float time in [0, 1]."""

    def __init__(self):
        super().__init__()
        width = 8
        self.embed = SinusoidalPosEmb(8)
        self.time = nn.Sequential(nn.Linear(8, width, bias=False), nn.SiLU(),
                                  nn.Linear(width, width, bias=False))
        self.first = nn.Linear(4, width, bias=False)
        self.cond = nn.Linear(6, width, bias=False)
        self.layers = nn.ModuleList(SwigluLayer(width) for _ in range(2))
        self.norm = RmsNorm(width, affine=False)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width, bias=False))
        self.last = nn.Linear(width, 4, bias=False)

    def forward(self, x, t, c):
        c = self.cond(c) + self.time(self.embed(1000 * t, x.dtype))
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, c)
        shift, scale = self.ada(c).chunk(2, dim=-1)
        return self.last(modulate(self.norm(x), shift, scale))


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


# Name, module, shapes of state and condition, kind of time, classes, opset, type of the export.
CASES = [
    ('tiny_identity', lambda: TinyDiffusion('identity'), (2,), None, 'int', 0, 17, torch.float64),
    ('tiny_sinusoidal', lambda: TinyDiffusion('sinusoidal'), (2,), None, 'int', 0, 17, torch.float64),
    ('diffusion_ql', DiffusionQl, (3,), (5,), 'int', 0, 14, torch.float64),
    ('dppo', Dppo, (2, 3), (1, 5), 'int', 0, 17, torch.float32),
    ('tabddpm', TabDdpm, (5,), None, 'int', 3, 11, torch.float64),
    ('idql', Idql, (3,), (4,), 'int', 0, 17, torch.float32),
    ('idql_decomposed', Idql, (3,), (4,), 'int', 0, 14, torch.float32),
    ('swiglu_head', SwigluHead, (4,), (6,), 'float', 0, 13, torch.float64),
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
