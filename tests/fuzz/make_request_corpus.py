#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of request: tests/fuzz/make_request_corpus.py (no arguments, no packages)."""

import struct

import corpus_files


def varint(value):
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def real(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def tensor(shape, count, value=0.5):
    return text(1, b"".join(varint(extent) for extent in shape)) + text(2, struct.pack("<f", value) * count)


def options(solver="newton", extra=b""):
    return text(1, solver) + extra


def forward(inputs=None, opts=b"", model="m", extra=b""):
    inputs = tensor([2, 2], 4) if inputs is None else inputs
    return b"F" + text(1, model) + text(3, inputs) + (text(4, opts) if opts else b"") + extra


def compare(rows=(), extra=b""):
    return b"C" + text(1, "m") + text(3, tensor([2, 2], 4)) + b"".join(text(4, row) for row in rows) + extra


def labels(*values):
    return text(5, b"".join(varint(value) for value in values))


# A GenerationInput: one class for all samples, or one condition each.
def generation(samples=2, extra=b"", classes=labels(1)):
    return number(1, samples) + classes + extra


def conditioned(samples=2, extra=b"", condition=None):
    condition = tensor([samples, 2], 2 * samples) if condition is None else condition
    return number(1, samples) + text(6, condition) + extra


def generate(of=None, opts=b"", extra=b"", kind=b"G"):
    of = generation() if of is None else of
    return kind + text(1, "m") + text(3, of) + (text(4, opts) if opts else b"") + extra


def compare_generation(of=None, rows=(), extra=b"", kind=b"D"):
    of = generation() if of is None else of
    return kind + text(1, "m") + text(6, of) + b"".join(text(4, row) for row in rows) + extra


# A GradientRequest for a dense stack (B), or of a generation: with classes (L), or conditioned (l).
def gradient(extra=b"", opts=b"", seed=None):
    seed = text(8, tensor([2, 3], 6)) if seed is None else seed
    return b"B" + text(1, "m") + text(3, tensor([2, 2], 4)) + (text(5, opts) if opts else b"") + seed + extra


# A GradientRequest for the gradients by parameters.
def parameters(extra=b"", opts=b"", seed=None):
    return b"P" + gradient(extra, opts, seed)[1:]


def gradient_generation(of=None, extra=b"", seed=None, kind=b"L"):
    of = generation() if of is None else of
    seed = text(9, tensor([2, 2], 4)) if seed is None else seed
    return kind + text(1, "m") + text(4, of) + seed + extra


MSE = number(10, 1) + text(11, tensor([2, 3], 6))
CROSS_ENTROPY = number(10, 2) + text(12, varint(0) + varint(2))

NOISE = text(7, tensor([2, 2], 4)) + text(8, tensor([2, 4, 2], 16))
EVERY_GENERATION = (number(2, 2**64 - 1) + number(3, 2**64 - 3) + number(4, 6) + text(7, tensor([2, 2], 4))
                    + text(8, tensor([2, 6, 2], 24)))

CONTROLS = (real(9, 3.0) + text(10, tensor([1, 2], 2)) + real(11, 0.5) + real(13, 2.0) + number(14, 1)
            + text(15, tensor([2, 2], 4)) + text(16, varint(0)) + text(17, tensor([1, 1], 1))
            + text(18, struct.pack("<f", -1)) + text(19, struct.pack("<f", 1)))

EVERY_OPTION = (real(2, 1e-3) + real(3, 0.0) + number(4, 7) + number(5, 2) + number(6, 3) + number(7, 1)
                + number(8, 2) + number(9, 2) + number(10, 1))

FILES = {
    "accepted-minimal": forward(),
    "accepted-one": forward(tensor([1, 2], 2)),
    "accepted-four": forward(tensor([4, 2], 8)),
    "accepted-options": forward(opts=options(extra=EVERY_OPTION)),
    "accepted-previous": forward(opts=options(extra=number(7, 4)), extra=text(5, tensor([2, 5, 2], 20))),
    "accepted-request-id": forward(extra=number(2, 3) + text(6, "id-1")),
    "accepted-not-finite": forward(tensor([2, 2], 4, float("nan"))),
    "accepted-compare": compare(),
    "accepted-compare-rows": compare([options("newton"), options("auto")], number(5, 3)),
    "accepted-generate": generate(),
    "accepted-generate-one": generate(labels(0)),
    "accepted-generate-labels": generate(generation(4, classes=labels(0, 1, 2, 0))),
    "accepted-generate-unpacked-labels": generate(generation(2, number(5, 2), classes=number(5, 0))),
    "accepted-generate-noise": generate(generation(extra=NOISE)),
    "accepted-generate-every": generate(generation(extra=EVERY_GENERATION), options(extra=EVERY_OPTION)),
    "accepted-generate-coarse": generate(opts=options("picard", number(5, 4) + number(7, 2))),
    "accepted-generate-previous": generate(opts=options(extra=number(7, 4)), extra=text(5, tensor([2, 5, 2], 20))),
    "accepted-generate-previous-few": generate(generation(extra=number(4, 2)), options(extra=number(7, 4)),
                                               text(5, tensor([2, 3, 2], 12))),
    "accepted-generate-not-finite": generate(generation(extra=text(7, tensor([2, 2], 4, float("inf"))))),
    "accepted-generate-condition": generate(conditioned(), kind=b"g"),
    "accepted-generate-condition-every": generate(conditioned(extra=EVERY_GENERATION), options(extra=EVERY_OPTION),
                                                  kind=b"g"),
    "accepted-generate-condition-steps": generate(conditioned(extra=number(4, 7)), options(extra=number(5, 7)),
                                                  kind=b"g"),
    "accepted-generate-one-condition": generate(conditioned(condition=tensor([1, 2], 2)), kind=b"g"),
    "accepted-generate-guided": generate(conditioned(extra=real(9, 2.5) + text(10, tensor([1, 2], 2))), kind=b"g"),
    "accepted-generate-guided-each": generate(conditioned(extra=real(9, -1.0) + text(10, tensor([2, 2], 4))),
                                              kind=b"g"),
    "accepted-generate-noise-shape": generate(conditioned(extra=real(11, 0.5) + real(12, 2.0) + real(13, 1.5)
                                                           + real(20, 1.25)),
                                              kind=b"g"),
    "accepted-generate-first-step": generate(conditioned(extra=number(14, 3) + text(15, tensor([2, 2], 4))),
                                             kind=b"g"),
    "accepted-generate-known": generate(conditioned(extra=text(16, varint(1)) + text(17, tensor([2, 1], 2))),
                                        kind=b"g"),
    "accepted-generate-bounds": generate(conditioned(extra=text(18, struct.pack("<f", -1))
                                                     + text(19, struct.pack("<3f", 1, 2, 3))), kind=b"g"),
    "accepted-generate-controls": generate(conditioned(extra=CONTROLS), options(extra=number(5, 1)), kind=b"g"),
    "refused-generate-guided-without-null": generate(conditioned(extra=real(9, 2.5)), kind=b"g"),
    "refused-generate-guided-huge": generate(conditioned(extra=real(9, 1e30) + text(10, tensor([1, 2], 2))),
                                             kind=b"g"),
    "refused-generate-guided-planned-only": generate(generation(extra=real(9, 2.5))),
    "refused-generate-null-shape": generate(conditioned(extra=real(9, 2.0) + text(10, tensor([3, 2], 6))), kind=b"g"),
    "refused-generate-temperature": generate(conditioned(extra=real(11, float("nan"))), kind=b"g"),
    "refused-generate-noise-clip": generate(conditioned(extra=real(13, 0.0)), kind=b"g"),
    "refused-generate-first-step": generate(conditioned(extra=number(14, 4) + text(15, tensor([2, 2], 4))),
                                            kind=b"g"),
    "refused-generate-first-step-negative": generate(conditioned(extra=number(14, -1) + text(15, tensor([2, 2], 4))),
                                                     kind=b"g"),
    "refused-generate-known-twice": generate(conditioned(extra=text(16, varint(1) + varint(1))
                                                         + text(17, tensor([2, 2], 4))), kind=b"g"),
    "refused-generate-known-beyond": generate(conditioned(extra=text(16, varint(2)) + text(17, tensor([2, 1], 2))),
                                              kind=b"g"),
    "refused-generate-bounds-crossed": generate(conditioned(extra=text(18, struct.pack("<f", 1))
                                                            + text(19, struct.pack("<f", -1))), kind=b"g"),
    "refused-compare-bounds": compare_generation(conditioned(extra=text(18, struct.pack("<f", 1))), kind=b"d"),
    "accepted-compare-generation": compare_generation(),
    "accepted-compare-generation-rows": compare_generation(generation(extra=EVERY_GENERATION),
                                                           [options("newton", number(7, 2)), options("picard")]),
    "accepted-compare-condition": compare_generation(conditioned(extra=number(4, 2)), kind=b"d"),
    "accepted-gradient": gradient(),
    "accepted-gradient-way": gradient(number(13, 2) + number(14, 4) + text(15, varint(1) + varint(2))),
    "accepted-gradient-columns": gradient(seed=text(8, tensor([2, 5, 3], 30)) + text(9, tensor([2, 5, 2], 20))),
    "accepted-gradient-mse": gradient(seed=MSE),
    "accepted-gradient-cross-entropy": gradient(seed=CROSS_ENTROPY),
    "accepted-gradient-trajectory": gradient(text(7, tensor([2, 5, 2], 20))),
    "accepted-gradient-options": gradient(opts=options(extra=number(10, 1) + number(9, 3)), extra=text(16, "id")),
    "accepted-gradient-not-finite": gradient(seed=text(8, tensor([2, 3], 6, float("nan")))),
    "accepted-gradient-generation": gradient_generation(extra=text(15, varint(2) + varint(3))),
    "accepted-gradient-condition": gradient_generation(conditioned(), text(15, varint(1)), kind=b"l"),
    "accepted-keep": forward(opts=options(extra=number(11, 1))),
    "accepted-keep-and-return": forward(opts=options(extra=number(10, 1) + number(11, 1))),
    "accepted-generate-keep": generate(opts=options(extra=number(11, 1))),
    "accepted-gradient-keep": gradient(opts=options(extra=number(11, 1))),
    "accepted-gradient-handle": gradient(text(18, "0123456789abcdef" * 2)),
    "accepted-gradient-handle-generation": gradient_generation(extra=text(18, "0123456789abcdef" * 2)),
    "refused-gradient-handle-options": gradient(text(18, "0123456789abcdef" * 2), options()),
    "refused-gradient-handle-trajectory": gradient(text(7, tensor([2, 5, 2], 20)) + text(18, "0" * 32)),
    "refused-gradient-handle-loss": gradient(text(18, "0" * 32), seed=MSE),
    "refused-gradient-handle-error": gradient(number(17, 1) + text(18, "0" * 32)),
    "refused-gradient-handle-not-utf8": gradient(text(18, b"\xff\xfe")),
    "refused-compare-keep": compare([options(extra=number(11, 1))]),
    "accepted-parameters": parameters(),
    "accepted-parameters-loss": parameters(seed=CROSS_ENTROPY),
    "accepted-parameters-handle": parameters(text(15, varint(1)) + text(18, "0123456789abcdef" * 2)),
    "accepted-parameters-one-column": parameters(seed=text(8, tensor([2, 1, 3], 6))),
    "refused-parameters-columns": parameters(seed=text(8, tensor([2, 2, 3], 12))),
    "refused-parameters-error": parameters(number(17, 1)),
    "refused-parameters-nothing": parameters(seed=b""),
    "refused-gradient-nothing": gradient(seed=b""),
    "refused-gradient-return": gradient(opts=options(extra=number(9, 2))),
    "refused-gradient-columns": gradient(seed=text(8, tensor([2, 4097, 3], 6))),
    "refused-gradient-wraps": gradient(seed=text(8, tensor([2, 2**62, 3], 6))),
    "refused-gradient-ranks": gradient(seed=text(8, tensor([2, 5, 3], 30)) + text(9, tensor([2, 2], 4))),
    "refused-gradient-both": gradient(MSE),
    "refused-gradient-targets": gradient(seed=number(10, 1)),
    "refused-gradient-class": gradient(seed=number(10, 2) + text(12, varint(0) + varint(3))),
    "refused-gradient-class-negative": gradient(seed=number(10, 2) + text(12, varint(0) + varint(-1))),
    "refused-gradient-loss": gradient(seed=number(10, 3)),
    "refused-gradient-trajectory": gradient(text(7, tensor([2, 4, 2], 16))),
    "refused-gradient-trajectory-options": gradient(text(7, tensor([2, 5, 2], 20)), options()),
    "refused-gradient-trajectory-loss": gradient(text(7, tensor([2, 5, 2], 20)), seed=MSE),
    "refused-gradient-way": gradient(number(13, 9)),
    "refused-gradient-interval": gradient(number(14, 5)),
    "refused-gradient-interval-negative": gradient(number(14, -1)),
    "refused-gradient-twice": gradient(text(15, varint(1) + varint(1))),
    "refused-gradient-unset": gradient(text(15, varint(0))),
    "refused-gradient-noise": gradient(text(15, varint(3))),
    "refused-gradient-inputs": gradient_generation(extra=text(15, varint(1))),
    "refused-generate-of-resnet": b"F" + generate()[1:],
    "refused-generate-steps": generate(generation(extra=number(4, 5))),
    "refused-generate-condition-steps": generate(conditioned(extra=number(4, 10)), kind=b"g"),
    "refused-generate-negative-steps": generate(generation(extra=number(4, -4))),
    "refused-generate-samples": generate(generation(5)),
    "refused-generate-negative": generate(generation(-1)),
    "refused-generate-first-sample": generate(generation(extra=number(3, 2**64 - 2))),
    "refused-generate-no-label": generate(generation(classes=b"")),
    "refused-generate-label": generate(generation(classes=labels(3))),
    "refused-generate-label-negative": generate(generation(classes=labels(-1))),
    "refused-generate-labels": generate(generation(4, classes=labels(0, 1))),
    "refused-generate-condition": generate(generation(extra=text(6, tensor([2, 2], 4)))),
    "refused-generate-label-of-conditioned": generate(conditioned(extra=labels(0)), kind=b"g"),
    "refused-generate-no-condition": generate(number(1, 2), kind=b"g"),
    "refused-generate-condition-samples": generate(conditioned(condition=tensor([3, 2], 6)), kind=b"g"),
    "refused-generate-noise": generate(generation(extra=text(7, tensor([3, 2], 6)))),
    "refused-generate-noise-wraps": generate(generation(extra=text(7, tensor([2**61 + 2, 2], 4)))),
    "refused-generate-noise-bytes": generate(generation(extra=text(7, tensor([2, 2], 3)))),
    "refused-generate-step-noise": generate(generation(extra=number(4, 2) + NOISE)),
    "refused-generate-solver": generate(opts=options("quasi_newton")),
    "refused-generate-interval": generate(opts=options(extra=number(5, 5))),
    "refused-generate-states": generate(generation(extra=number(4, 2)), options(extra=number(7, 4)),
                                        text(5, tensor([2, 5, 2], 20))),
    "refused-generate-states-missing": generate(opts=options(extra=number(7, 4))),
    "refused-generate-states-unasked": generate(extra=text(5, tensor([2, 5, 2], 20))),
    "refused-compare-generation-of-resnet": b"C" + compare_generation()[1:],
    "refused-compare-generation-inputs": compare_generation(extra=text(3, tensor([2, 2], 4))),
    "refused-compare-generation-previous": compare_generation(rows=[options(extra=number(7, 4))]),
    "refused-empty": b"",
    "refused-kind": b"X" + forward()[1:],
    "refused-cut": forward()[:-3],
    "refused-no-inputs": b"F" + text(1, "m"),
    "refused-name": forward(model="../m"),
    "refused-name-not-utf8": forward(model=b"\xff\xfe"),
    "refused-version": forward(extra=number(2, -1)),
    "refused-rank": forward(tensor([4], 4)),
    "refused-width": forward(tensor([2, 3], 6)),
    "refused-samples": forward(tensor([5, 2], 10)),
    "refused-no-samples": forward(tensor([0, 2], 0)),
    "refused-negative": forward(tensor([-2, 2], 4)),
    "refused-wraps-32": forward(tensor([2**32 + 2, 2], 4)),
    "refused-wraps-64": forward(tensor([2**61 + 2, 2], 4)),
    "refused-bytes": forward(tensor([3, 2], 4)),
    "refused-solver": forward(opts=options("magic")),
    "refused-rtol": forward(opts=options(extra=real(2, float("nan")))),
    "refused-iterations": forward(opts=options(extra=number(4, 0))),
    "refused-enum": forward(opts=options(extra=number(7, 99))),
    "refused-states": forward(extra=text(5, tensor([2, 5, 2], 20))),
    "refused-states-missing": forward(opts=options(extra=number(7, 4))),
    "refused-request-id": forward(extra=text(6, "a\n")),
    "refused-compare-solver": compare([b""]),
    "refused-compare-rows": compare([options()] * 17),
    "refused-compare-repetitions": compare(extra=number(5, 101)),
    "refused-compare-trajectory": compare([options(extra=number(10, 1))]),
}


if __name__ == "__main__":
    corpus_files.write("request", FILES)
