# SPDX-License-Identifier: Apache-2.0
"""What the training commands share: their flags, repeatable arithmetic, the verdict of a check."""

import argparse
import pathlib

import torch


def parse_arguments(description: str, names):
    models = pathlib.Path(__file__).resolve().parent.parent    # deploy/models
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="+", choices=sorted(names), default=list(names))
    parser.add_argument("--output_dir", type=pathlib.Path, default=models,
                        help="gets repository/, data/ and cards/ (default: deploy/models)")
    parser.add_argument("--checks_only", action="store_true",
                        help="train nothing: check the files that are there and write the cards")
    return parser.parse_args()


def make_repeatable() -> None:
    # More threads would change the order of sums, and so the weights.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def write_card(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def print_targets(name: str, rows) -> bool:
    """Prints the rows (what, figure, met); true if every target is met."""
    for what, figure, met in rows:
        print(f"{name}: {'ok    ' if met else 'MISSED'} {what}: {figure}", flush=True)
    return all(met for _, _, met in rows)
