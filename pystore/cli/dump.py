"""``pystore dump``: every record of the log and every unit of the queues."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from pystore.cli._progress import ProgressBar
from pystore.cli._records import cq_line, java_order, msg_line
from pystore.cli._session import Session
from pystore.cli._values import iso, printable, usage
from pystore.store._messages import Message
from pystore.store._reading import Reader
from pystore.store._results import QueueInfo

__all__ = ["run"]

_BATCH = 1024
_UNITS = 4096


class DumpKind(StrEnum):
    """What to print: records of the log, or units of the queues."""

    msg = "msg"
    cq = "cq"


def run(
    s: Session,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, max=65535, help="Only this queue id.")] = None,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, help="Start at this byte of the log.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", min=0, help="Stop before this byte of the log.")
    ] = None,
    kind: Annotated[
        DumpKind | None, typer.Option(help="Only records (msg) or only queue units (cq).")
    ] = None,
) -> int | None:
    """Print every record of the log, then every unit of the consume queues.

    With --json, prints the same lines as the dump of Apache's own store (tests/reference), byte for
    byte: limits ({"at":"store"}), records ({"at":"msg"}) and queue units ({"at":"cq"}), so diff can
    compare the two. The first invalid record is printed as {"at":"bad","phy":N} and ends the
    records; the units follow, and the exit code is 5.

    Members are: of a store loaded, min_phy, max_phy; of a msg phy, size, magic, topic, queue,
    queue_offset, flag, sys_flag, born_ts, born_host, store_ts, store_host, reconsume,
    prepared_offset, body_crc, body_len, body_crc32, props; of a cq topic, queue, offset, phy,
    size, tags_code.

    Bodies are those of the disk: a compressed one is counted and summed compressed. --from may
    lie anywhere; after a damaged place it continues at the next record that a queue points to.

    \b
    Examples:
      pystore dump /data/rocketmq/store --json > store.jsonl
      pystore dump /data/rocketmq/store --topic orders --kind msg
      pystore dump /data/rocketmq/store --from 1073741824 --to 1074000000
    """
    if from_ is not None and to is not None and to < from_:
        raise usage(f"--to {to} is less than --from {from_}", "pass a range [from, to)")
    filtered = not (topic is None and queue is None and from_ is None and to is None)
    with s.reader() as reader:
        if kind is None:
            _limits(s, reader)
        wanted = _DumpFilter(topic, queue, from_ or 0, (1 << 63) - 1 if to is None else to)
        printed = 0
        if kind is not DumpKind.cq:
            printed += _records(s, reader, wanted)
        if kind is not DumpKind.msg:
            printed += _units(s, reader, wanted)
    return 1 if not printed and (filtered or kind is not None) else 0


class _DumpFilter(NamedTuple):
    """Says which records and units to print."""

    topic: str | None
    queue: int | None
    start: int
    end: int

    def has(self, topic: str, queue: int) -> bool:
        return self.topic in (None, topic) and self.queue in (None, queue)


def _limits(s: Session, reader: Reader) -> None:
    info = reader.info()
    if s.out.json:
        line = f'{{"at":"store","loaded":true,"min_phy":{info.log_min},"max_phy":{info.log_max}}}'
    else:
        line = f"store  log [{info.log_min}, {info.log_max})"
    s.out.lines([line])


def _first(reader: Reader, start: int) -> int:
    """Returns a record's place at or before `start`, to walk from.

    `start` itself when a record stands there; else the start of its file, since nothing in between
    says where a record begins.
    """
    info = reader.info()
    if start <= info.log_min:
        return info.log_min
    if start >= info.log_max or len(reader.log(start, max_messages=1)):
        return start
    return max(info.log_min, start - start % info.commitlog_file_size)


def _next_known(reader: Reader, start: int, end: int) -> int:
    """Returns the first record at or after `start` that a queue points to; `end` when there is
    none.

    After a damaged place only the queues say where a record begins.
    """
    best = end
    for q in reader.queues():
        low, high = q.min_offset, q.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = reader.units(q.topic, q.queue, middle, 1)
            if unit and unit[0][0] < start:
                low = middle + 1
            else:
                high = middle
        if low < q.max_offset:
            unit = reader.units(q.topic, q.queue, low, 1)
            best = min([best, *(physical for physical, _, _ in unit)])
    return best


def _records(s: Session, reader: Reader, wanted: _DumpFilter) -> int:
    line_of = msg_line if s.out.json else _msg_text
    printed, info = 0, reader.info()
    at = _first(reader, wanted.start)
    end = min(wanted.end, info.log_max)
    with s.progress("dumping the log") as bar:
        while at < end:
            batch = reader.log(at, max_messages=_BATCH)
            lines = [line_of(m) for m in batch if _passes(m, wanted)]
            s.out.lines(lines)
            printed += len(lines)
            at = batch.next_offset
            bar.update(at - info.log_min, info.log_max - info.log_min)
            if batch.outcome > 0 and at < wanted.start:
                at = _next_known(reader, wanted.start, end)
                continue
            if batch.outcome > 0 and at < end:
                s.out.lines([f'{{"at":"bad","phy":{at}}}' if s.out.json else f"bad    {at}"])
                s.damaged = True
                return printed + 1
            if batch.outcome:
                break
    return printed


def _passes(m: Message, wanted: _DumpFilter) -> bool:
    return wanted.start <= m.physical_offset < wanted.end and wanted.has(m.topic, m.queue)


def _msg_text(m: Message) -> str:
    tags = m.tags
    return (
        f"msg  {m.physical_offset:>14}  {m.size:>8}  {iso(m.store_timestamp)}"
        f"  {printable(m.topic)}/{m.queue}@{m.queue_offset}"
        + (f"  tags={printable(tags)}" if tags else "")
        + f"  body={len(m.raw_body)}"
    )


def _cq_text(topic: str, queue: int, offset: int, unit: tuple[int, int, int]) -> str:
    physical, size, tags = unit
    return f"cq   {physical:>14}  {size:>8}  {printable(topic)}/{queue}@{offset}  tags_code={tags}"


def _units(s: Session, reader: Reader, wanted: _DumpFilter) -> int:
    line_of = cq_line if s.out.json else _cq_text
    queues = [q for q in reader.queues() if wanted.has(q.topic, q.queue)]
    queues.sort(key=lambda q: (java_order(q.topic), q.queue))
    printed = done = 0
    total = sum(map(len, queues))
    with s.progress("dumping the queues", "units") as bar:
        for q in queues:
            for first, units in _chunks(reader, q, bar, done, total):
                lines = [
                    line_of(q.topic, q.queue, first + i, unit)
                    for i, unit in enumerate(units)
                    if wanted.start <= unit[0] < wanted.end
                ]
                s.out.lines(lines)
                printed += len(lines)
            done += len(q)
    return printed


def _chunks(
    reader: Reader, q: QueueInfo, bar: ProgressBar, done: int, total: int
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Yields the units of a queue, thousands at a time."""
    at = q.min_offset
    while at < q.max_offset:
        units = reader.units(q.topic, q.queue, at, min(_UNITS, q.max_offset - at))
        if not units:
            return
        yield at, units
        at += len(units)
        bar.update(done + at - q.min_offset, total)
