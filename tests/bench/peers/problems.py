# SPDX-License-Identifier: Apache-2.0
"""The three workloads, prepared once for every engine, and their answers in float64.

What depends on the step alone is computed beforehand, in float64, and handed to all peers: the
embedding of the timestep with everything behind it, the coefficients of the reverse step, and the
noise. Biases are added to it, and the affine part of a layer norm is multiplied into the
modulation. The residual scale of digits-resnet is a power of two and relu is homogeneous, so that
weights and biases that are multiplied with it give the same bits with one instruction less.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
for folder in ('deploy/models/digits', 'tests/bench'):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

import ladder_models  # noqa: E402
import safetensors_file  # noqa: E402

REPOSITORY = ROOT / 'deploy/models/repository'
INPUTS = ROOT / 'deploy/models/data/digits_heldout.npy'
WORKLOADS = {'W1': 'digits-resnet', 'W4': 'digits-ddpm', 'W5': ladder_models.WIDE_MODEL}
LAYER_NORM_EPSILON = 1e-6
MAX_PERIOD = 10000.0
NOISE_SEED = 1
DECODER_ACTIVATIONS = ('silu',)


@dataclasses.dataclass
class Dense:
    """y = W x + b; weight [rows, cols]."""
    weight: np.ndarray
    bias: np.ndarray


@dataclasses.dataclass
class Stack:
    """z_0 = encode(x), z <- z + relu(W_l z + b_l), y = decode(z_L)."""
    folder: pathlib.Path
    encode: Dense
    weights: np.ndarray  # [L, D, D], the residual scale multiplied in
    biases: np.ndarray   # [L, D]
    decode: Dense
    kind = 'stack'

    def steps(self):
        return len(self.weights)

    def inputs(self, samples):
        """(x, None): digits that no training saw."""
        return np.load(INPUTS).astype(np.float32)[:samples], None

    def weight_bytes(self):
        """Of a step."""
        return self.weights[0].nbytes


@dataclasses.dataclass
class Diffusion:
    """z <- a z + b m(z, step) + c noise.

    residual_mlp: h = input(z); h <- h + silu(W_i h + mu_i); m = output(h).
    adaln_mlp: h <- h + gate_i * second_i(silu(first_i(norm(h) * gain_i + shift_i)));
               m = output(norm(h) * gain + shift).
    """
    folder: pathlib.Path
    adaln: bool
    input: Dense
    output: Dense
    first: list   # Dense of each block; of residual_mlp the bias is in mu and here zero
    second: list  # Dense of each block; adaln_mlp only
    mu: np.ndarray      # [L, parts, H]: mu_i; or gain_i, shift_i, gate_i of each block, gain, shift
    coefficients: np.ndarray  # [L, 3]: a, b, c
    decoder: list  # Dense layers with silu between them
    kind = 'diffusion'

    def steps(self):
        return len(self.coefficients)

    def inputs(self, samples):
        """(z_0 [n, D], noise [n, L, D]); the noise is None where the process adds none."""
        generator = np.random.default_rng(NOISE_SEED)
        dim = self.input.weight.shape[1]
        first = generator.standard_normal((samples, dim), dtype=np.float32)
        if not self.coefficients[:, 2].any():
            return first, None
        return first, generator.standard_normal((samples, self.steps(), dim), dtype=np.float32)

    def matrices(self):
        """Of a step, in the order in which they are multiplied with."""
        blocks = [layer.weight for pair in zip(self.first, self.second or self.first)
                  for layer in (pair if self.adaln else pair[:1])]
        return [self.input.weight, *blocks, self.output.weight]

    def weight_bytes(self):
        return sum(matrix.nbytes for matrix in self.matrices())


def dense(tensors, name):
    return Dense(tensors[f'{name}.weight'], tensors[f'{name}.bias'])


def load_stack(folder, config, tensors):
    scale = np.float32(config['residual_scale'])
    assert config['activation'] == 'relu' and np.frexp(scale)[0] == 0.5, folder
    return Stack(folder, dense(tensors, 'input'), scale * tensors['layers.weight'],
                 scale * tensors['layers.bias'], dense(tensors, 'output'))


def silu(x):
    return x / (1 + np.exp(-x))


def apply64(layer, x):
    return x @ layer.weight.astype(np.float64).T + layer.bias


def time_embedding(tensors, timesteps, dim):
    """[L, H], float64."""
    half = dim // 2
    frequencies = np.exp(-np.log(MAX_PERIOD) * np.arange(half) / half)
    angles = np.asarray(timesteps, dtype=np.float64)[:, None] * frequencies
    sinusoids = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    hidden = silu(apply64(dense(tensors, 'time_embed.mlp.0'), sinusoids))
    return apply64(dense(tensors, 'time_embed.mlp.2'), hidden)


def reverse_coefficients(scheduler, count):
    """Timesteps and [L, 3] of diffusers' DDPMScheduler (fixed_small) or DDIMScheduler (eta 0)."""
    expected = {'beta_schedule': 'linear', 'prediction_type': 'epsilon', 'clip_sample': False,
                'timestep_spacing': 'leading', 'steps_offset': 0}
    wrong = [key for key, value in expected.items() if scheduler[key] != value]
    assert not wrong, wrong
    total = scheduler['num_train_timesteps']
    alphas = np.cumprod(1 - np.linspace(scheduler['beta_start'], scheduler['beta_end'], total))
    timesteps = [i * (total // count) for i in reversed(range(count))]
    rows = []
    for t in timesteps:
        now, before = alphas[t], alphas[t - total // count] if t else 1.0
        if scheduler['_class_name'] == 'DDIMScheduler':
            by_x0, by_z, by_m, sigma = before ** 0.5, 0.0, (1 - before) ** 0.5, 0.0
        else:
            by_x0 = before ** 0.5 * (1 - now / before) / (1 - now)
            by_z, by_m = (now / before) ** 0.5 * (1 - before) / (1 - now), 0.0
            sigma = ((1 - before) / (1 - now) * (1 - now / before)) ** 0.5 if t else 0.0
        # x0 = (z - sqrt(1 - now) m) / sqrt(now)
        rows.append((by_z + by_x0 / now ** 0.5, by_m - by_x0 * ((1 - now) / now) ** 0.5, sigma))
    return timesteps, np.array(rows)


def adaln_modulations(tensors, blocks, y):
    """[L, 3 N + 2, H]: the affine part of each block's layer norm is multiplied in."""
    parts = []
    for i in range(blocks):
        shift, scale, gate = np.split(
            apply64(dense(tensors, f'res_blocks.{i}.adaLN_modulation.1'), silu(y)), 3, axis=1)
        norm = dense(tensors, f'res_blocks.{i}.in_ln')
        parts += [norm.weight * (1 + scale), norm.bias * (1 + scale) + shift, gate]
    shift, scale = np.split(apply64(dense(tensors, 'final_layer.adaLN_modulation.1'), silu(y)),
                            2, axis=1)
    return np.stack([*parts, 1 + scale, shift], axis=1)


def residual_modulations(tensors, blocks, y):
    """[L, N, H]: bias and modulation of each block."""
    return np.stack([apply64(dense(tensors, f'res_blocks.{i}.modulation'), silu(y))
                     + tensors[f'res_blocks.{i}.linear.bias'] for i in range(blocks)], axis=1)


def load_diffusion(folder, config, tensors):
    scheduler = json.loads((folder / 'scheduler_config.json').read_text(encoding='utf-8'))
    timesteps, rows = reverse_coefficients(scheduler, config['num_inference_steps'][0])
    assert config['activation'] == 'silu', folder
    assert config.get('decoder_activation', 'silu') in DECODER_ACTIVATIONS, folder
    blocks, adaln = config['num_blocks'], config['denoiser'] == 'adaln_mlp'
    y = time_embedding(tensors, timesteps, config['time_embedding_dim'])
    if adaln:
        first = [dense(tensors, f'res_blocks.{i}.mlp.0') for i in range(blocks)]
        second = [dense(tensors, f'res_blocks.{i}.mlp.2') for i in range(blocks)]
        mu = adaln_modulations(tensors, blocks, y)
    else:
        weights = [tensors[f'res_blocks.{i}.linear.weight'] for i in range(blocks)]
        first, second = [Dense(w, np.zeros(len(w), np.float32)) for w in weights], []
        mu = residual_modulations(tensors, blocks, y)
    names = sorted({name.rsplit('.', 1)[0] for name in tensors if name.startswith('decoder.')})
    return Diffusion(folder, adaln, dense(tensors, 'input_proj'),
                     dense(tensors, 'final_layer.linear'), first, second, mu.astype(np.float32),
                     rows.astype(np.float32), [dense(tensors, name) for name in names])


def folder_of(workload, scratch):
    """The folder of the model's version; the model with random weights is written to `scratch`."""
    name = WORKLOADS[workload]
    if workload != 'W5':
        return REPOSITORY / name / '1'
    if not (scratch / name / '1/scheduler_config.json').exists():
        ladder_models.write_wide_model(scratch)
    return scratch / name / '1'


def load(workload, scratch):
    folder = folder_of(workload, scratch)
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    tensors = safetensors_file.read(folder / 'model.safetensors')
    return (load_diffusion if config['model_type'] == 'diffusion' else load_stack)(
        folder, config, tensors)


def normalised(h):
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + LAYER_NORM_EPSILON)


def denoised(problem, z, mu):
    h = apply64(problem.input, z)
    for i, first in enumerate(problem.first):
        if problem.adaln:
            gain, shift, gate = mu[3 * i:3 * i + 3]
            u = silu(apply64(first, normalised(h) * gain + shift))
            h = h + gate * apply64(problem.second[i], u)
        else:
            h = h + silu(apply64(first, h) + mu[i])
    return apply64(problem.output, normalised(h) * mu[-2] + mu[-1] if problem.adaln else h)


def answer(problem, x, noise):
    """Outputs [n, output_dim] in float64."""
    x = x.astype(np.float64)
    if problem.kind == 'stack':
        z = apply64(problem.encode, x)
        for weight, bias in zip(problem.weights.astype(np.float64), problem.biases):
            z = z + np.maximum(z @ weight.T + bias, 0)
        return apply64(problem.decode, z)
    z = x
    for step, (a, b, c) in enumerate(problem.coefficients.astype(np.float64)):
        m = denoised(problem, z, problem.mu[step].astype(np.float64))
        z = a * z + b * m + (0 if noise is None else c * noise[:, step])
    for i, layer in enumerate(problem.decoder):
        z = apply64(layer, silu(z) if i else z)
    return z


def relative_error(got, expected):
    """Of the worst sample, relative to its largest output; infinite for a wrong shape or a NaN."""
    got = np.asarray(got, dtype=np.float64)
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float('inf')
    return float((np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
