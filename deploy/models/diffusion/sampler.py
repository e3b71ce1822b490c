# SPDX-License-Identifier: Apache-2.0
"""Samples a diffusion model in NumPy, from its files alone. It shares nothing with the training.

Schedules and coefficients are computed in float64, the denoiser and the states in float32.
Semantics of diffusers' DDPMScheduler and DDIMScheduler (eta 0), `leading` timesteps.
"""

import dataclasses
import json
import pathlib

import numpy as np

import onnx_file
from shared import safetensors_file

LAYER_NORM_EPSILON = np.float32(1e-6)
MAX_PERIOD = 10000.0


def _sigmoid(a):
    # Computed through tanh, since exp(-a) would overflow in the tail.
    return np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * a))


def _silu(a):
    return a * _sigmoid(a)


def silu_derivative(a):
    g = _sigmoid(a)
    return g * (1 + a * (1 - g))


def _relu(a):
    return np.maximum(a, np.float32(0))


ACTIVATIONS = {"silu": _silu, "relu": _relu}


@dataclasses.dataclass(frozen=True)
class Step:
    """z' = z_z z + z_m m + z_x0 x0 + sigma noise; x0 = x0_z z + x0_m m, clipped; m the output."""

    timestep: int
    x0_z: float
    x0_m: float
    z_z: float
    z_m: float
    z_x0: float
    sigma: float


def _alphas_cumprod(scheduler):
    """[T], float64."""
    powers = {"linear": 1, "scaled_linear": 2}
    if scheduler["beta_schedule"] not in powers:
        raise ValueError(f"beta_schedule: expected one of {', '.join(powers)}, "
                         f"got {scheduler['beta_schedule']}")
    power = powers[scheduler["beta_schedule"]]
    ends = (scheduler[key]**(1 / power) for key in ("beta_start", "beta_end"))
    return np.cumprod(1 - np.linspace(*ends, scheduler["num_train_timesteps"])**power)


def _step(scheduler, now, before, timestep):
    """now, before: alphas_cumprod at this timestep and the next of the list; 1 after the last."""
    signal, noise = np.sqrt(now), np.sqrt(1 - now)
    if scheduler["prediction_type"] == "epsilon":
        x0, epsilon = (1 / signal, -noise / signal), (0.0, 1.0)    # of z and of m
    else:
        x0, epsilon = (signal, -noise), (noise, signal)
    common = {"timestep": timestep, "x0_z": x0[0], "x0_m": x0[1]}
    if scheduler["_class_name"] == "DDIMScheduler":
        left = np.sqrt(1 - before)
        return Step(z_z=left * epsilon[0], z_m=left * epsilon[1], z_x0=np.sqrt(before), sigma=0.0,
                    **common)
    beta = 1 - now / before
    variance = max((1 - before) / (1 - now) * beta, 1e-20)    # fixed_small
    return Step(z_z=np.sqrt(now / before) * (1 - before) / (1 - now), z_m=0.0,
                z_x0=np.sqrt(before) * beta / (1 - now),
                sigma=np.sqrt(variance) if timestep > 0 else 0.0, **common)


def reverse_steps(scheduler, count):
    """The `count` steps, first to last."""
    expected = {"prediction_type": ("epsilon", "v_prediction"), "timestep_spacing": ("leading",),
                "steps_offset": (0,), "thresholding": (False,), "rescale_betas_zero_snr": (False,),
                "trained_betas": (None,)}
    for key, values in expected.items():
        if scheduler[key] not in values:
            raise ValueError(f"{key}: expected one of {values}, got {scheduler[key]}")
    products = _alphas_cumprod(scheduler)
    timesteps = np.arange(count)[::-1] * (len(products) // count)
    befores = [products[t] for t in timesteps[1:]] + [1.0]
    return [_step(scheduler, products[t], before, int(t))
            for t, before in zip(timesteps, befores)]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as its files describe it; tensors are float32, and the graph's are among them."""

    config: dict
    scheduler: dict
    tensors: dict
    graph: onnx_file.Graph = None

    def linear(self, name, values):
        return values @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def activation(self, values):
        return ACTIVATIONS[self.config["activation"]](values)

    def silu_conditioning(self, timestep, labels=None):
        """silu(y), [1, H] or, with labels [n], [n, H]."""
        half = self.config["time_embedding_dim"] // 2
        angles = timestep * np.exp(-np.log(MAX_PERIOD) * np.arange(half) / half)
        embedded = np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32)[None]
        y = self.linear("time_embed.mlp.2", _silu(self.linear("time_embed.mlp.0", embedded)))
        return _silu(y if labels is None else y + self.tensors["class_embed.weight"][labels])

    def denoise(self, z, timestep, labels=None):
        """The model's output m [n, D] at states z [n, D]."""
        if self.graph is not None:
            times = np.full(len(z), timestep)
            return self.graph(z, times) if labels is None else self.graph(z, times, labels)
        silu_y = self.silu_conditioning(timestep, labels)
        adaln = self.config["denoiser"] == "adaln_mlp"
        h = self.linear("input_proj", z)
        for index in range(self.config["num_blocks"]):
            block = self._adaln_block if adaln else self._residual_block
            h = block(f"res_blocks.{index}", h, silu_y)
        if adaln:
            shift, scale = np.split(self.linear("final_layer.adaLN_modulation.1", silu_y), 2, -1)
            h = _normalised(h) * (1 + scale) + shift
        return self.linear("final_layer.linear", h)

    def _residual_block(self, name, h, silu_y):
        pre = self.linear(f"{name}.linear", h) + self.linear(f"{name}.modulation", silu_y)
        return h + self.activation(pre)

    def _adaln_block(self, name, h, silu_y):
        modulation = self.linear(f"{name}.adaLN_modulation.1", silu_y)
        shift, scale, gate = np.split(modulation, 3, axis=-1)
        weight, bias = (self.tensors[f"{name}.in_ln.{part}"] for part in ("weight", "bias"))
        u = (_normalised(h) * weight + bias) * (1 + scale) + shift
        return h + gate * self.linear(f"{name}.mlp.2",
                                      self.activation(self.linear(f"{name}.mlp.0", u)))

    def decode(self, states):
        """z_L [n, D] -> outputs [n, output_dim]; the states themselves without a decoder."""
        widths = self.config.get("decoder_widths")
        if widths is None:
            return states
        activation = ACTIVATIONS[self.config["decoder_activation"]]
        values = self.linear("decoder.0", states)
        for index in range(1, len(widths) + 1):
            values = self.linear(f"decoder.{index}", activation(values))
        return values

    def steps(self, count=None):
        return reverse_steps(self.scheduler, count or self.config["num_inference_steps"][0])


def _normalised(h):
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + LAYER_NORM_EPSILON)


def apply_step(step: Step, clip_range, z, m, noise):
    """One reverse step; noise may be None where sigma is 0."""
    x0 = np.float32(step.x0_z) * z + np.float32(step.x0_m) * m
    if clip_range is not None:
        x0 = np.clip(x0, -clip_range, clip_range)
    result = np.float32(step.z_z) * z + np.float32(step.z_m) * m + np.float32(step.z_x0) * x0
    return result + np.float32(step.sigma) * noise if step.sigma else result


def clip_range_of(scheduler):
    """None if predictions are not clipped."""
    return np.float32(scheduler["clip_sample_range"]) if scheduler["clip_sample"] else None


def draw_noise(steps, shape, seed):
    """(z_0, [one array per step, None where none is needed])."""
    generator = np.random.default_rng(seed)

    def normal():
        return generator.standard_normal(shape).astype(np.float32)

    return normal(), [normal() if step.sigma else None for step in steps]


def trajectory(model: Model, steps, first, noises, labels=None):
    """Yields the states after each step."""
    clip_range, z = clip_range_of(model.scheduler), first
    for step, noise in zip(steps, noises):
        z = apply_step(step, clip_range, z, model.denoise(z, step.timestep, labels), noise)
        yield z


def sample(model: Model, count, seed, labels=None, num_steps=None):
    """Outputs float32 [count, output_dim]."""
    steps = model.steps(num_steps)
    z, noises = draw_noise(steps, (count, model.config["state_dim"]), seed)
    for z in trajectory(model, steps, z, noises, labels):
        pass
    return model.decode(z)


def load(directory: pathlib.Path) -> Model:
    """Reads config.json, scheduler_config.json, model.safetensors and denoiser.onnx."""
    config, scheduler = (json.loads((directory / name).read_text(encoding="utf-8"))
                         for name in ("config.json", "scheduler_config.json"))
    graph, tensors = None, {}
    if config["denoiser"] == "onnx":
        graph = onnx_file.read(directory / "denoiser.onnx")
        tensors.update(graph.initializers)
    if (directory / "model.safetensors").exists():
        tensors.update(safetensors_file.read(directory / "model.safetensors"))
    return Model(config, scheduler, tensors, graph)
