# SPDX-License-Identifier: Apache-2.0
"""Denoisers and deep networks that change parts of what they are given, or keep something of it.

Rows as in odd_modules.py and odd_stacks.py.
"""

import threading

import torch
from torch import nn
from torch.nn.utils import parametrizations

from hidden_modules import of_condition
from near_zero import IN_PLACE
from odd_modules import COND, DIM, Conditioned, Mlp, embedding, with_time
from odd_stacks import INPUTS, Loop, network
from tricky_stacks import loop

MIXES = 2 * torch.eye(INPUTS) + torch.tril(torch.ones(INPUTS, INPUTS))
KEEPS = 'it keeps something of an earlier call'
BEFORE = 'before the blocks'


class ChangesItsCondition(Conditioned):
    """Changes what it is given, and no copy of it."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x, t, c):
        self.change(c)
        return super().forward(x, t, c)


def changes_its_condition(change):
    return lambda: with_time(ChangesItsCondition(change), torch.randn(1, COND))


class ScalesItsTime(Mlp):
    def forward(self, x, t):
        t /= 1000
        return self.net(torch.cat([x, torch.sin(t[:, None] * torch.arange(16))], 1))


def clipped_part(c):
    part = c[:, 2:]
    part.clamp_(-0.5, 0.5)


def missing_part(c):
    """What is missing is -1, and only such inputs show it."""
    goal = c[:, 2:]
    goal[goal == -1] = 0.0


def missing_columns(c):
    for i in range(COND):
        column = c[:, i]
        column[column == -1] = 0.0


def missing_by_a_new_axis(c):
    c[:, None, 1] = c[:, None, 1].masked_fill(c[:, None, 1] == -1, 0)


def standardised(c):
    c -= 1.0
    c /= 2.0


def only_read(c):
    """Parts that are read, and a whole that is changed as nobody holds a part of it."""
    first, goal = c[:, :2] * 2, c[:, 2:]
    return torch.cat([first, goal.where(goal != -1, torch.zeros_like(goal))], 1).mul_(0.5).add_(1)


def changed_parts_read_alone(c):
    first, goal = (2 * c)[:, :2], (3 * c)[:, 2:]
    first.mul_(0.5)
    goal += 1
    return torch.cat([first, goal], 1)


def set_data(c):
    c.data = torch.where(c == -1, torch.zeros_like(c), c)


class EncodesOnce(nn.Module):
    """An encoder of the condition that runs once an episode, as policies have it."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(COND, 24), nn.Mish())
        self.inner, self.last = nn.Linear(DIM + 17, 24), nn.Linear(24, DIM)
        self.code = None

    def forward(self, x, t, c):
        if self.code is None:
            self.code = self.encoder(c)
        h = self.inner(torch.cat([x, embedding(t), c[:, :1]], 1))
        return self.last(torch.tanh(h + self.code))


class CentresByItsFirst(Mlp):
    mean = None

    def forward(self, x, t):
        if self.mean is None:
            self.mean = x.mean(0, keepdim=True).detach()
        return super().forward(x - self.mean, t)


class EmbedsOnce(Mlp):
    embedded = None

    def forward(self, x, t):
        if self.embedded is None:
            self.embedded = embedding(t)
        return self.net(torch.cat([x, self.embedded.expand(len(x), -1)], 1))


class ScalesByItsFirst(Conditioned):
    def __init__(self):
        super().__init__()
        self.register_buffer('scale', None)

    def forward(self, x, t, c):
        if self.scale is None:
            self.scale = c.abs().mean().reshape(1, 1)
        return super().forward(x, t, c / self.scale)


class FirstClass(nn.Module):
    """Keeps the embedding of the first class."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.row = nn.Embedding(5, 16), Mlp(DIM + 32), None

    def forward(self, x, t, c):
        if self.row is None:
            self.row = self.table(c)
        return self.inner.net(torch.cat([x, embedding(t), self.row.expand(len(x), -1)], 1))


class KeepsNoInput(Mlp):
    """Makes its frequencies at its first call, and keeps its last output for others to see."""

    frequencies = last = None

    def forward(self, x, t):
        if self.frequencies is None:
            self.frequencies = torch.exp(-torch.arange(DIM) / 3.0)
        self.last = super().forward(x * self.frequencies, t)
        return self.last


class Spectral(Mlp):
    """Weights that are computed of others, by a function that PyTorch's exporter does not know."""

    def __init__(self):
        super().__init__()
        parametrizations.spectral_norm(self.net[0])


class HoldsWhatIsNotCopied(Mlp):
    """A lock, a generator and a library, as modules have them that log or draw in training."""

    def __init__(self):
        super().__init__()
        self.lock, self.library = threading.Lock(), torch
        self.generator = torch.Generator()

    def forward(self, x, t):
        with self.lock:
            return super().forward(self.library.sin(x), t)


class OfOtherUnits(nn.Module):
    """Outputs of sizes 1 and 1e6, of which the small ones are others as it is recorded."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(DIM + 1, 3), nn.Linear(DIM + 1, 3)

    def forward(self, x, t):
        h = torch.cat([x, 0.001 * t[:, None]], 1)
        small = self.small(2 * h if torch.jit.is_tracing() else h)
        return torch.cat([small, 1e6 * self.large(h)], 1)


class OfOtherUnitsRight(OfOtherUnits):
    """The same as it is, with an output that is always 0 and one that is the rounding of another."""

    def forward(self, x, t):
        h = torch.cat([x, 0.001 * t[:, None]], 1)
        small, large = self.small(h), 1e6 * self.large(h)
        rounding = (large[:, :1] + 1.1) - large[:, :1]
        return torch.cat([small[:, :1], rounding, 0 * small[:, :1], large], 1)


class SmallStates(Mlp):
    """The direction of its state, which as it is recorded is shorter of small ones."""

    def forward(self, x, t):
        least = 1e-6 if torch.jit.is_tracing() else 1e-12
        return super().forward(x, t) + x / (x.norm(dim=1, keepdim=True) + least)


class CentresStacked(Loop):
    mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean(0, keepdim=True).detach()
        return super().forward(x - self.mean)


class ScalesLayers(Loop):
    """Divides by the sizes that the first input has in each layer."""

    scales = None

    def forward(self, x):
        z, is_first = self.first(x), self.scales is None
        if is_first:
            self.scales = []
        for i, layer in enumerate(self.layers):
            h = layer(z)
            if is_first:
                self.scales.append(h.std(1, keepdim=True).mean(0, keepdim=True).detach())
            z = z + torch.tanh(h / self.scales[i])
        return self.last(z)


class ClipsFarAway(Loop):
    def __init__(self):
        super().__init__()
        self.clip = nn.Hardtanh(-3e9, 3e9)

    def forward(self, x):
        return super().forward(self.clip(x))


class Watching(Loop):
    """Collects by hooks what its layers give."""

    def __init__(self):
        super().__init__()
        self.seen = []
        for layer in self.layers:
            layer.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.seen.append(output)


class InPlaceOnItsInput(Loop):
    def forward(self, x):
        return super().forward(x.mul_(0.5))


def with_zero_for_missing(x):
    return torch.where(x == -1, torch.zeros_like(x), x)


MODULES = {
    'clipped_part': (changes_its_condition(clipped_part), IN_PLACE),
    'standardised': (changes_its_condition(standardised), None),
    'scaled_time': (lambda: (ScalesItsTime(), (torch.randn(1, DIM), torch.tensor([3.0]))), None),
    'missing_part': (of_condition(missing_part), IN_PLACE),
    'missing_columns': (of_condition(missing_columns), IN_PLACE),
    'missing_by_a_new_axis': (of_condition(missing_by_a_new_axis), 'an index with a new axis'),
    'missing': (of_condition(with_zero_for_missing), None),
    'only_read': (of_condition(only_read), None),
    'changed_parts_read_alone': (of_condition(changed_parts_read_alone), None),
    'data': (of_condition(lambda c: c.masked_fill(c.data.eq(-1), 0)), 'takes .data for a constant'),
    'set_data': (of_condition(set_data), 'data that is set'),
    'by_a_function': (of_condition(lambda c: c.clone().apply_(lambda v: 0.0 if v == -1 else v)),
                      'apply_ reads values'),
    'by_two_functions': (of_condition(lambda c: c.clone().map_(c, lambda v, _: max(v, -3.0))),
                         'map_ reads values'),
    'spectral': (lambda: with_time(Spectral()), None),
    'detached_mask': (of_condition(lambda c: c.masked_fill(c.detach().eq(-1), 0)), None),
    'encodes_once': (lambda: with_time(EncodesOnce(), torch.randn(1, COND)), KEEPS),
    'centres_by_its_first': (lambda: with_time(CentresByItsFirst()), KEEPS),
    'embeds_once': (lambda: with_time(EmbedsOnce()), KEEPS),
    'scales_by_its_first': (lambda: with_time(ScalesByItsFirst(), torch.randn(1, COND)), KEEPS),
    'keeps_no_input': (lambda: with_time(KeepsNoInput()), None),
    'holds_what_is_not_copied': (lambda: with_time(HoldsWhatIsNotCopied()), None),
    'of_other_units': (lambda: with_time(OfOtherUnits()), 'output 0 of predictions'),
    'of_other_units_right': (lambda: with_time(OfOtherUnitsRight()), None),
    'small_states': (lambda: with_time(SmallStates()), 'of states of size 1e-05'),
}

STACKS = {
    'centres_by_its_first': (network(CentresStacked), KEEPS),
    'scales_layers': (network(ScalesLayers), KEEPS),
    'collecting': (network(Watching), None),
    'own_input_in_place': (network(InPlaceOnItsInput), None),
    'set_data': (loop(lambda x: set_data(x) or x), 'data that is set'),
    'isinstance': (loop(lambda x: with_zero_for_missing(x) if isinstance(x, torch.Tensor) else x), BEFORE),
    'union': (loop(lambda x: with_zero_for_missing(x) if isinstance(x, torch.Tensor | None) else x), BEFORE),
    'constants': (loop(lambda x: 2 * x - torch.full_like(x, 0.5) + x.new_ones(1, INPUTS)), None),
    'solved': (loop(lambda x: torch.linalg.solve(MIXES, x.T).T), None),
    'one_of_kinds': (loop(lambda x: 2 * x if isinstance(x, (int, (list, torch.Tensor))) else x), None),
    'parameter': (loop(lambda x: x if isinstance(x, nn.Parameter) else 2 * x), None),
    'is_tensor': (loop(lambda x: with_zero_for_missing(x) if torch.is_tensor(x) else x), BEFORE),
    'isin': (loop(lambda x: x * torch.isin(x, torch.tensor([-1.0, 7.0])).logical_not()), BEFORE),
    'as_bool': (loop(lambda x: x * (x + 1).bool()), BEFORE),
    'to_bool': (loop(lambda x: x * (x + 1).to(torch.bool)), BEFORE),
    'counts_zeros': (loop(lambda x: x * torch.norm(x + 1, p=0, dim=1, keepdim=True) / 5), BEFORE),
    'quotient': (loop(lambda x: x * torch.nan_to_num((x + 1) / (x + 1))), BEFORE),
    'very_far_clip': (network(ClipsFarAway), BEFORE),
    'last_but_one': (loop(after=lambda y: y * (y + 1).bool()), 'after the blocks'),
}
