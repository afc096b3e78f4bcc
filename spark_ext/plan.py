"""Planning: from options to ranges of queues, and from ranges to partitions.

Nothing here walks messages. Queues tell their ends, times are found by binary search over a queue,
keys through the index, and sizes are estimated from a few units; so the cost does not grow with the
store, only with the number of queues and of partitions.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyspark.sql.datasource import InputPartition

from pystore.format.names import HALF_TOPIC, OP_TOPIC, is_internal_topic
from spark_ext.errors import BadOption, DataLoss, nearest
from spark_ext.lite import is_light, light_places
from spark_ext.options import EARLIEST, LATEST, Bound, PushedFilters, ReadOptions
from spark_ext.stores import damaged_index, known_damage, open_reader
from spark_ext.tiered import check_seams, is_tiered, sides

if TYPE_CHECKING:
    import pystore
    from pystore.cold.reader import ColdReader

__all__ = ["Part", "Range", "Span", "broker_names", "cut", "find_queues", "plan", "probe_of"]

HALF_TOPICS = (HALF_TOPIC, OP_TOPIC)

#: Store times follow the log, but a broker's clock may be set back; a search looks at least so far
#: around, which is the hour of a wrong summer time and some minutes: see clock_margin().
CLOCK_MARGIN_MS = 70 * 60_000
CLOCK_GUIDES, CLOCK_SAMPLES = 4, 8
#: Ranges smaller than this share partitions, since a partition costs some 15 ms whatever it holds.
SMALL_BYTES = 4 << 20
RANGES_MAX = 2048  # per partition, so that it stays below 64 KB when pickled
TOPICS_TEXT_MAX = 600
#: A log scan reads everything once and in order; it pays when most of it is wanted and the page
#: cache cannot hold what several queues would read again.
LOG_SHARE = 0.3
GUIDES = 8
#: Damage that this process has told of.
_told: set[str] = set()
SAMPLES = 8
SAMPLE_UNITS = 32


class Span(NamedTuple):
    """A queue and what it holds: offsets [low, high)."""

    topic: str
    queue: int
    low: int
    high: int


class Range(NamedTuple):
    """Offsets [start, end) of a queue, with the estimated size of a record."""

    topic: str
    queue: int
    start: int
    end: int
    record_bytes: int

    @property
    def bytes(self) -> int:
        return (self.end - self.start) * self.record_bytes


class Part(InputPartition):
    """What one task reads; small when pickled, for it travels with the task.

    ranges: (topic, queue, start, end) each; or, for a scan of the log, none: then `log` is (from,
    to) in bytes and `topics` the names wanted, empty for all. probe: what `probe_of` says of the
    first message, by which a task knows that its host shows the same store.
    """

    def __init__(
        self,
        path: str,
        broker: str,
        ranges: tuple[tuple[str, int, int, int], ...] = (),
        probe: tuple[int, int] | None = None,
        log: tuple[int, int] | None = None,
        topics: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.broker = broker
        self.ranges = ranges
        self.probe = probe
        self.log = log
        self.topics = topics

    def __reduce__(self) -> Any:
        return Part, (self.path, self.broker, self.ranges, self.probe, self.log, self.topics)

    def __repr__(self) -> str:
        what = f"log {self.log}" if self.log else ", ".join(map(str, self.ranges))
        return f"Part({self.path}: {what})"


# ---- which queues ----


def broker_names(options: ReadOptions) -> tuple[str, ...]:
    """Returns a name for each store: given, or broker-a, broker-b and so on; the files do not
    tell."""
    if options.brokers:
        return options.brokers
    return tuple(f"broker-{_letters(i)}" for i in range(len(options.paths)))


def _letters(i: int) -> str:
    return chr(97 + i) if i < 26 else _letters(i // 26 - 1) + chr(97 + i % 26)


def find_queues(
    readers: Sequence[pystore.Reader], options: ReadOptions, *, missing_fails: bool = True
) -> list[list[Span]]:
    """Returns the queues that the options ask for, for each store.

    missing_fails: a topic of the list that no store has is an error. Raises: BadOption, DataLoss.
    """
    for reader in readers:
        _check_known_damage(reader, options)
    only = options.topics[0] if len(options.topics) == 1 else None
    everything = [[Span(*q[:4]) for q in _facts(reader, only)] for reader in readers]
    there = {span.topic for spans in everything for span in spans}
    if options.topics and missing_fails:
        for name in options.topics:
            if name not in there:
                raise BadOption(_no_topic(name, {t for each in readers for t in each.topics()}))
    pattern = re.compile(options.pattern) if options.pattern else None
    wanted = {
        name
        for name in there
        if (
            name in options.topics if options.topics else pattern is None or pattern.fullmatch(name)
        )
        and (name in options.topics or options.transactions == "all" or name not in HALF_TOPICS)
        and (name in options.topics or options.internal or not is_internal_topic(name))
        # The messages of a lite topic are in its topic's queues, too.
        and (name in options.topics or not is_light(name))
    }
    found = [
        [
            s
            for s in spans
            if s.topic in wanted and (not options.queues or s.queue in options.queues)
        ]
        for spans in everything
    ]
    for reader, spans in zip(readers, found, strict=True):
        check_seams(reader, ((s.topic, s.queue) for s in spans))
    return found


def _facts(reader: pystore.Reader, topic: str | None = None) -> Iterable[tuple[str, int, int, int]]:
    for q in reader.queues(topic):
        # One text a topic: a partition of a thousand queues then names it once when pickled.
        yield sys.intern(q.topic), q.queue, q.min_offset, max(q.min_offset, q.max_offset)


def _check_known_damage(reader: pystore.Reader, options: ReadOptions) -> None:
    """Checks for damage that is known. Raises: DataLoss, unless the options say that the rest is
    read: then it is printed once."""
    for what in known_damage(reader):
        if options.fail_on_loss:
            raise DataLoss(
                f"{what}; `pystore verify` says what it is, failOnDataLoss=false reads the rest"
            )
        if what not in _told:
            _told.add(what)
            print(f"rocketmq: skipped {what}", file=sys.stderr)


def _no_topic(name: str, there: Iterable[str]) -> str:
    some = ", ".join(sorted(there)[:5]) or "none"
    return f"the store has no topic '{name}'{nearest(name, there) or f'; it has: {some}'}"


def _left(pushed: PushedFilters, broker: str, spans: Sequence[Span]) -> list[Span]:
    """Returns the queues that pushed filters leave."""
    return [
        s
        for s in spans
        if (pushed.brokers is None or broker in pushed.brokers)
        and (pushed.topics is None or s.topic in pushed.topics)
        and (pushed.queues is None or s.queue in pushed.queues)
    ]


# ---- where to begin and to end ----


def first_at(reader: pystore.Reader, span: Span, ms: int) -> int:
    """Returns the first offset stored at or after `ms`; the queue's end when there is none."""
    if span.low >= span.high:
        return span.high
    last = reader.read(span.topic, span.queue, span.high - 1, max_messages=1)
    if len(last) and last[0].store_timestamp < ms:
        return span.high
    return min(max(reader.offset_at(span.topic, span.queue, max(ms, 0)), span.low), span.high)


def stored_at(reader: pystore.Reader, topic: str, queue: int, offset: int) -> int | None:
    """Returns the store time of a message, in ms; None: it cannot be read, as one that was just
    deleted."""
    import pystore

    try:
        found = reader.read(topic, queue, offset, max_messages=1)
    except (pystore.StoreError, LookupError):
        return None
    return int(found[0].store_timestamp) if len(found) else None


def check_table(
    bound: Bound, name: str, found: Sequence[Sequence[Span]], brokers: Sequence[str]
) -> None:
    """Checks a JSON table: every topic, broker and queue of a JSON table must be one that is read.
    Raises: BadOption."""
    for topic, inner in (bound.table or {}).items():
        for broker, queues in inner.items():
            if broker and broker not in brokers:
                raise BadOption(
                    f"option {name}: no broker '{broker}'; there are: {', '.join(brokers)}"
                )
            at = [i for i, b in enumerate(brokers) if broker in ("", b)]
            for queue in queues:
                if not any(s.topic == topic and s.queue == queue for i in at for s in found[i]):
                    raise BadOption(
                        f"option {name}: the query does not read a queue {topic}/{queue}"
                        f"{f' of {broker}' if broker else ''}"
                    )


def check_sql(options: ReadOptions, reader: pystore.Reader) -> None:
    """Checks a SQL92 filter: a malformed one is reported by the driver, not by each task. Raises:
    BadOption."""
    import pystore

    if options.sql:
        try:
            reader.arrow(sql=options.sql)
        except pystore.StoreError as e:
            raise BadOption(f"option sql92: {e}") from None


def bound_of(bound: Bound, broker: str, span: Span) -> int | None:
    """Returns what a JSON table says about a queue."""
    inner: Mapping[str, Mapping[int, int]] = (bound.table or {}).get(span.topic, {})
    for name in (broker, ""):
        if name in inner and span.queue in inner[name]:
            return inner[name][span.queue]
    return None


def start_of(reader: pystore.Reader, options: ReadOptions, broker: str, span: Span) -> int:
    """Returns where a queue begins, as the options say; not yet kept within the queue."""
    bound = options.start
    ms = bound.ms if bound.kind == "time" else None
    if bound.kind in ("offsets", "times"):
        given = bound_of(bound, broker, span)
        if given is None or given == EARLIEST:
            return span.low
        if given == LATEST:
            return span.high
        if bound.kind == "offsets":
            return given
        ms = given
    if bound.kind == "latest":
        return span.high
    if ms is None:
        return span.low
    at = first_at(reader, span, ms)
    if at == span.high and options.strategy == "error":
        raise BadOption(
            f"no message of {span.topic}/{span.queue} was stored at or after {ms};"
            " startingOffsetsByTimestampStrategy=latest begins at the end there"
        )
    return at


def end_of(reader: pystore.Reader, options: ReadOptions, broker: str, span: Span) -> int:
    """Returns where a queue ends, as the options say."""
    bound = options.end
    if bound.kind == "time":
        return first_at(reader, span, bound.ms)
    given = bound_of(bound, broker, span) if bound.table is not None else None
    if given is None or given == LATEST:
        return span.high
    if given == EARLIEST:
        return span.low
    return given if bound.kind == "offsets" else first_at(reader, span, given)


def within(span: Span, start: int, end: int, fail_on_loss: bool) -> tuple[int, int]:
    """Keeps a range inside its queue. Raises: DataLoss when that drops offsets and they matter."""
    name = f"{span.topic}/{span.queue}"
    holds = (
        f"the queue holds offsets {span.low} to {span.high - 1}"
        if span.high > span.low
        else "it is empty"
    )
    if fail_on_loss:
        for what, offset in (("start", start), ("end", end)):
            if offset > span.high:
                raise DataLoss(f"the {what} {offset} of {name} is beyond the end: {holds}")
        if start < span.low and start < end:
            raise DataLoss(
                f"offsets {start} to {min(end, span.low) - 1} of {name} no longer exist:"
                f" {holds}; failOnDataLoss=false reads the rest"
            )
    start, end = max(start, span.low), min(end, span.high)
    return start, max(start, end)


def clock_margin(reader: pystore.Reader, options: ReadOptions, spans: Sequence[Span]) -> int:
    """Returns how far a search by store time looks around in a store, in ms.

    A binary search finds a place with an earlier time before it. Where the clock was never set back
    by more than the margin, what lies before that place is earlier than what was asked for. Samples
    of the longest queues show a clock that was set back further than the least margin, unless it
    had caught up before the next sample.
    """
    if reader.is_cold or (options.time_min is None and options.time_max is None):
        return 0  # a tier's manifests tell times, and nothing is searched
    seen: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda s: s.low - s.high)[:CLOCK_GUIDES]:
        side, low, high = sides(reader, *span)[-1]
        if side.is_cold:
            continue
        step = max(1, -(-(high - low) // CLOCK_SAMPLES))
        for at in [*range(low, high, step), high - 1][: CLOCK_SAMPLES + 1]:
            units = reader.units(span.topic, span.queue, at, 1)
            stored = stored_at(reader, span.topic, span.queue, at)
            if units and stored is not None:
                seen.append((units[0][0], stored))
    times = [stored for _, stored in sorted(seen)]
    fall = max(
        (top - t for top, t in zip(itertools.accumulate(times, max), times, strict=True)), default=0
    )
    rise = max((b - a for a, b in itertools.pairwise(times)), default=0)
    return max(CLOCK_MARGIN_MS, fall + max(rise, 0) if fall else 0)


def narrow(
    reader: pystore.Reader, options: ReadOptions, span: Span, start: int, end: int, margin: int
) -> tuple[int, int]:
    """Leaves out what the store-time range and the offsets of pushed filters cannot contain.
    reader: of a store or of a tier. margin: that of clock_margin()."""
    low, high = options.time_min, options.time_max
    if reader.is_cold and (low, high) != (None, None):
        times = low or 0, sys.maxsize if high is None else high
        start, end = reader.timed(span.topic, span.queue, start, end, *times)
    else:
        if low is not None:
            start = max(start, first_at(reader, span, low - margin))
        if high is not None:
            end = min(end, first_at(reader, span, high + 1 + margin))
    if options.pushed is not None:
        start, end = max(start, options.pushed.first), min(end, options.pushed.last + 1)
    return start, max(start, end)


# ---- sizes ----


def record_bytes(reader: pystore.Reader, topic: str, queue: int, start: int, end: int) -> int:
    """Returns the mean size of a record between two offsets, from a few places spread over them; of
    a store and its tier, in the one that has the first."""
    reader, start, end = sides(reader, topic, queue, start, end)[0]
    count = end - start
    if reader.is_cold:  # a unit costs a request, and may cost as much as the segment
        return max(1, cast("ColdReader", reader).record_bytes(topic, queue, start))
    step = max(1, count // SAMPLES)
    sizes = []
    for at in range(start, end, step)[:SAMPLES]:
        try:
            sizes += [
                size for _, size, _ in reader.units(topic, queue, at, min(SAMPLE_UNITS, end - at))
            ]
        except LookupError:
            break
        if count <= SAMPLE_UNITS:
            break
    return max(1, sum(sizes) // len(sizes)) if sizes else 256


# ---- partitions ----


def cut(ranges: Sequence[Range], options: ReadOptions) -> list[list[Range]]:
    """Ranges in pieces of at most the wanted bytes and records; small neighbours share a piece."""
    total = sum(r.bytes for r in ranges)
    goal = options.max_bytes
    if options.min_partitions > 1:
        goal = min(goal, max(1, -(-total // options.min_partitions)))
    small = min(SMALL_BYTES, goal)
    pieces: list[list[Range]] = []
    room, rows = 0, 0
    for r in ranges:
        step = max(1, min(goal // r.record_bytes, options.max_records))
        count = r.end - r.start
        parts = -(-count // step)
        if parts == 1 and r.bytes <= room and count <= rows and len(pieces[-1]) < RANGES_MAX:
            pieces[-1].append(r)
            room, rows = room - r.bytes, rows - count
            continue
        for i in range(parts):  # even shares, not full ones and a rest
            a, b = r.start + count * i // parts, r.start + count * (i + 1) // parts
            pieces.append([r._replace(start=a, end=b)])
        room, rows = (small - r.bytes, options.max_records - count) if parts == 1 else (0, 0)
    return pieces


def by_segments(
    reader: pystore.Reader, pieces: Sequence[Sequence[Range]], options: ReadOptions
) -> list[Sequence[Range]]:
    """Moves borders within a queue of a tier to where the segment begins that they cut, so that it
    is fetched once; not where what comes after would have more than is wanted of a partition."""
    moved = list(pieces)
    for number in range(1, len(moved)):
        before, after = moved[number - 1][-1], moved[number][0]
        if (before.topic, before.queue, before.end) != (after.topic, after.queue, after.start):
            continue
        side = sides(reader, after.topic, after.queue, after.start, after.end)[0][0]
        if not side.is_cold:
            continue
        at = cast("ColdReader", side).segment_begins(after.topic, after.queue, after.start)
        grown = after._replace(start=at)
        fits = grown.bytes <= options.max_bytes and grown.end - at <= options.max_records
        if before.start < at and fits:
            moved[number - 1] = [*moved[number - 1][:-1], before._replace(end=at)]
            moved[number] = [grown, *moved[number][1:]]
    return moved


def queue_parts(
    reader: pystore.Reader, path: str, broker: str, pieces: Sequence[Sequence[Range]],
    options: ReadOptions,
) -> list[Part]:  # fmt: skip
    """Returns partitions that read queues."""
    parts = []
    for piece in by_segments(reader, pieces, options):
        first = piece[0]
        probe = probe_of(reader, first.topic, first.queue, first.start)
        parts.append(
            Part(path, broker, tuple((r.topic, r.queue, r.start, r.end) for r in piece), probe)
        )
    return parts


def probe_of(reader: pystore.Reader, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
    """Returns by which two numbers a message is told from that of another store: place and size of
    its record, or what a tier's manifest says of its segment. None: it is not there."""
    try:
        if reader.is_cold:
            return cast("ColdReader", reader).probe(topic, queue, offset)
        units = reader.units(topic, queue, offset, 1)
    except LookupError:
        return None
    return units[0][:2] if units else None


def plan(options: ReadOptions) -> list[Part]:
    """Returns the partitions of a batch read. Raises: BadOption, DataLoss, SourceError."""
    readers = [
        open_reader(path, options.settings_of(path), fresh=True, index=bool(options.keys))
        for path in options.paths
    ]
    brokers = broker_names(options)
    found = find_queues(readers, options)
    check_table(options.start, "startingOffsets", found, brokers)
    check_table(options.end, "endingOffsets", found, brokers)
    check_sql(options, readers[0])
    if options.pushed is not None:
        found = [_left(options.pushed, b, spans) for b, spans in zip(brokers, found, strict=True)]
    parts: list[Part] = []
    share = options._replace(min_partitions=-(-options.min_partitions // len(readers)))
    for path, broker, reader, spans in zip(options.paths, brokers, readers, found, strict=True):
        if options.keys:
            ranges = key_ranges(reader, options, broker, spans)
        elif options.lite or (options.pushed is not None and options.pushed.lite is not None):
            ranges = lite_ranges(reader, options, broker, spans)
        else:
            ranges = span_ranges(reader, options, broker, spans)
        if _wants_log(reader, options, ranges):
            parts += log_parts(reader, path, broker, share, spans)
        else:
            parts += queue_parts(reader, path, broker, cut(ranges, share), share)
    return parts


def span_ranges(
    reader: pystore.Reader, options: ReadOptions, broker: str, spans: Sequence[Span]
) -> list[Range]:
    """Returns the range of each queue that is not empty."""
    ranges = []
    margin = clock_margin(reader, options, spans)
    for span in spans:
        start = start_of(reader, options, broker, span)
        end = end_of(reader, options, broker, span)
        start, end = within(span, start, end, options.fail_on_loss)
        for side, first, last in sides(reader, span.topic, span.queue, start, end):
            a, b = narrow(side, options, span, first, last, margin)
            ranges += ranges_of(side, span.topic, span.queue, a, b)
    return ranges


def ranges_of(reader: pystore.Reader, topic: str, queue: int, start: int, end: int) -> list[Range]:
    """Returns the ranges of offsets [start, end) of a queue: none, one, or that of the tier before
    that of the store."""
    return [
        Range(topic, queue, a, b, record_bytes(side, topic, queue, a, b))
        for side, a, b in sides(reader, topic, queue, start, end)
        if a < b
    ]


def key_ranges(
    reader: pystore.Reader, options: ReadOptions, broker: str, spans: Sequence[Span]
) -> list[Range]:
    """Returns the exact places of the keys, out of the index; neighbours become one range."""
    damage = damaged_index(reader)
    if damage and options.fail_on_loss:
        raise DataLoss(
            f"option keys: {damage}; mend it by `pystore rebuild {reader.path}`, or filter the"
            " column keys instead; failOnDataLoss=false takes what it still finds"
        )
    if reader.info().index_files == 0:
        raise BadOption("option keys: the store has no index; filter the column keys instead")
    allowed = {(s.topic, s.queue): s for s in spans}
    margin = clock_margin(reader, options, spans)
    places: dict[tuple[str, int, int], int] = {}
    for topic in sorted({s.topic for s in spans}):
        for key in options.keys:
            for m in reader.query(topic, key):  # whatever its time: the index knows one clock
                places[topic, m.queue, m.queue_offset] = m.size
    ranges: list[Range] = []
    limits: dict[tuple[str, int], tuple[int, int]] = {}
    for (topic, queue, at), size in sorted(places.items()):
        span = allowed.get((topic, queue))
        if span is None:
            continue
        if (topic, queue) not in limits:
            a, b = start_of(reader, options, broker, span), end_of(reader, options, broker, span)
            a, b = within(span, a, b, options.fail_on_loss)
            limits[topic, queue] = _reach(
                narrow(side, options, span, first, last, margin)
                for side, first, last in sides(reader, topic, queue, a, b)
            )
        low, high = limits[topic, queue]
        if not low <= at < high:
            continue
        _add_place(ranges, Range(topic, queue, at, at + 1, size))
    return ranges


def _reach(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Returns the range from the beginning of the first to the end of the last that is not
    empty."""
    found = [(a, b) for a, b in ranges if a < b] or [(0, 0)]
    return found[0][0], found[-1][1]


def lite_ranges(
    reader: pystore.Reader, options: ReadOptions, broker: str, spans: Sequence[Span]
) -> list[Range]:
    """Returns the places of the messages of lite topics, out of their light queues. Of a filter
    also all that was stored before them: docs/spark.md#lite-topics."""
    pushed = options.pushed or PushedFilters()
    if reader.is_cold or is_tiered(reader):
        if options.lite:
            raise BadOption(
                "option liteTopics: a cold tier has no light queues; filter the column liteTopic"
            )
        return span_ranges(reader, options, broker, spans)
    names = frozenset(options.lite) or pushed.lite or frozenset()
    if options.lite and pushed.lite is not None:
        names &= pushed.lite
    ranges: list[Range] = []
    margin = clock_margin(reader, options, spans)
    for topic, some in itertools.groupby(sorted(spans), key=lambda span: span.topic):
        light = light_places(reader, topic, names)
        if options.lite and light.damaged >= 0 and options.fail_on_loss:
            raise DataLoss(
                f"a message of a lite topic of {topic} is damaged: byte {light.damaged} of the log"
                f" of {reader.path}; failOnDataLoss=false reads the rest"
            )
        for span in some:
            a, b = start_of(reader, options, broker, span), end_of(reader, options, broker, span)
            a, b = within(span, a, b, options.fail_on_loss)
            low, high = narrow(reader, options, span, a, b, margin)
            if not options.lite:
                at = high if light.since is None else _offset_after(reader, span, light.since)
                ranges += ranges_of(reader, topic, span.queue, low, min(at, high))
                low = max(low, at)
            ranges += _placed(span, light.places.get(span.queue, {}), low, high)
    return ranges


def _placed(span: Span, sizes: Mapping[int, int], low: int, high: int) -> list[Range]:
    """Returns ranges of single messages, by offset; neighbours become one."""
    ranges: list[Range] = []
    for at, size in sorted(sizes.items()):
        if low <= at < high:
            _add_place(ranges, Range(span.topic, span.queue, at, at + 1, size))
    return ranges


def _add_place(ranges: list[Range], place: Range) -> None:
    """Adds the range of one message; it becomes one with the last range where it follows that."""
    last = ranges[-1] if ranges else None
    if last and (last.topic, last.queue, last.end) == (place.topic, place.queue, place.start):
        ranges[-1] = last._replace(end=place.end)
    else:
        ranges.append(place)


def _offset_after(reader: pystore.Reader, span: Span, place: int) -> int:
    """Returns the first offset of a queue whose record lies at a byte of the log, or after it."""
    low, high = span.low, span.high
    while low < high:
        middle = (low + high) // 2
        units = reader.units(span.topic, span.queue, middle, 1)
        if units and units[0][0] >= place:
            high = middle
        else:
            low = middle + 1
    return low


# ---- scans of the log ----


def _bounded(options: ReadOptions) -> bool:
    """Says whether the query names offsets, queues or keys: the log knows none of them."""
    p = options.pushed or PushedFilters()
    return bool(
        options.keys
        or options.lite
        or options.queues
        or p._replace(topics=None, tags=None) != PushedFilters()
        or options.start.kind != "earliest"
        or options.end.kind != "latest"
    )


def _everything(options: ReadOptions) -> bool:
    """Says whether a scan of the log wants every topic, so that it need not name them."""
    pushed = options.pushed is not None and options.pushed.topics is not None
    return not options.topics and not options.pattern and not pushed and options.internal


def _too_many(named: Iterable[Span | Range]) -> bool:
    """Says whether so many topics cannot travel with each partition."""
    return sum(map(len, {each.topic for each in named})) > TOPICS_TEXT_MAX


def _wants_log(reader: pystore.Reader, options: ReadOptions, ranges: Sequence[Range]) -> bool:
    if options.scan == "queue":
        return False
    if options.scan == "log":
        if reader.is_cold:
            raise BadOption("option scan=log: a cold tier has no log over all queues")
        if _bounded(options._replace(pushed=None)):
            raise BadOption(
                "option scan=log goes with neither offsets, times of offsets, queues, keys nor"
                " liteTopics"
            )
        return True
    if _bounded(options) or options.time_min is not None or options.time_max is not None:
        return False
    if is_tiered(reader):
        return False
    if not _everything(options) and _too_many(ranges):
        return False
    info = reader.info()
    log = info.log_max - info.log_min
    wanted = sum(r.bytes for r in ranges)
    return log > _memory_bytes() // 2 and wanted > LOG_SHARE * log


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def log_parts(
    reader: pystore.Reader, path: str, broker: str, options: ReadOptions, spans: Sequence[Span]
) -> list[Part]:
    """Returns partitions that read the log, cut where records begin.

    A file begins with a record; within a file, the units of the longest queues tell where some
    begin.
    """
    low, high = _log_range(reader, path, options)
    size = reader.info().commitlog_file_size
    topics = tuple(sorted({s.topic for s in spans}))
    everything = _everything(options)
    if not everything and _too_many(spans):
        raise BadOption(f"option scan=log cannot name {len(topics)} topics; leave it to scan=auto")
    if low >= high or not (topics or everything):
        return []
    goal = min(options.max_bytes, max(1, -(-(high - low) // options.min_partitions)))
    lengths = sorted((Span(*q) for q in _facts(reader)), key=lambda s: s.low - s.high)
    guides = lengths[:GUIDES]
    edges = [low]
    for target in range(low + goal, high, goal):
        file_end = -(-target // size) * size
        at = min(
            (_record_at_or_after(reader, g, target, file_end) for g in guides), default=file_end
        )
        if edges[-1] < at < high:
            edges.append(at)
    edges.append(high)
    named = () if everything else topics
    return [Part(path, broker, log=(a, b), topics=named) for a, b in itertools.pairwise(edges)]


def _log_range(reader: pystore.Reader, path: str, options: ReadOptions) -> tuple[int, int]:
    """Returns the bytes of the log that are read. Raises: BadOption, DataLoss."""
    info = reader.info()
    if len(options.paths) > 1 and (options.log_start, options.log_end) != (None, None):
        raise BadOption("options startingLogOffset and endingLogOffset are of one store's log")
    start = info.log_min if options.log_start is None else options.log_start
    end = info.log_max if options.log_end is None else options.log_end
    if options.fail_on_loss and (start < info.log_min or end > info.log_max):
        raise DataLoss(
            f"the log of {path} does not hold bytes {start} to {end}: it holds {info.log_min} to"
            f" {info.log_max}; failOnDataLoss=false reads the rest"
        )
    return max(start, info.log_min), min(end, info.log_max)


def _record_at_or_after(reader: pystore.Reader, guide: Span, target: int, file_end: int) -> int:
    """Returns the first record of a queue that starts at or after a byte, or the end of that byte's
    file."""
    at = _offset_after(reader, guide, target)
    units = reader.units(guide.topic, guide.queue, at, 1) if at < guide.high else []
    return min(units[0][0], file_end) if units and _begins(reader, units[0][0]) else file_end


def _begins(reader: pystore.Reader, place: int) -> bool:
    """Says whether a whole record begins there: a damaged unit may point into one, where a scan
    would take a sound log for a damaged one."""
    import pystore

    try:
        reader.message(place)
    except (pystore.StoreError, LookupError):
        return False
    return True
