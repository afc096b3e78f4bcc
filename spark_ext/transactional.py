"""Writers of half messages: no row of a job is visible before all of it is stored.

Each task sends its rows as half messages and tells the driver where they lie. The commit first
stores one message, the decision, in the topic SPARK_DECISIONS: which attempts of tasks count, and
where their halves are. From then on the batch is decided, whoever dies: the commit ends the halves,
a repeated batch finds the decision, ends what is still open and rolls back its own rows, and the
checks of brokers are answered from it by whatever task or commit of this sink runs. Halves of an
attempt that no decision names are rolled back, by the abort, by a check, or by the broker when
nobody has answered transactionCheckMax checks. docs/spark.md; upstream TransactionMQProducer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_ext.errors import BadSchema, SinkError
from spark_ext.network import producer_options
from spark_ext.options import WriteOptions
from spark_ext.rows import Stamper
from spark_ext.sender import check_frame, check_stored, messages_of
from spark_ext.tasks import batch_of_stream, task_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broker.client import (
        AsyncTransactionProducer,
        LocalState,
        Message,
        ReceivedMessage,
        Transaction,
    )

_T = TypeVar("_T")

__all__ = [
    "DECISIONS", "GROUP", "BatchHalves", "HalvesCommit", "StreamHalves", "fate_of", "rolled_back",
    "send_halves", "settled", "with_producer",
]  # fmt: skip

#: Every job has the same producer group, so that each may answer for all.
GROUP = "rocketmq-spark-halves"
DECISIONS = "SPARK_DECISIONS"
#: Of a half message, beside the stamps of every row: which attempt of a task sent it.
ATTEMPT = "SPARK_ATTEMPT"
_REFUSED_COLUMNS = ("queueId", "shardingKey", "delayLevel", "deliverTime")
_AT_ONCE = 64
_INDEX_WAIT_S = 30.0
_DONE = "done"


@dataclass
class HalvesCommit(WriterCommitMessage):
    """What a task tells the driver: its job and batch, its attempt, and where its halves are."""

    job: str
    batch: int
    attempt: str
    halves: list[list[Any]] = field(default_factory=list)


class BatchHalves(DataSourceArrowWriter):
    """``df.write.format("rocketmq").option("nameServer", …).option("transactional", True)``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self.options = options
        self.job = options.job or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HalvesCommit:
        return send_halves(iterator, self.options, self.job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settled(self.options, _accepted(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        rolled_back(self.options, _accepted(messages))


class StreamHalves(DataSourceStreamArrowWriter):
    """The same for ``df.writeStream``; a batch that is repeated is not delivered again."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HalvesCommit:
        query, batch = batch_of_stream()
        return send_halves(iterator, self.options, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        settled(self.options, _accepted(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        rolled_back(self.options, _accepted(messages))


def _check(options: WriteOptions, schema: StructType, overwrite: bool) -> None:
    """Checks what can be known before rows come. Raises: SinkError, BadSchema."""
    check_frame(options, schema, overwrite)
    for name in _REFUSED_COLUMNS:
        if name in schema.names:
            raise BadSchema(
                f"column '{name}' has no meaning with transactional=true: a half message goes to"
                " any queue, without delay; drop the column or the option"
            )


def _accepted(messages: Sequence[WriterCommitMessage | None]) -> list[HalvesCommit]:
    return [m for m in messages if isinstance(m, HalvesCommit)]


# ---- the tasks ----


def send_halves(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, job: str, batch: int
) -> HalvesCommit:
    """Does the work of a task: returns when brokers have stored every row. Raises: SinkError, after
    a rollback of what was stored."""
    partition, _ = task_ids()
    stamper = Stamper(options.topic, options.tags, job, batch, partition, empty_bodies=False)
    made = HalvesCommit(job, batch, uuid.uuid4().hex[:16])

    async def work(producer: AsyncTransactionProducer) -> HalvesCommit:
        try:
            for rows in batches:
                await _send_rows(producer, stamper.convert(rows), made)
        except BaseException:
            await _end_all(producer, made.halves, commit=False, confirmed=False)
            raise
        return made

    return with_producer(options, f"partition {partition}", work)


async def _send_rows(
    producer: AsyncTransactionProducer, rows: pa.RecordBatch, made: HalvesCommit
) -> None:
    async def one(message: Message) -> None:
        own = {**message.properties, ATTEMPT: made.attempt}
        tx = await producer.begin(replace(message, properties=own))
        made.halves.append(_packed(tx))
        check_stored([tx.send_result])

    found = await asyncio.gather(*map(one, messages_of(rows)), return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result


def _packed(tx: Transaction) -> list[Any]:
    result = tx.send_result
    return [
        tx.message.topic, result.queue.broker, result.offset_message_id, result.queue_offset,
        result.message_id, result.transaction_id,
    ]  # fmt: skip


def _unpacked(half: Sequence[Any]) -> Transaction:
    from broker.client import Message, MessageQueue, SendResult, SendStatus, Transaction

    topic, broker, place, offset, key, transaction = half
    queue = MessageQueue(topic, broker, 0)
    result = SendResult(SendStatus.SEND_OK, key, place, queue, offset, transaction)
    return Transaction(Message(topic, b"-"), result)


# ---- the driver's side ----


def settled(options: WriteOptions, tasks: Sequence[HalvesCommit]) -> None:
    """Decides a batch, or finds its decision, and ends its halves. Raises: SinkError; after that
    the same batch, written again, is delivered once."""
    if not any(task.halves for task in tasks):
        return
    job, batch = tasks[0].job, tasks[0].batch
    made: dict[str, Any] = {
        "attempts": [task.attempt for task in tasks],
        "halves": [half for task in tasks for half in task.halves],
    }

    async def work(producer: AsyncTransactionProducer) -> None:
        past = await _decision(producer, job, batch)
        if past is None:
            await _decide(producer, job, batch, made)
            decided: Mapping[str, Any] = made
        else:
            print(f"rocketmq: batch {batch} of job {job} was decided before", file=sys.stderr)
            await _end_all(producer, made["halves"], commit=False, confirmed=False)
            decided = past
        if not decided.get(_DONE):
            await _end_all(producer, decided["halves"], commit=True, confirmed=True)
            await _store(producer, job, batch, {"attempts": decided["attempts"], _DONE: True})

    with_producer(options, f"the commit of batch {batch} of job {job}", work)


def rolled_back(options: WriteOptions, tasks: Sequence[HalvesCommit]) -> None:
    """Rolls a failed batch back, unless it was decided: a commit that failed half way is finished
    when the batch is written again. Raises: SinkError."""

    async def work(producer: AsyncTransactionProducer) -> None:
        for task in tasks:
            past = await _decision(producer, task.job, task.batch)
            if past is None or task.attempt not in past["attempts"]:
                await _end_all(producer, task.halves, commit=False, confirmed=False)

    if tasks:
        with_producer(options, "the rollback of a failed write", work)


def with_producer(
    options: WriteOptions, what: str, work: Callable[[AsyncTransactionProducer], Awaitable[_T]]
) -> _T:
    """Runs the work with a producer that answers checks meanwhile. Raises: SinkError."""
    from broker.client import AsyncTransactionProducer, ClientError

    network = options.network
    assert network is not None

    async def main() -> _T:
        async def check(message: ReceivedMessage) -> LocalState:
            return await fate_of(producer, message)

        producer = AsyncTransactionProducer(
            GROUP, network.name_server, check=check, **producer_options(network)
        )
        async with producer:
            return await work(producer)

    try:
        return asyncio.run(main())
    except ClientError as e:
        raise SinkError(f"{what}: {e}") from e


async def _end_all(
    producer: AsyncTransactionProducer,
    halves: Iterable[Sequence[Any]],
    *,
    commit: bool,
    confirmed: bool,
) -> None:
    """Ends halves. confirmed: waits for each answer; else what does not reach the broker is left to
    checks."""
    from broker.client import LocalState

    state = LocalState.COMMIT if commit else LocalState.ROLLBACK
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(half: Sequence[Any]) -> None:
        async with free:
            if confirmed:
                await producer.end_confirmed(_unpacked(half), state)
            else:
                await producer.end(_unpacked(half), state)

    found = await asyncio.gather(*map(one, halves), return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result


# ---- decisions ----


def _key(job: str, batch: int) -> str:
    return f"{job}:{batch}"


async def _decide(
    producer: AsyncTransactionProducer, job: str, batch: int, made: Mapping[str, Any]
) -> None:
    """Stores the decision, and waits until it can be found. Raises: SinkError."""
    await _store(producer, job, batch, made)
    end = asyncio.get_running_loop().time() + _INDEX_WAIT_S
    while await _decision(producer, job, batch) is None:
        if asyncio.get_running_loop().time() > end:
            raise SinkError(
                f"the decision on batch {batch} of job {job} is stored in {DECISIONS}, but the"
                " broker does not find it by its key: switch messageIndexEnable on, and write the"
                " batch again"
            )
        await asyncio.sleep(0.05)


async def _store(
    producer: AsyncTransactionProducer, job: str, batch: int, decision: Mapping[str, Any]
) -> None:
    from broker.client import Message, SendStatus

    body = zlib.compress(json.dumps(decision, separators=(",", ":")).encode())
    most = producer.settings.message_max
    if len(body) > most:
        raise SinkError(
            f"batch {batch} of job {job} has {len(decision['halves'])} rows, whose decision does"
            f" not fit into a message of {most} bytes: write less at once (maxOffsetsPerTrigger)"
        )
    result = await producer.send(Message(DECISIONS, body, keys=_key(job, batch)))
    if result.status is not SendStatus.SEND_OK:
        raise SinkError(
            f"the broker {result.queue.broker} answers {result.status.name} to the decision on"
            f" batch {batch} of job {job}: write the batch again"
        )


async def _decision(
    producer: AsyncTransactionProducer, job: str, batch: int
) -> dict[str, Any] | None:
    """Returns the decision on a batch, with "done" once all its halves were ended. The first one
    counts, should two commits have run at once. Raises: ClientError."""
    from broker.client.queries import messages_by_key

    found = await messages_by_key(producer.network, DECISIONS, _key(job, batch))
    decided = [json.loads(zlib.decompress(message.body)) for message in found]
    if not decided:
        return None
    return {**decided[0], _DONE: any(decision.get(_DONE) for decision in decided)}


async def fate_of(producer: AsyncTransactionProducer, message: ReceivedMessage) -> LocalState:
    """Answers a broker that asks about a half of any job."""
    from broker.client import LocalState

    stamps = message.properties
    past = await _decision(producer, stamps["SPARK_JOB"], int(stamps["SPARK_BATCH"]))
    if past is None:
        return LocalState.UNKNOWN
    return LocalState.COMMIT if stamps[ATTEMPT] in past["attempts"] else LocalState.ROLLBACK
