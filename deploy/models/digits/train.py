#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo models on scikit-learn's digits, exports and checks them, writes their cards."""

import sys

import card
import checks
import data
import networks
import trainer
import training


def check(spec, directory, digits, card_path) -> bool:
    """Writes the card; true if every target is met."""
    print(f"{spec.name}: checking {directory} (minutes)", flush=True)
    results = checks.run(spec, directory, digits)
    trainer.write_card(card_path, card.render(spec, digits, results))
    return trainer.print_targets(spec.name, checks.targets(spec, results))


def main() -> int:
    arguments = trainer.parse_arguments(__doc__, networks.SPECS)
    trainer.make_repeatable()
    digits, met = data.load(), True
    training.export_digits(digits, arguments.output_dir / "data")
    for spec in (networks.SPECS[name] for name in arguments.models):
        directory = arguments.output_dir / "repository" / spec.name / "1"
        if not arguments.checks_only:
            training.export(training.train(spec, digits), digits, directory)
        met &= check(spec, directory, digits, arguments.output_dir / "cards" / f"{spec.name}.md")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
