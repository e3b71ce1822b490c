# SPDX-License-Identifier: Apache-2.0
"""Diffusion sampling in eager PyTorch: as users write it, and with what can be precomputed.

Networks of nn.Linear with the parameter names of model.safetensors; the reverse steps are those of
diffusers' DDPMScheduler (fixed_small) and DDIMScheduler (eta 0), prediction type epsilon, in Python
floats, which cost less than the tensors of one element that diffusers itself computes with. All
samples of a batch are at the same timestep: its embedding is made once, not once per sample.
"""

import math

import torch
from torch import nn
from torch.nn import functional

LAYER_NORM_EPSILON = 1e-6
MAX_PERIOD = 10000.0
ACTIVATIONS = {'silu': nn.SiLU, 'relu': nn.ReLU}


def sinusoids(timesteps, dim):
    """[n, dim]: cosines, then sines, as in DiT and MAR."""
    half = dim // 2
    exponents = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    frequencies = torch.exp(-math.log(MAX_PERIOD) * exponents / half)
    angles = timesteps[:, None].float() * frequencies[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class TimeEmbed(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, timesteps):
        return self.mlp(sinusoids(timesteps, self.dim))


class ResidualBlock(nn.Module):
    def __init__(self, dim, activation):
        super().__init__()
        self.linear, self.modulation = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.activation = activation

    def modulate(self, y):
        return (self.modulation(functional.silu(y)),)

    def forward(self, h, mu):
        return h + self.activation(self.linear(h) + mu)


class AdaLnBlock(nn.Module):
    def __init__(self, dim, activation):
        super().__init__()
        self.in_ln = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), activation, nn.Linear(dim, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 3 * dim))

    def modulate(self, y):
        return self.adaLN_modulation(y).chunk(3, dim=-1)

    def forward(self, h, shift, scale, gate):
        return h + gate * self.mlp(self.in_ln(h) * (1 + scale) + shift)


class PlainFinalLayer(nn.Module):
    def __init__(self, dim, output_dim):
        super().__init__()
        self.linear = nn.Linear(dim, output_dim)

    def modulate(self, _):
        return ()

    def forward(self, h):
        return self.linear(h)


class AdaLnFinalLayer(nn.Module):
    def __init__(self, dim, output_dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON, elementwise_affine=False)
        self.linear = nn.Linear(dim, output_dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def modulate(self, y):
        return self.adaLN_modulation(y).chunk(2, dim=-1)

    def forward(self, h, shift, scale):
        return self.linear(self.norm(h) * (1 + scale) + shift)


class Denoiser(nn.Module):
    """A whole model: the denoiser, and the decoder of its final states where there is one."""

    def __init__(self, config, tensors):
        super().__init__()
        self.dim, hidden = config['state_dim'], config['hidden_dim']
        adaln = config['denoiser'] == 'adaln_mlp'
        block, final = (AdaLnBlock, AdaLnFinalLayer) if adaln else (ResidualBlock, PlainFinalLayer)
        activation = ACTIVATIONS[config['activation']]()
        self.time_embed = TimeEmbed(config['time_embedding_dim'], hidden)
        self.input_proj = nn.Linear(self.dim, hidden)
        self.res_blocks = nn.ModuleList(block(hidden, activation)
                                        for _ in range(config['num_blocks']))
        self.final_layer = final(hidden, self.dim)
        widths = [*config.get('decoder_widths', ()), config['output_dim']]
        if 'decoder.0.weight' in tensors:
            self.decoder = nn.ModuleList(nn.Linear(a, b)
                                         for a, b in zip([self.dim, *widths], widths))
        self.decoder_activation = ACTIVATIONS[config.get('decoder_activation', 'relu')]()
        self.load_state_dict({name: torch.from_numpy(value.copy())
                              for name, value in tensors.items()})  # requires exactly these

    def forward(self, z, timestep):
        y = self.time_embed(timestep)
        h = self.input_proj(z)
        for block in self.res_blocks:
            h = block(h, *block.modulate(y))
        return self.final_layer(h, *self.final_layer.modulate(y))

    def modulations(self, timestep):
        """All of forward() that does not depend on z."""
        y = self.time_embed(timestep)
        return [[part.contiguous() for part in layer.modulate(y)]
                for layer in (*self.res_blocks, self.final_layer)]

    def modulated(self, z, modulations):
        h = self.input_proj(z)
        for block, modulation in zip(self.res_blocks, modulations):
            h = block(h, *modulation)
        return self.final_layer(h, *modulations[-1])

    def decode(self, z):
        layers = getattr(self, 'decoder', [])
        for i, layer in enumerate(layers):
            z = layer(self.decoder_activation(z) if i else z)
        return z


class Scheduler:
    """scheduler_config.json as the models of the ladder have it."""

    def __init__(self, config, count):
        expected = {'beta_schedule': 'linear', 'prediction_type': 'epsilon', 'clip_sample': False,
                    'timestep_spacing': 'leading', 'steps_offset': 0}
        wrong = [key for key, value in expected.items() if config[key] != value]
        assert not wrong, wrong
        total = config['num_train_timesteps']
        betas = torch.linspace(config['beta_start'], config['beta_end'], total,
                               dtype=torch.float64)
        self.alphas_cumprod = torch.cumprod(1 - betas, 0).tolist()
        self.stride = total // count
        self.timesteps = [i * self.stride for i in reversed(range(count))]
        self.draws = config['_class_name'] == 'DDPMScheduler'

    def step(self, output, t, z, noise):
        now = self.alphas_cumprod[t]
        previous = self.alphas_cumprod[t - self.stride] if t >= self.stride else 1.0
        x0 = (z - (1 - now) ** 0.5 * output) / now ** 0.5
        if not self.draws:
            return previous ** 0.5 * x0 + (1 - previous) ** 0.5 * output
        alpha = now / previous
        mean = (previous ** 0.5 * (1 - alpha) / (1 - now) * x0
                + alpha ** 0.5 * (1 - previous) / (1 - now) * z)
        if t == 0:
            return mean
        return mean + ((1 - previous) / (1 - now) * (1 - alpha)) ** 0.5 * noise()

    def coefficients(self, t):
        """z' = a z + b output + c noise."""
        def at(output, z):
            return self.step(output, t, z, lambda: 0.0)
        now = self.alphas_cumprod[t]
        previous = self.alphas_cumprod[t - self.stride] if t >= self.stride else 1.0
        sigma = ((1 - previous) / (1 - now) * (1 - now / previous)) ** 0.5
        return at(0.0, 1.0), at(1.0, 0.0), sigma if self.draws and t > 0 else 0.0


class Sampler:
    """`noise(i, n)`: [n, D] of z_0 (i = -1) or of step i; by default drawn when it is needed."""

    def __init__(self, config, scheduler_config, tensors, device='cpu'):
        self.device = device
        self.network = Denoiser(config, tensors).eval().to(device)
        self.scheduler = Scheduler(scheduler_config, config['num_inference_steps'][0])
        dim = config['state_dim']
        self.draw = lambda _, n: torch.randn(n, dim, device=device)
        with torch.no_grad():
            self.steps = [(self.network.modulations(self.at(t)),
                           *self.scheduler.coefficients(t)) for t in self.scheduler.timesteps]

    def at(self, t):
        return torch.tensor([t], device=self.device)

    def eager(self, n, noise=None):
        noise = noise or self.draw
        with torch.no_grad():
            z = noise(-1, n)
            for i, t in enumerate(self.scheduler.timesteps):
                output = self.network(z, self.at(t))
                z = self.scheduler.step(output, t, z, lambda i=i: noise(i, n))
            return self.network.decode(z)

    def precomputed(self, n, noise=None):
        """Nothing in the loop that depends on the step alone; the fewest tensor operations."""
        noise = noise or self.draw
        with torch.inference_mode():
            z = noise(-1, n)
            for i, (modulations, by_z, by_output, sigma) in enumerate(self.steps):
                output = self.network.modulated(z, modulations)
                z = torch.add(by_z * z, output, alpha=by_output)
                if sigma:
                    z = torch.add(z, noise(i, n), alpha=sigma)
            return self.network.decode(z)

    def candidates(self):
        return [('eager no_grad', self.eager), ('eager precomputed', self.precomputed)]
