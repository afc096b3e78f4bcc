"""Messages of the schema and stored messages: what stands for what, in both directions
(docs/internals/grpc.md#properties). Senders and receivers both go through here."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import Any, NamedTuple

from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.progress import QueueProgress
from broker.client.records import received as messages_of
from broker.grpc._http2 import Deliveries, Sends
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from pystore.format.compression import inflate
from pystore.format.properties import LITE_TOPIC, PRIORITY
from pystore.native import lib

__all__ = [
    "HALF", "RESERVED", "Kind", "Outgoing", "delivery", "delivery_at_once", "incoming",
    "is_compressed", "message_of", "millis", "outgoing", "plain_sends", "set_millis",
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
        LITE_TOPIC, PRIORITY,
    )
)  # fmt: skip
#: Consumers see these all the same, as Apache's do.
_SHOWN = frozenset(("__SHARDINGKEY", "__transactionId__", "TRANSACTION_CHECK_TIMES"))
_HIDDEN = RESERVED - _SHOWN
_MS = 1_000_000
#: sysFlag of a record, and its bit that says that the body is compressed.
_SYS_FLAG_AT, _COMPRESSED = int(lib.PS_AT_SYS_FLAG), int(lib.PS_SYS_COMPRESSED)
#: Bytes of a compressed body, and what it may become, that is inflated at once: it takes less time
#: than to have another thread do it.
_ZIPPED_SMALL, _SMALL = 8 << 10, 32 << 10
#: Bytes that a stored body may become here; a client inflates a longer one by itself.
_INFLATED_MAX = 4 << 20


def millis(stamp: Any) -> int:
    """Returns a Timestamp or a Duration in ms."""
    ms: int = stamp.seconds * 1000 + stamp.nanos // _MS
    return ms


def set_millis(stamp: Any, ms: int) -> None:
    """Writes ms into a Timestamp or a Duration."""
    stamp.seconds, rest = divmod(ms, 1000)
    stamp.nanos = rest * _MS


# ---- from a client ----


class Outgoing(NamedTuple):
    """A message as the broker takes it. properties: as they are stored. kind: of MessageType.
    key: the message group or the lite topic, of which all are in one queue; empty: any."""

    topic: str
    message_id: str
    body: bytes
    properties: bytes
    born_ms: int
    kind: int
    key: str

    @property
    def sys_flag(self) -> int:
        return HALF if self.kind == Kind.TRANSACTION else 0


def outgoing(sends: Sends, message: Any, host: str, body_max: int) -> Outgoing:
    """Returns a pb.Message that was found to be right. host: of the client, for one that names
    none. body_max: bytes that a compressed body may become.

    Raises: Problem for a compressed body that cannot be read.
    """
    message.DiscardUnknownFields()
    made = sends.read(pb.SendMessageRequest(messages=[message]).SerializeToString(), host)
    if made is None:
        raise Problem(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "all properties of a message, its id among them, are more than 32767 bytes, or more"
            " than 1024",
        )
    topic, message_id, properties, body, born_ms, kind, key, zipped = made
    if zipped:
        body = _unzipped(body, body_max)
    return Outgoing(topic, message_id, body, properties, born_ms, kind, key)


def _unzipped(body: bytes, body_max: int) -> bytes:
    """Returns the body as it was before gzip, which clients of the remoting protocol cannot
    read."""
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


def plain_sends(limits: ProxySettings) -> Sends:
    """Reads requests of one message (csrc/messaging/message.h)."""
    return Sends(
        tuple(name.encode() for name in sorted(RESERVED)),
        body_min=1 if limits.refuse_empty_body else 0,
        body_max=limits.body_max,
        texts_max=limits.properties_max,
        user_max=limits.property_count_max,
        group_max=limits.group_max,
        lite_max=limits.lite_max,
        recovery_max_s=limits.recovery_max_s,
        delay_max_ms=limits.delay_max_ms,
    )


# ---- to a client ----


#: Composes them (csrc/messaging/delivery.h).
DELIVERIES = Deliveries(tuple(name.encode() for name in sorted(_HIDDEN)))
_compose = DELIVERIES.message


def delivery_at_once(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes | None:
    """Returns the reply of ReceiveMessage that hands out a stored record; None: its body is to be
    inflated, which is not for the event loop. topic: that it is shown with. Raises: ValueError for
    bytes that are not a record."""
    inflated = None
    if int.from_bytes(record[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big") & _COMPRESSED:
        inflated = _inflated_at_once(message_of(record))
        if inflated is None:
            return None
    return _compose(record, topic, receipt, attempt, pb.Encoding.IDENTITY, inflated)


async def delivery(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes:
    """Returns the same, of every record."""
    made = delivery_at_once(record, topic, receipt, attempt)
    if made is None:
        copy = memoryview(bytes(record))
        made = await asyncio.to_thread(_inflated_delivery, copy, topic, receipt, attempt)
    return made


def _inflated_delivery(record: memoryview, topic: str, receipt: str, attempt: int) -> bytes:
    """Returns the same, whatever it takes."""
    body, encoding = _body(message_of(record))
    return _compose(record, topic, receipt, attempt, encoding, body)


def message_of(record: memoryview) -> ReceivedMessage:
    """Makes the message of a record. Raises: ValueError for bytes that are not a record."""
    (only,) = messages_of(bytes(record), QueueProgress(MessageQueue("", "", -1), 0))
    return only


def incoming(received: ReceivedMessage, topic: str | None = None) -> Any:
    """Returns a stored message as pb.Message, without receipt handle. topic: that it is shown with;
    None: the stored one. A compressed body takes long: is_compressed()."""
    name = topic if topic is not None else received.stored_topic
    attempt = received.head.reconsume_times + 1
    data = _inflated_delivery(received.record, name, "", attempt)
    return pb.ReceiveMessageResponse.FromString(data).message


def is_compressed(received: ReceivedMessage) -> bool:
    return bool(received.head.sys_flag & _COMPRESSED)


def _inflated_at_once(received: ReceivedMessage) -> bytes | None:
    """Returns the body of a compressed message when it is a small one, as most are; None: others
    may take long, or cannot be read."""
    if len(received.body_view) > _ZIPPED_SMALL:
        return None
    try:
        return inflate((received.head.sys_flag >> 8) & 7, bytes(received.body_view), _SMALL)
    except ValueError:
        return None


def _body(received: ReceivedMessage) -> tuple[bytes | None, int]:
    """Returns the body where it is not the stored one, and its encoding. It is inflated here, as no
    client knows all of the kinds; one that is malformed, or becomes too long, is left to the
    client, as Apache's proxy leaves all of them."""
    if not is_compressed(received):
        return None, pb.Encoding.IDENTITY
    raw, flag = bytes(received.body_view), received.head.sys_flag
    with contextlib.suppress(ValueError):
        return inflate((flag >> 8) & 7, raw, _INFLATED_MAX), pb.Encoding.IDENTITY
    if raw.startswith(b"\x1f\x8b"):  # Apache's proxy stores what its clients have compressed
        with contextlib.suppress(Problem):
            return _unzipped(raw, _INFLATED_MAX), pb.Encoding.IDENTITY
    return None, pb.Encoding.GZIP
