#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpora of weights and config: tests/fuzz/make_corpus.py (no arguments, no packages)."""

import json
import struct

import corpus_files


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


COLUMNS = ("sigma", "time", "x0_m", "x0_z", "z_m", "z_x0", "z_z")


def step_table(**numbers):
    """Two steps of F64, and numbers beside them or in place of all of a column."""
    columns = {name: [0.5, 0.25] for name in COLUMNS} | {
        name: value if isinstance(value, list) else [value] for name, value in numbers.items()}
    header, data = {}, b""
    for name, values in columns.items():
        packed = struct.pack(f"<{len(values)}d", *values)
        header[name] = entry("F64", [len(values)], len(data), len(data) + len(packed))
        data += packed
    return safetensors(header, data)


WEIGHTS = {
    "accepted-step-table": step_table(),
    "accepted-step-table-clipped": step_table(clip_range=1.0, initial_scale=0.5, z_m=[0.0, -1.0]),
    "accepted-step-table-quotient": step_table(x0_m=[1e-45, 0.0], z_m=[1.0, 1.0]),
    "accepted-step-table-negative": step_table(sigma=[0.0, -1.0]),
    "accepted-step-table-not-finite": step_table(time=[float("nan"), float("inf")]),
    "accepted-step-table-memory": step_table(
        z_c=[0.0, -0.5], c_z=[1.0, 0.0], c_m=[0.5, 0.0], c_x0=[0.25, 0.0]),
    "accepted-step-table-memory-unread": step_table(c_x0=[1.0, 1.0]),
    "accepted-step-table-memory-quotient": step_table(
        x0_m=[1e-45, 0.0], z_m=[0.0, 0.0], c_m=[1.0, 1.0], z_c=[1.0, 1.0]),
    "accepted-step-table-memory-short": step_table(z_c=0.5),
    "accepted-step-table-short": step_table(x0_z=0.5),
    "accepted-empty": safetensors({}),
    "accepted-spaces": safetensors(b" {} \n  "),
    "accepted-one": safetensors({"a": entry("F32", [2], 0, 8)}, floats(1, 2)),
    "accepted-scalar": safetensors({"a": entry("F32", [], 0, 4)}, floats(1)),
    "accepted-zero-extent": safetensors({"a": entry("F32", [0, 5], 0, 0)}),
    "accepted-two": safetensors(
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 4, 8)}, floats(1, 2)),
    "accepted-reversed": safetensors(
        {"b": entry("F32", [1, 2], 4, 12), "a": entry("F32", [1], 0, 4)}, floats(1, 2, 3)),
    "accepted-dtypes": safetensors(
        {"d": entry("F64", [1], 0, 8), "s": entry("F32", [1], 8, 12), "h": entry("F16", [1], 12, 14),
         "b": entry("BF16", [1], 14, 16)},
        struct.pack("<dfHH", 0.5, -2.0, 0x0001, 0x3F80)),
    "accepted-metadata": safetensors(
        {"__metadata__": {"format": "pt"}, "layers.0.weight": entry("F32", [1, 1], 0, 4)}, floats(1)),
    "accepted-not-finite": safetensors({"a": entry("F16", [2], 0, 4)}, b"\x00\x7c\x01\x7e"),
    "refused-short": b"\x02\x00\x00",
    "refused-prefix-beyond-file": struct.pack("<Q", 100) + b"{}",
    "refused-prefix-huge": struct.pack("<Q", 2**64 - 1) + b"{}" * 8,
    "refused-not-utf8": safetensors(b'{"\xff":{}}'),
    "refused-not-json": safetensors(b"weights!"),
    "refused-nul": safetensors(b"{}\0\0"),
    "refused-nul-in-name": safetensors({"a\0b": entry("F32", [0], 0, 0)}),
    "refused-duplicate": safetensors(
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        b'"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "refused-deep": safetensors(b'{"a":' + b"[" * 64),
    "refused-shared-range": safetensors({f"t{i}": entry("F32", [2], 0, 8) for i in range(10)},
                                        floats(1, 2)),
    "refused-gap": safetensors({"a": entry("F32", [1], 4, 8)}, floats(1, 2)),
    "refused-end-before-begin": safetensors({"a": entry("F32", [2], 8, 0)}, floats(1, 2)),
    "refused-size": safetensors({"a": entry("F32", [3], 0, 8)}, floats(1, 2)),
    "refused-product-overflow": safetensors({"a": entry("F32", [2**32, 2**32], 0, 0)}),
    "refused-bytes-overflow": safetensors({"a": entry("F32", [2**62], 0, 0)}),
    "refused-missing-tail": safetensors({"a": entry("F32", [2], 0, 8)}, floats(1)),
    "refused-extra-tail": safetensors({"a": entry("F32", [1], 0, 4)}, floats(1) + b"PK\x03\x04"),
    "refused-negative": safetensors({"a": entry("F32", [-2], 0, 8)}, floats(1, 2)),
    "refused-float-extent": safetensors({"a": entry("F32", [2.0], 0, 8)}, floats(1, 2)),
    "refused-metadata-number": safetensors({"__metadata__": {"step": 1}}),
    "accepted-unread-dtype": safetensors({"a": entry("I64", [1], 0, 8)}, bytes(8)),
    "refused-dtype": safetensors({"a": entry("F4", [16], 0, 8)}, bytes(8)),
}

MINIMAL = {"model_type": "mlp", "input_dim": 3, "output_dim": 2, "state_dim": 4, "num_layers": 16,
           "activation": "tanh"}
FULL = {"model_type": "resnet", "input_dim": 64, "output_dim": 2, "state_dim": 16,
        "num_layers": 1024, "activation": "silu", "residual_scale": 0.03125, "max_batch_size": 256,
        "input_activation": "gelu_tanh", "labels": ["no", "\u00e9"]}
DIFFUSION = {"model_type": "diffusion", "output_dim": 2, "state_dim": 2, "activation": "silu",
             "denoiser": "residual_mlp", "hidden_dim": 64, "num_blocks": 3,
             "time_embedding_dim": 128, "num_inference_steps": 1000}
IMAGES = {"model_type": "diffusion", "state_dim": 16, "output_dim": 64, "denoiser": "adaln_mlp",
          "hidden_dim": 128, "num_blocks": 3, "activation": "silu", "time_embedding_dim": 128,
          "num_inference_steps": [100, 20], "max_batch_size": 256, "num_classes": 10,
          "decoder_widths": [128], "decoder_activation": "silu", "eta": 0.5,
          "diffusers_compatible": True, "image_shape": [8, 8]}


STACK = {"model_type": "stack", "input_dim": 3, "output_dim": 2, "state_dim": 4, "num_layers": 16,
         "shared_weights": ["w"]}
PROGRAM = {"model_type": "diffusion", "output_dim": 2, "state_dim": 2, "denoiser": "onnx",
           "denoiser_inputs": {"state": "x", "time": "t"}, "num_inference_steps": 1000}


def config(**changes):
    return json.dumps({**MINIMAL, **changes}).encode()


def diffusion(**changes):
    return json.dumps({**DIFFUSION, **changes}).encode()


CONFIG = {
    "accepted-minimal": config(),
    "accepted-full": json.dumps(FULL).encode(),
    "accepted-utf8": json.dumps(FULL, ensure_ascii=False, indent=1).encode(),
    "accepted-resnet": config(model_type="resnet"),
    "accepted-stack": json.dumps(STACK).encode(),
    "refused-stack-activation": json.dumps({**STACK, "activation": "relu"}).encode(),
    "refused-stack-shared": json.dumps({**STACK, "shared_weights": "w"}).encode(),
    "accepted-diffusion": diffusion(),
    "accepted-diffusion-program": json.dumps(PROGRAM).encode(),
    "refused-diffusion-program-blocks": json.dumps({**PROGRAM, "num_blocks": 3}).encode(),
    "accepted-diffusion-images": json.dumps(IMAGES).encode(),
    "accepted-diffusion-condition": diffusion(conditioning_dim=7, output_dim=12,
                                              image_shape=[2, 2, 3]),
    "accepted-diffusion-edges": diffusion(num_inference_steps=[1, 2, 3, 4, 5, 6, 7, 8],
                                          decoder_widths=[1, 1, 1, 1, 1, 1, 1, 65536], eta=1),
    "refused-diffusion-missing": b'{"model_type":"diffusion","output_dim":2,"state_dim":2,'
                                 b'"activation":"silu"}',
    "refused-diffusion-layers": diffusion(num_layers=3),
    "refused-denoiser-of-mlp": config(denoiser="residual_mlp"),
    "refused-denoiser": diffusion(denoiser="unet"),
    "refused-hidden": diffusion(hidden_dim=4097),
    "refused-blocks": diffusion(num_blocks=0),
    "accepted-prefix": diffusion(tensor_prefix="diffloss.net."),
    "refused-prefix-empty": diffusion(tensor_prefix=""),
    "refused-prefix-control": diffusion(tensor_prefix="net\n"),
    "refused-embedding-odd": diffusion(time_embedding_dim=127),
    "refused-steps-none": diffusion(num_inference_steps=[]),
    "refused-steps-many": diffusion(num_inference_steps=list(range(1, 10))),
    "refused-steps-twice": diffusion(num_inference_steps=[10, 20, 10]),
    "refused-steps-above": diffusion(num_inference_steps=65537),
    "refused-two-conditions": diffusion(num_classes=10, conditioning_dim=7),
    "refused-decoder-many": diffusion(decoder_widths=[1] * 9),
    "refused-decoder-parameters": diffusion(decoder_widths=[65536] * 8),
    "refused-decoder-activation": diffusion(decoder_activation="silu"),
    "refused-eta": diffusion(eta=1.5),
    "refused-image": diffusion(image_shape=[2, 2]),
    "refused-image-channels": diffusion(image_shape=[1, 1, 2]),
    "refused-modulation": diffusion(hidden_dim=4096, num_blocks=8,
                                    num_inference_steps=[65535, 2]),
    "refused-empty": b"",
    "refused-array": b"[]",
    "refused-missing": b'{"model_type":"mlp"}',
    "refused-unknown": config(layers=3),
    "refused-duplicate": config()[:-1] + b',"state_dim":4}',
    "refused-zero": config(state_dim=0),
    "refused-negative": config(num_layers=-1),
    "refused-float": config(input_dim=3.0),
    "refused-huge": config(num_layers=2**64),
    "refused-overflow": config()[:-1] + b',"max_batch_size":1e999}',
    "refused-nan": config()[:-1] + b',"residual_scale":NaN}',
    "refused-scale-of-mlp": config(residual_scale=0.5),
    "refused-labels": config(labels=["one"]),
    "refused-deep": config()[:-1] + b',"labels":' + b"[" * 64,
    "refused-trailing": config() + b"x",
    "refused-nul": config() + b"\0",
    "refused-not-utf8": config()[:-1] + b',"labels":["a","\xff"]}',
}


if __name__ == "__main__":
    corpus_files.write("weights", WEIGHTS)
    corpus_files.write("config", CONFIG)
