#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of onnx: tests/fuzz/make_onnx_corpus.py (no arguments, no packages).

The messages are encoded by hand, field by field as onnx.proto numbers them; files stay far below the
fuzzers' 4096 bytes, which exports do not.
"""

import struct

import corpus_files

FLOAT, INT64 = 1, 7


def varint(number):
    number &= (1 << 64) - 1
    out = b''
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def number(field, value):
    return varint(field << 3) + varint(value)


def piece(field, contents):
    contents = contents.encode() if isinstance(contents, str) else contents
    return varint(field << 3 | 2) + varint(len(contents)) + contents


def attribute(name, value):
    head = piece(1, name)
    if isinstance(value, float):
        return head + varint(2 << 3 | 5) + struct.pack('<f', value) + number(20, 1)
    if isinstance(value, int):
        return head + number(3, value) + number(20, 2)
    if isinstance(value, str):
        return head + piece(4, value) + number(20, 3)
    return head + b''.join(number(8, item) for item in value) + number(20, 7)


def node(op, inputs, outputs, **attributes):
    return piece(1, b''.join(piece(1, name) for name in inputs.split()) +
                 b''.join(piece(2, name) for name in outputs.split()) + piece(4, op) +
                 b''.join(piece(5, attribute(*item)) for item in attributes.items()))


def floats(name, shape, values):
    return piece(5, b''.join(number(1, extent) for extent in shape) + number(2, FLOAT) +
                 piece(8, name) + piece(9, struct.pack(f'<{len(values)}f', *values)))


def ints(name, values):
    return piece(5, number(1, len(values)) + number(2, INT64) +
                 piece(7, b''.join(map(varint, values))) + piece(8, name))


def value(field, name, shape, kind=FLOAT):
    dims = b''.join(piece(1, piece(2, 'N') if extent is None else number(1, extent))
                    for extent in shape)
    return piece(field, piece(1, name) + piece(2, piece(1, number(1, kind) + piece(2, dims))))


def model(*parts, opset=17, inputs=None):
    inputs = inputs or [value(11, 'x', (None, 4))]
    graph = b''.join(parts) + b''.join(inputs) + value(12, 'y', (None, 4))
    return number(1, 8) + piece(7, graph) + piece(8, number(2, opset))


X = value(11, 'x', (None, 4))
T = value(11, 't', (None,), INT64)
C = value(11, 'c', (None, 2))
LABEL = value(11, 'k', (None, 1), INT64)
W = floats('w', (4, 4), [i / 8 - 1 for i in range(16)])
B = floats('b', (4,), [1, 2, 3, 4])

CORPUS = {
    'accepted-gemm': model(W, B, node('Gemm', 'x w b', 'y', transB=1, alpha=0.5)),
    'accepted-mlp': model(W, B, node('Concat', 'x c', 'h', axis=1), node('Slice', 'h s e a', 'i'),
                          ints('s', [1]), ints('e', [5]), ints('a', [1]),
                          node('MatMul', 'i w', 'j'), node('Add', 'j b', 'k'),
                          node('Relu', 'k', 'y'), inputs=[X, C]),
    'accepted-time': model(floats('f', (2,), [1, 0.1]), ints('a', [1]),
                           node('Unsqueeze', 't a', 'u'), node('Cast', 'u', 'v', to=FLOAT),
                           node('Mul', 'v f', 'e'), node('Sin', 'e', 'p'), node('Cos', 'e', 'q'),
                           node('Concat', 'p q', 'r', axis=-1), node('Add', 'x r', 'y'),
                           inputs=[X, T]),
    'accepted-label': model(floats('rows', (3, 4), range(12)), node('Gather', 'rows k', 'g'),
                            node('Add', 'x g', 'y'), inputs=[X, LABEL]),
    'accepted-norms': model(B, node('LayerNormalization', 'x b b', 'h', axis=-1, epsilon=0.001),
                            node('Softmax', 'h', 'i'), node('ReduceMean', 'i', 'm', axes=[1]),
                            node('Sub', 'i m', 'j'), node('LeakyRelu', 'j', 'y', alpha=0.25)),
    'accepted-shapes': model(ints('s', [0, 2, -1]), node('Reshape', 'x s', 'h'),
                             node('Transpose', 'h', 'i', perm=[0, 2, 1]), node('Shape', 'x', 'z'),
                             node('Reshape', 'i z', 'j'), ints('p', [0, 1, 0, -1]),
                             node('Pad', 'j p', 'y')),
    'accepted-slice': model(ints('s', [0]), ints('e', [100]), ints('a', [1]),
                            node('Slice', 'x s e a', 'h'), node('Tanh', 'h', 'y')),
    'accepted-split': model(node('Split', 'x', 'a b', axis=1), node('Sigmoid', 'b', 'g'),
                            node('Mul', 'a g', 'h'), ints('r', [1, 2]), node('Tile', 'h r', 'y'),
                            opset=13),
    'accepted-einsum': model(W, node('Einsum', 'x w', 'y', equation='bi,oi->bo')),
    'accepted-range': model(floats('lo', (), [0]), floats('hi', (), [4]), floats('by', (), [1]),
                            node('Range', 'lo hi by', 'r'), node('Where', 'l x r', 'y'),
                            node('Less', 'x r', 'l')),
    'accepted-old': model(node('Clip', 'x', 'h', min=-1.0, max=1.0),
                          node('Slice', 'h', 'i', starts=[0], ends=[3], axes=[1]),
                          node('Softmax', 'i', 'y', axis=1), opset=9),
    'refused-empty': b'',
    'refused-cycle': model(node('Neg', 'h', 'y'), node('Neg', 'y', 'h')),
    'refused-undefined': model(node('Neg', 'gone', 'y')),
    'refused-operator': model(node('NonZero', 'x', 'y')),
    'refused-overflow': model(ints('s', [1 << 40, 1 << 40, 1]), node('Expand', 'x s', 'y')),
    'refused-huge': model(ints('s', [1 << 30, 1 << 10]), node('ConstantOfShape', 's', 'c'),
                          node('Add', 'x c', 'y')),
    'refused-product': model(node('Transpose', 'x', 'h'), node('MatMul', 'x h', 'y')),
    'refused-shape': model(floats('w', (4, 1 << 40), [1]), node('MatMul', 'x w', 'y')),
    'refused-nan': model(floats('w', (4,), [float('nan')] * 4), node('Mul', 'x w', 'y')),
    'refused-subgraph': model(piece(1, piece(2, 'y') + piece(4, 'If') +
                                    piece(5, piece(1, 'then_branch') + piece(6, b'') +
                                          number(20, 5)))),
    'refused-external': model(piece(5, number(1, 4) + number(2, FLOAT) + piece(8, 'w') +
                                    piece(13, piece(1, 'location') + piece(2, 'w.data')) +
                                    number(14, 1)), node('Mul', 'x w', 'y')),
}

corpus_files.write('onnx', CORPUS)
