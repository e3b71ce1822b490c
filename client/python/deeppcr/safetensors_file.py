# SPDX-License-Identifier: Apache-2.0
"""Files of tensors, as model.safetensors: a header in JSON, then the values."""

from __future__ import annotations

import json
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Any]) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Arrays by name; bfloat16 as the float32 of the same value. Errors: OSError, ValueError."""
    content = pathlib.Path(path).read_bytes()
    if len(content) < 8:
        raise ValueError(f"{path}: not a safetensors file: it has {len(content)} bytes")
    (size,) = struct.unpack("<Q", content[:8])
    if size > len(content) - 8:
        raise ValueError(f"{path}: not a safetensors file: its header is cut off")
    header = json.loads(content[8 : 8 + size])
    data = memoryview(content)[8 + size :]
    types = {name: np.dtype(of) for of, name in _NAMES.items()}
    tensors: dict[str, Any] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            array = bits.view(np.float32)
        elif entry["dtype"] in types:
            array = np.frombuffer(data[begin:end], types[entry["dtype"]].newbyteorder("<"))
        else:
            raise ValueError(
                f"{path}: {name} has the type {entry['dtype']}, which is not read here"
            )
        tensors[name] = array.reshape(entry["shape"]).copy()
    return tensors
