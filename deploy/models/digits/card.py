# SPDX-License-Identifier: Apache-2.0
"""Writes the model card: every figure in it comes from checks.py or from the spec."""

import numpy as np
import sklearn
import torch

import checks
import data
import networks
import newton
import training

_HEADER = """# {spec.name}

Written by `deploy/models/digits/train.py` from the exported files; do not edit.

## Data
The optical digits that scikit-learn carries (`sklearn.datasets.load_digits`, 1797 images of 8x8,
the test part of the UCI data set "Optical Recognition of Handwritten Digits", E. Alpaydin and
C. Kaynak, 1998, doi 10.24432/C50P49, licence CC BY 4.0). Inputs are pixel / 16, float32, 64 values
in [0, 1]. One stratified split, seed {split_seed}: {train} images for training, {held_out} held out
and never trained on. The settings below were chosen while looking at the held-out accuracy of a
handful of runs, so that figure is slightly optimistic.

## Architecture
{architecture}

## Training
`deploy/models/digits/train.py --models {spec.name}`

| | |
|---|---|
| optimiser | AdamW, one-cycle learning rate |
| steps, images per step | {spec.training_steps}, {spec.batch_size} |
| largest learning rate, layers | {spec.layer_learning_rate:g} |
| largest learning rate, input and output layer | {spec.ends_learning_rate:g} |
| weight decay | {spec.weight_decay:g} on the layers |
| pixel noise, label smoothing | {spec.pixel_noise:g}, {spec.label_smoothing:g} |
| gradients | clipped to norm 1 |
| seed | {spec.seed}, one thread |
| versions | PyTorch {torch}, NumPy {numpy}, scikit-learn {sklearn} |

On another processor or with other versions the weights may come out differently, and the figures
with them.
"""

_RESNET = """{spec.num_layers} residual layers of width {spec.state_dim}: z_0 = W_in x + b_in,
z_l = z_(l-1) + {spec.residual_scale:g} {spec.activation}(W_l z_(l-1) + b_l), y = W_out z_L + b_out.
The input layer writes only the first {spec.written_dims} of the {spec.state_dim} state dimensions
(the others start at a bias) and the output layer reads only the others, so whatever the answer
needs has to be carried across by the residual layers. Layer weights start normal with standard
deviation {spec.gain:g} / sqrt({spec.state_dim})."""

_MLP = """{spec.num_layers} plain layers of width {spec.state_dim}: z_0 = W_in x + b_in,
z_l = {spec.activation}(W_l z_(l-1) + b_l), y = W_out z_L + b_out. Layer weights start orthogonal.
Without residual connections the states of distant layers depend on each other strongly: this is
the honest case where stepping through the layers is right and a parallel solve is not."""

_NEWTON = """
## Newton iterations
K: iterations until every interval end is within a relative 1e-5 of the sequential float32 states
(maximum norms), without stopping rule and chord correction. Median (least-most) over the held-out
digits, by shooting interval C with P unknown states (K cannot exceed P). Affine: least squares
z_0 -> y_p on the calibration inputs, then so many Picard sweeps before the first iteration.
"""

_LIMITS = """
## Limits
A demonstration of deep sequential models, not a digit recogniser: 8x8 images from one collection,
upright and centred; it says nothing about any other handwriting, and it answers any input with some
digit. The outputs are scores, not probabilities."""


def _target_table(spec, results):
    lines = ["| asked | measured | met |", "|---|---|---|"]
    for what, figure, met in checks.targets(spec, results):
        what = what.replace("|", "\\|")
        lines.append(f"| {what} | {figure} | {'yes' if met else 'NO'} |")
    return lines


def _spread(counts):
    """Median and range; beyond the limit where Newton had not arrived."""
    def show(value):
        limit = newton.MAX_ITERATIONS
        return f"> {limit}" if value > limit else f"{value:g}"
    return f"{show(np.median(counts))} ({show(counts.min())}-{show(counts.max())})"


def _newton_table(results):
    sweeps = range(checks.MAX_WARM_SWEEPS + 1)
    heads = ["C", "P", "z_0 everywhere"] + [f"affine, {count} sweeps" for count in sweeps]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in results.newton:
        cells = [str(row.interval), str(row.unknowns), _spread(row.constant)]
        cells += [_spread(counts) for counts in row.affine]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _resnet_rows(results):
    movement = results.movement
    return [
        ("\\|z_L - z_0\\| / \\|z_0\\|, Euclid: mean, least",
         f"{movement.mean():.2f}, {movement.min():.2f}"),
        ("units active on 2 to 98 % of the held-out digits (the others are nearly linear)",
         f"{results.switching_share:.1%}"),
        ("what the bypass check does not say: accuracy of *another* readout of z_0, a logistic "
         "regression fitted anew", f"{results.probe_accuracy:.2%}"),
    ]


def _measured_table(spec, results):
    rounding = results.rounding
    rows = [
        ("accuracy on the training images", f"{results.train_accuracy:.2%}"),
        ("for scale: logistic regression on the pixels, same split",
         f"{results.pixel_probe_accuracy:.2%}"),
        ("least distance between the two largest outputs of a held-out digit",
         f"{results.smallest_margin:.4f}"),
        ("float32 states against float64, same weights, largest relative error along the layers: "
         "median, most", f"{np.median(rounding):.1e}, {rounding.max():.1e}"),
    ]
    rows += _resnet_rows(results) if spec.model_type == "resnet" else []
    return ["| also measured | |", "|---|---|"] + [f"| {what} | {value} |" for what, value in rows]


def _files(results):
    rows = [f"| `{name}` | {size} |" for name, size in results.file_bytes.items()]
    return ["| file | bytes |", "|---|---|"] + rows + [
        "", "SHA-256 of `model.safetensors`:", f"`{results.weights_sha256}`.",
        "`calibration.safetensors` holds the first "
        f"{training.CALIBRATION_INPUTS} training images."]


def render(spec: networks.Spec, digits: data.Digits, results: checks.Results) -> str:
    """The card as Markdown."""
    architecture = (_RESNET if spec.model_type == "resnet" else _MLP).format(spec=spec)
    header = _HEADER.format(
        spec=spec, split_seed=data.SPLIT_SEED, train=len(digits.train_labels),
        held_out=len(digits.held_out_labels), architecture=architecture, torch=torch.__version__,
        numpy=np.__version__, sklearn=sklearn.__version__)
    lines = [header, "## Checks",
             "All by a NumPy float32 forward pass over the reloaded files, which shares nothing",
             "with the training code.", ""]
    lines += _target_table(spec, results) + [""] + _measured_table(spec, results)
    lines += [_NEWTON] + _newton_table(results) + ["", "## Files"] + _files(results) + [_LIMITS]
    return "\n".join(lines) + "\n"
