# SPDX-License-Identifier: Apache-2.0
"""Denoisers and deep networks that only zeros, small values or rare times and classes show wrong.

Rows as in odd_modules.py and odd_stacks.py.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hidden_modules import of_condition
from odd_modules import DIM, Mlp, with_time
from odd_stacks import DEPTH, WIDTH

SCRIPTED = 'what is scripted changes a tensor'
IN_PLACE = 'what an in-place operation on another view has changed'
# Which PyTorch 1 does not export, and later ones with another quotient.
ATAN2 = 'off by nan' if hasattr(torch, 'export') else "'aten::atan2'"
READS = 'reads values: the way through the module depends on values'


class Unconditional(nn.Module):
    """Takes the condition of nobody where a function says that there is none."""

    def __init__(self, is_none):
        super().__init__()
        self.is_none = is_none
        self.nobody = nn.Parameter(torch.randn(1, 4))
        self.register_buffer('seen', torch.zeros(1, 4))
        self.net = nn.Linear(DIM + 4, DIM)

    def forward(self, x, t, c):
        if self.is_none(self, c):
            c = self.nobody.expand(len(c), 4)
        return self.net(torch.cat([x, c], 1)) + 0.001 * t[:, None]


def unconditional(is_none):
    return lambda: with_time(Unconditional(is_none), torch.randn(1, 4))


def total_is_zero(module, c):
    total = torch.zeros(1)
    total.add_(c.abs().sum())
    return total == 0


def filled_is_zero(module, c):
    filled = torch.zeros(len(c), 4)
    filled[:] = c
    return not filled.any()


def buffer_is_zero(module, c):
    return not module.seen.copy_(c[:1]).any() or not module.seen.any()


def copy_is_zero(module, c):
    return not torch.tensor(c).any()


def bytes_are_none(module, c):
    return not any(c.contiguous().storage().tolist())


def untyped_bytes_are_none(module, c):
    """By a method that PyTorch 1.13 does not have for tensors."""
    return not any(getattr(c, 'untyped_storage', c.storage)().tolist())


def exchanged_is_zero(module, c):
    return not np.from_dlpack(c.detach()).any()


def reads_like_zeros(module, c):
    return '[0., 0., 0., 0.]' in str(c)


def no_way_for_zeros(module, c):
    """What only raises for zeros, and is caught."""
    try:
        torch.linalg.cholesky(torch.eye(4) * c.abs().sum())
    except RuntimeError:
        return True
    return False


def is_of_torch_and_zero(module, c):
    return type(c) is torch.Tensor and not c.any()


class LateTimes(Mlp):
    """Another network at some of the times that lie between those that are compared."""

    def forward(self, x, t):
        times = torch.zeros(len(t))
        times[:] = t
        return super().forward(2 * x if 0 < times[0] < 20 else x, t)


class BoundedTable(nn.Module):
    """Rows of a table are scaled as they are looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, DIM, max_norm=2.0)
        self.net = nn.Linear(DIM, DIM)

    def forward(self, x, t):
        return self.net(torch.tanh(x + self.table(t)))


def normalised(c):
    size = c.norm(dim=1, keepdim=True)
    size.view(-1).clamp_(min=1e-6)
    return c / size


def clipped_last(h):
    """In place, on views that nobody but their own results is read of."""
    h = (2 * h).view(len(h), 2, -1)
    F.relu(h, inplace=True)
    return h.reshape(len(h), -1).clamp_(max=3)


def replaced_slices(h):
    h = h.clone()
    h[:, :2].masked_fill_(h[:, :2] == 0, 1.0)
    return 1 / h.abs().clamp(min=1e-2)


def stale_view(h):
    """The view is older than what is done to the whole."""
    h = h.clone()
    view = h.view(-1)
    h.mul_(2)
    return h + view.view_as(h)


class OfLayer(nn.Module):
    """A layer without a bias, which takes zeros to zeros, and what is done with it."""

    def __init__(self, block):
        super().__init__()
        self.layer, self.block = nn.Linear(WIDTH, WIDTH, bias=False), block

    def forward(self, z):
        return self.block(self.layer, z)


def blocks(block):
    return lambda: (nn.Sequential(*(OfLayer(block) for _ in range(DEPTH))), torch.randn(1, WIDTH))


def clipped_size(layer, z):
    h = layer(z)
    size = h.norm(dim=1, keepdim=True)
    size.view(-1).clamp_(min=1e-3)
    return z + h / size


def taken_by_a_part(module, c):
    filled = torch.zeros(len(c), 4)
    filled[:1].copy_(c)
    return filled[0, 0] == 0


def with_new_axis(c):
    size = c.norm(dim=1)
    size[:, None].clamp_(min=1e-6)
    return c / size[:, None]


def gated(c):
    """In place, on views that do not overlap."""
    gate, value = (2 * c).chunk(2, 1)
    value += 1
    return torch.cat([F.silu(gate, inplace=True) * value, c[:, 2:]], 1)


@torch.inference_mode()
def inferred(c):
    size = c.norm(dim=1, keepdim=True)
    size.view(-1).clamp_(min=1e-6)
    return c / size


@torch.jit.script
def scripted_part(c):
    c = c.clone()
    flat = c.view(-1)
    flat.masked_fill_(flat == -1, 0.0)
    return c


def plain_part(c):
    c = c.clone()
    flat = c.view(-1)
    flat.masked_fill_(flat == -1, 0.0)
    return c


@torch.jit.script
def scripted_part_of_a_list(c):
    c = c.clone()
    for part in [c[:, :2], c[:, 2:]]:
        part.masked_fill_(part == -1, 0.0)
    return c * 1


@torch.jit.script
def scripted_part_of_a_branch(c):
    c = c.clone()
    part = c[:, 1:]
    if c.size(1) > 1:
        part = c[:, 2:]
    part.masked_fill_(part == -1, 0.0)
    return c * 1


@torch.jit.script
def scripted_part_of_a_loop(c):
    c = c.clone()
    part = c
    for i in range(2):
        part = part[:, 1:]
    part.masked_fill_(part == -1, 0.0)
    return c * 1


@torch.jit.script
def scripted_part_by_out(c):
    c = c.clone()
    part = c[:, 1:]
    torch.mul(part, (part != -1).float(), out=part)
    return c * 1


@torch.jit.script
def scripted_whole(c):
    c = c.clone()
    c[c == -1] = 0.0
    return torch.relu_(c * 2)


@torch.jit.script
def scripted_change(c):
    c.masked_fill_(c == -1, 0.0)
    return c.sum()


def part_for_a_script(c):
    scripted_change(c.view(-1))
    return c


@torch.jit.script
def scripted_size(c):
    return c.abs().sum()


class ScriptedActivation(nn.Module):
    """A function that is scripted, as an attribute."""

    def __init__(self):
        super().__init__()
        self.net, self.activation = nn.Linear(DIM, DIM), scripted_whole

    def forward(self, x, t):
        return self.activation(self.net(x)) + 0.001 * t[:, None]


def padded_by_a_value(c):
    return c + F.pad(c, (1, 0), value=(c == 0).float().mean())[:, :4]


MODULES = {
    'storage': (unconditional(bytes_are_none), READS),
    'untyped_storage': (unconditional(untyped_bytes_are_none), READS),
    'exchanged': (unconditional(exchanged_is_zero), READS),
    'as_text': (unconditional(reads_like_zeros), READS),
    'caught': (unconditional(no_way_for_zeros), 'raises for some values'),
    'by_type': (unconditional(is_of_torch_and_zero), 'by isinstance, not by type'),
    'padded_by_a_value': (of_condition(padded_by_a_value), 'pad reads values'),
    'padded': (of_condition(lambda c: c + F.pad(c, (1, 0), value=2.0)[:, :4]), None),
    'scripted_part': (of_condition(scripted_part), SCRIPTED),
    'scripted_part_of_a_list': (of_condition(scripted_part_of_a_list), SCRIPTED),
    'scripted_part_of_a_branch': (of_condition(scripted_part_of_a_branch), SCRIPTED),
    'scripted_part_of_a_loop': (of_condition(scripted_part_of_a_loop), SCRIPTED),
    'scripted_part_by_out': (of_condition(scripted_part_by_out), SCRIPTED),
    'traced_part': (of_condition(torch.jit.trace(plain_part, torch.randn(1, 4))), SCRIPTED),
    'part_for_a_script': (of_condition(part_for_a_script), IN_PLACE),
    'after_a_script': (unconditional(lambda module, c: scripted_size(c) == 0), READS),
    'scripted_whole': (of_condition(scripted_whole), None),
    'scripted_activation': (lambda: with_time(ScriptedActivation()), None),
    'taken_by_a_part': (unconditional(taken_by_a_part), IN_PLACE),
    'with_new_axis': (of_condition(with_new_axis), IN_PLACE),
    'gated': (of_condition(gated), None),
    'inferred': (of_condition(inferred), 'inference_mode'),
    'size_of_a_view': (of_condition(normalised), IN_PLACE),
    'stale_view': (of_condition(stale_view), IN_PLACE),
    'clipped_last': (of_condition(clipped_last), None),
    'replaced_slices': (of_condition(replaced_slices), IN_PLACE),
    'total': (unconditional(total_is_zero), READS),
    'filled': (unconditional(filled_is_zero), READS),
    'buffer': (unconditional(buffer_is_zero), READS),
    'copied': (unconditional(copy_is_zero), READS),
    'late_times': (lambda: with_time(LateTimes()), READS),
    'bounded_table': (lambda: with_time(BoundedTable()), 'max_norm'),
    'small_cosine': (of_condition(lambda c: F.cosine_similarity(c, c.flip(1), dim=1)[:, None].expand(-1, 4)),
                     'for conditions of size 1e-05'),
    'angle': (of_condition(lambda c: torch.atan2(c, c.roll(1, 1))), ATAN2),
    'masked_condition': (of_condition(lambda c: torch.where(c == 0, torch.ones_like(c), c)), None),
}

STACKS = {
    'angles_near_zero': (blocks(lambda layer, z: z + 0.3 * torch.tanh(layer(torch.atan2(z, z.roll(1, 1))))), ATAN2),
    'log1p': (blocks(lambda layer, z: torch.sign(z) * torch.log1p(layer(z).abs())), 'of small inputs, of size'),
    'clipped_size': (blocks(clipped_size), 'in-place'),
}
