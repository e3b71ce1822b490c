#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A diffusion model of points in the plane, and its samples through training time.

usage: tiny_diffusion.py [PICTURE.png]

Every version is exported beside those before it and served at once. The picture needs matplotlib.
"""

import sys
import tempfile

import numpy as np
import torch
from torch import nn

import deeppcr

STEPS, VERSIONS = 50, 4
DDPM = {"_class_name": "DDPMScheduler", "num_train_timesteps": STEPS, "clip_sample": False}


class Mlp(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2 + 32, width), nn.Linear(width, 2)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(16, dtype=x.dtype) * 9.21 / 16)
        angles = t.to(x.dtype).reshape(-1, 1) * rates
        h = nn.functional.gelu(self.first(torch.cat([x, angles.sin(), angles.cos()], 1)))
        for layer in self.layers:
            h = h + nn.functional.gelu(layer(h))
        return self.last(h)


def ring(n: int) -> torch.Tensor:
    angle = 6.2832 * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], 1) * (1 + 0.05 * torch.randn(n, 1))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, batches: int) -> None:
    products = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)
    for _ in range(batches):
        t, noise = torch.randint(0, STEPS, (256,)), torch.randn(256, 2)
        a = products[t][:, None]
        loss = ((net(a.sqrt() * ring(256) + (1 - a).sqrt() * noise, t) - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def draw(path: str, samples: list[np.ndarray]) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(samples), figsize=(3 * len(samples), 3))
    for version, (axis, points) in enumerate(zip(axes, samples, strict=True), 1):
        axis.scatter(points[:, 0], points[:, 1], s=2)
        axis.set(title=f"version {version}", xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    torch.manual_seed(0)
    net = Mlp()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    example = (torch.randn(1, 2), torch.tensor([1]))
    samples = []
    with tempfile.TemporaryDirectory() as models:
        deeppcr.export(net, DDPM, f"{models}/ring", example=example, num_inference_steps=STEPS)
        with deeppcr.serve(models) as server:
            client = server.client()
            for version in range(1, VERSIONS + 1):
                if version > 1:
                    train(net, optimizer, 120)
                    deeppcr.export(
                        net,
                        DDPM,
                        f"{models}/ring",
                        example=example,
                        num_inference_steps=STEPS,
                        version=version,
                    )
                    client.load("ring", version)
                drawn = np.asarray(client.generate("ring", 256, seed=0, version=version))
                off = float(np.abs(np.linalg.norm(drawn, axis=1) - 1).mean())
                print(f"version {version}: points are off the ring by {off:.2f}")
                samples.append(drawn)
    if len(sys.argv) > 1:
        draw(sys.argv[1], samples)


if __name__ == "__main__":
    main()
