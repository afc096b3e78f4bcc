"""Arguments of calls, before anything is done with them. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable

from broker.client.errors import Misuse
from broker.client.message import MessageQueue, ReceivedMessage

__all__ = [
    "OFFSET_MAX", "check_count", "check_messages", "check_offset", "check_queue", "check_queues",
    "check_seconds",
]  # fmt: skip

#: Longest times that go out as milliseconds, and largest offsets: numbers of 64 bits.
SECONDS_MAX, OFFSET_MAX = float(1 << 52), (1 << 63) - 1


def check_seconds(name: str, value: object, *, more_than_0: bool = False) -> None:
    """Checks a number of seconds. Raises: Misuse for a value that is not a number, not finite, or
    not above 0 where it must be."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise Misuse(f"{name} is {value!r:.80}; pass seconds")
    if more_than_0 and not 0 < value <= SECONDS_MAX:
        raise Misuse(f"{name} is {value!r:.80}; pass seconds, more than 0 and not for ever")


def check_count(name: str, value: object, least: int, most: int = OFFSET_MAX) -> None:
    """Checks a whole number against its bounds. Raises: Misuse."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misuse(f"{name} is {value!r:.80}; pass a whole number")
    if not least <= value <= most:
        raise Misuse(f"{name} is {value!r:.80}; it is at least {least} and at most {most}")


def check_offset(name: str, value: object) -> None:
    """Checks an offset. Raises: Misuse."""
    check_count(name, value, 0)


def check_queue(queue: object) -> None:
    """Checks that it is a queue. Raises: Misuse."""
    if not isinstance(queue, MessageQueue) or not isinstance(queue.topic, str):
        raise Misuse(
            f"{queue!r:.80} is not a MessageQueue; pass one of those that queues(topic) lists"
        )


def check_queues(queues: object) -> list[MessageQueue]:
    """Returns several queues, as a list. Raises: Misuse."""
    if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
        raise Misuse(f"{queues!r:.80} is not several queues; pass a list of them")
    found = list(queues)
    for queue in found:
        check_queue(queue)
    return found


def check_messages(what: str, messages: Iterable[object]) -> None:
    """Checks that each is a message that was received. Raises: Misuse."""
    for message in messages:
        if isinstance(message, ReceivedMessage):
            continue
        star = "; write a star before a list of them" if isinstance(message, list | tuple) else ""
        raise Misuse(
            f"{what} takes messages that a consumer gave, not {type(message).__name__}{star}"
        )
