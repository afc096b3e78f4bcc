"""The messages of the schema as classes: ``from broker.grpc.schema import pb``.

They live in a descriptor pool of their own. In the usual one they would clash with those of the
official Python client, which has the same names, as soon as a process imports both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

__all__ = ["METHODS", "SERVICE", "DecodeError", "Method", "pb"]

_PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{_PACKAGE}.MessagingService"


class Method(SimpleNamespace):
    """One method of the service. request, reply: classes. streams_in, streams_out: whether many
    of them come."""

    name: str
    request: Any
    reply: Any
    streams_in: bool
    streams_out: bool


def _file(descriptors: bytes) -> bytes:
    """The one FileDescriptorProto of a FileDescriptorSet. To import its class would take as long as
    all the rest of this module."""
    size = shift = 0
    for at in range(1, len(descriptors)):
        size |= (descriptors[at] & 0x7F) << shift
        shift += 7
        if descriptors[at] < 0x80:
            break
    found = descriptors[at + 1 :]
    assert descriptors[0] == 0x0A and len(found) == size
    return found


def _load() -> tuple[Any, Mapping[str, Method]]:
    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_file(Path(__file__).with_name("messaging.binpb").read_bytes()))
    service = pool.FindServiceByName(SERVICE)
    class_of = message_factory.GetMessageClass
    found: dict[str, Any] = {
        name: class_of(each) for name, each in service.file.message_types_by_name.items()
    }
    for name in ("Duration", "Timestamp"):
        found[name] = class_of(pool.FindMessageTypeByName(f"google.protobuf.{name}"))
    for name, enum in service.file.enum_types_by_name.items():
        # A value by its name, as generated modules have it.
        found[name] = SimpleNamespace(**{each.name: each.number for each in enum.values})
    methods = {
        each.name: Method(
            name=each.name,
            request=class_of(each.input_type),
            reply=class_of(each.output_type),
            streams_in=each.client_streaming,
            streams_out=each.server_streaming,
        )
        for each in service.methods
    }
    return SimpleNamespace(**found), methods


#: Every message and every enum of the schema, by its name.
pb: Any
#: Every method of the service, by its name.
METHODS: Mapping[str, Method]
pb, METHODS = _load()
