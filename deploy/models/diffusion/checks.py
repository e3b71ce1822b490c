# SPDX-License-Identifier: Apache-2.0
"""Measures an exported model from its files alone: what the card says and the targets judge."""

import dataclasses
import hashlib
import pathlib

import numpy as np
import torch

import networks
import newton
import quality
from shared import safetensors_file
import sampler

SEEDS = (101, 102, 103, 104)
SAMPLES = 256                  # samples per seed
# Stricter than the limits of quality.py, since the server draws other noise.
LIMITS = quality.Limits(confident_share=0.8, class_share=0.06, class_accuracy=0.92,
                        frechet_ratio=1.6, neighbour_ratio=0.6, near_share=0.97, part_share=0.05)
MOST_ITERATIONS = {"DDPMScheduler": 7, "DDIMScheduler": 4}
MOST_TORCH_DIFFERENCE = 1e-4
FILES = "config.json", "scheduler_config.json", "model.safetensors", "denoiser.onnx"
MOST_SAMPLE_DIFFERENCE = 1e-4   # of samples with equal weights and noise, relative to the largest


@dataclasses.dataclass(frozen=True)
class Column:
    """One set of samples and what quality.py finds."""

    title: str
    steps: int
    figures: list


@dataclasses.dataclass(frozen=True)
class Results:
    columns: list
    newton: list
    torch_difference: float      # largest, of denoiser outputs, relative to the largest output
    judge_accuracy: dict         # by the classifier of quality.py; empty for the swiss roll
    sample_difference: float     # to those of the model with the same weights; None without one
    sha256: dict                 # of the files with weights
    file_bytes: dict


def _columns(spec, model, data_dir):
    """A column for each seed, one for all samples together, one for the other number of steps."""
    labels = np.arange(SAMPLES) % spec.num_classes if spec.num_classes else None

    def column(title, steps, samples, labels):
        return Column(title, steps, quality.judge(spec.name, samples, labels, data_dir, LIMITS))

    first, *others = spec.inference_steps
    by_seed = []
    for seed in SEEDS:
        print(f"{spec.name}: sampling, seed {seed}", flush=True)
        by_seed.append(sampler.sample(model, SAMPLES, seed, labels, first))
    columns = [column(f"seed {seed}", first, samples, labels)
               for seed, samples in zip(SEEDS, by_seed)]
    together = None if labels is None else np.tile(labels, len(SEEDS))
    columns.append(column("all seeds", first, np.concatenate(by_seed), together))
    for steps in others:
        samples = sampler.sample(model, SAMPLES, SEEDS[0], labels, steps)
        columns.append(column(f"seed {SEEDS[0]}", steps, samples, labels))
    return columns


def _torch_difference(spec, model):
    """PyTorch against NumPy, on random states at ten timesteps."""
    network = networks.Denoiser(spec)
    names = network.state_dict()
    network.load_state_dict({name: torch.from_numpy(model.tensors[name].copy()) for name in names})
    generator = np.random.default_rng(SEEDS[0])
    timesteps = np.arange(0, spec.train_timesteps, spec.train_timesteps // 10)
    states = generator.standard_normal((len(timesteps), 32, spec.state_dim)).astype(np.float32)
    labels = np.arange(len(timesteps)) % spec.num_classes if spec.num_classes else None
    with torch.no_grad():
        embedded = networks.time_embedding(spec)[torch.from_numpy(timesteps)]
        theirs = network(torch.from_numpy(states), embedded,
                         None if labels is None else torch.from_numpy(labels)).numpy()
    ours = np.stack([model.denoise(z, t, None if labels is None else np.full(len(z), labels[i]))
                     for i, (z, t) in enumerate(zip(states, timesteps))])
    return float(np.abs(theirs - ours).max() / np.abs(ours).max())


def _judge_accuracy(digits, data_dir):
    """The classifier that judges, on real digits: accuracy, and share that it is sure of."""
    tensors = safetensors_file.read(data_dir / quality.DIGITS_DATA)
    found = quality.probabilities(tensors, digits.held_out_inputs)
    sure = found.max(axis=1) >= quality.CONFIDENCE
    return {"accuracy": float((found.argmax(axis=1) == digits.held_out_labels).mean()),
            "confident": float(sure.mean())}


def _asks_for_iterations(spec):
    return networks.DIGITS_DDPM.name in (spec.name, spec.same_as)


def _sample_difference(spec, model, directory):
    """Between two ways to hold the same weights, with the same noise."""
    if not spec.same_as:
        return None
    other = sampler.load(directory.parent.parent / spec.same_as / "1")
    ours, theirs = (sampler.sample(m, SAMPLES, SEEDS[0], None, spec.inference_steps[0])
                    for m in (model, other))
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def _newton(spec, model):
    counts = []
    schedulers = MOST_ITERATIONS if _asks_for_iterations(spec) else (spec.scheduler,)
    for scheduler in schedulers:
        print(f"{spec.name}: counting Newton iterations, {scheduler}", flush=True)
        counts.append(newton.count_iterations(model, scheduler, spec.inference_steps[0]))
    return counts


def run(spec: networks.Spec, directory: pathlib.Path, data_dir: pathlib.Path, digits) -> Results:
    """Reloads the files in directory and measures them; digits as data.load() returns them."""
    model = sampler.load(directory)
    files = [name for name in FILES if (directory / name).exists()]
    return Results(
        columns=_columns(spec, model, data_dir),
        newton=_newton(spec, model),
        torch_difference=_torch_difference(spec, model),
        judge_accuracy=_judge_accuracy(digits, data_dir) if spec.digits else {},
        sample_difference=_sample_difference(spec, model, directory),
        sha256={name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
                for name in files if not name.endswith(".json")},
        file_bytes={name: (directory / name).stat().st_size for name in files})


def targets(spec: networks.Spec, results: Results) -> list:
    """[(what, figure, met)]: what the project asks of this model."""
    rows = []
    columns = [column for column in results.columns if column.steps == spec.inference_steps[0]]
    for index, figure in enumerate(columns[0].figures):
        if figure.met is not None:
            across = [column.figures[index] for column in columns]
            rows.append((figure.what, "; ".join(f.value for f in across),
                         all(f.met for f in across)))
    rows.append((f"PyTorch and NumPy outputs of the denoiser within {MOST_TORCH_DIFFERENCE:g}",
                 f"{results.torch_difference:.1e}",
                 results.torch_difference <= MOST_TORCH_DIFFERENCE))
    if results.judge_accuracy:
        accuracy = results.judge_accuracy["accuracy"]
        rows.append(("held-out accuracy of the judging classifier > 95%", f"{accuracy:.2%}",
                     accuracy > 0.95))
    if spec.same_as:
        rows.append((f"samples within {MOST_SAMPLE_DIFFERENCE:g} of those of {spec.same_as}, with "
                     "the same noise", f"{results.sample_difference:.1e}",
                     results.sample_difference <= MOST_SAMPLE_DIFFERENCE))
    if _asks_for_iterations(spec):
        for counts in results.newton:
            most, median = MOST_ITERATIONS[counts.scheduler], float(np.median(counts.counts))
            rows.append((f"median Newton K at {counts.steps} steps of {counts.scheduler} <= {most}",
                         f"{median:g}", median <= most))
    return rows
