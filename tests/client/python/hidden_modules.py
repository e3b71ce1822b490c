# SPDX-License-Identifier: Apache-2.0
"""Denoisers that do something which only far from the usual states, or another batch, shows.

Rows as in odd_modules.py.
"""

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


def changed(change):
    return lambda: with_time(Changed(change))


def in_place(view):
    def change(h):
        view(h).clamp_(-20, 20)

    return changed(change)


MODULES = {
    'detached': (in_place(lambda h: h.detach()), DIFFERS),
    'flattened': (in_place(lambda h: h.view(-1)), DIFFERS),
    'narrowed': (in_place(lambda h: h.narrow(1, 0, 2)), DIFFERS),
    'split': (in_place(lambda h: h.split(2, 1)[0]), DIFFERS),
    'tracing': (changed(lambda h: h if torch.jit.is_tracing() else h.clamp(-20, 20)), DIFFERS),
    'own_input': (changed(lambda h: h.mul_(0.5)), None),
    'batch_of_two': (changed(lambda h: -h if len(h) == 2 else h), 'batch of 2'),
    'large_batch': (changed(lambda h: h - h.mean(0) if len(h) > 8 else h), 'batch of 9'),
    'initialised': (lambda: with_time(Initialised()), 'after another input'),
    'logsigmoid': (lambda: with_time(LogSigmoid()), DIFFERS),
    'cached': (lambda: with_time(Cached()), None),
}
