# SPDX-License-Identifier: Apache-2.0
"""Trains one network and writes its files."""

import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import networks
import safetensors_file

CALIBRATION_INPUTS = 600
PROGRESS_EVERY = 100


def _optimizer(network):
    spec = network.spec
    layers = [network.layers_weight, network.layers_bias]
    ends = [network.input_weight, network.input_bias, network.output_weight, network.output_bias]
    optimizer = torch.optim.AdamW([
        {"params": layers, "weight_decay": spec.weight_decay},
        {"params": ends, "weight_decay": 0.0},
    ])
    rates = [spec.layer_learning_rate, spec.ends_learning_rate]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rates, total_steps=spec.training_steps, pct_start=0.2)
    return optimizer, schedule


def train(spec: networks.Spec, digits: data.Digits) -> networks.Network:
    """Every random number comes from one generator seeded by the spec."""
    generator = torch.Generator().manual_seed(spec.seed)
    network = networks.Network(spec, generator)
    optimizer, schedule = _optimizer(network)
    inputs, labels = torch.from_numpy(digits.train_inputs), torch.from_numpy(digits.train_labels)
    begin = time.monotonic()
    for step in range(1, spec.training_steps + 1):
        chosen = torch.randint(len(inputs), (spec.batch_size,), generator=generator)
        noise = torch.randn(spec.batch_size, spec.input_dim, generator=generator)
        outputs = network(inputs[chosen] + spec.pixel_noise * noise)
        loss = F.cross_entropy(outputs, labels[chosen], label_smoothing=spec.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % PROGRESS_EVERY == 0:
            print(f"{spec.name}: step {step}/{spec.training_steps}, loss {loss.item():.3f}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
    return network


def config(spec: networks.Spec) -> dict:
    """config.json of the model."""
    content = {
        "model_type": spec.model_type,
        "input_dim": spec.input_dim,
        "output_dim": spec.output_dim,
        "state_dim": spec.state_dim,
        "num_layers": spec.num_layers,
        "activation": spec.activation,
        "max_batch_size": 64,
        "labels": [str(digit) for digit in range(spec.output_dim)],
    }
    if spec.model_type == "resnet":
        content["residual_scale"] = spec.residual_scale
    return content


def export(network: networks.Network, digits: data.Digits, directory: pathlib.Path) -> None:
    """Writes the model's three files; calibration inputs are training inputs, never held out."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config(network.spec), indent=2)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")
    tensors = {name: value.detach().numpy() for name, value in network.tensors().items()}
    safetensors_file.write(directory / "model.safetensors", tensors)
    safetensors_file.write(directory / "calibration.safetensors",
                           {"inputs": digits.train_inputs[:CALIBRATION_INPUTS]})


def export_digits(digits: data.Digits, directory: pathlib.Path) -> None:
    """Writes both parts: inputs float32 [n, 64], labels int64 [n]."""
    directory.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(directory / "digits_train.npz", inputs=digits.train_inputs,
                        labels=digits.train_labels)
    np.save(directory / "digits_heldout.npy", digits.held_out_inputs)
    np.save(directory / "digits_heldout_labels.npy", digits.held_out_labels)
