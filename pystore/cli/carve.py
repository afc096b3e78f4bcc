"""``pystore carve``: part of a store as a store of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from pystore.cli._balance import show_balance
from pystore.cli._records import message_record
from pystore.cli._session import Session
from pystore.cli._values import Size, parse_time, usage
from pystore.cli.import_ import ImportCount, ImportTarget, Scratch, arguments, content_of_put
from pystore.errors import MessageIllegal, RecordDamaged
from pystore.settings import NOT_SERVED, PLACES
from pystore.store._messages import Message
from pystore.store._reading import Reader
from pystore.store._store import Store

__all__ = ["run"]

_END = (1 << 63) - 1


def run(
    s: Session,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the new store.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only messages of this topic. Repeatable.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="Stored at or after: ms or ISO 8601 (default zone UTC).")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Stored at or before.")] = None,
    from_: Annotated[
        int, typer.Option("--from", min=0, help="Records at or after this byte of the log.")
    ] = 0,
    to: Annotated[
        int | None, typer.Option("--to", min=0, help="Records before this byte of the log.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what OUT would hold; create nothing.")
    ] = False,
) -> int | None:
    """Copy part of a store into a new store, by topic, time or place in the log.

    Messages keep what `pystore import` keeps: topic, queue, body as stored, flags, properties, born
    time and host, order; queue offsets and store times are new. Topics and consumer groups are
    copied with their settings, committed offsets are not. STORE may be live and does not change. A
    damaged record in the range stops it with exit code 5, and leaves no OUT.

    The limits apply together. Committed offsets would count other messages. The records that
    repair puts in place of damage are left out. Exit code 1: OUT holds no message.

    \b
    Examples:
      pystore carve STORE ./orders --topic orders --topic refunds
      pystore carve STORE ./morning --begin 2026-11-21T06:00 --end 2026-11-21T12:00 --dry-run
      pystore carve STORE ./part --from 1073741824 --to 2147483648
    """
    low = 0 if begin is None else parse_time(begin, "--begin")
    high = _END if end is None else parse_time(end, "--end")
    if out.exists() or out.is_symlink():
        raise usage(f"OUT {out} exists already", "give the path of a folder that does not exist")
    wanted = frozenset(topic or ())
    from pystore.repair.census import Balance, Contents, content_of_record
    from pystore.repair.filler import TOPIC as FILLER

    count = ImportCount()
    with ExitStack() as stack:
        reader = stack.enter_context(s.reader())
        target = _target(s, stack, reader, out, wanted, dry_run)
        bar = stack.enter_context(s.progress("carving"))
        first = reader.info().log_min
        last = reader.info().log_max if to is None else min(to, reader.info().log_max)
        for message in _records(reader, from_, last):
            bar.update(message.physical_offset - first, last - first)
            if (
                low <= message.store_timestamp <= high
                and message.topic != FILLER.decode()
                and (not wanted or message.topic in wanted)
            ):
                put = arguments(message_record(message, stored=True))
                # A message without a born time gets one.
                born = message.born_timestamp != 0
                whole = message.record, message.physical_offset
                content = content_of_record(*whole) if born else content_of_put(put)
                try:
                    count.add(message.topic, target.put(put), content)
                except MessageIllegal as bad:
                    text = f"the record is not a message that a store takes ({bad.text})"
                    raise RecordDamaged(text, offset=message.physical_offset) from bad
    facts = {"store": str(out), "messages": count.messages, "log": Size(count.bytes)}
    facts["topics"] = count.topics
    if dry_run:
        s.out.plan(facts)
    else:
        s.out.facts("carved", facts)
        show_balance(s, Balance.between(count.contents, Contents.of(out / "commitlog")))
    return 0 if count.messages else 1


def _target(
    s: Session, stack: ExitStack, reader: Reader, out: Path, wanted: frozenset[str], dry_run: bool
) -> ImportTarget:
    """Opens the place where the messages go; a new store is removed again unless all of them
    arrive."""
    if dry_run:
        target: ImportTarget = Scratch(s)
        stack.callback(target.close)
        return target

    def remove_unfinished(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(out, ignore_errors=True)

    stack.push(remove_unfinished)
    info = reader.info()
    given = s.settings()
    same: dict[str, Any] = {
        n: given[n] for n in given.explicit if n not in PLACES and n not in NOT_SERVED
    }
    same["mappedFileSizeCommitLog"] = info.commitlog_file_size
    same["mappedFileSizeConsumeQueue"] = info.consumequeue_file_size
    store = stack.enter_context(Store(out, None, **same))
    for row in reader.metadata.topics.list():
        if not wanted or row.name in wanted:
            store.metadata.topics.put(row)
    for group in reader.metadata.groups.list():
        store.metadata.groups.put(group)
    return ImportTarget(store)


def _records(reader: Reader, low: int, high: int) -> Iterator[Message]:
    """Yields the messages that begin in a range of the log. Raises: RecordDamaged.

    A record begins with each segment, so the walk starts with the segment of `low`.
    """
    info = reader.info()
    first = max(info.log_min, low - low % info.commitlog_file_size)
    for batch in reader._log_batches(first) if first < high else ():
        for message in batch:
            if message.physical_offset >= high:
                return
            if message.physical_offset >= low:
                yield message
        if batch.next_offset >= high:
            return
