#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of plan: tests/fuzz/make_plan_corpus.py (no arguments, no packages)."""

import json

import corpus_files

CHOICE = {"solver": "newton", "shooting_interval": 16, "initial_guess": "calibrated",
          "warm_sweeps": 4, "jacobian_refresh": "while_contracting"}
QUASI = {"solver": "quasi_newton", "shooting_interval": 1, "initial_guess": "constant",
         "warm_sweeps": 0, "jacobian_refresh": "every_iteration"}
ENTRY = {"max_samples": 1, "solver": "newton", "parallel": CHOICE, "sequential_seconds": 4e-5,
         "parallel_seconds": 3e-5, "parallel_iterations": 2.5, "parallel_error": 1e-6,
         "parallel_stages": 77}
LAST = {**ENTRY, "max_samples": 64, "solver": "sequential", "parallel_seconds": 0}
KEY = {"backend": "cpu", "build": "0.1.0+0123456789abcdef", "calibration_sha256": "",
       "config_sha256": "ab", "device": "cpu-avx2", "iterative": True, "min_shooting_interval": 1,
       "num_steps": 1024, "rtol": 1e-4, "scheduler_sha256": "", "weights_sha256": "cd"}
PLAN = {"least_rtol": 1e-5, "measured_seconds": 1.5, "choices": [CHOICE, QUASI],
        "entries": [ENTRY, LAST]}
FILE = {"format": "deeppcr-plan-1", "devices": {"cpu-avx2": [{"key": KEY, "plan": PLAN}]}}


def changed(path, value):
    """FILE with the value at a path of keys; None removes it."""
    root = json.loads(json.dumps(FILE))  # a copy that shares no part
    at = root
    for step in path[:-1]:
        at = at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(root).encode()


DEVICE = ["devices", "cpu-avx2"]
ITEM = DEVICE + [0]
IN_PLAN = ITEM + ["plan"]
IN_KEY = ITEM + ["key"]
IN_CHOICE = IN_PLAN + ["choices", 0]
IN_ENTRY = IN_PLAN + ["entries", 0]
TWO = [{"key": KEY, "plan": PLAN}, {"key": {**KEY, "num_steps": 100}, "plan": PLAN}]

WAYS = {"way": "parallel", "sequential_seconds": 0.002, "parallel_seconds": 0}

CORPUS = {
    "accepted-two-choices": json.dumps(FILE, indent=1).encode(),
    "accepted-no-device": b'{"format":"deeppcr-plan-1","devices":{}}',
    "accepted-two-devices": changed(["devices", "cpu-avx2 l1d=32K l2=512K l3=32M"],
                                    [{"key": KEY, "plan": PLAN}]),
    "accepted-two-systems": changed(DEVICE, TWO),
    "accepted-no-choices": changed(IN_PLAN + ["choices"], []),
    "accepted-one-entry": changed(IN_PLAN + ["entries"], [LAST]),
    "accepted-picard": changed(IN_CHOICE + ["solver"], "picard"),
    "accepted-limits": changed(IN_CHOICE, {**CHOICE, "shooting_interval": 1 << 20,
                                           "warm_sweeps": 64}),
    "accepted-ways": changed(IN_ENTRY + ["ways"], WAYS),
    "refused-ways-name": changed(IN_ENTRY + ["ways"], {**WAYS, "way": "auto"}),
    "refused-ways-seconds": changed(IN_ENTRY + ["ways"], {**WAYS, "parallel_seconds": -1}),
    "refused-ways-unknown": changed(IN_ENTRY + ["ways"], {**WAYS, "interval": 4}),
    "refused-ways-few": changed(IN_ENTRY + ["ways"], {"way": "parallel"}),
    "refused-ways-array": changed(IN_ENTRY + ["ways"], []),
    "refused-empty": b"",
    "refused-array": b"[]",
    "refused-format": changed(["format"], "deeppcr-plan-2"),
    "refused-no-format": changed(["format"], None),
    "refused-unknown": changed(["x"], 1),
    "refused-devices": changed(["devices"], []),
    "refused-no-plans": changed(DEVICE, []),
    "refused-nameless": changed(["devices", ""], [{"key": KEY, "plan": PLAN}]),
    "refused-same-steps": changed(DEVICE, TWO[:1] * 2),
    "refused-no-key": changed(IN_KEY, None),
    "refused-key-field": changed(IN_KEY + ["rtol"], None),
    "refused-key-unknown": changed(IN_KEY + ["threads"], 4),
    "refused-key-text": changed(IN_KEY + ["build"], "x" * 257),
    "refused-key-bool": changed(IN_KEY + ["iterative"], 1),
    "refused-steps": changed(IN_KEY + ["num_steps"], 0),
    "refused-solver": changed(IN_CHOICE + ["solver"], "sequential"),
    "refused-solver-twice": changed(IN_PLAN + ["choices", 1, "solver"], "newton"),
    "refused-interval-zero": changed(IN_CHOICE + ["shooting_interval"], 0),
    "refused-interval-large": changed(IN_CHOICE + ["shooting_interval"], (1 << 20) + 1),
    "refused-interval-huge": changed(IN_CHOICE + ["shooting_interval"], 1 << 64),
    "refused-interval-real": changed(IN_CHOICE + ["shooting_interval"], 16.0),
    "refused-sweeps": changed(IN_CHOICE + ["warm_sweeps"], 65),
    "refused-sweeps-negative": changed(IN_CHOICE + ["warm_sweeps"], -1),
    "refused-guess": changed(IN_CHOICE + ["initial_guess"], "previous"),
    "refused-refresh": changed(IN_CHOICE + ["jacobian_refresh"], "plan"),
    "refused-many-choices": changed(IN_PLAN + ["choices"], [CHOICE] * 17),
    "refused-many-entries": changed(IN_PLAN + ["entries"], [ENTRY] * 65),
    "refused-no-entries": changed(IN_PLAN + ["entries"], []),
    "refused-order": changed(IN_PLAN + ["entries"], [LAST, ENTRY]),
    "refused-other-solver": changed(IN_ENTRY + ["solver"], "picard"),
    "refused-samples": changed(IN_ENTRY + ["max_samples"], 4097),
    "refused-seconds": changed(IN_ENTRY + ["parallel_seconds"], -1),
    "refused-stages": changed(IN_ENTRY + ["parallel_stages"], 1 << 41),
    "refused-least-rtol": changed(IN_PLAN + ["least_rtol"], "small"),
    "refused-duplicate": b'{"format":"deeppcr-plan-1","devices":{},"devices":{}}',
    "refused-nan": b'{"format":"deeppcr-plan-1","devices":NaN}',
    "refused-deep": b'{"devices":' * 40,
    "refused-trailing": json.dumps(FILE).encode() + b"x",
    "refused-not-utf8": b'{"format":"\xff"}',
}


if __name__ == "__main__":
    corpus_files.write("plan", CORPUS)
