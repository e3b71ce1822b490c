#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo models on scikit-learn's digits, exports and checks them, writes their cards."""

import argparse
import pathlib
import sys

import torch

import card
import checks
import data
import networks
import training


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted(networks.SPECS),
                        default=list(networks.SPECS))
    parser.add_argument("--output_dir", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent,
                        help="gets repository/, data/ and cards/ (default: deploy/models)")
    parser.add_argument("--checks_only", action="store_true",
                        help="train nothing: check the files that are there and write the cards")
    return parser.parse_args()


def check(spec, directory, digits, card_path) -> bool:
    """Writes the card; true if every target is met."""
    print(f"{spec.name}: checking {directory} (minutes)", flush=True)
    results = checks.run(spec, directory, digits)
    card_path.parent.mkdir(parents=True, exist_ok=True)
    card_path.write_text(card.render(spec, digits, results), encoding="utf-8")
    rows = checks.targets(spec, results)
    for what, figure, met in rows:
        print(f"{spec.name}: {'ok    ' if met else 'MISSED'} {what}: {figure}", flush=True)
    return all(met for _, _, met in rows)


def main() -> int:
    arguments = parse_arguments()
    # More threads would change the order of sums, and so the weights.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    digits, met = data.load(), True
    training.export_held_out(digits, arguments.output_dir / "data")
    for spec in (networks.SPECS[name] for name in arguments.models):
        directory = arguments.output_dir / "repository" / spec.name / "1"
        if not arguments.checks_only:
            training.export(training.train(spec, digits), digits, directory)
        met &= check(spec, directory, digits, arguments.output_dir / "cards" / f"{spec.name}.md")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
