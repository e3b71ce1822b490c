#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves a deep network and a denoiser of PyTorch, and holds their answers against float64.

Both are exported from the modules as they are; the errors printed are those of the server and of
PyTorch in float32, each against the same module in double precision.
"""

import copy
import sys
import tempfile

import numpy as np
import torch
from torch import nn

import deeppcr

STEPS, DIM = 20, 6
DDIM = {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "clip_sample": False}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + 0.1 * self.down(nn.functional.gelu(self.up(self.norm(z))))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(DIM + 2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, DIM)
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angle = (t / 1000).reshape(-1, 1).to(x.dtype)
        return self.net(torch.cat([x, angle.sin(), angle.cos()], dim=1))


def ddim(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """What a scheduler of diffusers does with these settings, in the precision of x."""
    products = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    times = [i * (1000 // STEPS) for i in range(STEPS)][::-1]
    for now, then in zip(times, [*times[1:], None], strict=True):
        a, b = products[now], products[then] if then is not None else torch.tensor(1.0)
        noise = module(x, torch.full((len(x),), now))
        x0 = (x - (1 - a).sqrt().to(x.dtype) * noise) / a.sqrt().to(x.dtype)
        x = b.sqrt().to(x.dtype) * x0 + (1 - b).sqrt().to(x.dtype) * noise
    return x.numpy()


def judged(name: str, answers: np.ndarray, own: np.ndarray, exact: np.ndarray) -> bool:
    error, torch_error = (
        float(abs(each - exact).max() / abs(exact).max()) for each in (answers, own)
    )
    print(f"{name:20} error {error:.1e}, PyTorch's float32 {torch_error:.1e}")
    return error <= max(1e-5, 2 * torch_error)


def main() -> int:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), *(Block(16) for _ in range(256)), nn.Linear(16, 3))
    denoiser = Denoiser()
    with tempfile.TemporaryDirectory() as models, torch.no_grad():
        print(deeppcr.export(network, None, f"{models}/deep", example=torch.randn(1, 4)))
        print(
            deeppcr.export(
                denoiser,
                DDIM,
                f"{models}/denoiser",
                example=(torch.randn(1, DIM), torch.tensor([1])),
                num_inference_steps=STEPS,
            )
        )
        x, noise = torch.randn(32, 4), torch.randn(32, DIM)
        with deeppcr.serve(models) as server:
            client = server.client()
            outputs = client.forward("deep", x)
            samples = client.generate("denoiser", initial_noise=noise)
            print(client.generate("denoiser", 8, seed=0).report)
    wide = copy.deepcopy(network).double()
    with torch.no_grad():
        right = [
            judged("256 layers", outputs, network(x).numpy(), wide(x.double()).numpy()),
            judged(
                f"{STEPS} steps of DDIM",
                samples,
                ddim(denoiser, noise),
                ddim(copy.deepcopy(denoiser).double(), noise.double()),
            ),
        ]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
