#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of checkpoint: tests/fuzz/make_checkpoint_corpus.py (no arguments, no packages)."""

import json

import corpus_files
import make_corpus

# The network of checkpoint_fuzz.cc: 1 wide, 2 layers, input and output layer, all with biases.
PARAMETERS = 8
STATE = {"format": "deeppcr checkpoint 1", "run": {"seed": 1, "optimizer": "adamw"}, "step": 1,
         "updates": 1, "skips_in_a_row": 0, "evaluations": [[1, 0.5, 0.75]]}


def checkpoint(state=None, dtypes=None, text=None, **vectors):
    """With vectors in place of the usual ones; None leaves one out."""
    values = {"parameters": [0.5] * PARAMETERS, "first": [0.0] * PARAMETERS,
              "second": [0.25] * PARAMETERS, "losses": [0.5]} | vectors
    header, data = {}, text or json.dumps({**STATE, **(state or {})}).encode()
    header["state"] = make_corpus.entry("U8", [len(data)], 0, len(data))
    for name, numbers in values.items():
        if numbers is None:
            continue
        of_bytes = isinstance(numbers, bytes)
        packed = numbers if of_bytes else make_corpus.floats(*numbers)
        dtype = (dtypes or {}).get(name, "U8" if of_bytes else "F32")
        header[name] = make_corpus.entry(dtype, [len(numbers)], len(data), len(data) + len(packed))
        data += packed
    return make_corpus.safetensors(header, data)


CORPUS = {
    "accepted-plain": checkpoint(),
    "accepted-begin": checkpoint({"step": 0, "updates": 0, "evaluations": []}, losses=[]),
    "accepted-finished": checkpoint({"step": 3, "updates": 3}, losses=[3, 2, 1]),
    "accepted-skipped-step": checkpoint({"step": 2, "updates": 1, "skips_in_a_row": 1},
                                        losses=[0.5, float("inf")]),
    "accepted-sgd": checkpoint(second=[]),
    "accepted-no-accuracy": checkpoint({"evaluations": [[1, None, None]]}),
    "accepted-other-network": checkpoint(parameters=[1, 2], first=[0, 0], second=[0, 0]),
    "accepted-more-updates-than-steps": checkpoint({"updates": 5}),
    "accepted-trajectories": checkpoint(trajectories=[1, 2, 3], kept=b"\x01"),
    "accepted-run-of-another": checkpoint({"run": {"a": None, "b": 1.5, "c": False}}),
    "refused-empty": b"",
    "refused-no-state": make_corpus.safetensors({}),
    "refused-no-losses": checkpoint(losses=None),
    "refused-not-json": checkpoint(text=b"{"),
    "refused-deep": checkpoint(text=b"[" * 512),
    "refused-format": checkpoint({"format": "deeppcr checkpoint 2"}),
    "refused-member": checkpoint({"more": 1}),
    "refused-run": checkpoint({"run": []}),
    "refused-run-nested": checkpoint({"run": {"a": {}}}),
    "refused-step": checkpoint({"step": -1}),
    "refused-step-huge": checkpoint({"step": 1000001}),
    "refused-step-real": checkpoint({"step": 0.5}),
    "refused-evaluation": checkpoint({"evaluations": [[2, 0.5, 0.5]]}),
    "refused-evaluation-short": checkpoint({"evaluations": [[1]]}),
    "refused-not-finite": checkpoint(parameters=[float("nan")] * PARAMETERS),
    "refused-negative-square": checkpoint(second=[-1.0] * PARAMETERS),
    "refused-trajectories": checkpoint(trajectories=[float("inf")], kept=b"\x01"),
    "refused-kept": checkpoint(trajectories=[1], kept=b"\x02"),
    "refused-kept-missing": checkpoint(trajectories=[1]),
    "refused-dtype": checkpoint(dtypes={"first": "I32"}),
}

if __name__ == "__main__":
    corpus_files.write("checkpoint", CORPUS)
