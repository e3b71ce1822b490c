# SPDX-License-Identifier: Apache-2.0
"""Counts the Newton iterations that solve all reverse steps at once.

NumPy float32, one unknown per step (C = 1), z_0 everywhere as the guess, forward substitution in
place of a parallel scan. The noise of every step is fixed beforehand, the same for both solvers.
There is no stopping rule: K is the first iteration after which every state is within a relative
1e-4 of the sequential ones.
"""

import dataclasses

import numpy as np

import sampler

TOLERANCE = 1e-4
MAX_ITERATIONS = 32
SEEDS = range(201, 206)      # seeds of z_0 and noise, one sample each
STEPS = 1000
DIFFERENCE = 2.0**-13


class _Exported:
    """denoiser.onnx at a different timestep for each row, with Jacobians by central differences."""

    def __init__(self, model: sampler.Model, steps, label):
        self.graph = model.graph
        self.times = np.array([step.timestep for step in steps])
        self.labels = None if label is None else np.full(len(steps), label)

    def _call(self, z, copies):
        """m at [L * copies, D], the copies of a step beside each other."""
        rows = [np.repeat(values, copies) for values in (self.times, self.labels)
                if values is not None]
        return self.graph(z.reshape(-1, z.shape[-1]), *rows)

    def linearise(self, z):
        """(m [L, D], dm/dz [L, D, D]); the differences are taken in double."""
        moves = DIFFERENCE * np.concatenate([np.eye(z.shape[1]), -np.eye(z.shape[1])])
        moved = self._call(z[:, None].astype(np.float64) + moves, len(moves))
        up, down = np.split(moved.reshape(len(z), len(moves), -1), 2, axis=1)
        jacobian = ((up - down) / (2 * DIFFERENCE)).astype(np.float32)
        return self._call(z, 1), jacobian.transpose(0, 2, 1)


class _Denoiser:
    """The denoiser at a different timestep for each row, with Jacobians by forward mode."""

    def __init__(self, model: sampler.Model, steps, label):
        self.model = model
        labels = None if label is None else np.array([label])
        self.silu_y = np.concatenate([model.silu_conditioning(step.timestep, labels)
                                      for step in steps])
        self.adaln = model.config["denoiser"] == "adaln_mlp"

    def linearise(self, z):
        """(m [L, D], dm/dz [L, D, D]); tangents are rows [L, D, H] here: entry j is d/dz_j."""
        model, tensors = self.model, self.model.tensors
        h = model.linear("input_proj", z)
        tangents = np.broadcast_to(tensors["input_proj.weight"].T, (len(z), z.shape[1], h.shape[1]))
        block = self._adaln_block if self.adaln else self._residual_block
        for index in range(model.config["num_blocks"]):
            h, tangents = block(f"res_blocks.{index}", h, tangents)
        if self.adaln:
            shift, scale = np.split(model.linear("final_layer.adaLN_modulation.1", self.silu_y), 2,
                                    axis=-1)
            h, tangents = _normalise(h, tangents)
            h, tangents = h * (1 + scale) + shift, tangents * (1 + scale)[:, None]
        tangents = self._multiply("final_layer.linear", tangents)
        return model.linear("final_layer.linear", h), tangents.transpose(0, 2, 1)

    def _multiply(self, name, tangents):
        """One product for all rows."""
        weight = self.model.tensors[f"{name}.weight"]
        product = tangents.reshape(-1, tangents.shape[-1]) @ weight.T
        return product.reshape(tangents.shape[:-1] + (len(weight),))

    def _residual_block(self, name, h, tangents):
        pre = (self.model.linear(f"{name}.linear", h)
               + self.model.linear(f"{name}.modulation", self.silu_y))
        slope = sampler.silu_derivative(pre)[:, None]
        return (h + self.model.activation(pre),
                tangents + slope * self._multiply(f"{name}.linear", tangents))

    def _adaln_block(self, name, h, tangents):
        modulation = self.model.linear(f"{name}.adaLN_modulation.1", self.silu_y)
        shift, scale, gate = np.split(modulation, 3, axis=-1)
        weight, bias = (self.model.tensors[f"{name}.in_ln.{part}"] for part in ("weight", "bias"))
        u, inner = _normalise(h, tangents)
        u = (u * weight + bias) * (1 + scale) + shift
        inner = inner * (weight * (1 + scale))[:, None]
        pre = self.model.linear(f"{name}.mlp.0", u)
        inner = sampler.silu_derivative(pre)[:, None] * self._multiply(f"{name}.mlp.0", inner)
        inner = self._multiply(f"{name}.mlp.2", inner)
        value = self.model.linear(f"{name}.mlp.2", self.model.activation(pre))
        return h + gate * value, tangents + gate[:, None] * inner


def _normalise(h, tangents):
    """LayerNorm without weights, and its tangents."""
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(variance + sampler.LAYER_NORM_EPSILON)
    u = centred * inverse
    moved = tangents - tangents.mean(axis=-1, keepdims=True)
    along = np.mean(u[:, None] * moved, axis=-1, keepdims=True)
    return u, inverse[:, None] * (moved - u[:, None] * along)


class _System:
    """z_l = F_l(z_(l-1)) for all steps at once; states are [L, D]."""

    def __init__(self, model, steps, noises, label):
        self.denoiser = (_Denoiser if model.graph is None else _Exported)(model, steps, label)
        self.clip_range = sampler.clip_range_of(model.scheduler)
        dim = model.config["state_dim"]
        self.push = np.stack([np.zeros(dim, np.float32) if noise is None
                              else np.float32(step.sigma) * noise[0]
                              for step, noise in zip(steps, noises)])

        def column(name):
            return np.array([getattr(step, name) for step in steps], np.float32)[:, None]

        self.coefficients = {name: column(name) for name in ("x0_z", "x0_m", "z_z", "z_m", "z_x0")}

    def linearise(self, z):
        """F [L, D] and its Jacobians [L, D, D] at the states before each step."""
        c = self.coefficients
        m, jacobian = self.denoiser.linearise(z)
        identity = np.eye(z.shape[1], dtype=np.float32)
        x0 = c["x0_z"] * z + c["x0_m"] * m
        x0_jacobian = c["x0_z"][..., None] * identity + c["x0_m"][..., None] * jacobian
        if self.clip_range is not None:
            x0_jacobian = x0_jacobian * (np.abs(x0) < self.clip_range)[..., None]
            x0 = np.clip(x0, -self.clip_range, self.clip_range)
        value = c["z_z"] * z + c["z_m"] * m + c["z_x0"] * x0 + self.push
        return value, (c["z_z"][..., None] * identity + c["z_m"][..., None] * jacobian
                       + c["z_x0"][..., None] * x0_jacobian)


def _newton_step(system, first, unknowns):
    """y_l <- F_l(y_(l-1)) + A_l d_(l-1), where d_l = A_l d_(l-1) + F_l(y_(l-1)) - y_l."""
    values, jacobians = system.linearise(np.concatenate([first, unknowns[:-1]]))
    updated, update = np.empty_like(unknowns), np.zeros_like(first[0])
    for index, (value, jacobian) in enumerate(zip(values, jacobians)):
        carried = jacobian @ update
        updated[index] = value + carried
        update = carried + (value - unknowns[index])
    return updated


def _relative_error(unknowns, truth):
    error = (np.abs(unknowns - truth).max(axis=1) / np.abs(truth).max(axis=1)).max()
    return error if np.isfinite(error) else np.inf


@dataclasses.dataclass(frozen=True)
class Counts:
    """K by seed, and the relative error after each iteration of the slowest one."""

    scheduler: str
    steps: int
    counts: list
    slowest: list


def _solve(model, steps, seed, label):
    """Relative errors after 0, 1, ... iterations, up to one within the tolerance or the limit."""
    labels = None if label is None else np.array([label])
    first, noises = sampler.draw_noise(steps, (1, model.config["state_dim"]), seed)
    truth = np.concatenate(list(sampler.trajectory(model, steps, first, noises, labels)))
    system = _System(model, steps, noises, label)
    unknowns, errors = np.broadcast_to(first, truth.shape).copy(), []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(MAX_ITERATIONS + 1):
            errors.append(_relative_error(unknowns, truth))
            if errors[-1] <= TOLERANCE:
                break
            unknowns = _newton_step(system, first, unknowns)
    return errors


def count_iterations(model: sampler.Model, scheduler_class, num_steps=STEPS) -> Counts:
    """K with DDPMScheduler (noise fixed) or DDIMScheduler (eta 0) in place of the model's own.

    MAX_ITERATIONS + 1 where the limit was not enough. With classes, sample i asks for digit i.
    """
    scheduler = {**model.scheduler, "_class_name": scheduler_class}
    model = dataclasses.replace(model, scheduler=scheduler)
    steps, classes = model.steps(num_steps), model.config.get("num_classes")
    errors = [_solve(model, steps, seed, index % classes if classes else None)
              for index, seed in enumerate(SEEDS)]
    counts = [len(e) - 1 if e[-1] <= TOLERANCE else MAX_ITERATIONS + 1 for e in errors]
    return Counts(scheduler_class, num_steps, counts, max(errors, key=len))
