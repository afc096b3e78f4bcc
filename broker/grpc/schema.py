"""The messages of the schema as classes: ``from broker.grpc.schema import pb``.

They live in a descriptor pool of their own. In the usual one they would clash with those of the
official Python client, which has the same names, as soon as a process imports both.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

from broker.grpc._http2 import count_fields

__all__ = ["METHODS", "SERVICE", "DecodeError", "Method", "pb"]

#: Of one request, those of all messages in it included: a batch of some thousand messages has as
#: many, and to parse them takes some milliseconds.
_FIELDS_MAX = 100_000
#: See PS_PROTO_PACKED; types of fields that are never packed: texts and bytes.
_PACKED, _LONG = -1, (9, 12)

_PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{_PACKAGE}.MessagingService"


class Method(SimpleNamespace):
    """One method of the service. request, reply: classes. streams_in, streams_out: whether many
    of them come. kind: of its request, among the shapes."""

    name: str
    request: Any
    reply: Any
    streams_in: bool
    streams_out: bool
    kind: int

    def parse(self, data: bytes) -> Any:
        """Reads a request. Raises: DecodeError."""
        if len(data) > _FIELDS_MAX and count_fields(data, _SHAPES, self.kind, _FIELDS_MAX) > (
            _FIELDS_MAX
        ):
            raise DecodeError(f"it has more than {_FIELDS_MAX} fields: send less at once")
        return self.request.FromString(data)


def _shapes(requests: Iterable[Any]) -> tuple[bytes, dict[str, int]]:
    """Returns what count_fields() needs to know of the messages that requests are made of, and the
    number of each by its name."""
    kinds: dict[str, int] = {}
    pairs: list[list[int]] = []

    def kind_of(message: Any) -> int:
        known = kinds.get(message.full_name)
        if known is not None:
            return known
        kinds[message.full_name] = number = len(pairs)
        pairs.append(own := [])
        for field in message.fields:
            if field.message_type is not None:
                own += [field.number, kind_of(field.message_type)]
            elif field.default_value == [] and field.type not in _LONG:
                own += [field.number, _PACKED]
        return number

    for each in requests:
        kind_of(each)
    at, made = len(pairs) + 1, array("i")
    for own in pairs:
        made.append(at)
        at += len(own)
    made.append(at)
    for own in pairs:
        made.extend(own)
    return made.tobytes(), kinds


def _file(descriptors: bytes) -> bytes:
    """Returns the one FileDescriptorProto of a FileDescriptorSet. To import its class would take as
    long as all the rest of this module."""
    size = shift = 0
    for at in range(1, len(descriptors)):
        size |= (descriptors[at] & 0x7F) << shift
        shift += 7
        if descriptors[at] < 0x80:
            break
    found = descriptors[at + 1 :]
    assert descriptors[0] == 0x0A and len(found) == size
    return found


def _load() -> tuple[Any, Mapping[str, Method], bytes]:
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
    shapes, kinds = _shapes(each.input_type for each in service.methods)
    methods = {
        each.name: Method(
            name=each.name,
            request=class_of(each.input_type),
            reply=class_of(each.output_type),
            streams_in=each.client_streaming,
            streams_out=each.server_streaming,
            kind=kinds[each.input_type.full_name],
        )
        for each in service.methods
    }
    return SimpleNamespace(**found), methods, shapes


#: Every message and every enum of the schema, by its name.
pb: Any
#: Every method of the service, by its name.
METHODS: Mapping[str, Method]
pb, METHODS, _SHAPES = _load()
