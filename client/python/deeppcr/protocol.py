# SPDX-License-Identifier: Apache-2.0
"""The messages of deeppcr.v1, from descriptors: proto/deeppcr/v1/deeppcr.proto says what they mean.

Descriptors, unlike generated code, are read by every release of protobuf since 3.20.
"""

from __future__ import annotations

import importlib.resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "deeppcr.v1.DeepPcr"


def _load_pool() -> Any:
    """A pool of its own: another package may have put the same names into the default one."""
    data = importlib.resources.files(__package__).joinpath("protocol.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


_pool = _load_pool()
_factory = None if hasattr(message_factory, "GetMessageClass") else message_factory.MessageFactory()


def message_class(name: str) -> Any:
    """The class of a message by its name in deeppcr.v1, as `ForwardRequest`."""
    descriptor = _pool.FindMessageTypeByName(f"deeppcr.v1.{name}")
    if _factory is not None:
        return _factory.GetPrototype(descriptor)
    return message_factory.GetMessageClass(descriptor)


def enum_values(name: str) -> dict[str, int]:
    """Numbers of an enumeration by names without its prefix, in lower case."""
    values = _pool.FindEnumTypeByName(f"deeppcr.v1.{name}").values_by_name
    prefix = "".join("_" + c if c.isupper() else c.upper() for c in name).strip("_") + "_"
    return {value.removeprefix(prefix).lower(): values[value].number for value in values}


class Method:
    """One RPC: its path and the classes of its messages."""

    def __init__(self, descriptor: Any) -> None:
        self.name: str = descriptor.name
        self.path = f"/{SERVICE}/{descriptor.name}"
        self.request = message_class(descriptor.input_type.name)
        self.response = message_class(descriptor.output_type.name)
        self.streams = descriptor.name.startswith("Stream")


METHODS: dict[str, Method] = {
    method.name: Method(method) for method in _pool.FindServiceByName(SERVICE).methods
}
