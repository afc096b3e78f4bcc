"""Writers over the network: each task sends its rows to brokers and ends when all are acknowledged.

At least once: what a task has sent stays sent. A task that fails, or that Spark runs twice, sends
again; its rows carry the same SPARK_JOB, SPARK_BATCH, SPARK_PARTITION and SPARK_ROW, by which
consumers can tell.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_ext.errors import BadSchema, SinkError
from spark_ext.network import GROUP, producer_options
from spark_ext.options import WriteOptions
from spark_ext.rows import Stamper, check_schema
from spark_ext.tasks import batch_of_stream, task_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broker.client import AsyncProducer, Message, MessageQueue, SendResult

__all__ = [
    "BatchSender",
    "SendCommit",
    "StreamSender",
    "check_frame",
    "check_stored",
    "messages_of",
    "send",
]


@dataclass
class SendCommit(WriterCommitMessage):
    """What a task tells the driver: how many rows brokers have acknowledged."""

    rows: int


class BatchSender(DataSourceArrowWriter):
    """``df.write.format("rocketmq").option("nameServer", "host:9876").mode("append").save()``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self.options = options
        self.job = options.job or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SendCommit:
        return send(iterator, self.options, self.job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: tasks end after the acknowledgements."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: what was sent cannot be undone."""


class StreamSender(DataSourceStreamArrowWriter):
    """``df.writeStream.format("rocketmq").option("nameServer", "host:9876")``; at least once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SendCommit:
        query, batch = batch_of_stream()
        return send(iterator, self.options, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: tasks end after the acknowledgements."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: what was sent cannot be undone."""


def check_frame(options: WriteOptions, schema: StructType, overwrite: bool) -> None:
    """Checks that brokers take such a frame. Raises: SinkError, BadSchema."""
    if overwrite:
        raise SinkError("messages of a broker are never overwritten: use append")
    check_schema(schema, options.topic, timers=True)


def _check(options: WriteOptions, schema: StructType, overwrite: bool) -> None:
    """Checks what can be known before rows come. Raises: SinkError, BadSchema."""
    check_frame(options, schema, overwrite)
    if "shardingKey" in schema.names and "queueId" in schema.names:
        raise BadSchema("give one of the columns shardingKey and queueId: both choose the queue")


def send(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, job: str, batch: int
) -> SendCommit:
    """Does the work of a task: returns when brokers have acknowledged every row. Raises:
    SinkError."""
    partition, _ = task_ids()
    stamper = Stamper(options.topic, options.tags, job, batch, partition, empty_bodies=False)
    return asyncio.run(_send(batches, options, stamper))


async def _send(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, stamper: Stamper
) -> SendCommit:
    from broker.client import AsyncProducer, ClientError

    network = options.network
    assert network is not None
    done = 0
    try:
        async with AsyncProducer(
            GROUP, network.name_server, **producer_options(network)
        ) as producer:
            for rows in batches:
                done += await _send_rows(producer, stamper.convert(rows))
    except ClientError as e:
        raise SinkError(
            f"partition {stamper.partition}: {e}; at least {done} rows of this task are stored, and"
            " come again when it is repeated"
        ) from e
    return SendCommit(done)


async def _send_rows(producer: AsyncProducer, rows: pa.RecordBatch) -> int:
    """Sends rows: those that may go to any queue go in batches; those of one queue or key one after
    the other; delayed ones, which batches do not take, each for itself."""
    plain: list[Message] = []
    lanes: dict[tuple[str, str, int], list[Message]] = {}
    queues = rows.column("queue").to_pylist()
    for i, message in enumerate(messages_of(rows)):
        key = message.properties.get("__SHARDINGKEY", "")
        if queues[i] >= 0 or key:
            lanes.setdefault((message.topic, key, queues[i]), []).append(message)
        elif message.waits:
            lanes[message.topic, "", -1 - len(lanes)] = [message]  # a number of its own, no queue
        else:
            plain.append(message)
    work = [_send_lane(producer, *lane, messages) for lane, messages in lanes.items()]
    found = await asyncio.gather(producer.send_batch(plain), *work, return_exceptions=True)
    for results in found:
        if isinstance(results, BaseException):
            raise results
        check_stored(results)
    return int(rows.num_rows)


async def _send_lane(
    producer: AsyncProducer, topic: str, key: str, queue: int, messages: Sequence[Message]
) -> list[SendResult]:
    target = await _queue_of(producer, topic, queue) if queue >= 0 else None
    return [await producer.send(m, key=key or None, queue=target) for m in messages]


async def _queue_of(producer: AsyncProducer, topic: str, queue: int) -> MessageQueue:
    """Returns the queue of that number; of several brokers, the first's by name. Raises:
    SinkError."""
    there = await producer.queues(topic)
    found = sorted(q for q in there if q.queue == queue)
    if not found:
        raise SinkError(
            f"queueId {queue}: the topic {topic} has the queues"
            f" {', '.join(f'{q.broker}/{q.queue}' for q in there)}"
        )
    return found[0]


def check_stored(results: Sequence[SendResult]) -> None:
    """Checks how messages were stored. Raises: SinkError for a message that a power failure may
    take."""
    from broker.client import SendStatus

    for result in results:
        if result.status is not SendStatus.SEND_OK:
            raise SinkError(
                f"the broker {result.queue.broker} answers {result.status.name}: the message is in"
                " its log, but not as safely as its settings ask; the task fails and sends again"
            )


def messages_of(rows: pa.RecordBatch) -> Iterator[Message]:
    """Yields messages of rows. Properties that the broker or the client sets of its own are those
    of the copy that was read, and left out."""
    from broker.client import Message
    from broker.client.sending import PROTOCOL_PROPERTIES
    from pystore.format.properties import parse_properties

    names = ("topic", "body", "properties", "level", "flag", "deliver")
    for topic, body, raw, level, flag, deliver in zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    ):
        properties = parse_properties(raw)
        tags, keys = properties.get("TAGS"), properties.get("KEYS", "")
        own = {n: v for n, v in properties.items() if n not in PROTOCOL_PROPERTIES}
        yield Message(
            topic, body, tags, keys, own, delay_level=level, deliver_at_ms=deliver, flag=flag
        )
