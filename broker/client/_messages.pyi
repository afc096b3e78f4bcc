"""What broker/client/_messages.c offers."""

from collections.abc import Iterator
from typing import Self

from broker.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from broker.client.progress import QueueProgress
from broker.client.recordhead import RecordHead

class Received:
    """What ReceivedMessage keeps. data: what the record stands in. rows, index: where its fields
    are (recordhead.head_of). progress: what its consumer knows of the queue; of no use to others.
    The others are None until somebody asks."""

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
    message: type[Message], result: type[SendResult], received: type[ReceivedMessage], /
) -> None:
    """The classes; once, before anything else."""

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
