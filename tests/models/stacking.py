# SPDX-License-Identifier: Apache-2.0
"""The weights of a stack of blocks, as its model.safetensors has them."""

import json
import struct

import numpy as np
import torch


def stacked(blocks, shared=()):
    """Parameters of blocks of one form by their names, [L, ...] each; without the shared ones."""
    return {key: torch.stack([dict(block.named_parameters())[key] for block in blocks])
            for key, _ in blocks[0].named_parameters() if key not in shared}


def write_safetensors(path, tensors):
    """Tensors of PyTorch or arrays, of float32 or float64."""
    header, data = {}, b''
    for name, tensor in tensors.items():
        array = tensor.detach().numpy() if isinstance(tensor, torch.Tensor) else tensor
        wide = array.dtype == np.float64
        array = np.ascontiguousarray(array, dtype='<f8' if wide else '<f4')
        header[name] = {'dtype': 'F64' if wide else 'F32', 'shape': list(array.shape),
                        'data_offsets': [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)
