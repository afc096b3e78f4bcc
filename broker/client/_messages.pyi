"""What broker/client/_messages.c offers."""

from collections.abc import Iterator
from typing import Literal, Self

from broker.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from broker.client.progress import QueueProgress
from pystore.format.records import RecordHead

class Received:
    """What ReceivedMessage keeps. data: what the record stands in. rows, index: where its fields
    are (pystore.format.records.head_of). progress: what its consumer knows of the queue; of no use
    to others. The others are None until somebody asks."""

    _head: RecordHead | None
    _properties: dict[str, str] | None
    _body: bytes | None
    progress: QueueProgress

    def __new__(
        cls, data: bytes, rows: bytes, index: int, queue_offset: int, progress: QueueProgress
    ) -> Self: ...
    @property
    def _data(self) -> bytes: ...
    @property
    def _rows(self) -> bytes: ...
    @property
    def _index(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...

def bind(
    message: type[Message],
    result: type[SendResult],
    received: type[ReceivedMessage],
    stored: SendStatus,
    send: int,
    /,
) -> None:
    """The classes, SendStatus.SEND_OK and the address of ps_conn_send; once, before anything
    else."""

def encode(
    messages: list[Message],
    start: int,
    body_max: int,
    bytes_max: int,
    key_start: str,
    numbers: Iterator[int],
    /,
) -> list[tuple[bytes, list[str]]] | None:
    """Batches of the messages from number `start` on, at most 30,000 of them: the body of each, of
    at most bytes_max bytes or one message, and the unique keys of what is in it. key_start: of each
    key but for four digits, which are made of the next of `numbers`. None: one of them is not
    plain, or may not be sent: it has properties of its own, several keys, a time, another topic
    than the first."""

def results(
    status: SendStatus, keys: list[str], ids: str, queue: MessageQueue, first: int, /
) -> list[SendResult]:
    """Of the messages of one batch. ids: with commas between them. first: offset of the first."""

def received(data: bytes, rows: bytes, progress: QueueProgress, /) -> list[ReceivedMessage]:
    """A message for each row."""

def send_plain(
    at: tuple[int, int],
    signer: int,
    base: bytes,
    opaque: int,
    message: Message,
    topic: str,
    body_max: int,
    key: str,
    queue: MessageQueue,
    /,
) -> SendResult | Literal[False] | None:
    """ps_conn_send of one message. at: see Framer.direct. signer: its address, or 0. base: see
    Target. topic: that the message must have. body_max: bytes of its body at most. key: its unique
    key. queue: that base names. False: it was taken, and the answer comes later. None: nothing has
    happened; it is not plain (see encode), or the core does not take it this way."""

def send_prepared(
    at: tuple[int, int],
    signer: int,
    base: bytes,
    opaque: int,
    sys_flag: int,
    flag: int,
    born_ms: int,
    properties: bytes,
    body: bytes,
    /,
) -> tuple[int, int, int, str, str] | Literal[False] | None:
    """The same of a request that Python has prepared. The answer's code, queue, offset, ids and
    transaction."""
