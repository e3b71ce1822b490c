#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steers samples of a served model by the gradients of a loss that PyTorch knows.

Generation is a torch.autograd.Function here: the server draws samples from noise, and gives the
gradient of any loss of them by the noise.
"""

import tempfile
from typing import Any

import numpy as np
import torch
from tiny_diffusion import STEPS, Mlp, train

import deeppcr

DDIM = {"_class_name": "DDIMScheduler", "num_train_timesteps": STEPS, "clip_sample": False}


class Generate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, noise: torch.Tensor, client: deeppcr.Client, model: str) -> torch.Tensor:
        ctx.save_for_backward(noise)
        ctx.client, ctx.model = client, model
        return torch.from_numpy(np.array(client.generate(model, initial_noise=noise)))

    @staticmethod
    def backward(ctx: Any, cotangents: torch.Tensor) -> Any:
        (noise,) = ctx.saved_tensors
        gradients = ctx.client.gradient(
            ctx.model,
            n=len(noise),
            initial_noise=noise.detach(),
            cotangents=cotangents,
            by=["initial_state"],
        )
        return torch.from_numpy(np.array(gradients.initial_state)), None, None


def main() -> None:
    torch.manual_seed(0)
    net = Mlp()
    train(net, torch.optim.Adam(net.parameters(), 2e-3), 300)
    top = torch.tensor([0.0, 1.0])
    noise = torch.randn(8, 2, requires_grad=True)
    with tempfile.TemporaryDirectory() as models:
        example = (torch.randn(1, 2), torch.tensor([1]))
        deeppcr.export(net, DDIM, f"{models}/ring", example=example, num_inference_steps=STEPS)
        with deeppcr.serve(models, gradients=True) as server:
            client = server.client()
            optimizer = torch.optim.Adam([noise], 0.05)
            losses = []
            for _ in range(80):
                loss = ((Generate.apply(noise, client, "ring") - top) ** 2).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(np.round(client.generate("ring", initial_noise=noise.detach()), 2))
    print(f"distance to {top.tolist()}: {losses[0]:.3f} at first, {losses[-1]:.4f} in the end")


if __name__ == "__main__":
    main()
