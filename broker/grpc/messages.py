"""Messages of the schema and stored messages: what stands for what, in both directions
(docs/internals/grpc.md#properties). Senders and receivers both go through here."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.progress import QueueProgress
from broker.client.records import received as messages_of
from broker.grpc._http2 import Deliveries, Sends
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from pystore.compression import inflate

__all__ = [
    "HALF", "RESERVED", "Kind", "Outgoing", "delivery", "delivery_at_once", "incoming",
    "is_compressed", "kind_of", "message_of", "millis", "outgoing", "plain_delivery",
    "plain_sends", "set_millis", "unzipped_at_once", "usual_delivery",
]  # fmt: skip

Kind = pb.MessageType
#: Of sysFlag.
HALF = 4

#: Names that the store gives a meaning to, which users may not set. Upstream forgets the last
#: eight.
RESERVED = frozenset(
    (
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC",
        "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID",
        "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
        "UNIQ_KEY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET",
        "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID",
        "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER",
        "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "__BORNHOST", "BORN_TIMESTAMP", "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#", "TIMER_DELIVER_MS", "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES", "TIMER_ROLL_LABEL", "TIMER_DEL_UNIQKEY", "TIMER_DEL_FLAG",
        "__transactionId__", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "__SHARDINGKEY", "TRACE_CONTEXT", "INNER_NUM", "REDIRECT", "INNER_MULTI_DISPATCH",
    )
)  # fmt: skip
#: Consumers see these all the same, as Apache's do.
_SHOWN = frozenset(("__SHARDINGKEY", "__transactionId__", "TRANSACTION_CHECK_TIMES"))
_HIDDEN = RESERVED - _SHOWN
_DELAYS = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
_MS = 1_000_000
#: Where a record has its born host, and the bits of sysFlag that say how wide its hosts are
#: (docs/internals/format.md#record).
_BORN_HOST_AT, _BORN_V6, _STORE_V6 = 48, 0x10, 0x20
#: sysFlag of a record, and its bit that says that the body is compressed.
_SYS_FLAG_AT, _COMPRESSED = 36, 1
#: Bytes of a compressed body, and what it may become, that is inflated at once: it takes less time
#: than to have another thread do it.
_ZIPPED_SMALL, _SMALL = 8 << 10, 32 << 10
#: Bytes that a stored body may become here; a client inflates a longer one by itself.
_INFLATED_MAX = 4 << 20


def millis(stamp: Any) -> int:
    """A Timestamp or a Duration in ms."""
    ms: int = stamp.seconds * 1000 + stamp.nanos // _MS
    return ms


def set_millis(stamp: Any, ms: int) -> None:
    """Writes ms into a Timestamp or a Duration."""
    stamp.seconds, rest = divmod(ms, 1000)
    stamp.nanos = rest * _MS


def kind_of(properties: Mapping[str, str]) -> int:
    """The message type that stored properties make, in upstream's order."""
    if properties.get("TRAN_MSG", "").lower() == "true":
        return int(Kind.TRANSACTION)
    if any(properties.get(name) for name in _DELAYS):
        return int(Kind.DELAY)
    return int(Kind.FIFO if properties.get("__SHARDINGKEY") else Kind.NORMAL)


# ---- from a client ----


class Outgoing(NamedTuple):
    """A message as the broker takes it. kind: of MessageType. group: of an ordered message."""

    topic: str
    message_id: str
    body: bytes
    properties: dict[str, str]
    sys_flag: int
    born_ms: int
    kind: int
    group: str


def outgoing(message: Any, host: str, body_max: int) -> Outgoing:
    """A pb.Message that was found to be right. host: of the client, for one that names none.
    body_max: bytes that a compressed body may become.

    Raises: Problem for a compressed body that cannot be read.
    """
    system, topic = message.system_properties, message.topic.name
    properties = {"UNIQ_KEY": system.message_id}
    if system.tag:
        properties["TAGS"] = system.tag
    if system.keys:
        properties["KEYS"] = " ".join(system.keys)
    properties.update(message.user_properties)
    if system.message_group:
        properties["__SHARDINGKEY"] = system.message_group
    if system.trace_context:
        properties["TRACE_CONTEXT"] = system.trace_context
    born_ms = millis(system.born_timestamp) or time.time_ns() // _MS
    properties["PGROUP"] = topic  # producers of RocketMQ 5 have no group: their topics are
    properties["RECONSUME_TIME"] = str(system.delivery_attempt)
    properties["__BORNHOST"] = system.born_host or host
    properties["BORN_TIMESTAMP"] = str(born_ms)
    sys_flag = 0
    if system.message_type == Kind.TRANSACTION:
        sys_flag = HALF
        properties["TRAN_MSG"] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties["TIMER_DELIVER_MS"] = str(millis(system.delivery_timestamp))
    body = message.body
    if system.body_encoding == pb.Encoding.GZIP:
        body = _unzipped(body, body_max)
    return Outgoing(
        topic, system.message_id, body, properties, sys_flag, born_ms, kind_of(properties),
        system.message_group,
    )  # fmt: skip


def _unzipped(body: bytes, body_max: int) -> bytes:
    """Clients of the remoting protocol cannot read gzip: it is stored as it was before."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        made = stream.decompress(body, body_max + 1)
    except zlib.error as bad:
        raise Problem(Code.MESSAGE_CORRUPTED, f"the body is not gzip: {bad}") from None
    if len(made) > body_max:
        raise Problem(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {body_max}")
    if not stream.eof:
        raise Problem(Code.MESSAGE_CORRUPTED, "the body's gzip stream is truncated")
    return made


def unzipped_at_once(body: bytes) -> bytes | None:
    """The body before it was compressed, when it is a small one, as most are; None: others may take
    long, or cannot be read."""
    if len(body) > _ZIPPED_SMALL:
        return None
    try:
        return _unzipped(body, _SMALL)
    except Problem:
        return None


def plain_sends(limits: ProxySettings) -> Sends:
    """Reads the requests that need none of this: outgoing() and the checks before it, in C."""
    return Sends(
        tuple(name.encode() for name in sorted(RESERVED)),
        body_max=limits.body_max,
        texts_max=limits.properties_max,
        user_max=limits.property_count_max,
        group_max=limits.group_max,
        recovery_max_s=limits.recovery_max_s,
        delay_max_ms=limits.delay_max_ms,
    )


# ---- to a client ----


#: delivery() of a record that is not unusual; None for others (csrc/http2/delivery.h).
plain_delivery = Deliveries(tuple(name.encode() for name in sorted(_HIDDEN))).message


def delivery_at_once(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes | None:
    """The reply of ReceiveMessage that hands out a stored record; None: its body is to be inflated,
    which is not for the event loop. topic: that it is shown with. Raises: ValueError for bytes that
    are not a record."""
    plain = plain_delivery(record, topic, receipt, attempt)
    if plain is not None:
        return plain
    is_compressed = int.from_bytes(record[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big") & _COMPRESSED
    return None if is_compressed else usual_delivery(record, topic, receipt, attempt)


async def delivery(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes:
    """The same, of every record."""
    made = delivery_at_once(record, topic, receipt, attempt)
    if made is None:
        copy = memoryview(bytes(record))
        made = await asyncio.to_thread(usual_delivery, copy, topic, receipt, attempt)
    return made


def usual_delivery(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes:
    """The same by protobuf, whatever it takes."""
    made = incoming(message_of(record), topic)
    made.system_properties.receipt_handle = receipt
    made.system_properties.delivery_attempt = attempt
    reply: bytes = pb.ReceiveMessageResponse(message=made).SerializeToString()
    return reply


def message_of(record: memoryview) -> ReceivedMessage:
    """Raises: ValueError for bytes that are not a record."""
    (only,) = messages_of(bytes(record), QueueProgress(MessageQueue("", "", -1), 0))
    return only


def incoming(received: ReceivedMessage, topic: str | None = None) -> Any:
    """A stored message as pb.Message. topic: that it is shown with; None: the stored one. Receipt
    handle, invisible time and the attempt of an ordered group are the caller's. A compressed body
    takes long: is_compressed()."""
    properties, head = received.properties, received.head
    body, encoding = _body(received)
    made = pb.Message(body=body)
    made.topic.name = topic if topic is not None else received.stored_topic
    system = made.system_properties
    system.message_id = received.message_id
    if tag := properties.get("TAGS"):
        system.tag = tag
    system.keys.extend(properties.get("KEYS", "").split())
    system.body_digest.type = pb.DigestType.MD5
    digest = hashlib.md5(body, usedforsecurity=False)
    system.body_digest.checksum = digest.hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = kind_of(properties)
    set_millis(system.born_timestamp, _number(properties.get("BORN_TIMESTAMP"), head.born_ms))
    born_host, system.store_host = _hosts(received)
    system.born_host = properties.get("__BORNHOST") or born_host
    set_millis(system.store_timestamp, head.store_ms)
    at = _number(properties.get("TIMER_DELIVER_MS") or properties.get("TIMER_OUT_MS"), 0)
    if at:
        set_millis(system.delivery_timestamp, at)
    system.queue_id, system.queue_offset = head.queue, head.queue_offset
    system.delivery_attempt = head.reconsume_times + 1
    if group := properties.get("__SHARDINGKEY"):
        system.message_group = group
    if trace := properties.get("TRACE_CONTEXT"):
        system.trace_context = trace
    for name, value in properties.items():
        if name not in _HIDDEN:
            made.user_properties[name] = value
    return made


def is_compressed(received: ReceivedMessage) -> bool:
    return bool(received.head.sys_flag & _COMPRESSED)


def _body(received: ReceivedMessage) -> tuple[bytes, int]:
    """The body and its encoding. It is inflated here, as no client knows all of the kinds; one that
    cannot be, or becomes too long, is left to the client, as Apache's proxy leaves all of them."""
    raw, flag = bytes(received.body_view), received.head.sys_flag
    if not flag & _COMPRESSED:
        return raw, pb.Encoding.IDENTITY
    with contextlib.suppress(ValueError):
        return inflate((flag >> 8) & 7, raw, _INFLATED_MAX), pb.Encoding.IDENTITY
    if raw.startswith(b"\x1f\x8b"):  # Apache's proxy stores what its clients have compressed
        with contextlib.suppress(Problem):
            return _unzipped(raw, _INFLATED_MAX), pb.Encoding.IDENTITY
    return raw, pb.Encoding.GZIP


def _hosts(received: ReceivedMessage) -> tuple[str, str]:
    """Born host and store host of a record, as ``host:port``."""
    record, sys_flag = received.record, received.head.sys_flag
    born, at = _host(record, _BORN_HOST_AT, sys_flag & _BORN_V6)
    stored, _ = _host(record, at + 8, sys_flag & _STORE_V6)
    return born, stored


def _host(record: memoryview, at: int, is_v6: int) -> tuple[str, int]:
    """An address and where it ends."""
    end = at + (16 if is_v6 else 4)
    host = str(ipaddress.ip_address(bytes(record[at:end])))
    port = int.from_bytes(record[end : end + 4], "big")
    return f"[{host}]:{port}" if is_v6 else f"{host}:{port}", end + 4


def _number(text: str | None, default: int) -> int:
    """A property as a number of ms that a Timestamp can hold."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 14:
        return default
    return int(text)
