# SPDX-License-Identifier: Apache-2.0
"""The two named denoisers as PyTorch modules, with the names of their tensors."""

import math

import torch
from torch import nn

EPSILON = 1e-6

MODULES = {"silu": nn.SiLU, "gelu": nn.GELU, "tanh": nn.Tanh, "relu": nn.ReLU,
           "gelu_tanh": lambda: nn.GELU(approximate="tanh")}


class TimeEmbed(nn.Module):
    def __init__(self, frequencies, width):
        super().__init__()
        self.half = frequencies // 2
        self.mlp = nn.Sequential(nn.Linear(frequencies, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t):
        args = t * torch.exp(-math.log(10000) * torch.arange(self.half) / self.half)
        return self.mlp(torch.cat([torch.cos(args), torch.sin(args)]))


class ResidualBlock(nn.Module):
    def __init__(self, width, activation):
        super().__init__()
        self.linear, self.modulation = nn.Linear(width, width), nn.Linear(width, width)
        self.act = MODULES[activation]()

    def forward(self, h, y):
        return h + self.act(self.linear(h) + self.modulation(nn.functional.silu(y)))


class AdaLnBlock(nn.Module):
    def __init__(self, width, activation):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(width, width), MODULES[activation](), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, h, y):
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return h + gate * self.mlp(self.in_ln(h) * (1 + scale) + shift)


class ResidualFinal(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.linear = nn.Linear(width, dim)

    def forward(self, h, _):
        return self.linear(h)


class AdaLnFinal(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=EPSILON, elementwise_affine=False)
        self.linear = nn.Linear(width, dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, h, y):
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(self.norm_final(h) * (1 + scale) + shift)


class Denoiser(nn.Module):
    """condition: "none", "class" (of class_count) or "vector" (of condition_dim numbers)."""

    def __init__(self, kind, activation, dim, width, blocks, frequencies, condition,
                 class_count=0, condition_dim=0):
        super().__init__()
        residual = kind == "residual_mlp"
        block, final = (ResidualBlock, ResidualFinal) if residual else (AdaLnBlock, AdaLnFinal)
        self.condition = condition
        self.input_proj = nn.Linear(dim, width)
        self.time_embed = TimeEmbed(frequencies, width)
        if condition == "class":
            self.class_embed = nn.Embedding(class_count, width)
        if condition == "vector":
            self.cond_embed = nn.Linear(condition_dim, width)
        self.res_blocks = nn.ModuleList([block(width, activation) for _ in range(blocks)])
        self.final_layer = final(width, dim)

    def forward(self, z, t, label, vector):
        y = self.time_embed(t)
        if self.condition == "class":
            y = y + self.class_embed.weight[label]
        if self.condition == "vector":
            y = y + self.cond_embed(vector)
        h = self.input_proj(z)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)
