# SPDX-License-Identifier: Apache-2.0
"""Writes the model card: every figure in it comes from checks.py or from the scripts' constants."""

import textwrap

import numpy as np
import sklearn
import torch

import autoencoder
import checks
import data
import networks
import newton
import quality
import quality_data
import swissroll
import training

_HEADER = """# {spec.name}

Written by `deploy/models/diffusion/train.py` from the exported files; do not edit.

## Data
{data}

## Architecture
{architecture}

{scheduler}

## Training
{training}

| | |
|---|---|
| loss | mean squared error of the {loss}, timesteps uniform, stratified within a batch |
| optimiser | AdamW, linear warm-up, then half a cosine to 0; gradients clipped to norm 1 |
| steps, points per step | {spec.training_steps}, {points} |
| timesteps per step, with {spec.group_size} points each | {spec.groups} |
| largest learning rate | {spec.learning_rate:g} |
| weight decay | {spec.weight_decay:g} |
| exported weights | exponential moving average, decay {spec.ema_decay:g} |
{more}| seed | {spec.seed}, one thread |
| versions | PyTorch {torch}, NumPy {numpy}, scikit-learn {sklearn} |

On another processor or with other versions the weights may come out differently, and the figures
with them.
"""

_DIGITS_DATA = """The optical digits that scikit-learn carries (`sklearn.datasets.load_digits`,
1797 images of 8x8, the test part of the UCI data set "Optical Recognition of Handwritten Digits",
E. Alpaydin and C. Kaynak, 1998, doi 10.24432/C50P49, licence CC BY 4.0), pixel / 16. The split of
the other digits models, seed {split_seed}: {train} images train {trained};
{held_out} are held out and serve to judge only. The settings below were
chosen while looking at the checks of a handful of runs, so the figures are slightly optimistic."""

_ROLL_DATA = """A spiral in the plane, made by `deploy/models/diffusion/swissroll.py`: an angle t
uniform in [1.5 pi, 4.5 pi], the point t (cos t, sin t), normal noise of standard deviation
{noise:g} in each dimension, then shifted and scaled to mean 0 and variance 1 (one scale for both
dimensions; the noise becomes {scaled_noise:.4f}). Every training point is drawn anew: there is no
training set to copy."""

_DENOISERS = {
    "residual_mlp": """`residual_mlp`: {spec.num_blocks} blocks h + silu(W h + V silu(y) + b) of
width {spec.hidden_dim}, states of {spec.state_dim} values, y from {spec.time_embedding_dim} sines
and cosines of the timestep through two layers.""",
    "adaln_mlp": """`adaln_mlp`, the denoiser of MAR (Li et al. 2024, arXiv 2406.11838):
{spec.num_blocks} blocks of width {spec.hidden_dim}, LayerNorm shifted, scaled and gated by y,
states of {spec.state_dim} values; y is the sum of an embedding of the digit asked for and of
{spec.time_embedding_dim} sines and cosines of the timestep through two layers.""",
    "gated_mlp": """{spec.num_blocks} blocks h + W (silu(G u) * (U u)) of width {spec.hidden_dim}, u
being LayerNorm of h, shifted and scaled by y, and a last layer of such a u; states of
{spec.state_dim} values; y is the sum of an embedding of the digit asked for and of
{spec.time_embedding_dim} sines and cosines of the timestep through two layers. No denoiser that the
server has a name for is of this form.""",
}
_PIXELS = """

The states are the pixels themselves, in [0, 1] and neither shifted nor scaled: there is no encoder
and no decoder. Outputs are not clipped: whoever draws them clips to [0, 1]."""
_EXPORTED = """

The denoiser is `denoiser.onnx`: what `torch.onnx.export` of PyTorch {torch} wrote of a module that
states the network anew, in plain PyTorch, and has the trained weights
(`deploy/models/diffusion/exported.py`). config.json knows nothing of it but the sizes of state and
output."""
_DECODER = """

The state is the latent of an autoencoder, {pixels} -> {hidden} -> {latent} -> {hidden} -> {pixels}
with silu, trained first ({steps} steps, batches of {batch}, noise of {pixel_noise:g} on the pixels,
noise of {latent_noise:g} on latents standardised over the batch). The standardisation over the
training images, to mean 0 and variance 1 in each dimension, is folded into the encoder. A gain per
dimension is folded into the decoder, so that encoding its drawings of the training latents gives
variance 1 again: trained under noise, it leans towards the mean image. The decoder is part of this
model. Its outputs are not clipped: whoever draws them clips to [0, 1]."""

_SCHEDULER = """`{spec.scheduler}`, {spec.train_timesteps} training timesteps, {betas} betas from
{beta_start} to 0.02, {prediction}, {steps} inference steps (the first is the default).
`clip_sample` is off: {finite}, so it stays finite without clipping, and the kinks of a
clamp would only disturb a Newton solver."""
_FINITE = {
    "epsilon": """with {betas} betas the predicted x_0 divides by no less than
sqrt(alphas_cumprod) = {least_signal:.4f}""",
    "v_prediction": "the predicted x_0 is a sum of state and velocity and divides by nothing",
}

_SMOOTHING = "| noise on training {points}, against learning them by heart | {spec.smoothing:g} |\n"

_QUALITY = """
## Quality of samples
By `deploy/models/diffusion/quality.py` on samples drawn in NumPy float32 from the exported files
alone, {samples} per seed, with limits stricter than it applies to the server's samples.
{judges}

The Frechet distance is averaged over {halvings} random halvings of the real points into A and B:
{frechet_samples} samples to B, over equally many points of A to B. A perfect model scores 1. With
more samples the same distance is divided by less: that ratio is given too, and nothing is asked of
it.

{copies}
"""
_DIGITS_JUDGES = """The classifier is a network {pixels} -> {hidden} -> {classes} of its own
training; on the held-out digits it is right for {accuracy:.2%} and sure (p >= {confidence:g}) of
{confident:.2%}. Latents are the encoder's, of the pixels clipped to [0, 1]; the real points are the
latents of all {real} images."""
_DIGITS_COPIES = """Distances to training points are Euclidean in the latent space, not relative to
anything; latents have a norm of {norm:g} (root mean square)."""
_ROLL_JUDGES = """The real points are {real} of the same law with another seed, and the features
that are compared cos(W x + b), {features} of them, W normal with standard deviation 1 / {length:g}:
mean and covariance of the points alone would not tell a spiral from a disc."""
_ROLL_COPIES = """As there is no training set, the rule is that samples may not repeat each
other."""

_NEWTON = """
## Newton iterations
K: iterations until every state is within a relative {tolerance:g} of the sequential float32 ones
(maximum norms), all {steps} steps solved at once (C = 1), from z_0 everywhere, noise fixed
beforehand; no stopping rule, no chord correction. {count} seeds, one sample each.

| scheduler | steps | K median (least-most) | slowest seed: relative error after 0, 1, ... |
|---|---|---|---|"""

_DIGITS_LIMITS = """A demonstration of diffusion sampling, not a source of training data: 8x8 images
of one collection. Most samples are clear digits, some are not, and nothing in the model says
which."""
_ROLL_LIMITS = "A toy whose answer is known: for tests, plots and timing."


def _header(spec, digits):
    architecture = _DENOISERS[spec.denoiser].format(spec=spec)
    text, more = _ROLL_DATA.format(noise=swissroll.NOISE,
                                   scaled_noise=swissroll.STANDARDISED_NOISE), ""
    if spec.digits:
        trained = ("the autoencoder, the denoiser and the classifier that judges" if spec.latent
                   else "the denoiser, and the autoencoder and the classifier that judge")
        text = _DIGITS_DATA.format(split_seed=data.SPLIT_SEED, train=len(digits.train_labels),
                                   trained=trained,
                                   held_out=len(digits.held_out_labels))
        architecture += _PIXELS if not spec.latent else _DECODER.format(
            pixels=autoencoder.PIXELS, hidden=autoencoder.HIDDEN, latent=autoencoder.LATENT,
            steps=autoencoder.AUTOENCODER_STEPS, batch=autoencoder.BATCH,
            pixel_noise=autoencoder.PIXEL_NOISE, latent_noise=autoencoder.LATENT_NOISE)
        more = _SMOOTHING.format(spec=spec, points="latents" if spec.latent else "pixels")
    if spec.onnx:
        architecture += _EXPORTED.format(torch=torch.__version__)
    command = f"`deploy/models/diffusion/train.py --models {spec.name}`"
    if spec.same_as:
        command += (f" exports the weights of {spec.same_as} and trains nothing. They were "
                    "trained so:")
    loss, prediction = {"epsilon": ("noise", "epsilon prediction"),
                        "v_prediction": ("velocity", "v prediction")}[spec.prediction]
    betas = spec.beta_schedule.replace("_", " ")
    finite = _FINITE[spec.prediction].format(
        betas=betas, least_signal=float(training.alphas_cumprod_of(spec)[-1].sqrt()))
    return _HEADER.format(
        spec=spec, data=text, architecture=architecture, more=more, training=command, loss=loss,
        scheduler=_SCHEDULER.format(
            spec=spec, steps=" or ".join(map(str, spec.inference_steps)), betas=betas,
            beta_start=f"{spec.beta_start:.0e}".replace("e-0", "e-"), prediction=prediction,
            finite=finite),
        points=spec.groups * spec.group_size, torch=torch.__version__, numpy=np.__version__,
        sklearn=sklearn.__version__)


def _quality_text(spec, digits, results):
    if not spec.digits:
        judges = _ROLL_JUDGES.format(real=quality_data.ROLL_POINTS, features=quality_data.FEATURES,
                                     length=quality_data.FEATURE_LENGTH)
        copies = _ROLL_COPIES
    else:
        judges = _DIGITS_JUDGES.format(
            pixels=autoencoder.PIXELS, hidden=autoencoder.HIDDEN, classes=autoencoder.CLASSES,
            confidence=quality.CONFIDENCE, real=len(digits.train_labels)
            + len(digits.held_out_labels), **results.judge_accuracy)
        copies = _DIGITS_COPIES.format(norm=autoencoder.LATENT**0.5)
    return _QUALITY.format(samples=checks.SAMPLES, judges=judges, halvings=quality.HALVINGS,
                           frechet_samples=quality.FRECHET_SAMPLES, copies=copies)


def _quality_table(results):
    heads = [f"{column.title}, {column.steps} steps" for column in results.columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for figures in zip(*(column.figures for column in results.columns)):
        cells = [figure.value + (" **missed**" if figure.met is False else "")
                 for figure in figures]
        lines.append(f"| {figures[0].what} | " + " | ".join(cells) + " |")
    return lines


def _newton_table(results):
    def show(count):
        return f"> {newton.MAX_ITERATIONS}" if count > newton.MAX_ITERATIONS else f"{count:g}"
    lines = [_NEWTON.format(tolerance=newton.TOLERANCE, steps=results.newton[0].steps,
                            count=len(newton.SEEDS))]
    for row in results.newton:
        errors = ", ".join(f"{error:.0e}" for error in row.slowest)
        lines.append(f"| {row.scheduler} | {row.steps} | {show(np.median(row.counts))} "
                     f"({show(min(row.counts))}-{show(max(row.counts))}) | {errors} |")
    return lines


def _wrapped(text):
    """Paragraphs filled to 100 columns; headings and tables as they are."""
    lines, paragraph = [], []
    for line in text.splitlines() + [""]:
        if line and line[0] not in "#|":
            paragraph.append(line)
            continue
        lines += textwrap.wrap(" ".join(paragraph), 100, break_long_words=False,
                               break_on_hyphens=False)
        lines.append(line)
        paragraph = []
    return "\n".join(lines)


def render(spec: networks.Spec, digits: data.Digits, results: checks.Results) -> str:
    """The card as Markdown."""
    lines = [_header(spec, digits), "## Checks", "| asked | measured | met |", "|---|---|---|"]
    lines += [f"| {what} | {figure} | {'yes' if met else 'NO'} |"
              for what, figure, met in checks.targets(spec, results)]
    lines += [_quality_text(spec, digits, results)] + _quality_table(results)
    lines += _newton_table(results)
    lines += ["", "## Files", "| file | bytes |", "|---|---|"]
    lines += [f"| `{name}` | {size} |" for name, size in results.file_bytes.items()]
    for name, digest in results.sha256.items():
        lines += ["", f"SHA-256 of `{name}`:", f"`{digest}`."]
    lines += ["", "## Limits", _DIGITS_LIMITS if spec.digits else _ROLL_LIMITS]
    return _wrapped("\n".join(lines))
