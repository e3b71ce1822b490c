# SPDX-License-Identifier: Apache-2.0
"""The networks of deploy/models/recipes, and their projects' loops, written anew from what is published.

A loop takes the noise that it would draw: `start`, which the process begins at, and noise(i) of its
i-th step; it computes in the precision of its tensors, with coefficients in float64.
"""

import dataclasses
import math
import typing

import torch
from torch import nn
from torch.nn import functional as F

import denoisers
import sampler


class AdaLnBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x, y):
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return x + gate * self.mlp(denoisers.modulate(self.in_ln(x), shift, scale))


class TimestepEmbedder(nn.Module):
    def __init__(self, width, size=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width))
        self.size = size

    def forward(self, t, dtype):
        half = self.size // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float64) / half)
        args = t[:, None].double() * frequencies[None]
        return self.mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1).to(dtype))


class FinalLayer(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, outputs)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=-1)
        return self.linear(denoisers.modulate(self.norm_final(x), shift, scale))


class MarHead(nn.Module):
    """SimpleMLPAdaLN of MAR's DiffLoss, whose output is epsilon and a share of the variance."""

    def __init__(self, dim, condition, width, blocks):
        super().__init__()
        self.time_embed = TimestepEmbedder(width)
        self.cond_embed = nn.Linear(condition, width)
        self.input_proj = nn.Linear(dim, width)
        self.res_blocks = nn.ModuleList(AdaLnBlock(width) for _ in range(blocks))
        self.final_layer = FinalLayer(width, 2 * dim)

    def forward(self, x, t, c):
        y = self.time_embed(t, x.dtype) + self.cond_embed(c)
        x = self.input_proj(x)
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)


class Mlp(nn.Module):
    """A network of state, time and condition, for loops that do not care what is inside."""

    def __init__(self, dim, condition, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim + condition + 1, width), nn.SiLU(),
                                    nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim))

    def forward(self, x, t, c):
        return self.layers(torch.cat([x, t.to(x.dtype)[:, None], c], dim=-1))


def times(x, t):
    return torch.full((len(x),), t)


def guided(network, scale):
    """Classifier-free guidance of what depends on conditions alone."""
    def evaluate(x, t, c, null):
        null_m, m = network(x, t, null), network(x, t, c)
        return null_m + scale * (m - null_m)
    return evaluate


def mar(network, start, noise, given, scale=2.9, temperature=0.95, steps=100):
    """p_sample_loop of a SpacedDiffusion with learned_range, clip_denoised False; forward_with_cfg,
    which guides epsilon and takes the conditional half's share of the variance."""
    c, null = given
    products = sampler.alphas_cumprod({'num_train_timesteps': 1000,
                                       'beta_schedule': 'squaredcos_cap_v2'})
    kept = [round(i * 999 / (steps - 1)) for i in range(steps)]
    betas = [1 - products[t] / (products[kept[i - 1]] if i else 1.0) for i, t in enumerate(kept)]
    posterior = [b * (1 - (products[kept[i - 1]] if i else 1.0)) / (1 - products[t])
                 for i, (t, b) in enumerate(zip(kept, betas))]
    x, dim = start, start.shape[1]
    for i in reversed(range(steps)):
        t = times(x, kept[i])
        both, both_null = network(x, t, c), network(x, t, null)
        eps = both_null[:, :dim] + scale * (both[:, :dim] - both_null[:, :dim])
        least, most = math.log(posterior[max(i, 1)]), math.log(betas[i])
        share = (both[:, dim:] + 1) / 2
        log_variance = share * most + (1 - share) * least
        a, before = products[kept[i]], products[kept[i - 1]] if i else 1.0
        x0 = math.sqrt(1 / a) * x - math.sqrt(1 / a - 1) * eps
        mean = (math.sqrt(before) * betas[i] / (1 - a) * x0
                + math.sqrt(1 - betas[i]) * (1 - before) / (1 - a) * x)
        x = mean
        if i:
            x = mean + torch.exp(0.5 * log_variance) * noise(steps - 1 - i) * temperature
    return x


def dppo(network, start, _, given, count=5):
    """VPGDiffusion.forward of DPPO, deterministic: DDIM with denoised_clip_value and
    final_action_clip_value."""
    products = sampler.alphas_cumprod({'num_train_timesteps': 100,
                                       'beta_schedule': 'squaredcos_cap_v2'})
    x = start
    taken = [i * (100 // count) for i in range(count)]
    for i in reversed(range(count)):
        a, before = products[taken[i]], products[taken[i - 1]] if i else 1.0
        eps = network(x, times(x, taken[i]), *given)
        x0 = ((x - math.sqrt(1 - a) * eps) / math.sqrt(a)).clamp(-1, 1)
        eps = (x - math.sqrt(a) * x0) / math.sqrt(1 - a)
        x = math.sqrt(before) * x0 + math.sqrt(1 - before) * eps
    return x.clamp(-1, 1)


def flow(network, start, _, given, count=20):
    x = start
    for i in range(count):
        x = x + network(x, times(x, i / count).to(x.dtype), *given) / count
    return x


def edm(network, start, noise, given, count=18, churn=10.0, raised_noise=1.003):
    """edm_sampler of the project; the first step's raising is part of `start`, a standard normal."""
    least, most, rho, data = 0.002, 80.0, 7.0, 0.5
    ramp = [i / (count - 1) for i in range(count)]
    sigmas = [(most ** (1 / rho) + r * (least ** (1 / rho) - most ** (1 / rho))) ** rho
              for r in ramp] + [0.0]

    def denoised(x, sigma):
        root = math.sqrt(sigma ** 2 + data ** 2)
        f = network(x / root, times(x, math.log(sigma) / 4).to(x.dtype), *given)
        return data ** 2 / root ** 2 * x + sigma * data / root * f

    x = sigmas[0] * start
    for i in range(count):
        now, after = sigmas[i], sigmas[i + 1]
        gamma = min(churn / count, math.sqrt(2) - 1) if 0.05 <= now <= 50.0 else 0
        hat = now + gamma * now
        more = math.sqrt(hat ** 2 - now ** 2) * raised_noise
        # Row 2 i - 1 is the corrector before.
        if i == 0:
            x_hat = math.sqrt(now ** 2 + more ** 2) * start
        else:
            x_hat = x + more * noise(2 * i - 1) if more else x
        slope = (x_hat - denoised(x_hat, hat)) / hat
        x = x_hat + (after - hat) * slope
        if after:
            x = x_hat + (after - hat) * (slope + (x - denoised(x, after)) / after) / 2
    return x


def dpm_solver(network, start, _, given, scale=1.3, count=20):
    """DPM-Solver++ 2M of the paper, on the grid of diffusers' linspace, with a last step to 0."""
    evaluate = guided(network, scale)
    c = given[0]
    null = torch.zeros_like(c)
    products = sampler.alphas_cumprod({'num_train_timesteps': 1000,
                                       'beta_schedule': 'squaredcos_cap_v2'})
    taken = [round(999 * i / count) for i in range(count, 0, -1)]
    x, last, last_h = start, None, None
    for i, t in enumerate(taken):
        alpha, sigma = math.sqrt(products[t]), math.sqrt(1 - products[t])
        x0 = alpha * x - sigma * evaluate(x, times(x, t), c, null)
        if i + 1 == count:
            return x0
        to_alpha, to_sigma = (math.sqrt(products[taken[i + 1]]),
                              math.sqrt(1 - products[taken[i + 1]]))
        h = math.log(to_alpha / to_sigma) - math.log(alpha / sigma)
        combined = x0
        if last is not None:
            r = last_h / h
            combined = (1 + 1 / (2 * r)) * x0 - 1 / (2 * r) * last
        x = to_sigma / sigma * x - to_alpha * math.expm1(-h) * combined
        last, last_h = x0, h
    return x


def diffusion_ql(network, start, noise, given):
    """Diffusion.p_sample_loop of Diffusion-QL: clips the denoised action, and the action at the end."""
    products = sampler.alphas_cumprod({'num_train_timesteps': 5, 'trained_betas':
                                       sampler.vp_betas(5)})
    x = start
    for i in reversed(range(5)):
        a, before = products[i], products[i - 1] if i else 1.0
        beta = 1 - a / before
        x0 = (x - math.sqrt(1 - a) * network(x, times(x, i), *given)) / math.sqrt(a)
        x0 = x0.clamp(-1, 1)
        x = (math.sqrt(before) * beta / (1 - a) * x0
             + math.sqrt(a / before) * (1 - before) / (1 - a) * x)
        if i:
            x = x + math.sqrt(beta * (1 - before) / (1 - a)) * noise(4 - i)
    return x.clamp(-1, 1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    page: str             # in deploy/models/recipes, without .md
    module: typing.Callable
    loop: typing.Callable
    sizes: dict           # names that the page's block reads
    shape: tuple          # of a sample
    steps: int            # rows of noise
    conditions: dict      # files that the command reads: size of a row
    rows: int = 4
    one_condition: bool = False

    @property
    def name(self):
        return self.page.replace('_', '-')


RECIPES = (
    Recipe('mar_head', lambda: MarHead(8, 24, 32, 2), mar,
           {'dim': 8, 'condition': 24, 'width': 32, 'blocks': 2}, (8,), 100,
           {'condition': 24, 'null': 24}),
    Recipe('dppo_furniture',
           lambda: denoisers.Dppo(steps=4, action=3, observation=11, time=16, hidden=64, pairs=1),
           dppo, {'steps': 4, 'action': 3, 'observation': 11}, (4, 3), 5, {'observation': 11}),
    Recipe('flow_matching', lambda: Mlp(6, 5, 48), flow, {'dim': 6, 'condition': 5}, (6,), 20,
           {'condition': 5}),
    Recipe('edm', lambda: Mlp(6, 5, 48), edm, {'dim': 6, 'condition': 5}, (6,), 35,
           {'condition': 5}),
    Recipe('dpm_solver_guided',
           lambda: denoisers.SwigluHead(dim=8, condition=24, time=32, width=32, layers=2),
           dpm_solver, {'dim': 8, 'condition': 24}, (8,), 20, {'condition': 24}),
    Recipe('best_of_n', lambda: denoisers.DiffusionQl(action=3, observation=11, time=16, hidden=48),
           diffusion_ql, {'dim': 3, 'condition': 11, 'betas': sampler.vp_betas(5)}, (3,), 5,
           {'observation': 11}, rows=16, one_condition=True),
)
