"""``pystore diff``: what one of two stores has and the other has not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli._session import Session

if TYPE_CHECKING:
    from pystore.audit.diff import Difference, OffsetRange

__all__ = ["run"]

_SHOWN = 50  # ranges a table; --json has them all


def run(
    s: Session,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The store to compare with.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only messages of this topic. Repeatable.")
    ] = None,
) -> int | None:
    """Compare the messages of two stores: by queue offset, and by content wherever it lies.

    Content is the CRC of the body as stored and UNIQ_KEY, so that a message which another store
    holds at another queue offset is found. Reads both logs; both may be live, neither changes. The
    exit code is 0 when they are the same, else 1, as that of diff.

    By queue offset there are 'only in a', 'only in b' and 'changed': another body, flag or
    properties. By content there are 'content only in a' and 'content only in b'. 'logs part at'
    is the first byte, of what both still have, at which they do not hold the same message; logs
    that were filled independently part at once. Text shows ranges of queue offsets, the first
    50 of each table; --json has all of them.

    \b
    Examples:
      pystore diff /data/store /backup/store
      pystore diff /data/store ./carved --topic orders --json
    """
    from pystore.audit.diff import diff

    with s.progress("comparing") as bar:
        found = diff(
            s.path, other, s.conf, topics=frozenset(topic or ()),
            progress=lambda path, done, total: bar.update(done, total, f"reading {path}"),
            **dict[str, Any](s.sets),
        )  # fmt: skip
    facts: dict[str, Any] = {"a": found.a, "b": found.b, "same": found.same}
    facts["logs part at"] = found.parts_at
    s.out.facts("diff", {**facts, "records in a": found.records_a, "records in b": found.records_b})
    for name, ranges in _tables(found):
        if s.out.json:
            s.out.objects(name, [{**asdict(r), "count": r.count} for r in ranges])
        elif ranges:
            _show(s, name, ranges)
    return 0 if found.same else 1


def _tables(found: Difference) -> list[tuple[str, list[OffsetRange]]]:
    return [
        ("only in a", found.only_in_a),
        ("only in b", found.only_in_b),
        ("changed", found.changed),
        ("content only in a", found.content_only_in_a),
        ("content only in b", found.content_only_in_b),
    ]


def _show(s: Session, name: str, ranges: list[OffsetRange]) -> None:
    rows = [(r.topic, r.queue, r.start, r.end - 1, r.count) for r in ranges[:_SHOWN]]
    s.out.table(name, ("topic", "queue", "first", "last", "messages"), rows)
    if len(ranges) > _SHOWN:
        s.out.note(f"{len(ranges) - _SHOWN} more ranges: --json shows all of them")
