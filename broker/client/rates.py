"""Rates and lags of a cluster between two looks at it: what `pystore top` shows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.client.admin import BrokerFacts, QueueLag

__all__ = ["SORTS", "Look", "TopRow", "rows_between"]

#: A key of the keyboard: the column that it sorts by.
SORTS = {"l": "lag", "i": "in", "o": "out", "g": "group", "t": "topic"}


@dataclass(slots=True)
class Look:
    """What was there at a moment. when: seconds of a steady clock. lite: messages that wait in the
    lite topics of a topic, by group and topic; of these no rate is known."""

    when: float
    brokers: list[BrokerFacts] = field(default_factory=list)
    lags: list[QueueLag] = field(default_factory=list)
    lite: dict[tuple[str, str], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TopRow:
    """A group and one of its topics. came, went: messages a second, into the topic and to the
    group; None at the first look. grows: lag a second."""

    group: str
    topic: str
    lag: int
    came: float | None
    went: float | None

    @property
    def seconds_left(self) -> float | None:
        """The time until nothing waits, at these rates; None when that never comes."""
        if self.came is None or self.went is None:
            return None
        if not self.lag:
            return 0.0
        return self.lag / (self.went - self.came) if self.went > self.came else None


def _sums(lags: Iterable[QueueLag]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Returns lag, end and committed offset, summed over the queues of a group and topic."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for each in lags:
        key = (each.group, each.queue.topic)
        lag, end, committed = found.get(key, (0, 0, 0))
        found[key] = (lag + each.behind, end + each.end, committed + each.committed)
    return found


def rows_between(before: Look | None, now: Look, sort: str = "lag") -> list[TopRow]:
    """Returns rows in order: numbers from the largest on, names from the first on. A group that was
    reset back, or a topic that was made again, has no rate for once."""
    old: Mapping[tuple[str, str], tuple[int, int, int]] = _sums(before.lags) if before else {}
    seconds = now.when - before.when if before else 0.0
    rows = []
    for (group, topic), (lag, end, committed) in _sums(now.lags).items():
        came = went = None
        if (group, topic) in old and seconds > 0:
            _, old_end, old_committed = old[group, topic]
            came = (end - old_end) / seconds if end >= old_end else None
            went = (committed - old_committed) / seconds if committed >= old_committed else None
        rows.append(TopRow(group, topic, lag, came, went))
    rows += [TopRow(group, topic, lag, None, None) for (group, topic), lag in now.lite.items()]
    rows.sort(key=lambda row: (row.group, row.topic))
    if sort == "topic":
        rows.sort(key=lambda row: row.topic)
    elif sort != "group":
        number = {"lag": "lag", "in": "came", "out": "went"}[sort]
        rows.sort(key=lambda row: getattr(row, number) or 0, reverse=True)
    return rows
