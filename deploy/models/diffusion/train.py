#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the diffusion models, exports and checks them, writes their cards."""

import sys

import torch

import shared    # first: puts data and trainer on the path  # noqa: F401

import autoencoder
import card
import checks
import data
import networks
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


def train(specs, digits, output_dir) -> None:
    """Trains and exports; the digits models have one autoencoder."""
    data_dir = output_dir / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    decoder = latents = None
    if any(spec.digits for spec in specs):
        decoder, latents = train_autoencoder(digits, data_dir)
    if not all(spec.digits for spec in specs):
        quality_data.export_swissroll(data_dir)
    for spec in specs:
        denoiser = training.train(spec, spec.training_steps, latents,
                                  torch.from_numpy(digits.train_labels))
        training.export(spec, denoiser, decoder if spec.digits else None,
                        output_dir / "repository" / spec.name / "1")


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
