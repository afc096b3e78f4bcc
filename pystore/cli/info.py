"""``pystore info``: what a store is and what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated

import typer

from pystore.cli._session import Session, holder_of
from pystore.cli._values import Size, When
from pystore.cli.cold import cold_of, show_tier
from pystore.errors import StoreError
from pystore.format.names import LIGHT_PREFIX
from pystore.meta.configfiles import ConsumerOffset
from pystore.metadata import Metadata
from pystore.store._reading import Reader
from pystore.store._report import RecoveryReport
from pystore.store._results import QueueInfo
from pystore.store.light_queues import LightQueue

__all__ = ["run"]

_SHOWN = 1000  # offsets in text; --json has them all
_CHECKPOINT = ("physic", "logics", "index")


def run(
    s: Session,
    topic: Annotated[str | None, typer.Option(help="Show only this topic.")] = None,
) -> int | None:
    """Show sizes, limits, what recovery would do, who holds the lock, topics and groups.

    Takes no lock and writes nothing, so it is safe on a live broker's store.

    Of a cold tier it shows what `pystore cold ls` does (docs/cold.md).

    Shows the range of each queue and of each lite topic, and where each group is with its lag.
    JSON: one object with the members store, recovery, recovery items, topics, groups, queues, lite
    topics, consumer offsets. Text shows the first 1,000 lite topics and consumer offsets, and says
    how many more there are.

    \b
    Examples:
      pystore info /data/rocketmq/store
      pystore info /data/rocketmq/store --topic orders
      pystore info /data/rocketmq/store --json | jq .store.log_max
    """
    with s.reader() as reader:
        cold = cold_of(reader)
        if cold is not None:
            return show_tier(s, cold, None if topic is None else [topic])
        queues = reader.queues(topic)
        metadata, trouble = _metadata(reader)
        if topic is not None and not queues and (metadata is None or topic not in metadata.topics):
            raise reader._missing(topic)
        if topic is None:
            _facts(s, reader, trouble)
            _recovery(s, reader.report)
        if metadata is not None:
            _configs(s, metadata, topic)
        _queues(s, queues)
        _lites(s, _lite_topics(reader, topic))
        if metadata is not None:
            _offsets(s, metadata, reader, topic)
    if trouble:
        s.damaged = True
    return 0


def _metadata(reader: Reader) -> tuple[Metadata | None, str]:
    """Returns the metadata, or why it cannot be read: the messages are there all the same."""
    try:
        return reader.metadata, ""
    except StoreError as error:
        return None, str(error)


def _facts(s: Session, reader: Reader, trouble: str) -> None:
    info = reader.info()
    holder = holder_of(s.path)
    held = "no"
    if holder.locked:
        held = f"process {holder.pid}" if holder.pid else "an unknown process"
    facts: dict[str, object] = {
        "path": str(reader.path.resolve()),
        "held": holder.locked,
        "holder pid": holder.pid or None,
        "abort file": info.abort_present,
        "state": _state(holder.locked, info.abort_present),
        "log min": info.log_min,
        "log max": info.log_max,
        "log bytes": Size(info.log_max - info.log_min),
        "log files": info.log_files,
        "log file size": Size(info.commitlog_file_size),
        "queue file size": Size(info.consumequeue_file_size),
        "index files": info.index_files,
        "index entries": info.index_used,
        "index slots per file": info.index_slots,
        "index entries per file": info.index_entries,
        "topics": info.topics,
        "queues": info.queues,
        "light queues": _light_count(reader),
        "first stored": When(info.store_timestamp_min),
        "last stored": When(info.store_timestamp_max),
    }
    if not s.out.json:
        facts["held"] = held
        del facts["holder pid"]
    for name, value in zip(_CHECKPOINT, info.checkpoint, strict=False):
        facts[f"checkpoint {name}"] = When(value)
    facts["checkpoint master flushed"], facts["checkpoint confirm"] = info.checkpoint[3:]
    if trouble:
        facts["metadata"] = trouble
    s.out.facts("store", facts)


def _light_count(reader: Reader) -> int:
    """Returns how many there are; those of a Java broker are folders among the queues."""
    if reader.lights.is_on:
        return reader.lights.count
    return sum(queue.topic.startswith(f"{LIGHT_PREFIX}$") for queue in reader.queues())


def _state(locked: bool, abort: bool) -> str:
    if locked:
        return "live"
    return "not closed cleanly: the next open for writing recovers it" if abort else "closed"


def _recovery(s: Session, report: RecoveryReport) -> None:
    facts = {k.replace("_", " "): v for k, v in report.as_dict().items() if k != "items"}
    for name in ("scanned bytes", "bytes cut"):
        facts[name] = Size(facts[name])
    s.out.facts("recovery", facts)
    if report.items or s.out.json:
        s.out.table(
            "recovery items",
            ("action", "what", "start", "end", "records", "why"),
            [(i.action.name, i.what, i.start, i.end, i.records, i.why) for i in report.items],
        )


def _configs(s: Session, metadata: Metadata, topic: str | None) -> None:
    s.out.table(
        "topics",
        ("topic", "read queues", "write queues", "perm", "order", "filter", "attributes"),
        [
            (
                t.name, t.read_queue_nums, t.write_queue_nums, t.perm, t.order,
                t.topic_filter_type, dict(t.attributes),
            )
            for t in metadata.topics.list()
            if topic in (None, t.name)
        ],
    )  # fmt: skip
    if topic is None:
        s.out.table(
            "groups",
            ("group", "enabled", "orderly", "retry queues", "retry max", "broadcast"),
            [
                (
                    g.name, g.consume_enable, g.consume_message_orderly, g.retry_queue_nums,
                    g.retry_max_times, g.consume_broadcast_enable,
                )
                for g in metadata.groups.list()
            ],
        )  # fmt: skip


def _queues(s: Session, queues: list[QueueInfo]) -> None:
    rows = [(q.topic, q.queue, q.min_offset, q.max_offset, len(q)) for q in queues]
    s.out.table("queues", ("topic", "queue", "min", "max", "count"), rows)


def _lite_topics(reader: Reader, topic: str | None) -> Iterator[LightQueue]:
    """Yields the queues of lite topics, or of those of one topic: those that share files, and those
    that a Java broker has folders of."""
    below = f"{LIGHT_PREFIX}$" if topic is None else f"{LIGHT_PREFIX}${topic}$"
    begin = 0 if reader.lights.is_on else -1
    while begin >= 0:
        found, begin = reader.lights.some(begin)
        yield from (each for each in found if each.name.startswith(below))
    for queue in reader.queues():
        if queue.topic.startswith(below) and reader.lights.range(queue.topic) is None:
            end = queue.max_offset
            last = reader.read(queue.topic, queue.queue, end - 1, max_messages=1) if end else ()
            last_ms = next((each.store_timestamp for each in last), 0)
            yield LightQueue(queue.topic, queue.min_offset, end, last_ms)


def _lites(s: Session, found: Iterator[LightQueue]) -> None:
    rows = []
    for each in found if s.out.json else islice(found, _SHOWN):
        _, _, topic_and_name = each.name.partition("$")
        topic, _, name = topic_and_name.partition("$")
        last = When(each.last_ms) if each.last_ms else None
        rows.append((topic, name, each.low, each.high, each.high - each.low, last))
    if rows or s.out.json:
        s.out.table("lite topics", ("topic", "lite topic", "min", "max", "count", "last"), rows)
    if more := sum(1 for _ in found):
        s.out.note(f"{more} more lite topics: --json shows them")


def _offsets(s: Session, metadata: Metadata, reader: Reader, topic: str | None) -> None:
    ends: Mapping[tuple[str, int], int] = {
        (q.topic, q.queue): q.max_offset for q in reader.queues()
    }
    rows = []
    if s.out.json or topic is not None:
        found: Sequence[ConsumerOffset] = metadata.offsets.all(topic=topic)
        count = len(found)
    else:
        found, count = metadata.offsets.first(_SHOWN)
    for o in found if s.out.json else islice(found, _SHOWN):
        end = ends.get((o.topic, o.queue))
        if end is None:
            _, end = reader.lights.range(o.topic) or (0, 0)
        rows.append((o.group, o.topic, o.queue, o.offset, end, max(0, end - o.offset)))
    s.out.table("consumer offsets", ("group", "topic", "queue", "offset", "max", "lag"), rows)
    if count > len(rows):
        s.out.note(f"{count - len(rows)} more offsets: --json or --topic shows them")
