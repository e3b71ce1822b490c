#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A diffusion head that draws a token, as MAR's, with guidance and temperature of the request.

The network has adaptive layer norms and learned variances; a null condition stands for none.
"""

import tempfile

import torch
from torch import nn

import deeppcr

TOKEN, CONDITION, WIDTH = 16, 32, 128
STEPS = 100
SCHEDULER = {
    "_class_name": "DDPMScheduler",
    "num_train_timesteps": STEPS,
    "beta_start": 1e-3,
    "beta_end": 0.1,
    "variance_type": "learned_range",
    "clip_sample": False,
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 3 * WIDTH))

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.modulation(y).chunk(3, dim=1)
        return h + gate * self.mlp(self.norm(h) * (1 + scale) + shift)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(TOKEN, WIDTH), nn.Linear(WIDTH, 2 * TOKEN)
        self.time, self.condition = nn.Linear(64, WIDTH), nn.Linear(CONDITION, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(32, dtype=x.dtype) * 9.21 / 32)
        angles = t.to(x.dtype).reshape(-1, 1) * rates
        y = self.time(torch.cat([angles.cos(), angles.sin()], 1)) + self.condition(c)
        h = self.first(x)
        for block in self.blocks:
            h = block(h, y)
        return self.last(h)


def train(head: nn.Module, tokens: torch.Tensor) -> float:
    """Tokens are a linear function of the condition here, which one in ten does not have."""
    products = torch.cumprod(1 - torch.linspace(1e-3, 0.1, STEPS), 0)
    optimizer = torch.optim.Adam(head.parameters(), 2e-3)
    for _ in range(200):
        c, t, noise = (
            torch.randn(128, CONDITION),
            torch.randint(0, STEPS, (128,)),
            torch.randn(128, TOKEN),
        )
        a, x = products[t][:, None], c @ tokens
        prediction = head(a.sqrt() * x + (1 - a).sqrt() * noise, t, c * (torch.rand(128, 1) > 0.1))[
            :, :TOKEN
        ]
        loss = ((prediction - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    head, tokens = Head(), torch.randn(CONDITION, TOKEN) / CONDITION**0.5
    print(f"trained: loss {train(head, tokens):.2f}")
    example = (torch.randn(1, TOKEN), torch.tensor([1]), torch.randn(1, CONDITION))
    condition = torch.randn(CONDITION)
    with tempfile.TemporaryDirectory() as models:
        print(
            deeppcr.export(
                head,
                SCHEDULER,
                f"{models}/head",
                example=example,
                num_inference_steps=25,
                null_condition=0,
            )
        )
        with deeppcr.serve(models) as server:
            client = server.client()
            for scale, temperature in ((1.0, 1.0), (1.5, 1.0), (1.5, 0.8)):
                drawn = client.generate(
                    "head",
                    64,
                    seed=1,
                    conditioning=condition,
                    guidance_scale=scale,
                    temperature=temperature,
                )
                off = float(abs(drawn.mean(0) - (condition @ tokens).numpy()).mean())
                print(
                    f"guidance {scale}, temperature {temperature}: mean token off by {off:.2f}, "
                    f"spread {drawn.std(0).mean():.2f}; {drawn.report}"
                )


if __name__ == "__main__":
    main()
