#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the diffusion models, exports and checks them, writes their cards."""

import sys

import torch

from shared import safetensors_file    # first: puts data and trainer on the path

import autoencoder
import card
import checks
import data
import networks
import quality
import quality_data
import trainer
import training


def train_autoencoder(digits, data_dir):
    """(decoder, latents of the training images); writes what quality.py judges digits by."""
    inputs, labels = torch.from_numpy(digits.train_inputs), torch.from_numpy(digits.train_labels)
    encoder, decoder = autoencoder.train(inputs, autoencoder.AUTOENCODER_STEPS)
    classifier = autoencoder.train_classifier(inputs, labels, autoencoder.CLASSIFIER_STEPS)
    quality_data.export_digits(digits, encoder, classifier, data_dir)
    with torch.no_grad():
        return decoder, autoencoder.apply(encoder, inputs)


def copy_weights(spec, directory) -> None:
    """Exports the weights of another model, which is trained already."""
    denoiser, decoder = {}, {}
    source = directory.parent.parent / spec.same_as / "1" / "model.safetensors"
    for name, value in safetensors_file.read(source).items():
        if name.startswith(networks.DECODER):
            decoder[name.removeprefix(networks.DECODER)] = value
        else:
            denoiser[name] = value
    training.export(spec, denoiser, decoder, directory)


def train(specs, digits, output_dir) -> None:
    """Trains and exports; the models of latents have one autoencoder."""
    data_dir = output_dir / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    decoder, latents, pixels = {}, None, torch.from_numpy(digits.train_inputs)
    if (any(spec.latent and not spec.same_as for spec in specs)
            or any(spec.digits for spec in specs)
            and not (data_dir / quality.DIGITS_DATA).exists()):
        layers, latents = train_autoencoder(digits, data_dir)
        decoder = training.arrays(layers)
    if not all(spec.digits for spec in specs):
        quality_data.export_swissroll(data_dir)
    for spec in specs:
        directory = output_dir / "repository" / spec.name / "1"
        if spec.same_as:
            copy_weights(spec, directory)
            continue
        denoiser = training.train(spec, spec.training_steps, latents if spec.latent else pixels,
                                  torch.from_numpy(digits.train_labels))
        training.export(spec, training.arrays(denoiser), decoder if spec.latent else {}, directory)


def check(spec, digits, output_dir) -> bool:
    """Writes the card; true if every target is met."""
    directory = output_dir / "repository" / spec.name / "1"
    print(f"{spec.name}: checking {directory} (minutes)", flush=True)
    results = checks.run(spec, directory, output_dir / "data", digits)
    trainer.write_card(output_dir / "cards" / f"{spec.name}.md",
                       card.render(spec, digits, results))
    return trainer.print_targets(spec.name, checks.targets(spec, results))


def main() -> int:
    arguments = trainer.parse_arguments(__doc__, networks.SPECS)
    trainer.make_repeatable()
    specs, digits = [networks.SPECS[name] for name in arguments.models], data.load()
    if not arguments.checks_only:
        train(specs, digits, arguments.output_dir)
    met = [check(spec, digits, arguments.output_dir) for spec in specs]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
