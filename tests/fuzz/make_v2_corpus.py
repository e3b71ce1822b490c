#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of v2: tests/fuzz/make_v2_corpus.py (no arguments, no packages)."""

import struct

import corpus_files
from make_request_corpus import number, real, text, varint


def floats(count, value=0.5):
    return struct.pack("<f", value) * count


def contents(field, values):
    return text(5, text(field, values))


def tensor(name, shape, datatype="FP32", extra=b""):
    return text(5, text(1, name) + text(2, datatype) + text(3, b"".join(varint(n) for n in shape)) + extra)


def raw(data):
    return text(7, data)


def parameter(name, value):
    return text(4, text(1, name) + text(2, value))


def output(name, extra=b""):
    return text(6, text(1, name) + extra)


def infer(of=b"", kind=b"F", model="m"):
    return kind + text(1, model) + of


def forward(shape=(2, 2), count=4, extra=b"", value=0.5):
    return infer(tensor("inputs", shape) + raw(floats(count, value)) + extra)


def generate(of=b"", label=b"", kind=b"G"):
    return infer((label or parameter("class_label", number(2, 1))) + of, kind)


EVERY_OPTION = b"".join(
    parameter(name, value) for name, value in {
        "solver": text(3, "newton"), "rtol": real(4, 1e-3), "atol": number(2, 0), "max_iterations": number(2, 7),
        "shooting_interval": number(5, 2), "warm_sweeps": number(2, 3), "initial_guess": text(3, "constant"),
        "jacobian_refresh": text(3, "while_contracting"), "on_no_convergence": text(3, "return"),
        "timeout": number(2, 1000), "triton_enable_empty_final_response": number(1, 1)}.items())
EVERY_GENERATION = b"".join(
    parameter(name, number(2, value)) for name, value in {
        "num_samples": 2, "seed": 7, "first_sample": 3, "num_inference_steps": 6}.items())
STATES = tensor("initial_states", [2, 5, 2]) + raw(floats(20))
PREVIOUS = parameter("initial_guess", text(3, "previous"))
SHARED = text(4, text(1, "shared_memory_region") + text(2, text(3, "a")))



# A request for gradients, with cotangents of the outputs.
def gradient(of=b"", shape=(2, 3), count=6, wanted="grad_inputs"):
    return infer(tensor("inputs", [2, 2]) + tensor("cotangent_outputs", shape) + raw(floats(4)) + raw(floats(count))
                 + output(wanted) + of)


FILES = {
    "accepted-gradient": gradient(),
    "accepted-gradient-columns": gradient(
        parameter("way", text(3, "parallel")) + parameter("way_interval", number(2, 2)) + output("trajectory"),
        (2, 5, 3), 30),
    "accepted-gradient-generation": generate(
        tensor("cotangent_samples", [2, 3]) + tensor("cotangent_latents", [2, 2]) + raw(floats(6)) + raw(floats(4))
        + output("grad_step_noise") + output("grad_initial_noise") + output("latents")),
    "accepted-keep": forward(extra=parameter("keep_trajectory", number(1, 1))),
    "accepted-gradient-handle": gradient(parameter("trajectory_handle", text(3, "0123456789abcdef" * 2))),
    "refused-gradient-handle-outputs": gradient(parameter("trajectory_handle", text(3, "0" * 32)) + output("outputs")),
    "refused-gradient-handle-options": gradient(
        parameter("trajectory_handle", text(3, "0" * 32)) + parameter("rtol", real(4, 1e-3))),
    "refused-handle-of-forward": forward(extra=parameter("trajectory_handle", text(3, "0" * 32))),
    "refused-keep-type": forward(extra=parameter("keep_trajectory", text(3, "yes"))),
    "accepted-gradient-mse": infer(
        tensor("inputs", [2, 2]) + tensor("targets", [2, 3]) + raw(floats(4)) + raw(floats(6)) + output("grad_inputs")
        + output("losses") + parameter("loss", text(3, "mse")) + parameter("estimate_error", number(1, 1))),
    "accepted-gradient-cross-entropy": infer(
        tensor("inputs", [2, 2]) + tensor("target_classes", [2, 1], "INT64") + raw(floats(4))
        + raw(struct.pack("<2q", 0, 2)) + output("grad_inputs") + parameter("loss", text(3, "cross_entropy"))),
    "refused-gradient-classes-of-nothing": gradient(
        tensor("target_classes", [2], "INT32") + raw(struct.pack("<2i", 0, 2))),
    "refused-gradient-class": infer(
        tensor("inputs", [2, 2]) + tensor("target_classes", [2], "INT32") + raw(floats(4))
        + raw(struct.pack("<2i", 0, 3)) + output("grad_inputs") + parameter("loss", text(3, "cross_entropy"))),
    "refused-gradient-loss": gradient(parameter("loss", text(3, "hinge"))),
    "refused-gradient-loss-unspecified": gradient(parameter("loss", text(3, "unspecified"))),
    "refused-losses-of-cotangents": gradient(output("losses")),
    "refused-losses-of-forward": forward(extra=output("losses")),
    "refused-gradient-of-nothing": infer(tensor("inputs", [2, 2]) + raw(floats(4)) + output("grad_inputs")),
    "refused-gradient-name": gradient(wanted="grad_outputs"),
    "refused-gradient-shape": gradient(shape=(2, 2)),
    "refused-gradient-way": gradient(parameter("way", text(3, "both"))),
    "accepted-minimal": forward(),
    "accepted-one": forward((1, 2), 2),
    "accepted-typed": infer(tensor("inputs", [2, 2], extra=contents(6, floats(4)))),
    "accepted-unpacked": infer(tensor("inputs", [1, 2], extra=text(5, b"\x35\0\0\0\0\x35\0\0\0\0"))),
    "accepted-options": forward(extra=EVERY_OPTION),
    "accepted-outputs": forward(extra=output("trajectory") + output("outputs")),
    "accepted-version": forward(extra=text(2, "3") + text(3, "id-1")),
    "accepted-previous": forward(extra=STATES + PREVIOUS),
    "accepted-not-finite": forward(value=float("nan")),
    "accepted-generate": generate(),
    "accepted-generate-every": generate(EVERY_GENERATION + EVERY_OPTION),
    "accepted-generate-labels": generate(label=tensor("class_labels", [3, 1], "INT32") + raw(struct.pack("<3i", 0, 1, 2))),
    "accepted-generate-wide-labels": generate(
        label=tensor("class_labels", [2], "INT64", contents(3, varint(1) + varint(2)))),
    "accepted-generate-noise": generate(tensor("initial_noise", [2, 2]) + tensor("step_noise", [2, 4, 2])
                                        + raw(floats(4)) + raw(floats(16))),
    "accepted-generate-outputs": generate(output("latents") + output("samples")),
    "accepted-generate-condition": infer(tensor("conditioning", [2, 2]) + raw(floats(4)), b"g"),
    "refused-empty": b"",
    "refused-no-inputs": infer(),
    "refused-kind": infer(kind=b"X"),
    "refused-cut": forward()[:-3],
    "refused-version": forward(extra=text(2, "0")),
    "refused-misspelt": forward(extra=parameter("sovler", text(3, "newton"))),
    "refused-parameter-type": forward(extra=parameter("rtol", text(3, "small"))),
    "refused-parameter-none": forward(extra=parameter("solver", b"")),
    "refused-seed-of-a-stack": forward(extra=parameter("seed", number(2, 1))),
    "refused-enumerator": forward(extra=parameter("initial_guess", text(3, "unspecified"))),
    "refused-priority": forward(extra=parameter("priority", number(5, 1))),
    "refused-surplus-raw": forward(extra=raw(floats(4))),
    "refused-few-raw": forward(extra=tensor("initial_states", [2, 5, 2]) + PREVIOUS),
    "refused-raw-and-typed": infer(tensor("inputs", [2, 2], extra=contents(6, floats(4))) + raw(floats(4))),
    "refused-two-kinds": infer(tensor("inputs", [2, 2], extra=text(5, text(6, floats(4)) + text(2, varint(1))))),
    "refused-twice": forward(extra=tensor("inputs", [2, 2]) + raw(floats(4))),
    "refused-name": infer(tensor("x", [2, 2]) + raw(floats(4))),
    "refused-datatype": infer(tensor("inputs", [2, 2], "FP64") + raw(floats(8))),
    "refused-shared-memory": infer(tensor("inputs", [2, 2], extra=SHARED) + raw(floats(4))),
    "refused-shape": forward((2, 3), 4),
    "refused-bytes": forward((2, 2), 3),
    "refused-negative": forward((-2, 2), 4),
    "refused-wraps-64": forward((2**61 + 2, 2), 4),
    "refused-output": forward(extra=output("latents")),
    "refused-output-twice": forward(extra=output("outputs") * 2),
    "refused-classification": forward(extra=output("outputs", text(2, text(1, "classification")))),
    "refused-many-inputs": infer(text(5, b"") * 6000),
    "refused-label": generate(label=parameter("class_label", number(2, 3))),
    "refused-label-negative": generate(label=tensor("class_labels", [1], "INT64") + raw(struct.pack("<q", -1))),
    "refused-label-twice": generate(label=parameter("class_label", number(2, 1)) + tensor("class_labels", [1], "INT32")
                                    + raw(struct.pack("<i", 1))),
    "refused-labels-cut": generate(label=tensor("class_labels", [1], "INT32") + raw(b"12345")),
    "refused-huge-batch": generate(tensor("initial_noise", [2**32 + 1, 2]) + raw(floats(2))),
    "refused-unprintable-name": generate(tensor("in\0", [2**32 + 1, 2]) + raw(floats(2))),
    "refused-no-condition": infer(kind=b"g"),
}


if __name__ == "__main__":
    corpus_files.write("v2", FILES)
