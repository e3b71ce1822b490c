#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A diffusion policy in a control loop of a fixed rate, each action guessed from the last one.

The network is that of Diffusion-QL: state, time and observation into an MLP with Mish, five steps.
Prints the latency of an action (p50, p99) and by how much the loop's ticks were late (jitter).
"""

import argparse
import tempfile
import time

import numpy as np
import torch
from torch import nn

import deeppcr

ACTION, OBSERVATION = 6, 17
DDPM = {
    "_class_name": "DDPMScheduler",
    "num_train_timesteps": 5,
    "beta_start": 0.1,
    "beta_end": 0.7,
    "clip_sample_range": 1.0,
}


class Policy(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.Mish(), nn.Linear(32, 16))
        self.net = nn.Sequential(
            nn.Linear(ACTION + 16 + OBSERVATION, width),
            nn.Mish(),
            nn.Linear(width, width),
            nn.Mish(),
            nn.Linear(width, ACTION),
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor, observation: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(8, dtype=x.dtype) * np.log(10000) / 7)
        angles = t.to(x.dtype).reshape(-1, 1) * rates
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        return self.net(torch.cat([x, embedded, observation], 1))


def percentile(seconds: list[float], q: float) -> str:
    return f"{1e6 * float(np.percentile(seconds, q)):.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate_hz", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=3)
    flags = parser.parse_args()
    torch.manual_seed(0)
    example = (torch.randn(1, ACTION), torch.tensor([1]), torch.randn(1, OBSERVATION))
    with tempfile.TemporaryDirectory() as models:
        print(
            deeppcr.export(
                Policy(), DDPM, f"{models}/policy", example=example, num_inference_steps=5
            )
        )
        with deeppcr.serve(models) as server:
            policy = server.client().policy("policy", rate_hz=flags.rate_hz, seed=0)
            observation = np.zeros(OBSERVATION, np.float32)
            end = time.monotonic() + flags.seconds
            while time.monotonic() < end:
                action = policy.act(observation)
                observation[:ACTION] = np.tanh(observation[:ACTION] + 0.05 * action[0])
            pace = policy.pace
    print(
        f"{len(pace.latencies)} actions at {flags.rate_hz:g} Hz: "
        f"p50 {percentile(pace.latencies, 50)}, p99 {percentile(pace.latencies, 99)}; "
        f"jitter p50 {percentile(pace.lateness, 50)}, p99 {percentile(pace.lateness, 99)}; "
        f"{pace.missed} missed"
    )


if __name__ == "__main__":
    main()
