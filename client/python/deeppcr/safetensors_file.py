# SPDX-License-Identifier: Apache-2.0
"""Writes model.safetensors and its like: a header in JSON, then the values."""

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
