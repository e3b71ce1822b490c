# SPDX-License-Identifier: Apache-2.0
"""Denoisers that do something which only far from the usual states, or another batch, shows.

Rows as in odd_modules.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from odd_modules import DIM, Mlp, with_time

DIFFERS = 'differs from the module'


class Changed(Mlp):
    """Changes a copy of its state by a function."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x, t):
        h = x.clone()
        changed = self.change(h)
        return super().forward(h if changed is None else changed, t) + h


class Initialised(Mlp):
    """Activation normalisation, which its first input initialises."""

    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(1, DIM))
        self.register_buffer('is_set', torch.zeros(()))

    def forward(self, x, t):
        if self.is_set.item() == 0:
            self.mean.copy_(x.mean(0, keepdim=True))
            self.is_set.fill_(1)
        return super().forward(x - self.mean, t)


class LogSigmoid(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(DIM, DIM)

    def forward(self, x, t):
        return F.logsigmoid(self.net(x)) + 0.001 * t[:, None]


class Cached(Mlp):
    """Constants by the size of the batch, which it keeps."""

    kept = {}

    def forward(self, x, t):
        ones = self.kept.setdefault(len(x), torch.ones(len(x), 1).long().float())
        return super().forward(x * ones, t)


class OfCondition(nn.Module):
    """Changes a copy of its condition by a function."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.net = nn.Linear(DIM + 4, DIM)

    def forward(self, x, t, c):
        h = c.clone()
        changed = self.change(h)
        return self.net(torch.cat([x, h if changed is None else changed], 1)) + 0.001 * t[:, None]


class Fourier(nn.Module):
    """Random frequencies of a time of floats, as jaxrl has them: PyTorch's float32 is coarse there."""

    def __init__(self):
        super().__init__()
        self.frequencies = nn.Parameter(0.2 * torch.randn(8, 1))
        self.net = nn.Sequential(nn.Linear(DIM + 16, 32), nn.Mish(), nn.Linear(32, DIM))

    def forward(self, x, t):
        angles = 2 * math.pi * t[:, None] @ self.frequencies.t()
        return self.net(torch.cat([x, angles.cos(), angles.sin()], 1))


class OneNumber(nn.Module):
    """Of a state of one number, with frequencies made in forward of whole times."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.Mish(), nn.Linear(32, 16))
        self.net = nn.Sequential(nn.Linear(17, 32), nn.Mish(), nn.Linear(32, 1))

    def forward(self, x, t):
        frequencies = torch.exp(torch.arange(8) * -(math.log(10000) / 7))
        angles = t[:, None] * frequencies[None]
        return self.net(torch.cat([x, self.time(torch.cat([angles.sin(), angles.cos()], -1))], 1))


class RmsNorm(nn.Module):
    """PyTorch's own where there is one, without and with weights."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(DIM + 1, 16), nn.Linear(16, DIM)
        norm = getattr(nn, 'RMSNorm', nn.LayerNorm)
        self.norms = nn.Sequential(norm(16, elementwise_affine=False), norm(16, eps=1e-3))

    def forward(self, x, t):
        return self.last(self.norms(self.first(torch.cat([x, 0.001 * t[:, None]], 1))))


class PlainFrequencies(nn.Module):
    """Of a condition, as a tensor that is neither a weight nor a buffer."""

    def __init__(self):
        super().__init__()
        self.frequencies = 2 * torch.randn(4, 8)
        self.net = nn.Sequential(nn.Linear(DIM + 16, 32), nn.Mish(), nn.Linear(32, DIM))

    def forward(self, x, t, c):
        angles = 2 * math.pi * c @ self.frequencies
        return self.net(torch.cat([x, angles.cos(), angles.sin()], 1)) + 0.001 * t[:, None]


def of_condition(change):
    return lambda: with_time(OfCondition(change), torch.randn(1, 4))


def clipped_chunk(c):
    c.chunk(2, 1)[0].clamp_(-5, 5)


def clipped_view(c):
    c.view(-1).clamp_(-5, 5)


def changed(change):
    return lambda: with_time(Changed(change))


def in_place(view):
    def change(h):
        view(h).clamp_(-20, 20)

    return changed(change)


def clipped_as_it_runs(h, limit):
    """Far from there as it is recorded, by the same functions of other tensors."""
    limit = torch.tensor(1e20 if torch.jit.is_tracing() else float(limit))
    return torch.maximum(torch.minimum(h, limit), -limit)


MODULES = {
    'detached': (in_place(lambda h: h.detach()), 'in-place'),
    'flattened': (in_place(lambda h: h.view(-1)), 'in-place'),
    'narrowed': (in_place(lambda h: h.narrow(1, 0, 2)), 'in-place'),
    'split': (in_place(lambda h: h.split(2, 1)[0]), 'in-place'),
    'tracing': (changed(lambda h: clipped_as_it_runs(h, 20)), DIFFERS),
    'own_input': (changed(lambda h: h.mul_(0.5)), None),
    'batch_of_two': (changed(lambda h: -h if len(h) == 2 else h), 'batch of 2'),
    'large_batch': (changed(lambda h: h - h.mean(0) if len(h) > 8 else h), 'batch of 9'),
    'initialised': (lambda: with_time(Initialised()), 'after another input'),
    'logsigmoid': (lambda: with_time(LogSigmoid()), DIFFERS),
    'cached': (lambda: with_time(Cached()), None),
    'condition_chunk': (of_condition(clipped_chunk), 'in-place'),
    'condition_view': (of_condition(clipped_view), 'in-place'),
    'condition_tracing': (of_condition(lambda c: clipped_as_it_runs(c, 5)), 'for conditions of size'),
    'condition_clipped': (of_condition(lambda c: c.clamp(-5, 5)), None),
    'condition_exploding': (of_condition(lambda c: torch.exp(c)), None),
    'plain_frequencies': (lambda: with_time(PlainFrequencies(), torch.randn(1, 4)), None),
    'fourier': (lambda: (Fourier(), (torch.randn(1, DIM), torch.tensor([5.0]))), None),
    'one_number': (lambda: (OneNumber(), (torch.randn(1, 1), torch.tensor([5]))), None),
    'rms_norm_without_weights': (lambda: with_time(RmsNorm()), None),
}
