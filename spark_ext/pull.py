"""Ranges of queues from the broker, for a host that does not see the store (fallback=pull).

The broker hands out its records as they lie in the log, and the core makes rows of them as it does
of files; so both ways give the same rows.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.errors import DataLoss, SourceError
from spark_ext.network import GROUP, client_options
from spark_ext.options import NetworkOptions

if TYPE_CHECKING:
    from broker.client import Consumer, MessageQueue, ReceivedMessage

__all__ = ["PullRange", "records"]

POLL_S = 1.0
#: So long a broker may bring nothing before the task fails.
IDLE_MAX_S = 60.0
PULL_BATCH = 256
BUFFER = 4096


@dataclass(frozen=True)
class PullRange:
    """One range to pull. probe: place and size of its first record, where the plan has looked at
    it. lost: is called with the number of offsets that no longer exist; None makes that an
    error."""

    broker: str
    topic: str
    queue: int
    start: int
    end: int
    probe: tuple[int, int] | None
    lost: Callable[[int], None] | None

    def missing(self, first: int, end: int) -> None:
        """Reports records that are missing. Raises: DataLoss, when that is an error."""
        if first >= end:
            return
        if self.lost is None:
            raise DataLoss(
                f"offsets {first} to {end - 1} of {self.topic}/{self.queue} no longer exist on the"
                f" broker {self.broker}; failOnDataLoss=false reads the rest"
            )
        self.lost(end - first)

    def check(self, message: ReceivedMessage) -> None:
        """Checks the first record. Raises: SourceError for a record that is not the planned one."""
        where = f"offset {message.queue_offset} of {self.topic}/{self.queue}"
        if (message.stored_topic, message.head.queue) != (self.topic, self.queue):
            raise SourceError(
                f"{where} is a record of {message.stored_topic}/{message.head.queue}, which is in"
                " several queues: such queues can be read from files only"
            )
        found = (message.physical_offset, len(message.record))
        if message.queue_offset == self.start and self.probe not in (None, found):
            raise SourceError(
                f"the broker {self.broker} does not have the store that was planned: {where} lies"
                f" at byte {found[0]}, not {self.probe and self.probe[0]}; set option brokerName"
            )


def records(network: NetworkOptions, wanted: PullRange, chunk_bytes: int) -> Iterator[bytes]:
    """Yields the records of a range, about `chunk_bytes` at a time. Nothing is committed: the
    group's offsets stay as they are. Raises: SourceError, DataLoss."""
    from broker.client import ClientError, Consumer, MessageQueue

    queue = MessageQueue(wanted.topic, wanted.broker, wanted.queue)
    try:
        with Consumer(
            GROUP,
            namesrv=network.name_server,
            auto_commit_s=0,
            pull_batch=PULL_BATCH,
            buffer_messages=BUFFER,
            **client_options(network),
        ) as consumer:
            _check_queue(consumer, queue)
            end = min(wanted.end, consumer.max_offset(queue))
            chunk: list[bytes] = []
            size = 0
            for message in _messages(consumer, queue, wanted, end):
                chunk.append(bytes(message.record))
                size += len(chunk[-1])
                if size >= chunk_bytes:
                    yield b"".join(chunk)
                    chunk, size = [], 0
            if chunk:
                yield b"".join(chunk)
            wanted.missing(max(end, wanted.start), wanted.end)
    except ClientError as e:
        raise SourceError(
            f"on host {socket.gethostname()}: the store is not there, and cannot be pulled: {e}"
        ) from e


def _check_queue(consumer: Consumer, queue: MessageQueue) -> None:
    """Checks that the name server knows a broker. Raises: SourceError for a broker that the name
    server does not know."""
    there = {each.broker for each in consumer.queues(queue.topic)}
    if queue.broker not in there:
        raise SourceError(
            f"the topic {queue.topic} is on {', '.join(sorted(there))}, not on {queue.broker}: set"
            " option brokerName to the name of the broker whose store it is"
        )


def _messages(
    consumer: Consumer, queue: MessageQueue, wanted: PullRange, end: int
) -> Iterator[ReceivedMessage]:
    at = wanted.start
    consumer.assign({queue: at})
    idle_since = time.monotonic()
    while at < end:
        found = consumer.poll(POLL_S)
        consumer.ack(*found)
        if found:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > IDLE_MAX_S:
            raise SourceError(
                f"on host {socket.gethostname()}: the broker {queue.broker} brought nothing of"
                f" {queue.topic}/{queue.queue} from offset {at} on in {IDLE_MAX_S:g} s;"
                f" under access control the group {GROUP} needs the right to read, too"
            )
        for message in found:
            wanted.missing(at, min(message.queue_offset, end))
            if message.queue_offset >= end:
                return
            wanted.check(message)
            at = message.queue_offset + 1
            yield message
