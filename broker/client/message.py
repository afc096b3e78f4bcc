"""Messages as users see them: to send, and received."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from broker.client._messages import Received, bind
from broker.wire.mqjson import MessageQueue
from pystore.format.compression import inflate
from pystore.format.names import RETRY_PREFIX
from pystore.format.properties import LITE_TOPIC, PRIORITY, parse_properties
from pystore.format.records import RecordHead, head_of
from pystore.native import address_of, ffi, lib

__all__ = ["Message", "MessageQueue", "ReceivedMessage", "SendResult", "SendStatus"]

_COMPRESSED = 1


@dataclass(slots=True)
class Message:
    """A message to send.

    topic, body: what it is about, and its content. tags: one tag, which consumers select by.
    keys: words that tools find it by. properties: the user's own names and values. delay_level:
    1 to 18 of the broker's ``messageDelayLevel`` (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h); 0: at once.
    delay: a timedelta, which the broker's clock counts from its arrival, or a datetime with a time
    zone; for brokers with timers. deliver_at_ms: the same, in ms since 1970. flag: the user's own.
    wait_stored: False lets the broker answer before its disk or slave has the message. priority:
    0 or more, of a message to a topic of type PRIORITY: it goes to the queue of that number, the
    last one if there are fewer, and consumers that pop get the larger numbers first. lite_topic:
    which of a topic of type LITE, by its name of at most 64 letters, digits, - and _; the first
    message makes it, and LiteConsumer reads it.

    >>> from broker import Message
    >>> Message("orders", b"12 apples", tags="fruit", keys="order-17").keys
    'order-17'
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    deliver_at_ms: int | None = None
    delay: timedelta | datetime | None = None
    flag: int = 0
    wait_stored: bool = True
    priority: int | None = None
    lite_topic: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the message asks for a time or a delay."""
        return bool(self.delay_level or self.deliver_at_ms is not None or self.delay is not None)


class SendStatus(enum.Enum):
    """How safely a message was stored. All four mean that it is in the broker's log.

    >>> from broker import Message, Producer, SendStatus
    >>> with Producer("orders-api") as producer:
    ...     producer.send(Message("orders", b"12 apples")).status is SendStatus.SEND_OK
    True
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(NamedTuple):
    """Where a message was stored.

    message_id: the unique key that the client gave it. offset_message_id: the broker's address and
    the place in its log. queue_offset: of a half message, its offset in the half queue; of one with
    a time of its own, in the timers' queue. recall_handle: what takes such a message back.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api") as producer:
    ...     result = producer.send(Message("letters", b"first"))
    >>> result.queue.topic, result.queue_offset
    ('letters', 0)
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


class ReceivedMessage(Received):
    """A message that was pulled. Everything but the offsets is decoded when it is first asked for.

    queue_offset: its place in the queue. physical_offset: its place in the broker's log. Times are
    milliseconds since 1970.

    >>> from broker import Consumer, Message, Producer
    >>> with Producer("orders-api") as producer:
    ...     result = producer.send(Message("bread", b"2 loaves", tags="rye", keys="order-18"))
    >>> with Consumer("bakery", "bread", start="first") as consumer:
    ...     message = next(iter(consumer))
    >>> message.body, message.tags, message.keys, message.attempt
    (b'2 loaves', 'rye', ['order-18'], 1)
    >>> message.message_id == result.message_id
    True
    """

    __slots__ = ()

    @property
    def head(self) -> RecordHead:
        """The fields of its record."""
        if self._head is None:
            self._head = head_of(self._rows, self._index)
        return self._head

    @property
    def physical_offset(self) -> int:
        return self.head.physical_offset

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from; of a repeat, a queue of the group's retry topic."""
        return self.progress.queue

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes again after a failure."""
        topic = self.progress.queue.topic
        if topic.startswith(RETRY_PREFIX):
            topic = self.properties.get("RETRY_TOPIC", topic)
        return self.progress.shown(topic)

    @property
    def body(self) -> bytes:
        """The content, inflated when it was compressed. Raises: ValueError when that is damaged."""
        if self._body is None:
            head = self.head
            raw = self._data[head.body_start : head.body_end]
            compressed = head.sys_flag & _COMPRESSED
            self._body = inflate((head.sys_flag >> 8) & 7, raw) if compressed else raw
        return self._body

    @property
    def body_view(self) -> memoryview:
        """The stored bytes without a copy, compressed or not."""
        head = self.head
        return memoryview(self._data)[head.body_start : head.body_end]

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, those of the protocol among them."""
        if self._properties is None:
            head = self.head
            start = head.properties_at
            self._properties = parse_properties(self._data[start : start + head.properties_len])
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return self.properties.get("KEYS", "").split()

    @property
    def message_id(self) -> str:
        """The unique key that the sending client gave it, else the offset id."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def priority(self) -> int | None:
        """Its priority; None for a message that was sent without one."""
        text = self.properties.get(PRIORITY, "")
        return int(text) if text.isdecimal() else None

    @property
    def lite_topic(self) -> str | None:
        """The lite topic that it was sent to; None for a message that was sent without one."""
        return self.properties.get(LITE_TOPIC)

    @property
    def transaction_id(self) -> str:
        """The unique key of a message sent in a transaction."""
        return self.message_id

    @property
    def offset_message_id(self) -> str:
        head = self.head
        host = self._data[head.host_at : head.host_at + head.host_len]
        return f"{host.hex()}{head.physical_offset:016x}".upper()

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group: 1 the first time. Upstream's reconsumeTimes
        counts from 0."""
        return self.head.reconsume_times + 1

    @property
    def flag(self) -> int:
        return self.head.flag

    @property
    def born_timestamp(self) -> int:
        return self.head.born_ms

    @property
    def store_timestamp(self) -> int:
        return self.head.store_ms

    @property
    def record(self) -> memoryview:
        """The whole record in its stored format."""
        return memoryview(self._data)[self.head.at : self.head.end]

    @property
    def stored_topic(self) -> str:
        """The topic that its record names."""
        head = self.head
        return str(self._data[head.topic_at : head.topic_at + head.topic_len], "utf-8", "replace")

    def __repr__(self) -> str:
        q = self.progress.queue
        return f"<ReceivedMessage {q.topic}/{q.queue}@{self.queue_offset} of {q.broker}>"


bind(
    Message, SendResult, ReceivedMessage, SendStatus.SEND_OK,
    address_of(ffi.addressof(lib, "ps_conn_send")),
)  # fmt: skip
