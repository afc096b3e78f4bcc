"""Filters that Spark pushes into a reader, turned into a narrower plan.

Only what the plan can use without looking at messages is translated: equality, lists and ranges of
the columns below. Every filter goes back to Spark as well, which checks it again row by row; so
what is not translated costs time, never rows.

Why this is not on by default: the head of tests/spark/test_pushdown.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from spark_ext.batch import BatchReader
from spark_ext.options import PushedFilters, ReadOptions
from spark_ext.plan import plan

__all__ = ["PushingReader", "narrowed", "wanted"]

#: The Spark whose plans belong to one scan each (SPARK-58551).
_SAFE_SINCE = 5
#: A list of more tags is left to Spark: it would travel with every task.
_TAGS_TEXT_MAX = 1000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US = dt.timedelta(microseconds=1)


def wanted(pushdown: str, version: str) -> bool:
    """Says whether option pushdown asks for a PushingReader under this version of Spark."""
    safe = int(version.partition(".")[0]) >= _SAFE_SINCE
    return pushdown == "unsafe" or (pushdown == "auto" and safe)


class PushingReader(BatchReader):
    """A reader whose plan the filters of the query narrow.

    A class of its own, since Spark fails every query of a reader that has ``pushFilters`` while
    spark.sql.python.filterPushdown.enabled is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.options = narrowed(self.options, filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [] if _nothing(self.options) else list(plan(self.options))


def narrowed(options: ReadOptions, filters: Iterable[Filter]) -> ReadOptions:
    """Returns the options with what the filters rule out left out; the rest of a filter is
    ignored."""
    for f in filters:
        column: tuple[str, ...] = getattr(f, "attribute", ())
        low, high, values = _bounds(f)
        if len(column) != 1 or values == frozenset():
            continue
        p = options.pushed or PushedFilters()
        name = column[0]
        if name == "topic" and values is not None:
            options = options._replace(pushed=p._replace(topics=_both(p.topics, values)))
        elif name == "brokerName" and values is not None:
            options = options._replace(pushed=p._replace(brokers=_both(p.brokers, values)))
        elif name == "queueId" and values is not None:
            options = options._replace(pushed=p._replace(queues=_both(p.queues, values)))
        elif name == "tags" and values is not None and _expressible(values) and not options.sql:
            options = options._replace(pushed=p._replace(tags=_both(p.tags, values)))
        elif name == "liteTopic" and values is not None:
            options = options._replace(pushed=p._replace(lite=_both(p.lite, values)))
        elif name == "queueOffset":
            first = p.first if low is None else max(p.first, low)
            last = p.last if high is None else min(p.last, high)
            options = options._replace(pushed=p._replace(first=first, last=last))
        elif name == "storeTimestamp":
            options = _timed(options, low, high)
    return options if options.pushed is None else _with_tags(options, options.pushed)


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _bounds(f: Filter) -> tuple[int | None, int | None, frozenset[Any] | None]:
    """Returns the lowest and the highest value a filter lets through, and the values when it lists
    them.

    Numbers for numbers, microseconds for times, None where there is no bound. A filter that is not
    understood lists no value at all.
    """
    unknown = None, None, frozenset[Any]()
    if isinstance(f, (EqualTo, EqualNullSafe, In)):
        given = f.value if isinstance(f, In) else [f.value]
        values = [v for v in map(_plain, given) if v is not None]
        if len(values) != len(given) or not values:
            return unknown
        numbers = [v for v in values if isinstance(v, int)]
        if len(numbers) == len(values):
            return min(numbers), max(numbers), frozenset(numbers)
        return None, None, frozenset(values)
    if not isinstance(f, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return unknown
    value = _plain(f.value)
    if not isinstance(value, int):
        return unknown
    if isinstance(f, (GreaterThan, GreaterThanOrEqual)):
        return value + isinstance(f, GreaterThan), None, None
    return None, value - isinstance(f, LessThan), None


def _plain(value: object) -> int | str | None:
    """Returns a number, a text, or a time in microseconds since 1970; None for any other value."""
    if isinstance(value, dt.datetime):
        return None if value.tzinfo is None else (value - _EPOCH) // _US
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _timed(options: ReadOptions, low: int | None, high: int | None) -> ReadOptions:
    """Rounds store times, which are whole milliseconds."""
    first, last = options.time_min, options.time_max
    if low is not None:
        ms = max(0, -(-low // 1000))
        first = ms if first is None else max(first, ms)
    if high is not None:
        ms = high // 1000
        last = ms if last is None else min(last, ms)
    return options._replace(time_min=first, time_max=last)


def _expressible(tags: frozenset[str]) -> bool:
    """Says whether an expression ``A || B`` can say these tags, byte for byte."""
    plain = all(
        t and t == t.strip() and t != "*" and not {"|", "\0", "\ufffd"} & set(t) for t in tags
    )
    return plain and sum(map(len, tags)) <= _TAGS_TEXT_MAX


def _with_tags(options: ReadOptions, pushed: PushedFilters) -> ReadOptions:
    """Makes one expression of the tags of the filters and of option tags."""
    if pushed.tags is None:
        return options
    asked = frozenset(t.strip() for t in options.tags.split("||")) - {""}
    tags = pushed.tags if not asked or "*" in asked else pushed.tags & asked
    pushed = pushed._replace(tags=tags)
    return options._replace(tags=" || ".join(sorted(tags)) or options.tags, pushed=pushed)


def _nothing(options: ReadOptions) -> bool:
    """Says whether the filters together let nothing through."""
    p = options.pushed or PushedFilters()
    late, early = options.time_min, options.time_max
    return (
        frozenset() in (p.topics, p.brokers, p.queues, p.tags, p.lite)
        or p.first > p.last
        or (late is not None and early is not None and late > early)
    )
