# SPDX-License-Identifier: Apache-2.0
"""Denoisers as anyone writes them in PyTorch, and their way into denoiser.onnx.

They know nothing of the server, and share no code with the training: parameters are found by the
names that the trained ones have. The embedding of the time is computed in double, as in float32 the
frequencies would be others than those of the training's table.
"""

import math

import torch
from torch import nn
import torch.nn.functional as F

OPSET = 16                # with 17 PyTorch 1.13 fails on LayerNorm without weights
WIDTH = 128               # of the time's embedding
EPSILON = 1e-6


class TimeEmbed(nn.Module):
    """Cosines, then sines of the time, and two layers."""

    def __init__(self, hidden):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, time):
        half = WIDTH // 2
        exponents = torch.arange(half, dtype=torch.float64) / half
        angles = time.double()[:, None] * torch.exp(-math.log(10000.0) * exponents)
        return self.mlp(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1).float())


def modulated(u, y):
    shift, scale = y.chunk(2, dim=-1)
    return u * (1 + scale) + shift


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.modulation = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h, y):
        return h + F.silu(self.linear(h) + self.modulation(y))


class GatedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPSILON, elementwise_affine=False)
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, h, y):
        u = modulated(self.norm(h), self.modulation(y))
        return h + self.down(F.silu(self.gate(u)) * self.up(u))


class GatedFinalLayer(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPSILON, elementwise_affine=False)
        self.linear = nn.Linear(width, outputs)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, h, y):
        return self.linear(modulated(self.norm(h), self.adaLN_modulation(y)))


class LatentDenoiser(nn.Module):
    """The noise in the latents of digits-ddpm, [n, 16], at times [n]."""

    def __init__(self, state=16, hidden=128, blocks=3):
        super().__init__()
        self.time_embed = TimeEmbed(hidden)
        self.input_proj = nn.Linear(state, hidden)
        self.res_blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(blocks))
        self.final_layer = nn.ModuleDict({"linear": nn.Linear(hidden, state)})

    def forward(self, state, time):
        y = F.silu(self.time_embed(time))
        h = self.input_proj(state)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer["linear"](h)


class PixelDenoiser(nn.Module):
    """The velocity of digits-pixels at states [n, 64], times [n] and digits [n]."""

    def __init__(self, state=64, hidden=160, blocks=3, classes=10):
        super().__init__()
        self.time_embed = TimeEmbed(hidden)
        self.class_embed = nn.Embedding(classes, hidden)
        self.input_proj = nn.Linear(state, hidden)
        self.res_blocks = nn.ModuleList(GatedBlock(hidden) for _ in range(blocks))
        self.final_layer = GatedFinalLayer(hidden, state)

    def forward(self, state, time, digit):
        y = self.time_embed(time) + self.class_embed(digit)
        h = self.input_proj(state)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)


_TIMES = torch.tensor([1, 2])
# A module and examples of its inputs, by the model's name.
MODULES = {
    "digits-ddpm-onnx": (LatentDenoiser, {"state": torch.zeros(2, 16), "time": _TIMES}),
    "digits-pixels": (PixelDenoiser, {"state": torch.zeros(2, 64), "time": _TIMES,
                                      "digit": _TIMES}),
}


def write(name, weights, path) -> None:
    """Writes denoiser.onnx of the named model with weights by name, no more and no fewer."""
    make, inputs = MODULES[name]
    module = make().eval()
    module.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in weights.items()})
    torch.onnx.export(module, tuple(inputs.values()), str(path), opset_version=OPSET,
                      input_names=list(inputs), output_names=["prediction"],
                      dynamic_axes={key: {0: "n"} for key in [*inputs, "prediction"]})
