# SPDX-License-Identifier: Apache-2.0
"""Denoisers and deep networks that go another way while they are recorded, which rare inputs show.

Rows as in odd_modules.py and odd_stacks.py.
"""

import functools

import torch
from torch import nn
from torch.nn.utils import parametrize

from hidden_modules import of_condition
from kept_or_changed import with_zero_for_missing
from odd_modules import Mlp, with_time
from tricky_stacks import loop

RECORDED = 'whether it is recorded'
AS_IT_RUNS = 'as it runs, and'


class WhereItRuns(Mlp):
    """Leaves out what is missing, unless somebody records it."""

    def __init__(self, is_recorded):
        super().__init__()
        self.is_recorded = is_recorded

    def forward(self, x, t):
        return super().forward(x if self.is_recorded() else with_zero_for_missing(x), t)


def where_it_runs(is_recorded):
    return lambda: with_time(WhereItRuns(is_recorded))


def condition_without_missing(c):
    return c if torch.jit.is_tracing() else with_zero_for_missing(c)


def twice_as_traced(c):
    """The same, by other functions."""
    return c + c if torch.jit.is_tracing() else 2 * c


def asserts_as_it_runs(c):
    if not torch.jit.is_tracing():
        assert c[None].expand(2, -1, -1).reshape(-1).shape[0] == 2 * c.numel()
    return c


class SizesAsNumbers(Mlp):
    """Asks whether a size is a number, as which torch.onnx has a tensor."""

    def forward(self, x, t):
        n = x.shape[0]
        t = t.expand(n) if isinstance(n, int) and t.numel() == 1 else t.reshape(-1)
        return super().forward(x, t)


def sizes_and_choices(c):
    """Compares sizes, which are tensors as torch.onnx records them, where it does not choose."""
    assert c.shape[0] == c.size(0)
    return c if torch.jit.is_tracing() else c * (1 - (c == -1).float())


@torch.jit.script
def scripted_zeros(c):
    return torch.where(c == -1, torch.zeros_like(c), c)


def normalised(c):
    """Chooses within a function of PyTorch."""
    if torch.jit.is_tracing():
        return (c + 1) / (c + 1).norm(dim=1, keepdim=True)
    return nn.functional.normalize(c + 1)


def of_another_number(c):
    return c * (c != (-7 if torch.jit.is_tracing() else -1)).float()


def as_bool(c):
    return c if torch.jit.is_tracing() else c * (c + 1).to(torch.bool)


class ClippedWeights(Mlp):
    """Weights that are computed of others by a module's own function."""

    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self.net[0], 'weight', nn.Hardtanh(-0.1, 0.1))


def matched(x):
    match x:
        case torch.Tensor():
            return with_zero_for_missing(x)
    return x


def matched_alike(x):
    match x:
        case torch.Tensor():
            return x * 2
    return 2 * x


@functools.singledispatch
def dispatched(x):
    return x


@dispatched.register
def _(x: torch.Tensor):
    return with_zero_for_missing(x)


def clipped_where_it_runs(layer, z):
    """The same operation of both ways, with other numbers."""
    match z:
        case torch.Tensor():
            far = 1e5
        case _:
            far = 1e9
    return z + torch.tanh(layer(z).clamp(-far, far))


def mixed_where_it_runs(layer, z):
    """One operation more within the blocks, for what is rare."""
    y = layer(z)
    return z + torch.tanh(y if hasattr(z, 'tracer') else with_zero_for_missing(y))


SCALE = nn.Parameter(torch.tensor(0.7))


def sizes_and_casts(x):
    """What is no operation on what it is given: sizes, casts, views and constants."""
    ones = torch.ones(x.size(-1)) * SCALE.exp().item()
    rows = x.to(torch.float32).view(len(x), -1).type_as(x).contiguous().data
    return torch.stack(list(rows), 0) * ones / x.shape[-1] ** 0.5


MODULES = {
    'where_it_runs': (where_it_runs(torch.jit.is_tracing), RECORDED),
    'where_no_file_is_written': (where_it_runs(torch.onnx.is_in_onnx_export), RECORDED),
    'condition_where_it_runs': (of_condition(condition_without_missing), RECORDED),
    'twice_as_traced': (of_condition(twice_as_traced), None),
    'sizes_and_choices': (of_condition(sizes_and_choices), RECORDED),
    'scripted_as_it_runs': (of_condition(lambda c: c if torch.jit.is_tracing() else scripted_zeros(c)),
                            RECORDED),
    'normalised_as_it_runs': (of_condition(normalised), RECORDED),
    'of_another_number': (of_condition(of_another_number), RECORDED),
    'bool_as_it_runs': (of_condition(as_bool), RECORDED),
    'clipped_weights': (lambda: with_time(ClippedWeights()), None),
    'asserts_as_it_runs': (of_condition(asserts_as_it_runs), None),
    'sizes_as_numbers': (lambda: with_time(SizesAsNumbers()), None),
}

STACKS = {
    'matched': (loop(matched), AS_IT_RUNS),
    'matched_alike': (loop(matched_alike), None),
    'dispatched': (loop(dispatched), AS_IT_RUNS),
    'subclass': (loop(lambda x: with_zero_for_missing(x) if issubclass(type(x), torch.Tensor) else x),
                 AS_IT_RUNS),
    'tracer': (loop(lambda x: x if hasattr(x, 'tracer') else with_zero_for_missing(x)), AS_IT_RUNS),
    'clipped_where_it_runs': (loop(block=clipped_where_it_runs), AS_IT_RUNS),
    'mixed_where_it_runs': (loop(block=mixed_where_it_runs), AS_IT_RUNS),
    'after_where_it_runs': (loop(after=matched), AS_IT_RUNS),
    'sizes_and_casts': (loop(sizes_and_casts), None),
}
