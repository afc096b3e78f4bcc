"""``pystore put``: messages from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pystore.cli._session import Session
from pystore.cli._values import Size, When, named_values, printable, unreadable, usage
from pystore.format.names import SCHEDULE_TOPIC
from pystore.store._results import PutResult
from pystore.store._store import Store

__all__ = ["run"]


_Body = Annotated[
    str | None,
    typer.Argument(metavar="BODY", show_default=False, help="Message body; -: read stdin."),
]
_BodyFile = Annotated[
    Path | None, typer.Option("--body-file", metavar="FILE", help="Read the body from this file.")
]
_DelayLevel = Annotated[
    int,
    typer.Option(
        "--delay-level",
        min=0,
        help="Level of messageDelayLevel, 1 to 18 by default; 0: none. A broker that runs on"
        " this store delivers it; without one it waits.",
    ),
]


def run(
    s: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the message.")],
    body: _Body = None,
    body_file: _BodyFile = None,
    tags: Annotated[str | None, typer.Option(help="Tag of the message.")] = None,
    keys: Annotated[str | None, typer.Option(help="Keys, separated by spaces.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Set a property. Repeatable."),
    ] = None,
    queue: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Queue id; default: each queue in turn.")
    ] = None,
    delay_level: _DelayLevel = 0,
    flag: Annotated[int, typer.Option(min=-(2**31), max=2**31 - 1, help="User-defined flag.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Put the message this many times.")] = 1,
    sync: Annotated[
        bool, typer.Option("--sync", help="Sync to disk before returning (SYNC_FLUSH).")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the store if it does not exist.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the plan; store nothing.")
    ] = False,
) -> int | None:
    """Put a message, once or many times, and print where it was stored.

    No other process may have the store open for writing. Send to a running broker over the
    network instead.

    Prints status, queue, offset, place and offset message id. Give exactly one of BODY,
    --body-file and - (stdin). Without --queue the queues take turns, from one run to the next,
    too.

    \b
    Examples:
      pystore put STORE orders 'hello' --tags paid --keys "order-17 customer-3"
      pystore put STORE orders --body-file order.json --property region=eu --sync
      echo hello | pystore put STORE orders - --create
      pystore put STORE orders 'later' --delay-level 3 --dry-run
    """
    _check_level(s, delay_level)
    content = _body(body, body_file)
    properties = named_values(property_ or (), "--property", "region=eu") or None
    s.check_target(create)
    _check_queue(s, topic, queue)
    extra = {"flushDiskType": "SYNC_FLUSH"} if sync else {}

    def put(store: Store) -> PutResult:
        return store.put(
            topic, content, tags=tags, keys=keys, properties=properties, queue=queue, flag=flag,
            delay_level=delay_level,
        )  # fmt: skip

    if dry_run:
        s.check_free()
        with s.scratch() as store:
            result = put(store)
        s.out.plan(
            {
                "store": str(s.path), "creates the store": not s.exists(), "topic": topic,
                "queue": "in turn" if queue is None else queue, "messages": count,
                "body": Size(len(content)), "log": Size(result.size * count), "sync": sync,
            }
        )  # fmt: skip
        return 0
    with s.writer(create=create, **extra) as store, s.progress("putting", "messages") as bar:
        for done in range(count):
            _print(s, SCHEDULE_TOPIC if delay_level else topic, put(store))
            bar.update(done + 1, count)
    return 0


def _check_queue(s: Session, topic: str, queue: int | None) -> None:
    """Checks the queue of a put. Raises: BadArgument for a queue that a topic of the store does not
    have: whoever writes to others makes them (`pystore.Store.put` does, and says so)."""
    if queue is None or not s.exists():
        return
    with s.reader() as reader:
        config = reader.metadata.topics.get(topic)
    if config is not None and queue >= config.write_queue_nums:
        raise usage(
            f"the topic {topic} has the queues 0 to {config.write_queue_nums - 1}, not {queue}",
            "leave --queue out to take them in turn",
        )


def _check_level(s: Session, level: int) -> None:
    """Refuses a level that is too high, which upstream silently lowers to the highest one."""
    levels = len(s.settings().delay_levels_ms)
    if level > levels:
        raise usage(
            f"--delay-level {level} is not there: messageDelayLevel has {levels} levels",
            f"give one from 1 to {levels}",
        )


def _body(text: str | None, file: Path | None) -> bytes:
    if (text is None) == (file is None):
        raise usage(
            "pass the body once: as an argument, with --body-file, or - for stdin",
            "see pystore put --help",
        )
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as failed:
            raise unreadable("--body-file", file, failed) from failed
    assert text is not None
    if text == "-":
        return sys.stdin.buffer.read()
    return text.encode("utf-8", "surrogateescape")  # for bytes that are not UTF-8


def _print(s: Session, topic: str, result: PutResult) -> None:
    record = {
        "at": "put",
        "status": result.status.value,
        "topic": topic,
        "queue": result.queue,
        "queue_offset": result.queue_offset,
        "phy": result.physical_offset,
        "size": result.size,
        "store_ts": When(result.store_timestamp),
        "offset_msg_id": result.message_id,
    }
    s.out.record(
        record,
        lambda: (
            f"{result.status.value}  {printable(topic)}/{result.queue}@{result.queue_offset}"
            f"  at {result.physical_offset}, {result.size} bytes  {result.message_id}"
        ),
    )
