# SPDX-License-Identifier: Apache-2.0
"""The public models that are written anew: network, sizes, schedule and a data set to train on.

The published sizes are the defaults of denoisers.py; `small` are those of the quick test.
"""

import dataclasses
import math
import typing

import torch

import denoisers
import sampler


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    title: str
    module: typing.Callable
    small: dict
    published: dict
    scheduler: dict  # scheduler_config.json
    steps: int       # inference steps
    data: typing.Callable  # (module's sizes, rows) -> (states, others)
    sample_shape: typing.Callable = lambda sizes: (sizes['dim'],)


def curve(rows, turns):
    """Points [rows] on a curve of two coordinates, of deviation 0.5 or so."""
    angle = turns * math.pi * torch.rand(rows)
    return torch.stack([angle.cos() * (0.4 + angle / 8), angle.sin() * (0.4 + angle / 8)], 1)


def points(_, rows):
    """Two moons."""
    upper = (torch.rand(rows) < 0.5).float()
    angle = math.pi * torch.rand(rows)
    x = torch.stack([angle.cos() + 0.5 * upper - 0.25, (2 * upper - 1) * (angle.sin() - 0.25)], 1)
    return x + 0.05 * torch.randn(rows, 2), ()


def actions(sizes, rows):
    """What a policy would do: bounded functions of an observation, and of the place in a chunk."""
    observation = torch.randn(rows, sizes['observation'])
    steps = sizes.get('steps', 1)
    total = steps * sizes['action']
    mixture = torch.sin(1.7 * torch.arange(sizes['observation'] * total).float())
    action = observation @ mixture.reshape(sizes['observation'], total) / sizes['observation'] ** 0.5
    mode = 0.3 * torch.sign(torch.randn(rows, 1))
    action = (torch.tanh(action) * 0.6 + mode + 0.05 * torch.randn(rows, total)).clamp(-1, 1)
    if 'steps' not in sizes:
        return action, (observation,)
    return action.reshape(rows, steps, sizes['action']), (observation[:, None],)


def columns(sizes, rows):
    """A table of dependent columns, one distribution for each label; standardised."""
    label = torch.randint(0, sizes['classes'], (rows,))
    base = curve(rows, 3) + 0.5 * label[:, None]
    mixture = torch.cos(1.3 * torch.arange(2 * sizes['columns']).float()).reshape(2, -1)
    table = base @ mixture + 0.2 * torch.randn(rows, sizes['columns'])
    return (table - table.mean(0)) / table.std(0), (label,)


def latents(sizes, rows):
    """Unit latents that depend on a vector, as of a speech or image token."""
    condition = torch.randn(rows, sizes['condition'])
    mixture = torch.sin(0.7 * torch.arange(sizes['condition'] * sizes['dim']).float())
    mean = condition @ mixture.reshape(sizes['condition'], -1) / sizes['condition'] ** 0.5
    return torch.tanh(mean) + 0.3 * torch.randn(rows, sizes['dim']), (condition,)


MODELS = {model.name: model for model in (
    Model('tiny_identity', 'tiny-diffusion, identity inputs',
          lambda **sizes: denoisers.TinyDiffusion('identity', **sizes),
          {'size': 32, 'hidden': 32, 'layers': 3}, {'size': 128, 'hidden': 128, 'layers': 3},
          sampler.config('DDPMScheduler', 'linear', 50), 50, points, lambda _: (2,)),
    Model('tiny_sinusoidal', 'tiny-diffusion, sinusoidal inputs',
          lambda **sizes: denoisers.TinyDiffusion('sinusoidal', **sizes),
          {'size': 32, 'hidden': 32, 'layers': 3}, {'size': 128, 'hidden': 128, 'layers': 3},
          sampler.config('DDPMScheduler', 'linear', 50), 50, points, lambda _: (2,)),
    Model('diffusion_ql', 'Diffusion-QL actor, Mish', denoisers.DiffusionQl,
          {'action': 3, 'observation': 11, 'time': 16, 'hidden': 48},
          {'action': 3, 'observation': 11, 'time': 16, 'hidden': 256},
          sampler.config('DDPMScheduler', sampler.vp_betas(5), 5, clip_sample=True), 5, actions,
          lambda sizes: (sizes['action'],)),
    Model('dppo', 'DPPO actor for gym, ReLU, pre-activation residual', denoisers.Dppo,
          {'steps': 4, 'action': 3, 'observation': 11, 'time': 16, 'hidden': 64, 'pairs': 1},
          {'steps': 4, 'action': 3, 'observation': 11, 'time': 16, 'hidden': 512, 'pairs': 1},
          sampler.config('DDPMScheduler', 'squaredcos_cap_v2', 20, clip_sample=True), 20, actions,
          lambda sizes: (sizes['steps'], sizes['action'])),
    Model('tabddpm', 'TabDDPM, numeric columns', denoisers.TabDdpm,
          {'columns': 8, 'classes': 2, 'dim': 32, 'widths': (64, 32, 32)},
          {'columns': 8, 'classes': 2, 'dim': 128, 'widths': (512, 256, 256, 256, 256, 128)},
          sampler.config('DDPMScheduler', 'linear', 1000, variance_type='fixed_large'), 1000,
          columns, lambda sizes: (sizes['columns'],)),
    Model('idql', 'IDQL pre-norm blocks, expansion 4, Mish', denoisers.Idql,
          {'action': 6, 'observation': 17, 'time': 32, 'hidden': 32, 'blocks': 3},
          {'action': 6, 'observation': 17, 'time': 64, 'hidden': 256, 'blocks': 3},
          sampler.config('DDPMScheduler', sampler.vp_betas(128), 128, clip_sample=True), 128,
          actions, lambda sizes: (sizes['action'],)),
    Model('swiglu_head', 'RMSNorm and SwiGLU head, v-prediction', denoisers.SwigluHead,
          {'dim': 16, 'condition': 24, 'time': 32, 'width': 32, 'layers': 2},
          {'dim': 64, 'condition': 1536, 'time': 256, 'width': 1536, 'layers': 4},
          sampler.config('DDIMScheduler', 'squaredcos_cap_v2', 1000,
                         prediction_type='v_prediction'), 20, latents),
)}
