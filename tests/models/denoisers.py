# SPDX-License-Identifier: Apache-2.0
"""Denoisers of public projects, rewritten from their published code; sizes are arguments.

They are exported as they are. In float64 they mean what their float32 exports say in exact arithmetic:
where published code makes frequencies by exp(k * c), c is the float32 number that it multiplies with.
"""

import math
import struct

import torch
from torch import nn
from torch.nn import functional as F

EPSILON = 1e-5


def rounded(number):
    """To float32, as a product of a float32 tensor and a number of Python has it."""
    return struct.unpack('f', struct.pack('f', number))[0]


def frequencies(half, divisor, dtype):
    return torch.exp(torch.arange(half, dtype=dtype) * rounded(-(math.log(10000) / divisor)))


class SinusoidalPosEmb(nn.Module):
    """Of Diffusion-QL, DPPO and CleanDiffuser; tiny-diffusion's has a scale too."""

    def __init__(self, dim, scale=1.0):
        super().__init__()
        self.dim, self.scale = dim, scale

    def forward(self, x, dtype):
        half = self.dim // 2
        e = (x * self.scale).unsqueeze(-1) * frequencies(half, half - 1, dtype).unsqueeze(0)
        return torch.cat((torch.sin(e), torch.cos(e)), dim=-1)


def mish_time_layers(dim):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.Mish(), nn.Linear(2 * dim, dim))


class TinyDiffusion(nn.Module):
    """tiny-diffusion's MLP; `inputs`: 'sinusoidal', its default, or 'identity'."""

    def __init__(self, inputs, size=128, hidden=128, layers=3):
        super().__init__()
        self.sinusoidal = inputs == 'sinusoidal'
        self.time = SinusoidalPosEmb(size)
        self.input = SinusoidalPosEmb(size, 25.0)
        self.first = nn.Linear(size + 2 * (size if self.sinusoidal else 1), hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.last = nn.Linear(hidden, 2)

    def forward(self, x, t):
        parts = [x[:, 0], x[:, 1]]
        parts = [self.input(p, x.dtype) if self.sinusoidal else p.unsqueeze(-1) for p in parts]
        h = F.gelu(self.first(torch.cat((*parts, self.time(t, x.dtype)), dim=-1)))
        for block in self.blocks:
            h = h + F.gelu(block(h))
        return self.last(h)


class DiffusionQl(nn.Module):
    """Diffusion-QL's actor: Mish, and state, time and observation in one vector."""

    def __init__(self, action=3, observation=11, time=16, hidden=256):
        super().__init__()
        self.embed = SinusoidalPosEmb(time)
        self.time = mish_time_layers(time)
        self.mid = nn.Sequential(nn.Linear(action + time + observation, hidden), nn.Mish(),
                                 nn.Linear(hidden, hidden), nn.Mish(), nn.Linear(hidden, hidden),
                                 nn.Mish())
        self.last = nn.Linear(hidden, action)

    def forward(self, x, t, c):
        return self.last(self.mid(torch.cat([x, self.time(self.embed(t, x.dtype)), c], dim=1)))


class PreActivationPair(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.l1, self.l2 = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.l2(F.relu(self.l1(F.relu(x)))) + x


class Dppo(nn.Module):
    """DPPO's actor for gym: action chunks [B, T, D], ReLU, residual pairs activated beforehand."""

    def __init__(self, steps=4, action=3, observation=11, time=16, hidden=512, pairs=1):
        super().__init__()
        half = time // 2
        self.register_buffer('freqs', frequencies(half, half - 1, torch.float32))
        self.time = mish_time_layers(time)
        self.layers = nn.Sequential(nn.Linear(steps * action + time + observation, hidden),
                                    *(PreActivationPair(hidden) for _ in range(pairs)),
                                    nn.Linear(hidden, steps * action))

    def forward(self, x, t, c):
        batch, steps, dim = x.shape
        e = t.to(x.dtype)[:, None] * self.freqs[None, :]
        e = self.time(torch.cat((e.sin(), e.cos()), dim=-1)).view(batch, -1)
        h = self.layers(torch.cat([x.view(batch, -1), e, c.view(batch, -1)], dim=-1))
        return h.view(batch, steps, dim)


class TabDdpm(nn.Module):
    """TabDDPM's MLPDiffusion over numeric columns, with the label's embedding."""

    def __init__(self, columns=8, classes=2, dim=128, widths=(512, 256, 256, 256, 256, 128)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes, dim)
        self.proj = nn.Linear(columns, dim)
        self.half = dim // 2
        layers = []
        for before, width in zip((dim, *widths), widths):
            layers += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(0.1)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], columns))

    def forward(self, x, t, y):
        exponents = rounded(-math.log(10000)) * torch.arange(0, self.half, dtype=x.dtype)
        args = t[:, None].to(x.dtype) * torch.exp(exponents / self.half)[None]
        e = self.time(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        e = e + F.silu(self.label(y))
        return self.layers(self.proj(x) + e)


class IdqlBlock(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width, eps=epsilon), nn.Dropout(0.1),
                                 nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.net(x)


class Idql(nn.Module):
    """IDQL's actor as CleanDiffuser has it: pre-norm blocks of expansion 4."""

    def __init__(self, action=6, observation=17, time=64, hidden=256, blocks=3, epsilon=EPSILON):
        super().__init__()
        half = time // 2
        self.register_buffer('freqs', frequencies(half, half - 1, torch.float32))
        self.time = mish_time_layers(time)
        self.first = nn.Linear(action + time + observation, hidden)
        self.blocks = nn.Sequential(*(IdqlBlock(hidden, epsilon) for _ in range(blocks)))
        self.last = nn.Sequential(nn.Mish(), nn.Linear(hidden, action))

    def forward(self, x, t, c):
        e = t.to(x.dtype).unsqueeze(1) * self.freqs
        e = self.time(torch.cat([e.cos(), e.sin()], -1))
        return self.last(self.blocks(self.first(torch.cat([x, e, c], -1))))


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon, affine=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.epsilon = epsilon

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return y if self.weight is None else y * self.weight


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


class SwigluLayer(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norm = RmsNorm(width, epsilon)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width, bias=False))

    def forward(self, x, c):
        shift, scale, gate = self.ada(c).chunk(3, dim=-1)
        h = modulate(self.norm(x), shift, scale)
        return x + gate * self.down(F.silu(self.gate(h)) * self.up(h))


class SwigluHead(nn.Module):
    """VibeVoice's diffusion head: RMSNorm and SwiGLU, no biases."""

    def __init__(self, dim=64, condition=1536, time=256, width=1536, layers=4, epsilon=EPSILON,
                 time_scale=1):
        super().__init__()
        self.time_scale = time_scale
        self.embed = SinusoidalPosEmb(time)
        self.time = nn.Sequential(nn.Linear(time, width, bias=False), nn.SiLU(),
                                  nn.Linear(width, width, bias=False))
        self.first = nn.Linear(dim, width, bias=False)
        self.cond = nn.Linear(condition, width, bias=False)
        self.layers = nn.ModuleList(SwigluLayer(width, epsilon) for _ in range(layers))
        self.norm = RmsNorm(width, epsilon, affine=False)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width, bias=False))
        self.last = nn.Linear(width, dim, bias=False)

    def forward(self, x, t, c):
        t = t if self.time_scale == 1 else self.time_scale * t
        c = self.cond(c) + self.time(self.embed(t, x.dtype))
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, c)
        shift, scale = self.ada(c).chunk(2, dim=-1)
        return self.last(modulate(self.norm(x), shift, scale))
