#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of rest: tests/fuzz/make_rest_corpus.py (no arguments, no packages)."""

import json
import struct

import corpus_files


def body(message, binary=None, head=None):
    """A line with the bytes of the object, then the object and the bytes after it."""
    text = json.dumps(message).encode()
    if head is None:
        head = "-" if binary is None else str(len(text))
    return head.encode() + b"\n" + text + (binary or b"")


def tensor(**fields):
    return {"name": "inputs", "shape": [2], "datatype": "FP32", **fields}


FLOATS = struct.pack("<2f", 1.5, -2)
SIZED = tensor(parameters={"binary_data_size": 8})
FILES = {
    "accepted-values": body({"inputs": [tensor(data=[1, -2.5e-3])]}),
    "accepted-nested": body({"id": "r", "inputs": [tensor(shape=[2, 2], data=[[1, 2], [3, 4]])]}),
    "accepted-late-datatype": body({"inputs": [{"data": [1], "name": "a", "shape": [1],
                                                "datatype": "INT64"}]}),
    "accepted-bytes": body({"inputs": [SIZED]}, FLOATS),
    "accepted-both": body({"inputs": [SIZED, tensor(data=[1, 2]), SIZED]}, FLOATS + FLOATS),
    "accepted-types": body({"inputs": [
        tensor(datatype="BOOL", data=[True, False]), tensor(datatype="INT8", data=[-128, 127]),
        tensor(datatype="UINT8", data=[0, 255]), tensor(datatype="INT16", data=[-32768]),
        tensor(datatype="UINT32", data=[4294967295]), tensor(datatype="FP64", data=[1e300]),
        tensor(datatype="INT64", data=[-2**63]), tensor(datatype="UINT64", data=[2**64 - 1])]}),
    "accepted-outputs": body({"parameters": {"binary_data_output": True, "rtol": 1e-4, "seed": 7},
                              "inputs": [], "outputs": [
                                  {"name": "samples", "parameters": {"binary_data": False}},
                                  {"name": "latents"}]}),
    "accepted-empty": body({}),
    "accepted-header": body({"inputs": [tensor(data=[1, 2])]}, b""),
    "refused-list": b"-\n[]",
    "refused-half": b"-\n{\"inputs\": [",
    "refused-long-header": body({"inputs": []}, b"", "9999"),
    "refused-negative-header": body({"inputs": []}, b"", "-3"),
    "refused-more-bytes": body({"inputs": [SIZED]}, FLOATS + b"x"),
    "refused-fewer-bytes": body({"inputs": [SIZED]}, FLOATS[:7]),
    "refused-both": body({"inputs": [tensor(data=[1], parameters={"binary_data_size": 8})]}, FLOATS),
    "refused-neither": body({"inputs": [tensor()]}),
    "refused-bytes-type": body({"inputs": [tensor(datatype="BYTES", data=["x"])]}),
    "refused-null": body({"inputs": [tensor(data=[None])]}),
    "refused-wide": body({"inputs": [tensor(datatype="INT8", data=[128])]}),
    "refused-unknown": body({"input": []}),
    "refused-key": body({"\u00fc\n": []}),
    "refused-many": body({"inputs": [{}] * 65}),
    "refused-deep": b"-\n" + b"{\"inputs\": [" + b"[" * 40,
    "refused-twice": b"-\n{\"id\": \"a\", \"id\": \"b\"}",
    "refused-path": b"/v2/models/net/versions/3/infer\n",
}

if __name__ == "__main__":
    corpus_files.write("rest", FILES)
