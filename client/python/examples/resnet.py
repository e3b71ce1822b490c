#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A residual network of 1000 layers, trained for seconds, served with all layers solved at once."""

import tempfile

import torch
from torch import nn

import deeppcr


class ResNet(nn.Module):
    def __init__(self, depth: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 2)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        for layer in self.layers:
            z = z + 0.03 * torch.tanh(layer(z))
        return self.last(z)


def rings(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    label = torch.randint(0, 2, (n,))
    angle = torch.rand(n) * 6.3
    radius = 1 + label + 0.1 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label


def main() -> None:
    torch.manual_seed(0)
    net = ResNet()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(20):
        x, label = rings(128)
        loss = nn.functional.cross_entropy(net(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as models:
        print(deeppcr.export(net, None, f"{models}/rings", example=torch.randn(1, 2)))
        with deeppcr.serve(models) as server:
            client = server.client()
            x, label = rings(64)
            answers = client.forward("rings", x)
            right = (answers.argmax(1) == label.numpy()).mean()
            print(f"{right:.0%} of 64 points right; {answers.report}")
            print(client.compare("rings", x[:1], solvers=["sequential", "newton"]))


if __name__ == "__main__":
    main()
