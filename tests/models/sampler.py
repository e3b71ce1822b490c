# SPDX-License-Identifier: Apache-2.0
"""Schedules and the plain loop of a sampler, in whatever precision it is asked for.

A schedule is what scheduler_config.json says; the loop is that of diffusers' DDPMScheduler and
DDIMScheduler (eta 0), with its numbers made in float64.
"""

import math

import torch


def config(kind, betas, steps, **others):
    """scheduler_config.json; `betas`: a name of diffusers' or a list."""
    schedule = {'trained_betas': betas} if isinstance(betas, list) else {'beta_schedule': betas}
    return {'_class_name': kind, 'num_train_timesteps': steps, **schedule, 'clip_sample': False,
            'prediction_type': 'epsilon', 'timestep_spacing': 'leading', **others}


def vp_betas(steps, least=0.1, most=10.0):
    """Of Diffusion-QL and IDQL."""
    return [1 - math.exp(-least / steps - 0.5 * (most - least) * (2 * i - 1) / steps ** 2)
            for i in range(1, steps + 1)]


def cosine_betas(steps):
    def alpha_bar(i):
        return math.cos((i / steps + 0.008) / 1.008 * math.pi / 2) ** 2
    return [min(1 - alpha_bar(i + 1) / alpha_bar(i), 0.999) for i in range(steps)]


def linear_betas(steps, first=0.0001, last=0.02):
    return [first + (last - first) * i / (steps - 1) for i in range(steps)]


def alphas_cumprod(scheduler):
    steps = scheduler['num_train_timesteps']
    betas = scheduler.get('trained_betas') or {
        'linear': linear_betas, 'squaredcos_cap_v2': cosine_betas}[scheduler['beta_schedule']](steps)
    return torch.cumprod(1 - torch.tensor(betas, dtype=torch.float64), 0).tolist()


class Step:
    """x0 = by_x x + by_m m, maybe clipped; x' = mean_x x + mean_x0 x0 + mean_m m + sigma noise."""

    def __init__(self, scheduler, now, previous, last):
        a, b = math.sqrt(now), math.sqrt(1 - now)
        self.by_x, self.by_m = ((a, -b) if scheduler['prediction_type'] == 'v_prediction'
                                else (1 / a, -b / a))
        self.limit = scheduler.get('clip_sample_range', 1.0) if scheduler['clip_sample'] else None
        if scheduler['_class_name'] == 'DDPMScheduler':
            self.ddpm(scheduler, now, previous, last)
        else:
            self.ddim(scheduler, a, b, previous)

    def ddpm(self, scheduler, now, previous, last):
        beta = 1 - now / previous
        self.mean_x0 = math.sqrt(previous) * beta / (1 - now)
        self.mean_x = math.sqrt(1 - beta) * (1 - previous) / (1 - now)
        self.mean_m = 0.0
        variance = max((1 - previous) / (1 - now) * beta, 1e-20)
        if scheduler.get('variance_type') == 'fixed_large':
            variance = beta
        self.sigma = 0.0 if last else math.sqrt(variance)

    def ddim(self, scheduler, a, b, previous):
        """The predicted noise is that of the network, also where x0 is clipped."""
        self.sigma, self.mean_x0 = 0.0, math.sqrt(previous)
        share = math.sqrt(1 - previous)
        is_velocity = scheduler['prediction_type'] == 'v_prediction'
        self.mean_x, self.mean_m = (share * b, share * a) if is_velocity else (0.0, share)


def steps_of(scheduler, count):
    """(timesteps, steps) for `count` steps, spaced as `leading`."""
    products, stride = alphas_cumprod(scheduler), scheduler['num_train_timesteps'] // count
    timesteps = [i * stride for i in reversed(range(count))]
    return timesteps, [Step(scheduler, products[t], products[t - stride] if t >= stride else 1.0,
                            t == 0) for t in timesteps]


def trace(module, schedule, x, noise, others=()):
    """The loop as projects write it: all L + 1 states. x: [n, ...]; noise: [n, L, ...]."""
    made = [x]
    for i, (t, step) in enumerate(zip(*schedule)):
        m = module(x, torch.full((len(x),), t), *others)
        x0 = step.by_x * x + step.by_m * m
        if step.limit is not None:
            x0 = x0.clamp(-step.limit, step.limit)
        x_next = step.mean_x0 * x0 + step.mean_x * x
        if step.mean_m:
            x_next = x_next + step.mean_m * m
        if step.sigma:
            x_next = x_next + step.sigma * noise[:, i]
        x = x_next
        made.append(x)
    return made


def states(module, schedule, x, noise, others=()):
    """What trace() computes, without what autograd keeps for the way back."""
    with torch.no_grad():
        return trace(module, schedule, x, noise, others)
