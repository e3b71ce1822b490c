# SPDX-License-Identifier: Apache-2.0
"""Reads and evaluates denoiser.onnx in NumPy: the operators that our exports hold, and no others.

For files of our own making only. Protobuf's wire format is read by hand, so that nothing has to be
installed and nothing is shared with the server.
"""

import dataclasses
import pathlib
import struct

import numpy as np

_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}    # TensorProto


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data):
    """A message's fields: number -> list of values, bytes or integers."""
    found, at = {}, 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _varint(data, at)
            value, at = data[at:at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


def _texts(values):
    return [value.decode() for value in values]


def _integers(values):
    """Repeated integers, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(_signed(value))
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(_signed(number))
    return found


def _tensor(data):
    fields = _fields(data)
    kind = _TYPES[fields[2][0]]
    if 9 not in fields:
        raise ValueError("a tensor without raw data")
    return np.frombuffer(fields[9][0], kind).reshape(_integers(fields.get(1, [])))


def _attribute(fields):
    """The value of an AttributeProto: a float, an integer, a tensor or integers."""
    kind = fields[20][0]
    if kind == 1:
        return struct.unpack("<f", fields[2][0])[0]
    if kind == 2:
        return _signed(fields[3][0])
    if kind == 4:
        return _tensor(fields[5][0])
    if kind == 7:
        return _integers(fields.get(8, []))
    raise ValueError(f"an attribute of type {kind}")


def _gemm(a, b, c, alpha=1.0, beta=1.0, transA=0, transB=0):    # pylint: disable=invalid-name
    if (alpha, beta, transA) != (1.0, 1.0, 0):
        raise ValueError("Gemm: more than a linear layer")
    return a @ (b.T if transB else b) + c


def _sigmoid(a):
    # Computed through tanh, since exp(-a) would overflow in the tail.
    half = a.dtype.type(0.5)
    return half * (1 + np.tanh(half * a))


def _divide(a, b):
    return a // b if a.dtype.kind == "i" else a / b    # of sizes, which are not negative


def _slice(a, starts, ends, axes):
    index = [slice(None)] * a.ndim
    for start, end, axis in zip(starts, ends, axes):
        index[axis] = slice(start, end)
    return a[tuple(index)]


_OPERATORS = {
    "Add": np.add,
    "Cast": lambda a, to: a.astype(_TYPES[to]),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Constant": lambda value: value,
    "Cos": np.cos,
    "Div": _divide,
    "Gather": lambda table, rows, axis=0: np.take(table, rows, axis),
    "Gemm": _gemm,
    "Mul": np.multiply,
    "Pow": lambda a, power: np.power(a, a.dtype.type(power)),
    "ReduceMean": lambda a, axes, keepdims=1: a.mean(axis=tuple(axes), keepdims=bool(keepdims)),
    "Shape": lambda a: np.array(a.shape),
    "Sigmoid": _sigmoid,
    "Sin": np.sin,
    "Slice": _slice,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Unsqueeze": lambda a, axes: np.expand_dims(a, tuple(axes)),
}


@dataclasses.dataclass(frozen=True)
class _Node:
    operator: str
    inputs: list
    output: str
    attributes: dict


@dataclasses.dataclass(frozen=True)
class Graph:
    """Initialisers by name, and the nodes in the order of the file."""

    initializers: dict
    nodes: list
    inputs: list
    output: str

    def __call__(self, *arguments):
        """The output; a state in float64 is computed with in float64."""
        values = {**self.initializers, **dict(zip(self.inputs, arguments, strict=True))}
        for node in self.nodes:
            values[node.output] = _OPERATORS[node.operator](
                *(values[name] for name in node.inputs), **node.attributes)
        return values[self.output]


def _node(data):
    fields = _fields(data)
    attributes = map(_fields, fields.get(5, []))
    operator = fields[4][0].decode()
    if operator not in _OPERATORS:
        raise ValueError(f"operator {operator}: not one of {', '.join(_OPERATORS)}")
    return _Node(operator, _texts(fields.get(1, [])), fields[2][0].decode(),
                 {a[1][0].decode(): _attribute(a) for a in attributes})


def read(path: pathlib.Path) -> Graph:
    """The graph of a ModelProto."""
    graph = _fields(_fields(path.read_bytes())[7][0])
    initializers = {_fields(data)[8][0].decode(): _tensor(data) for data in graph.get(5, [])}
    inputs, outputs = ([_fields(data)[1][0].decode() for data in graph[field]]
                       for field in (11, 12))
    return Graph(initializers, [_node(data) for data in graph[1]], inputs, outputs[0])
