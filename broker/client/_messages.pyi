"""What broker/client/_messages.c offers."""

from collections.abc import Iterator

from broker.client.message import Message, MessageQueue, SendResult, SendStatus

def bind(message: type[Message], result: type[SendResult], /) -> None:
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
