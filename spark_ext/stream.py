"""The streaming reader: offsets, limits, new queues, lost ones, progress.

An offset is ``{"v": 1, "o": {topic: {broker: {queue: n}}}, "id": {broker: identity}}``: n is the
next offset to be read. A queue that an offset does not name begins at its first message: it came up
after the query had begun. The identity (identity.py) is of the store that the offsets are of; those
of an earlier version, and of a store without messages, have none and are not compared.

Spark keeps one process with one such reader for the life of a query and asks ``latestOffset`` some
hundred times a second, so that must be cheap. Queues are listed only where the store shows a sign
of change (stores.py, ``view_of``), at most once in ten times as long as that took; nothing is
counted again until then. The offset itself, which Spark takes through JSON on each poll, costs most
of an idle query over many queues: such a query answers less often, and looks for that sign
meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_ext import schema as columns
from spark_ext.batch import read_part
from spark_ext.errors import BadOption, DataLoss, SourceError
from spark_ext.groups import commit_to_group
from spark_ext.identity import Identity, Kinship, aged, compare, identity_of, outlived
from spark_ext.options import ReadOptions
from spark_ext.plan import (
    Part,
    Range,
    Span,
    broker_names,
    check_sql,
    check_table,
    cut,
    find_queues,
    queue_parts,
    ranges_of,
    record_bytes,
    start_of,
    stored_at,
    within,
)
from spark_ext.stores import View, open_reader, view_of
from spark_ext.tiered import is_tiered

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise SourceError(
        "streaming needs PySpark 4.2 or newer, which lets a source limit a batch"
    ) from None
from pystore.files import FILE_MODE, make_folders, read_file, sync_folder, write_whole

if TYPE_CHECKING:
    import pyarrow as pa

    import pystore

__all__ = ["Key", "StreamReader", "decode", "encode", "shares"]

Key = tuple[str, str, int]  # topic, broker, queue
Offsets = dict[Key, int]
Identities = dict[str, Identity]  # broker: of its store

#: So long the size and the age of what waits are taken as they are.
LAG_KEPT_S = 1.0
#: An idle query answers after so long for each of its queues, some 30 times as long as Spark takes
#: over the answer; but soon, for Spark stops a query between two polls.
IDLE_S_PER_QUEUE, IDLE_LEAST_S, IDLE_MAX_S = 50e-6, 0.01, 1.0
#: Meanwhile it looks whether the stores have changed, once in so many seconds.
IDLE_LOOK_S = 0.25
#: The queues are listed once in so many seconds even without a sign of change: a log into which
#: somebody else has written zeros shows none, and its queues go on.
WHOLE_LOOK_S = 60.0


def encode(offsets: Mapping[Key, int], identities: Identities | None = None) -> dict[str, Any]:
    """Writes offsets as Spark has them in its checkpoint."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue), n in sorted(offsets.items()):
        tree.setdefault(topic, {}).setdefault(broker, {})[str(queue)] = n
    offset: dict[str, Any] = {"v": 1, "o": tree}
    known = {
        broker: [list(record) for record in i] for broker, i in (identities or {}).items() if i
    }
    if known:
        offset["id"] = known
    return offset


def decode(offset: Mapping[str, Any], where: str = "the checkpoint") -> Offsets:
    """Reads offsets of a checkpoint. Raises: SourceError when they are not ours."""
    try:
        if offset["v"] == 1:
            return {
                (topic, broker, int(queue)): int(n)
                for topic, inner in offset["o"].items()
                for broker, queues in inner.items()
                for queue, n in queues.items()
            }
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise _foreign(offset, where)


def _foreign(offset: object, where: str) -> SourceError:
    text = str(offset)
    return SourceError(f"{where} holds offsets of another source or version: {text:.200}")


def identities(offset: Mapping[str, Any], where: str = "the checkpoint") -> Identities:
    """Reads which stores an offset is of. Raises: SourceError when it is not ours."""
    try:
        return {
            broker: tuple((int(place), str(digest)) for place, digest in records)
            for broker, records in offset.get("id", {}).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise _foreign(offset, where) from None


def shares(lags: Mapping[Key, int], budget: int) -> Offsets:
    """Splits a budget in proportion to lag: never more than the lag, and each queue at least 1 of
    it, as far as it goes round; the longest first."""
    order = sorted((key for key in lags if lags[key] > 0), key=lambda k: (-lags[k], k))
    given = dict.fromkeys(order[:budget], 1)
    rest = budget - len(given)
    wanted = sum(lags[k] - 1 for k in given)
    if rest >= wanted:
        return {k: lags[k] for k in given}
    for key in given:
        given[key] += rest * (lags[key] - 1) // wanted
    left = budget - sum(given.values())
    for key in given:
        if left and given[key] < lags[key]:
            given[key] += 1
            left -= 1
    return given


class _Lag(NamedTuple):
    """What waits after a batch. until: of the monotonic clock; oldest: its store time in ms;
    latest: the ends of the queues, as Spark has them."""

    planned: Offsets | None = None
    spans: Mapping[Key, Span] | None = None
    until: float = 0.0
    latest: Mapping[str, Any] | None = None
    rows: int = 0
    bytes: int = 0
    oldest: int | None = None


class _Count(NamedTuple):
    """What waits after an offset, until the stores are looked at again. begin: the offsets, without
    those of stores that are others now. at: where reading goes on; quiet: what is returned while
    nothing waits."""

    start: dict[str, Any]
    spans: Mapping[Key, Span]
    begin: Offsets
    at: Offsets
    lags: Offsets
    quiet: dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Holds one query's view of its stores."""

    def __init__(self, options: ReadOptions, layout: columns.ColumnLayout) -> None:
        self.options = options
        self.layout = layout
        self._target: dict[Key, Span] | None = None
        self._seen: dict[Key, Span] = {}
        self._views: list[View | None] = []
        self._look_again = 0.0
        self._whole_look_at = 0.0
        self._triggered = 0.0
        self._count: _Count | None = None
        self._planned: Offsets | None = None
        self._lag = _Lag()
        self._told: set[str] = set()

    # ---- what there is ----

    def _open(self, path: str, *, fresh: bool = False) -> pystore.Reader:
        reader = open_reader(path, self.options.settings_of(path), fresh=fresh)
        if reader.is_cold:
            raise BadOption(
                f"'{path}' is a cold tier: a stream reads a store's folder, and what is older in"
                " the tier that option tier names"
            )
        return reader

    def _paths(self) -> dict[str, str]:
        return dict(zip(broker_names(self.options), self.options.paths, strict=True))

    def _look(self, *, now: bool = False) -> dict[Key, Span]:
        """Returns the queues as they are, looked at again when that is due: the same object where
        nothing has changed."""
        begun = time.monotonic()
        if (now or begun >= self._look_again) and not self._unchanged(begun):
            readers = [self._open(path, fresh=True) for path in self.options.paths]
            # Before the queues are listed: what comes meanwhile is news at the next look.
            views = [self._view_of(path) for path in self.options.paths]
            found = find_queues(readers, self.options, missing_fails=False)
            seen = {
                (span.topic, broker, span.queue): span
                for broker, spans in zip(broker_names(self.options), found, strict=True)
                for span in spans
            }
            if seen != self._seen:
                self._seen = seen
            self._views, self._whole_look_at = views, begun + WHOLE_LOOK_S
            self._look_again = begun + 10 * (time.monotonic() - begun)
        return self._seen

    def _view_of(self, path: str) -> View | None:
        return view_of(path, self.options.settings_of(path))

    def _unchanged(self, now: float) -> bool:
        """Says whether all stores are as they were when their queues were listed."""
        return now < self._whole_look_at and all(
            view is not None and view == self._view_of(path)
            for view, path in zip(self._views, self.options.paths, strict=True)
        )

    def _begin(self, key: Key, offset: int, span: Span | None) -> int:
        """Returns where reading goes on. Raises: DataLoss when that no longer exists."""
        name = f"{key[0]}/{key[2]} of {key[1]}"
        if span is None:
            if self.options.fail_on_loss:
                raise DataLoss(f"the queue {name} no longer exists; the query was at {offset}")
            return offset
        if self.options.fail_on_loss:
            within(span, offset, max(offset, span.high), True)
        return min(max(offset, span.low), max(span.high, span.low))

    # ---- which stores they are ----

    def _identities(self) -> Identities:
        return {broker: identity_of(self._open(path)) for broker, path in self._paths().items()}

    def _kinship(self, offset: Mapping[str, Any], spans: Mapping[Key, Span]) -> dict[str, Kinship]:
        """Returns what each store is to the one that an offset is of. Raises: SourceError, DataLoss
        for one that is another."""
        paths, known = self._paths(), identities(offset)
        found = {b: compare(self._open(p), known.get(b, ())) for b, p in paths.items()}
        for broker, kinship in found.items():
            if kinship is Kinship.OTHER:
                self._other_store(broker, known[broker])
            if kinship is Kinship.UNKNOWN and outlived(self._open(paths[broker]), known[broker]):
                # All that was read is deleted. Each queue that begins just there has lost nothing,
                # and is one of the same store: another would have to begin there by accident.
                # With a tier they go on in it, and its messages lead to the store's (check_seams).
                mine = {key: n for key, n in decode(offset).items() if key[1] == broker}
                tiered = is_tiered(self._open(paths[broker]))
                if all(
                    key in spans and (n == spans[key].low or (tiered and n > spans[key].low))
                    for key, n in mine.items()
                ):
                    found[broker] = Kinship.SAME
        return found

    def _other_store(self, broker: str, known: Identity) -> None:
        paths = self._paths()
        what = f"{paths[broker]} is not the store that the query has read as {broker}"
        for other, path in paths.items():
            if other != broker and compare(self._open(path), known) is Kinship.SAME:
                raise SourceError(
                    f"{what}: that one is {path}, which is {other} now; give the paths in their old"
                    " order, or name each store by option brokerName"
                )
        what += f": byte {known[0][0]} of its log is another record"
        if self.options.fail_on_loss:
            raise DataLoss(
                f"{what}; put the store back, or give a new checkpoint; failOnDataLoss=false reads"
                " the new store from its beginning"
            )
        if what not in self._told:
            self._told.add(what)
            print(f"rocketmq: {what}; it is read from its beginning", file=sys.stderr)

    def _check_known(self, offset: Mapping[str, Any], found: Mapping[str, Kinship]) -> None:
        """Checks that each store is the one of the offset. Raises: DataLoss for a store whose log
        no longer shows whether it is the same."""
        for broker, kinship in found.items():
            if kinship is Kinship.UNKNOWN and self.options.fail_on_loss:
                info = self._open(self._paths()[broker]).info()
                place = identities(offset)[broker][0][0]
                raise DataLoss(
                    f"nothing shows that {self._paths()[broker]} is still the store that the query"
                    f" has read as {broker}: the record at byte {place} of the log is gone or"
                    f" damaged, and the log holds bytes {info.log_min} to {info.log_max};"
                    " failOnDataLoss=false goes on"
                )

    # ---- what Spark asks ----

    def initialOffset(self) -> dict[str, Any]:
        state = Path(self.options.state_file) if self.options.state_file else None
        kept = _remembered(state) if state is not None else None
        if kept is not None:
            return kept
        brokers = broker_names(self.options)
        readers = [self._open(path, fresh=True) for path in self.options.paths]
        found = find_queues(readers, self.options)
        check_table(self.options.start, "startingOffsets", found, brokers)
        check_sql(self.options, readers[0])
        offsets: Offsets = {}
        for reader, broker, spans in zip(readers, brokers, found, strict=True):
            for span in spans:
                start = start_of(reader, self.options, broker, span)
                start, _ = within(span, start, max(start, span.high), self.options.fail_on_loss)
                offsets[span.topic, broker, span.queue] = start
        offset = encode(offsets, self._identities())
        if state is not None:
            _remember(state, offset)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        o = self.options
        if o.trigger_offsets:
            return ReadMaxRows(o.trigger_offsets)
        if o.trigger_bytes:
            return ReadMaxBytes(o.trigger_bytes)
        return ReadMinRows(o.trigger_min) if o.trigger_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = dict(self._look(now=True))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        spans: Mapping[Key, Span]
        spans = self._target if self._target is not None else self._look()
        count = self._count
        if count is not None and count.spans is spans and count.start == start:
            if self._target is None:
                spans = self._rest(spans)
        else:
            count = None
        if count is None or count.spans is not spans:
            self._count = count = self._counted(start, spans)
            self._planned = count.begin
        total = sum(count.lags.values())
        if not total:
            return count.quiet
        if self._waits(total, limit):
            return start
        taken = self._taken(count.lags, count.at, limit)
        self._triggered = time.monotonic()
        self._planned = count.begin | {key: count.at[key] + n for key, n in taken.items()}
        return encode(self._planned, self._identities())

    def _rest(self, spans: Mapping[Key, Span]) -> Mapping[Key, Span]:
        """Sleeps until there is something new, or an idle query answers. Returns the queues."""
        due = self._look_again - time.monotonic()
        left = min(IDLE_MAX_S, max(IDLE_LEAST_S, IDLE_S_PER_QUEUE * len(spans), due))
        seen = spans
        while left > 0 and seen is spans:
            time.sleep(min(left, IDLE_LOOK_S))
            left -= IDLE_LOOK_S
            seen = self._look()
        return seen

    def _counted(self, start: dict[str, Any], spans: Mapping[Key, Span]) -> _Count:
        """Counts what the queues hold. Raises: DataLoss, SourceError for stores and queues that are
        not what they were."""
        kinship = self._kinship(start, spans)
        same = {b for b in kinship if kinship[b] is not Kinship.OTHER}
        left = {b for _, b, _ in decode(start)} - kinship.keys()  # stores that are not read now
        begin = {key: n for key, n in decode(start).items() if key[1] in same | left}
        lags: Offsets = {}
        at: Offsets = {}
        for key in begin.keys() | spans.keys():
            span = spans.get(key)
            if key not in begin and span is not None:
                at[key] = span.low
            else:
                at[key] = self._begin(key, begin[key], span or self._seen.get(key))
            if span is not None and span.high > at[key]:
                lags[key] = span.high - at[key]
        self._check_known(start, kinship)
        return _Count(start, spans, begin, at, lags, self._quiet(start, begin))

    def _quiet(self, start: dict[str, Any], begin: Offsets) -> dict[str, Any]:
        """Returns the offset while nothing waits: the same one, for Spark makes a batch of any
        other; and a newer one, with no rows, before retention takes the records by which a store is
        known."""
        known = identities(start)
        if any(aged(self._open(path), known.get(b, ())) for b, path in self._paths().items()):
            return encode(begin, self._identities())
        return start

    def _waits(self, total: int, limit: ReadLimit) -> bool:
        """Says whether to leave the messages until there are more, or until they have waited."""
        if isinstance(limit, ReadAllAvailable) or self._target is not None:
            return False
        waited_ms = (time.monotonic() - self._triggered) * 1000 if self._triggered else float("inf")
        return total < self.options.trigger_min and waited_ms < self.options.trigger_delay_ms

    def _taken(self, lags: Offsets, at: Offsets, limit: ReadLimit) -> Offsets:
        """Returns how many messages of each queue the next batch takes. Bytes are estimated from
        the sizes of a few messages, and each queue gives at least one."""
        if isinstance(limit, ReadAllAvailable):
            return lags
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.trigger_offsets
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.trigger_bytes
        taken = shares(lags, rows) if rows else lags
        if not size:
            return taken
        paths = self._paths()
        each = {
            key: record_bytes(self._open(paths[key[1]]), key[0], key[2], at[key], at[key] + n)
            for key, n in taken.items()
        }
        weights = shares({key: n * each[key] for key, n in taken.items()}, size)
        return {key: min(taken[key], max(1, w // each[key])) for key, w in weights.items()}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the ends of the queues, and how far the batch that is planned stays behind them.

        Spark gives a Python source no metrics of its own, but shows what this returns in each
        progress, as ``latestOffset`` of the source.
        """
        spans, planned, lag = self._look(), self._planned, self._lag
        due = time.monotonic() >= lag.until and lag.rows > 0
        if lag.latest is None or planned is not lag.planned or spans is not lag.spans or due:
            self._lag = lag = self._measured(planned, spans)
        latest = dict(lag.latest or {})
        if planned is not None:
            age = 0 if lag.oldest is None else max(0, int(time.time() * 1000) - lag.oldest)
            latest["behind"] = {"rows": lag.rows, "bytes": lag.bytes, "ms": age}
        return latest

    def _measured(self, planned: Offsets | None, spans: Mapping[Key, Span]) -> _Lag:
        """Counts rows; estimates bytes from the sizes of some; finds the oldest message.

        Sizes and times are looked up once a second, or when a batch is planned: Spark asks after
        each poll.
        """
        latest = encode({key: span.high for key, span in spans.items()})
        begins = {key: max((planned or {}).get(key, s.low), s.low) for key, s in spans.items()}
        waiting = {key: (a, spans[key].high) for key, a in begins.items() if a < spans[key].high}
        rows = sum(b - a for a, b in waiting.values())
        now, old = time.monotonic(), self._lag
        if planned == old.planned and now < old.until and rows:
            return old._replace(planned=planned, spans=spans, latest=latest, rows=rows)
        paths = self._paths()
        size, oldest = 0, None
        for (topic, broker, queue), (a, b) in waiting.items():
            reader = self._open(paths[broker])
            size += record_bytes(reader, topic, queue, a, b) * (b - a)
            found = stored_at(reader, topic, queue, a)
            if found is not None:
                oldest = found if oldest is None else min(oldest, found)
        return _Lag(planned, spans, now + LAG_KEPT_S, latest, rows, size, oldest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = decode(start), decode(end)
        spans = self._look(now=True)
        before, after = self._kinship(start, spans), self._kinship(end, spans)
        ranges: dict[str, list[Range]] = {}
        paths = self._paths()
        for key, last in sorted(until.items()):
            topic, broker, queue = key
            if after.get(broker) is Kinship.OTHER:
                continue  # planned in a store that is gone; the next batch begins the new one
            first = begin.get(key)
            if first is None or before.get(broker) is Kinship.OTHER:
                first = spans[key].low if key in spans else last
            if first > last:
                self._begun_behind(key, first, last)
            if first >= last:
                continue
            if key not in spans:
                self._begin(key, first, None)
                continue
            first, last = within(spans[key], first, last, self.options.fail_on_loss)
            if first < last:
                found = ranges_of(self._open(paths[broker]), topic, queue, first, last)
                ranges.setdefault(broker, []).extend(found)
        self._check_known(start, before)
        parts: list[Part] = []
        for broker, mine in ranges.items():
            pieces = cut(mine, self.options)
            path = paths[broker]
            parts += queue_parts(self._open(path), path, broker, pieces, self.options)
        return parts

    def _begun_behind(self, key: Key, first: int, last: int) -> None:
        """Refuses a query that began behind itself: batch 0 was planned, the query died, and
        "latest" is now after what was planned."""
        if self.options.fail_on_loss:
            raise DataLoss(
                f"the first batch of this query was to end at {last} of {key[0]}/{key[2]}, but its"
                f" start is now {first}: give option stateFile, so that the start is remembered, or"
                " a new checkpoint"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(partition, self.layout, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        if not self.options.group:
            return
        offsets = decode(end)
        for broker, path in self._paths().items():
            mine = {(t, q): n for (t, b, q), n in offsets.items() if b == broker}
            commit_to_group(path, self.options.group, mine)


def _remembered(path: Path) -> dict[str, Any] | None:
    """Returns the offset in a state file; None without a file. Raises: SourceError naming the
    file."""
    where = f"option stateFile: {path}"
    try:
        data = read_file(path)
        if data is None:
            return None
        kept: dict[str, Any] = json.loads(data)
    except (OSError, ValueError, RecursionError) as e:
        raise SourceError(f"{where} cannot be read: {e}") from None
    decode(kept, where)
    identities(kept, where)
    return kept


def _remember(path: Path, offset: dict[str, Any]) -> None:
    """Writes a file: it has all of the offset or is not there, and stays after a power failure.
    Raises: SourceError naming it."""
    try:
        make_folders(path.parent, FILE_MODE)
        write_whole(path, json.dumps(offset).encode())
        sync_folder(path.parent.parent)
    except OSError as e:
        raise SourceError(f"option stateFile: {path} cannot be written: {e}") from None
