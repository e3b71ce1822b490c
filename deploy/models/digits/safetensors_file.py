# SPDX-License-Identifier: Apache-2.0
"""Reads and writes float32 tensors in the safetensors layout.

u64 little-endian header length, JSON header padded with spaces to 8 bytes, then the data,
contiguous and row-major.
"""

import json
import math
import pathlib
import struct

import numpy as np


def write(path: pathlib.Path, tensors: dict) -> None:
    """Writes float32 arrays by name; refuses any other type and any value that is not finite."""
    header, chunks, offset = {}, [], 0
    for name in sorted(tensors):
        array = tensors[name]
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite float32, got {array.dtype}")
        chunk = np.ascontiguousarray(array).astype("<f4").tobytes()
        end = offset + len(chunk)
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, end]}
        chunks.append(chunk)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read(path: pathlib.Path) -> dict:
    """Reads what write() wrote; for files of our own making only."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    data = content[8 + length:]
    tensors = {}
    for name, entry in json.loads(content[8:8 + length]).items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] != "F32" or end - begin != 4 * math.prod(entry["shape"]):
            raise ValueError(f"{path}: {name}: not a float32 tensor of its shape")
        tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors
