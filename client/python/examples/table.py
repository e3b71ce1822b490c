#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of a table for a class, as TabDDPM draws them: 100 steps of DDPM, trained for seconds."""

import tempfile

import numpy as np
import torch
from torch import nn

import deeppcr

COLUMNS, CLASSES, STEPS = 4, 2, 100
DDPM = {
    "_class_name": "DDPMScheduler",
    "num_train_timesteps": STEPS,
    "beta_start": 1e-3,
    "beta_end": 0.1,
    "variance_type": "fixed_large",
    "clip_sample": False,
}
MEANS = torch.tensor([[2.0, 0.0, -1.0, 0.5], [-2.0, 1.0, 1.0, -0.5]])


class TabDdpm(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.project, self.label = nn.Linear(COLUMNS, width), nn.Embedding(CLASSES, width)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.net = nn.Sequential(
            nn.Linear(width, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, COLUMNS),
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(8, dtype=x.dtype) * 9.21 / 8)
        angles = t.to(x.dtype).reshape(-1, 1) * rates
        embedded = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        return self.net(self.project(x) + embedded + nn.functional.silu(self.label(label)))


def train(net: nn.Module) -> float:
    products = torch.cumprod(1 - torch.linspace(1e-3, 0.1, STEPS), 0)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(200):
        label, t = torch.randint(0, CLASSES, (256,)), torch.randint(0, STEPS, (256,))
        x, noise = MEANS[label] + 0.3 * torch.randn(256, COLUMNS), torch.randn(256, COLUMNS)
        a = products[t][:, None]
        loss = ((net(a.sqrt() * x + (1 - a).sqrt() * noise, t, label) - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    net = TabDdpm()
    print(f"trained: loss {train(net):.2f}")
    example = (torch.randn(1, COLUMNS), torch.tensor([1]), torch.tensor([0]))
    with tempfile.TemporaryDirectory() as models:
        print(deeppcr.export(net, DDPM, f"{models}/table", example=example, num_classes=CLASSES))
        with deeppcr.serve(models) as server:
            rows = server.client().generate(
                "table", 64, seed=0, class_labels=[i % 2 for i in range(64)]
            )
    for label in range(CLASSES):
        found, wanted = np.asarray(rows[label::2]).mean(0), MEANS[label].numpy()
        print(f"class {label}: means {np.round(found, 2)} of {wanted}")


if __name__ == "__main__":
    main()
