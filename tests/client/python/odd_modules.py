# SPDX-License-Identifier: Apache-2.0
"""Denoisers as people write them, odd ones among them, and what an exporter has to make of each.

Listed before the exporter was written (what is refused was corrected in three rows since, and the last rows are of a
review). A row:
the name, a function that makes (module, example), and None where the module has to be exported
right, or what the refusal has to name. An example is (state [1, ..], time [1], condition [1, ..] or
nothing).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

DIM, COND, WIDTH = 6, 4, 24


def embedding(t, width=16):
    angles = t.double().reshape(-1, 1) * torch.exp(
        -math.log(10000.0) * torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


class Mlp(nn.Module):
    """A state and the embedding of its time, concatenated; others inherit from it."""

    def __init__(self, inputs=DIM + 16, activation=nn.SiLU):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, WIDTH), activation(), nn.Linear(WIDTH, WIDTH),
                                 activation(), nn.Linear(WIDTH, DIM))

    def forward(self, x, t):
        return self.net(torch.cat([x, embedding(t)], dim=1))


class Conditioned(Mlp):
    def __init__(self):
        super().__init__(DIM + 16 + COND)

    def forward(self, x, t, c):
        return self.net(torch.cat([x, embedding(t), c], dim=1))


class Normalised(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(DIM + 16, WIDTH), norm, nn.Linear(WIDTH, DIM)

    def forward(self, x, t):
        return self.last(F.gelu(self.norm(self.first(torch.cat([x, embedding(t)], dim=1)))))


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class AdaLn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, DIM)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.modulation = nn.Linear(16 + COND, 3 * WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, t, c):
        shift, scale, gate = self.modulation(torch.cat([embedding(t), c], 1)).chunk(3, dim=1)
        h = self.first(x)
        h = h + gate * self.inner(F.silu(self.norm(h) * (1 + scale) + shift))
        return self.last(h)


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.film = nn.Linear(DIM, WIDTH), nn.Linear(16, 2 * WIDTH)
        self.last = nn.Linear(WIDTH, DIM)

    def forward(self, x, t):
        scale, shift = self.film(embedding(t)).split(WIDTH, dim=1)
        return self.last(torch.tanh(self.first(x)) * scale + shift)


class WeirdResidual(Mlp):
    def forward(self, x, t):
        y = super().forward(x, t)
        return x * (1 + torch.tanh(y)) - 0.5 * y / (1 + y.abs())


class SharedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared = nn.Linear(DIM + 16, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, DIM)

    def forward(self, x, t):
        h = self.first(torch.cat([x, embedding(t)], 1))
        for _ in range(3):
            h = h + F.elu(self.shared(h))
        return self.last(h)


class DropoutLeftOn(Mlp):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.train()

    def forward(self, x, t):
        return super().forward(self.dropout(x), t)


class BranchOnState(Mlp):
    def forward(self, x, t):
        y = super().forward(x, t)
        if y.sum() > 0:
            return -y
        return y


class LoopOnTime(Mlp):
    def forward(self, x, t):
        y = super().forward(x, t)
        for _ in range(int(t[0]) % 3):
            y = 0.5 * y
        return y


class InPlace(Mlp):
    def forward(self, x, t):
        h = x.clone()
        h[:, 0] *= 2
        h += 0.25
        y = self.net[0](torch.cat([h, embedding(t)], 1))
        y.relu_()
        return self.net[4](y)


class ClassCondition(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 16)
        self.inner = Mlp(DIM + 32)

    def forward(self, x, t, c):
        return self.inner.net(torch.cat([x, embedding(t), self.table(c)], 1))


class TimeTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(1000, 16), Mlp()

    def forward(self, x, t):
        return self.inner.net(torch.cat([x, self.table(t)], 1))


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('frequencies', torch.randn(8))
        self.inner = Mlp()

    def forward(self, x, t):
        angles = 2 * math.pi * (t.float() / 1000)[:, None] * self.frequencies
        return self.inner.net(torch.cat([x, angles.sin(), angles.cos()], 1))


class TwoTimes(Mlp):
    def __init__(self):
        super().__init__(DIM + 32)

    def forward(self, x, t, r):
        return self.net(torch.cat([x, embedding(t), embedding(r)], 1))


class HugeConstants(Mlp):
    def forward(self, x, t):
        return super().forward(x * 1e30 / 1e30, t) * 1e-20 * 1e20


class TinyScale(Mlp):
    def forward(self, x, t):
        return super().forward(x, t) + (x * 1e-30) * 1e30


class EinsumMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(2, 3, WIDTH))
        self.last = nn.Linear(WIDTH + 16, DIM)

    def forward(self, x, t):
        h = torch.einsum('bij,ijk->bk', x.reshape(-1, 2, 3), self.mix)
        return self.last(torch.cat([F.softplus(h), embedding(t)], 1))


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(DIM + 16, WIDTH), nn.Linear(DIM + 16, WIDTH)
        self.down = nn.Linear(WIDTH, DIM, bias=False)

    def forward(self, x, t):
        h = torch.cat([x, embedding(t)], 1)
        return self.down(F.silu(self.gate(h)) * self.up(h))


class SoftMixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Mlp() for _ in range(3))
        self.router = nn.Linear(DIM, 3)

    def forward(self, x, t):
        weights = torch.softmax(self.router(x), dim=1)
        return sum(weights[:, i:i + 1] * expert(x, t) for i, expert in enumerate(self.experts))


class HardSwitch(Mlp):
    def forward(self, x, t):
        y = super().forward(x, t)
        return torch.where(x > 0, y, 0.1 * y)


class Running(Mlp):
    def forward(self, x, t):
        return super().forward(torch.cumsum(x, dim=1), t)


class Clamped(Mlp):
    def forward(self, x, t):
        return super().forward(x.clamp(-1, 1), t).clamp(min=-5)


class ImageShaped(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Linear(3, 8)
        self.last = nn.Linear(16 + 16, DIM)

    def forward(self, x, t):  # [n, 1, 2, 3]
        h = F.relu(self.rows(x)).flatten(1)
        return self.last(torch.cat([h, embedding(t)], 1)).reshape(x.shape)


class ConditionAttention(nn.Module):
    """Attention among tokens of the condition alone, which is computed once a request."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(2, 8) for _ in range(3))
        self.inner = Mlp(DIM + 16 + 16)

    def forward(self, x, t, c):
        tokens = c.reshape(-1, 2, 2)
        scores = torch.softmax(self.q(tokens) @ self.k(tokens).transpose(1, 2) / 8**0.5, dim=-1)
        return self.inner.net(torch.cat([x, embedding(t), (scores @ self.v(tokens)).flatten(1)], 1))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x, t):
        return self.conv(x[:, None]).squeeze(1) + t.reshape(-1, 1)


class StateAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x, t):
        tokens = x.reshape(-1, 3, 2)
        scores = torch.softmax(self.q(tokens) @ self.k(tokens).transpose(1, 2), dim=-1)
        return (scores @ self.v(tokens)).reshape(x.shape) + 0 * t.reshape(-1, 1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, DIM, batch_first=True)

    def forward(self, x, t):
        return self.lstm(x[:, :, None])[0][:, -1] + t.reshape(-1, 1)


class RandomInside(Mlp):
    def forward(self, x, t):
        return super().forward(x + torch.randn_like(x), t)


class TupleOutput(Mlp):
    def forward(self, x, t):
        y = super().forward(x, t)
        return y, y.exp()


class DictOutput(Mlp):
    def forward(self, x, t):
        return {'sample': super().forward(x, t)}


class Spectrum(Mlp):
    def forward(self, x, t):
        return super().forward(torch.fft.rfft(x).abs().repeat(1, 2)[:, :DIM], t)


class Sorted(Mlp):
    def forward(self, x, t):
        return super().forward(x.sort(dim=1).values, t)


class LookedUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(DIM, DIM)

    def forward(self, x, t):
        return self.table(x.argmax(dim=1)) + 0 * t.reshape(-1, 1)


class OfTheBatch(Mlp):
    def forward(self, x, t):
        return super().forward(x - x.mean(dim=0, keepdim=True), t)


class NotANumber(Mlp):
    def forward(self, x, t):
        return super().forward(x, t) * torch.tensor(float('nan'))


class WrongSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(DIM, DIM + 1)

    def forward(self, x, t):
        return self.net(x) + t.reshape(-1, 1)


class TokenAttention(Mlp):
    """PyTorch's own attention, or its encoder, among tokens of the condition."""

    def __init__(self, attention):
        super().__init__(DIM + 16 + COND)
        self.attention = attention

    def forward(self, x, t, c):
        tokens = self.attention(c)
        return self.net(torch.cat([x, embedding(t), tokens.mean(1)], 1))


class SelfAttention(nn.MultiheadAttention):
    def forward(self, tokens):
        return super().forward(tokens, tokens, tokens)[0]


class Autocast(Mlp):
    def forward(self, x, t):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            return super().forward(x, t)


class ClassColumn(ClassCondition):
    """A class of two axes."""

    def forward(self, x, t, c):
        return super().forward(x, t, c[:, 0])


def with_tokens(attention):
    return with_time(TokenAttention(attention), torch.randn(1, 3, COND))


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(COND, 2, 8, batch_first=True), 2)


def weight_normed():
    module = Mlp()
    torch.nn.utils.weight_norm(module.net[0])
    return module


def batch_normed():
    module = Normalised(nn.BatchNorm1d(WIDTH))
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(32, DIM), torch.randint(0, 1000, (32,)))
    return module


def with_time(module, *others, dtype=torch.float32):
    return module, (torch.randn(1, DIM, dtype=dtype), torch.tensor([3]), *others)


class TimesOfTheTable(Mlp):
    """Reads a value through PyTorch's own code."""

    def __init__(self):
        super().__init__()
        self.register_buffer('last', torch.tensor([50, 100, 150]))

    def forward(self, x, t):
        y = super().forward(x, t)
        return 3 * y if t[0] in self.last else y


class ClampedWhereLarge(Mlp):
    """Reads values of the state without a conversion, and only large ones matter."""

    def forward(self, x, t):
        if not torch.equal(x, x.clamp(-8, 8)):
            x = x.clamp(-8, 8)
        return super().forward(x, t)


class AssertsShapes(Mlp):
    def forward(self, x, t):
        assert x.shape[1] == DIM and len(x) == len(t)
        return super().forward(x.reshape(len(x), -1), t) * torch.tensor(3.0)


class TimeColumn(nn.Module):
    """A time of two dimensions."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM + 1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, DIM))

    def forward(self, x, t):
        return self.net(torch.cat([x, t / 1000], 1))


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x, t):
        return self.net(x).transpose(1, 2) + t.reshape(-1, 1, 1) / 1000


class RaisesForRandom(Mlp):
    """Takes its example and no other state."""

    def forward(self, x, t):
        if len(x) > 1:
            raise KeyError('row')
        return super().forward(x, t)


MODULES = {
    'mlp': (lambda: with_time(Mlp()), None),
    'relu': (lambda: with_time(Mlp(activation=nn.ReLU)), None),
    'mish': (lambda: with_time(Mlp(activation=nn.Mish)), None),
    'conditioned': (lambda: with_time(Conditioned(), torch.randn(1, COND)), None),
    'layer_norm': (lambda: with_time(Normalised(nn.LayerNorm(WIDTH))), None),
    'rms_norm': (lambda: with_time(Normalised(RmsNorm())), None),
    'group_norm': (lambda: with_time(Normalised(nn.GroupNorm(4, WIDTH))), None),
    'batch_norm': (lambda: with_time(batch_normed()), None),
    'adaln': (lambda: with_time(AdaLn(), torch.randn(1, COND)), None),
    'film': (lambda: with_time(Film()), None),
    'weird_residual': (lambda: with_time(WeirdResidual()), None),
    'shared_weights': (lambda: with_time(SharedWeights()), None),
    'dropout_left_on': (lambda: with_time(DropoutLeftOn()), None),
    'in_place': (lambda: with_time(InPlace()), 'odd_modules.py:'),
    'class_condition': (lambda: with_time(ClassCondition(), torch.tensor([2])), None),
    'time_table': (lambda: with_time(TimeTable()), None),
    'fourier_buffer': (lambda: with_time(Fourier()), None),
    'huge_constants': (lambda: with_time(HugeConstants()), None),
    'tiny_scale': (lambda: with_time(TinyScale()), None),
    'einsum': (lambda: with_time(EinsumMixer()), None),
    'swiglu': (lambda: with_time(SwiGlu()), None),
    'soft_mixture': (lambda: with_time(SoftMixture()), None),
    'hard_switch': (lambda: with_time(HardSwitch()), None),
    'cumulative_sum': (lambda: with_time(Running()), 'CumSum'),
    'clamped': (lambda: with_time(Clamped()), None),
    'image_shaped': (lambda: (ImageShaped(), (torch.randn(1, 1, 2, 3), torch.tensor([3]))), None),
    'condition_attention': (lambda: with_time(ConditionAttention(), torch.randn(1, 4)), None),
    'weight_norm': (lambda: with_time(weight_normed()), None),
    'double': (lambda: with_time(Film()), None),
    'half': (lambda: with_time(SwiGlu().half().float()), None),
    'scripted': (lambda: with_time(torch.jit.trace(
        Film(), (torch.randn(1, DIM), torch.tensor([3])))), None),
    'branch_on_state': (lambda: with_time(BranchOnState()), 'odd_modules.py'),
    'loop_on_time': (lambda: with_time(LoopOnTime()), 'odd_modules.py'),
    'two_times': (lambda: with_time(TwoTimes(), torch.tensor([5])), 'input'),
    'convolution': (lambda: with_time(Convolution()), 'Conv'),
    'state_attention': (lambda: with_time(StateAttention()), 'MatMul'),
    'recurrent': (lambda: with_time(Recurrent()), 'LSTM'),
    'random_inside': (lambda: with_time(RandomInside()), 'andom'),
    'tuple_output': (lambda: with_time(TupleOutput()), 'outputs'),
    'dict_output': (lambda: with_time(DictOutput()), 'outputs'),
    'spectrum': (lambda: with_time(Spectrum()), 'fft'),
    'sorted': (lambda: with_time(Sorted()), 'TopK'),
    'looked_up': (lambda: with_time(LookedUp()), 'ArgMax'),
    'of_the_batch': (lambda: with_time(OfTheBatch()), 'batch'),
    'not_a_number': (lambda: with_time(NotANumber()), 'finite'),
    'asserts_shapes': (lambda: with_time(AssertsShapes()), None),
    'time_column': (lambda: (TimeColumn(), (torch.randn(1, DIM), torch.tensor([[3.0]]))), None),
    'times_of_the_table': (lambda: with_time(TimesOfTheTable()), 'odd_modules.py'),
    'clamped_where_large': (lambda: with_time(ClampedWhereLarge()), 'odd_modules.py'),
    'transposed': (lambda: (Transposed(), (torch.randn(1, 2, 3), torch.tensor([3]))), 'shape'),
    'raises': (lambda: with_time(RaisesForRandom()), "KeyError: 'row'"),
    'self_attention': (lambda: with_tokens(SelfAttention(COND, 2, batch_first=True)), None),
    'encoder': (lambda: with_tokens(encoder()), None),
    'autocast': (lambda: with_time(Autocast()), 'expected float32'),
    'wrong_size': (lambda: with_time(WrongSize()), 'elements'),
}
