"""``pystore query``: messages by key, through the index."""

from __future__ import annotations

from typing import Annotated

import typer

from pystore.cli._records import message_lines, message_record
from pystore.cli._session import Session
from pystore.cli._values import parse_time

__all__ = ["run"]


def run(
    s: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the messages.")],
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Message key, or the client's message id (UNIQ_KEY)."),
    ],
    begin: Annotated[
        str | None, typer.Option(help="Stored at or after: ms or ISO 8601 (default zone UTC).")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Stored at or before.")] = None,
    max_: Annotated[
        int, typer.Option("--max", min=0, help="Return at most this many, newest first; 0: all.")
    ] = 64,
) -> int | None:
    """Find messages by key or by the client's message id (UNIQ_KEY), using the index.

    Compares the key itself; upstream returns every message with the same hash.

    Exit code 1: there is none.

    \b
    Examples:
      pystore query STORE orders order-17
      pystore query STORE orders order-17 --begin 2026-11-20 --end 2026-11-21T12:00:00+01:00 --json
    """
    low = 0 if begin is None else parse_time(begin, "--begin")
    high = (1 << 63) - 1 if end is None else parse_time(end, "--end")
    with s.reader() as reader:
        batch = reader.query(topic, key, begin=low, end=high, max_messages=max_)
        for message in batch:
            record = message_record(message) if s.out.json else {}
            s.damaged |= "body_error" in record
            s.out.record(record, lambda m=message: message_lines(m))  # type: ignore[misc]
        if not batch:
            s.out.note(f"no message of '{topic}' has the key '{key}'")
            if not reader.queues(topic):
                s.out.note(reader._missing(topic).text)
        return 0 if len(batch) else 1
