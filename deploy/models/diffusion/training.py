# SPDX-License-Identifier: Apache-2.0
"""Trains one denoiser and writes its files."""

import copy
import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

import autoencoder
import exported
import networks
from shared import safetensors_file
import swissroll

MAX_BATCH_SIZE = 256
PROGRESS_EVERY = 1000
WARMUP_STEPS = 500
DIFFUSERS_VERSION = "0.35.2"    # version of the file format; diffusers itself is not used


def scheduler_config(spec: networks.Spec) -> dict:
    """scheduler_config.json: every key of the class's constructor."""
    content = {
        "_class_name": spec.scheduler,
        "_diffusers_version": DIFFUSERS_VERSION,
        "beta_end": 0.02,
        "beta_schedule": spec.beta_schedule,
        "beta_start": spec.beta_start,
        "clip_sample": False,
        "clip_sample_range": 1.0,
        "dynamic_thresholding_ratio": 0.995,
        "num_train_timesteps": spec.train_timesteps,
        "prediction_type": spec.prediction,
        "rescale_betas_zero_snr": False,
        "sample_max_value": 1.0,
        "steps_offset": 0,
        "thresholding": False,
        "timestep_spacing": "leading",
        "trained_betas": None,
    }
    if spec.scheduler == "DDPMScheduler":
        content["variance_type"] = "fixed_small"
    else:
        content["set_alpha_to_one"] = True
    return content


def config(spec: networks.Spec) -> dict:
    """config.json."""
    content = {
        "model_type": "diffusion",
        "state_dim": spec.state_dim,
        "output_dim": autoencoder.PIXELS if spec.digits else spec.state_dim,
        "denoiser": "onnx" if spec.onnx else spec.denoiser,
        "hidden_dim": spec.hidden_dim,
        "num_blocks": spec.num_blocks,
        "activation": spec.activation,
        "time_embedding_dim": spec.time_embedding_dim,
        "num_inference_steps": list(spec.inference_steps),
        "max_batch_size": MAX_BATCH_SIZE,
    }
    if spec.num_classes:
        content["num_classes"] = spec.num_classes
    if spec.onnx:    # the file says what the network is
        for key in ("hidden_dim", "num_blocks", "activation", "time_embedding_dim"):
            del content[key]
    if spec.latent:
        content["decoder_widths"] = [autoencoder.HIDDEN]
        content["decoder_activation"] = "silu"
    if spec.digits:
        content["image_shape"] = [8, 8]
    return content


def alphas_cumprod_of(spec):
    """[train_timesteps], float64."""
    power = {"linear": 1, "scaled_linear": 2}[spec.beta_schedule]
    betas = torch.linspace(spec.beta_start**(1 / power), 0.02**(1 / power), spec.train_timesteps,
                           dtype=torch.float64)**power
    return torch.cumprod(1 - betas, dim=0)


class _Flat:
    """All parameters of a module as one vector, and their gradients as another.

    The optimiser, the clipping and the average then take one operation each and not one for every
    small tensor, which would cost more than the gradients do.
    """

    def __init__(self, module):
        parameters = list(module.parameters())
        self.values = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(parameters).detach())
        self.values.grad = torch.zeros_like(self.values)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.data = self.values.data[begin:end].view_as(parameter)
            parameter.grad = self.values.grad[begin:end].view_as(parameter)
            begin = end


def _optimizer(spec, values, steps):
    """AdamW: a linear warm-up, then half a cosine down to 0."""
    optimizer = torch.optim.AdamW([values], lr=spec.learning_rate, weight_decay=spec.weight_decay)
    warmup = min(WARMUP_STEPS, steps // 10 + 1)

    def factor(step):
        cosine = 0.5 * (1 + np.cos(np.pi * min(step / steps, 1)))
        return min((step + 1) / warmup, 1.0) * cosine

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class _Points:
    """Batches of training points: digits with a little noise, or fresh points of the roll."""

    def __init__(self, spec, digits, labels):
        self.spec, self.digits = spec, digits
        if spec.digits:
            self.members = [torch.nonzero(labels == digit)[:, 0] for digit in labels.unique()]
        self.generator = np.random.default_rng(spec.seed)

    def draw(self):
        """([groups, group_size, D], a label per group or None)."""
        spec = self.spec
        if not spec.digits:
            points = swissroll.draw(spec.groups * spec.group_size, self.generator)
            return torch.from_numpy(points).reshape(spec.groups, spec.group_size, -1), None
        if spec.num_classes:
            labels = torch.randint(spec.num_classes, (spec.groups,))
            chosen = torch.stack([self._of_class(label) for label in labels])
        else:
            labels = None
            chosen = torch.randint(len(self.digits), (spec.groups, spec.group_size))
        points = self.digits[chosen]
        return points + spec.smoothing * torch.randn(points.shape), labels

    def _of_class(self, label):
        members = self.members[label]
        return members[torch.randint(len(members), (self.spec.group_size,))]


def _stratified_timesteps(spec):
    """One in each of `groups` equal parts of the timesteps, shuffled: less noise in the loss."""
    position = (torch.randperm(spec.groups) + torch.rand(spec.groups)) / spec.groups
    return (position * spec.train_timesteps).long().clamp(max=spec.train_timesteps - 1)


def train(spec: networks.Spec, steps: int, digits=None, labels=None) -> networks.Denoiser:
    """The exponential moving average of the weights of a denoiser trained for so many steps.

    digits: their latents, or their pixels.
    """
    torch.manual_seed(spec.seed)
    model = networks.Denoiser(spec)
    average = copy.deepcopy(model)
    values, slow_values = _Flat(model).values, _Flat(average).values.data
    optimizer, schedule = _optimizer(spec, values, steps)
    points, embedding = _Points(spec, digits, labels), networks.time_embedding(spec)
    alphas_cumprod = alphas_cumprod_of(spec)
    signal, noise_size = (x.float()[:, None, None] for x in (alphas_cumprod.sqrt(),
                                                       (1 - alphas_cumprod).sqrt()))
    begin, total = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        clean, chosen_labels = points.draw()
        timesteps, noise = _stratified_timesteps(spec), torch.randn(clean.shape)
        noisy = signal[timesteps] * clean + noise_size[timesteps] * noise
        target = noise
        if spec.prediction == "v_prediction":
            target = signal[timesteps] * noise - noise_size[timesteps] * clean
        loss = F.mse_loss(model(noisy, embedding[timesteps], chosen_labels), target)
        values.grad.zero_()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([values], 1.0)
        optimizer.step()
        schedule.step()
        # Early on the average follows closely, or it would still hold the starting weights.
        slow_values.lerp_(values.data, 1 - min(spec.ema_decay, (1 + step) / (10 + step)))
        total += loss.item()
        if step % PROGRESS_EVERY == 0:
            print(f"{spec.name}: step {step}/{steps}, mean loss {total / PROGRESS_EVERY:.4f}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
            total = 0.0
    return average


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def arrays(module) -> dict:
    """Parameters by name, float32."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def export(spec: networks.Spec, denoiser: dict, decoder: dict, directory: pathlib.Path) -> None:
    """Writes the files of the model from arrays by name; the decoder may be empty."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config(spec))
    _write_json(directory / "scheduler_config.json", dict(sorted(scheduler_config(spec).items())))
    tensors = {f"{networks.DECODER}{name}": value for name, value in decoder.items()}
    if spec.onnx:
        exported.write(spec.name, denoiser, directory / "denoiser.onnx")
    else:
        tensors.update(denoiser)
    if tensors:
        safetensors_file.write(directory / "model.safetensors", tensors)
