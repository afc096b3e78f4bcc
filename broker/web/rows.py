"""Rows of the lists that a page shows, of a folder and of a running cluster alike; and pages of
them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from broker.client.admin import QueueLag
from broker.doctor.findings import Diagnosis
from broker.services.names import is_system_group
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, is_internal_topic

__all__ = [
    "KINDS_OF_TOPICS",
    "SOON_S",
    "Examination",
    "GroupRow",
    "LagTotal",
    "RowPage",
    "TopicRow",
    "counted",
    "groups_of_kind",
    "kind_of",
    "of_kind",
    "paged",
]

_Row = TypeVar("_Row")
#: Rows of one page of a list.
ROWS = 50
#: Groups that an overview shows.
_FURTHEST = 5
#: How long a page waits for what is counted, seconds.
SOON_S = 0.3


#: What users look for comes first.
KINDS_OF_TOPICS = ("messages", "retries", "dead letters", "system")


def kind_of(topic: str) -> str:
    """Returns what a topic is for: messages, retries, dead letters, or the system."""
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    if topic.startswith(RETRY_PREFIX):
        return "retries"
    return "system" if is_internal_topic(topic) else "messages"


def counted(count: int, what: str) -> str:
    """Returns a number of things: ``1 message``, ``2 messages``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def of_kind(rows: Sequence[TopicRow], kind: str) -> Sequence[TopicRow]:
    """Returns the topics of a kind. kind: one of them, or `all`; empty: those that users send
    to."""
    return rows if kind == "all" else [row for row in rows if row.kind == (kind or "messages")]


def groups_of_kind(rows: Sequence[GroupRow], kind: str) -> Sequence[GroupRow]:
    """Returns the groups of a kind. kind: `system`, or `all`; empty: those of users."""
    if kind == "all":
        return rows
    return [row for row in rows if is_system_group(row.name) == (kind == "system")]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """queues, messages: None where nobody has counted them."""

    name: str
    kind: str
    queues: int | None
    messages: int | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """dead: its dead letters. None where nobody has counted them, or not yet."""

    name: str
    topics: int | None
    behind: int | None
    dead: int | None

    @classmethod
    def of(cls, name: str, lags: Iterable[QueueLag], dead: int | None) -> GroupRow:
        """Sums over the queues of a group."""
        rows = list(lags)
        return cls(name, len({r.queue.topic for r in rows}), sum(r.behind for r in rows), dead)


@dataclass(frozen=True, slots=True)
class LagTotal:
    """What waits for groups of users. groups: those furthest behind, with how far."""

    behind: int
    groups: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, behind: Mapping[str, int]) -> LagTotal:
        """Returns the rows of groups. behind: by group; those of the system are left out."""
        rows = [row for row in behind.items() if row[1] and not is_system_group(row[0])]
        rows.sort(key=lambda row: (-row[1], row[0]))
        return cls(sum(count for _, count in rows), tuple(rows[:_FURTHEST]))


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor found. when_ms: ms since 1970. skipped: brokers that it did not look at."""

    when_ms: int
    findings: list[Diagnosis] = field(default_factory=list)
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class RowPage(Generic[_Row]):
    """A page of a list. page: from 1 on. count: of all rows that the filter let pass."""

    rows: Sequence[_Row]
    page: int
    pages: int
    count: int


def paged(
    rows: Sequence[_Row], page: int, *, wanted: str = "",
    text: Callable[[_Row], str] = lambda row: str(row),
    order: Callable[[_Row], Any] | None = None,
) -> RowPage[_Row]:  # fmt: skip
    """Returns a page of rows. wanted: a part of `text`, in capitals or not. order: largest
    first."""
    chosen = [row for row in rows if wanted.lower() in text(row).lower()] if wanted else rows
    if order is not None:
        chosen = sorted(chosen, key=order, reverse=True)
    pages = max(1, -(-len(chosen) // ROWS))
    page = min(max(page, 1), pages)
    return RowPage(chosen[(page - 1) * ROWS : page * ROWS], page, pages, len(chosen))
