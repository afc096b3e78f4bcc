"""The options of readers and writers: one table, parsed once into plain values.

Spark hands options over as case-insensitive text. Names and meanings are those of Spark's Kafka
source where both have the thing; what each does stands in docs/spark.md.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import json
import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_ext.errors import BadOption, nearest

if TYPE_CHECKING:
    import pystore
    from broker.client import Credentials

__all__ = [
    "Bound",
    "NetworkOptions",
    "PushedFilters",
    "ReadOptions",
    "StoreSettings",
    "WriteOptions",
    "is_remote",
    "parse_columns",
    "parse_read",
    "parse_write",
]

EARLIEST, LATEST = -2, -1  # Kafka's numbers for both ends in JSON offsets
#: What the core's numbers hold.
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
#: Of a store (PS_QUEUE_ID_MAX).
QUEUE_ID_MAX = 65535
#: The latest time that an option may name, in ms: searches look around it.
LAST_MS = INT64_MAX >> 1
#: A time as a number.
_MS = re.compile(r"\s*-?[0-9]{1,19}\s*")
#: Characters of a wrong value in an error.
VALUE_SHOWN = 80

#: Of a table of the catalogue, which comes without options.
NOT_OF_TABLES = (
    "Spark keeps the options of a table from sources written in Python: make a view, CREATE"
    " TEMPORARY VIEW name USING rocketmq OPTIONS (path '/data/store')"
)
#: What comes with the options of a table that is being made.
_OF_TABLES = {"provider", "owner"}
#: Options that Spark's own machinery passes along; none of ours.
_OF_SPARK = {"path", "paths", "checkpointlocation", "queryname", "outputmode"}


class Bound(NamedTuple):
    """One end of a range.

    kind: ``earliest``, ``latest``, ``offsets`` (table is topic -> broker -> queue -> offset),
    ``time`` (ms for every queue), ``times`` (table as for offsets, in ms).
    """

    kind: str
    ms: int = 0
    table: Mapping[str, Mapping[str, Mapping[int, int]]] | None = None


#: A store's settings under upstream's names, and "tier", the address of its cold tier: hashable,
#: and small when pickled.
StoreSettings = tuple[tuple[str, Any], ...]


class PushedFilters(NamedTuple):
    """What the filters of a query leave to be read; None stands for everything. See pushdown.py.

    first, last: queue offsets, both inclusive."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    lite: frozenset[str] | None = None
    first: int = 0
    last: int = (1 << 63) - 2


class NetworkOptions(NamedTuple):
    """Says how brokers are reached. credentials: None leaves them to the environment of each
    process."""

    name_server: str
    credentials: Credentials | None
    tls: bool
    tls_ca: str


class ReadOptions(NamedTuple):
    """The options of a read. Small and picklable, since they travel with every task."""

    paths: tuple[str, ...]
    settings: tuple[StoreSettings, ...]
    brokers: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str
    queues: tuple[int, ...]
    scan: str
    start: Bound
    end: Bound
    log_start: int | None
    log_end: int | None
    strategy: str
    tags: str
    sql: str
    keys: tuple[str, ...]
    lite: tuple[str, ...]
    time_min: int | None
    time_max: int | None
    transactions: str
    internal: bool
    timers: str
    min_partitions: int
    max_records: int
    max_bytes: int
    batch_rows: int
    batch_bytes: int
    properties: str
    columns: tuple[str, ...]
    fail_on_loss: bool
    check_crc: bool
    decompress: bool
    report: str
    trigger_offsets: int
    trigger_bytes: int
    trigger_min: int
    trigger_delay_ms: int
    state_file: str
    group: str
    pushdown: str
    network: NetworkOptions | None = None
    pushed: PushedFilters | None = None

    def settings_of(self, path: str) -> StoreSettings:
        """Returns the settings of the store at a path."""
        return dict(zip(self.paths, self.settings, strict=True)).get(path, ())


class WriteOptions(NamedTuple):
    """The options of a write: into the store at `path`, or over the network."""

    path: str
    topic: str
    tags: str
    queues: int
    job: str
    spool: str
    lock_timeout_s: float
    conf: Mapping[str, str] | str
    network: NetworkOptions | None = None
    transactional: bool = False
    #: An option is given that only a write has, so that it is not an INSERT INTO a view.
    certain: bool = False


# ---- kinds of values ----


def _quoted(value: str) -> str:
    """Returns a value for a sentence, on one line."""
    return repr(value if len(value) <= VALUE_SHOWN else f"{value[:VALUE_SHOWN]}\u2026")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' is given twice")
    return found


def _json(value: str) -> Any:
    """Reads the JSON of an option. Raises: ValueError for what is not JSON, is nested too deeply,
    or names something twice."""
    try:
        return json.loads(value, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _text(name: str, value: str) -> str:
    if "\0" in value:
        raise BadOption(f"option {name} has a zero byte: {_quoted(value)}")
    return value


def _names(_: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadOption(f"option {name} is true or false, not {_quoted(value)}")
    return value.lower() == "true"


def _number(name: str, value: str, low: int = 1, high: int = INT64_MAX) -> int:
    number = int(value) if re.fullmatch(r"\s*[0-9]{1,19}\s*", value) else low - 1
    if number < low:
        raise BadOption(f"option {name} is a whole number of at least {low}, not {_quoted(value)}")
    return _at_most(name, number, high)


def _at_most(name: str, number: int, high: int = INT64_MAX) -> int:
    if number > high:
        raise BadOption(f"option {name} is at most {high}")
    return number


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(name: str, value: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,19})\s*([bkmgt]?)(?:i?b)?\s*", value.lower())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < 1:
        raise BadOption(f"option {name} is a size such as 134217728 or 128m, not {_quoted(value)}")
    return _at_most(name, size)


_SPANS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _span_ms(name: str, value: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,19})\s*(ms|s|m|h|d)?\s*", value.lower())
    if not match:
        raise BadOption(f"option {name} is a time such as 500ms, 30s or 15m, not {_quoted(value)}")
    return _at_most(name, int(match[1]) * _SPANS[match[2] or "ms"])


def _moment(name: str, value: str) -> int:
    """Reads milliseconds since 1970: as they are, or ISO 8601 with its zone."""
    if _MS.fullmatch(value):
        return max(-LAST_MS, _at_most(name, int(value), LAST_MS))
    try:
        moment = dt.datetime.fromisoformat(value.strip())
    except ValueError:
        raise BadOption(
            f"option {name} is a time in ms since 1970 or as 2026-01-31T23:59:00Z, not"
            f" {_quoted(value)}"
        ) from None
    if moment.tzinfo is None:
        raise BadOption(
            f"option {name} names no zone, and Spark does not tell a source the session's: write"
            f" {_quoted(value.strip() + 'Z')}, or give option timeZone, such as"
            " spark.conf.get('spark.sql.session.timeZone')"
        )
    return round(moment.timestamp() * 1000)


def _zone(name: str, value: str) -> dt.tzinfo:
    """Reads a zone as Spark's timeZone options do: Europe/Berlin, UTC, or +01:00."""
    try:
        if re.fullmatch(r"[+-][0-9]{2}:[0-9]{2}|Z", value):
            found = dt.datetime.fromisoformat(f"2000-01-01T00:00:00{value}").tzinfo
            assert found is not None
            return found
        return zoneinfo.ZoneInfo(value)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise BadOption(
            f"option {name} is a zone such as Europe/Berlin, UTC or +01:00, not {_quoted(value)}"
        ) from None


def _in_zone(value: str, zone: dt.tzinfo) -> str:
    """Returns a time that names no zone as one of this zone; any other value as it is."""
    if not _MS.fullmatch(value):
        with contextlib.suppress(ValueError):
            moment = dt.datetime.fromisoformat(value.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).isoformat()
    return value


def _regex(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise BadOption(f"option {name} is not a valid regular expression: {e}") from None
    return value


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value.lower() not in words:
            raise BadOption(f"option {name} is one of {', '.join(words)}, not {_quoted(value)}")
        return value.lower()

    return parse


def _queues(name: str, value: str) -> tuple[int, ...]:
    return tuple(_number(name, part, 0, INT32_MAX) for part in _names(name, value))


def _count(name: str, value: str) -> int:
    return _number(name, value, 1, INT32_MAX)


def _group(name: str, value: str) -> str:
    """Checks a group as upstream's Validators.checkGroup; it is also the name of a file
    (groups.py)."""
    if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,255}", value):
        raise BadOption(
            f"option {name} is a consumer group: at most 255 letters, digits, '%', '|', '_' and"
            f" '-', not {_quoted(value)}"
        )
    return value


def _table(name: str, value: str) -> dict[str, dict[str, dict[int, int]]]:
    """Reads ``{"topic": {"broker": {"0": 23}}}``; the broker may be left out: it is "" then."""
    shape = f'option {name} is JSON such as {{"topic": {{"broker-a": {{"0": 23}}}}}}'
    try:
        read = _json(value)
    except ValueError as e:
        raise BadOption(f"{shape}; malformed JSON: {e}") from None
    table: dict[str, dict[str, dict[int, int]]] = {}
    try:
        for topic, inner in read.items():
            brokers = inner if all(isinstance(v, dict) for v in inner.values()) else {"": inner}
            table[topic] = {
                broker: {_queue(queue): _offset(number) for queue, number in queues.items()}
                for broker, queues in brokers.items()
            }
    except (AttributeError, TypeError, ValueError):
        raise BadOption(f"{shape}, not {_quoted(value)}") from None
    return table


def _queue(text: str) -> int:
    """Returns a queue id as a key of JSON: without zeros before it, so that each has one name."""
    if not re.fullmatch(r"-?(0|[1-9][0-9]{0,9})", text):
        raise ValueError
    return int(text)


def _offset(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError
    if not EARLIEST <= number <= LAST_MS:
        raise ValueError
    return number


def _offsets(name: str, value: str) -> Bound:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(word)
    if not word.startswith("{"):
        shape = '{"topic": {"broker-a": {"0": 23}}}'
        raise BadOption(f"option {name} is earliest, latest or JSON {shape}, not {_quoted(value)}")
    return Bound("offsets", table=_table(name, value))


def _at(name: str, value: str) -> Bound:
    return Bound("time", ms=_moment(name, value))


def _ats(name: str, value: str) -> Bound:
    return Bound("times", table=_table(name, value))


def _from_0(name: str, value: str) -> int:
    return _number(name, value, 0)


def _queue_count(name: str, value: str) -> int:
    return _number(name, value, 0, QUEUE_ID_MAX + 1)


# ---- the tables ----

_Parser = Callable[[str, str], Any]


class Option(NamedTuple):
    """One row of the tables below.

    parse: (name, text) to value. default: as text; empty: none. only: what the option is for:
    "stream", "batch", or "store", a write where the driver opens the store and not a broker;
    empty: any. of_copies: a copy on another file system is read with it. of_timers: it goes with
    timers=pending; queues, and the order in which messages lie there, mean nothing to timers."""

    parse: _Parser
    default: str = ""
    only: str = ""
    of_copies: bool = True
    of_timers: bool = True


_NETWORK: dict[str, Option] = {
    "nameServer": Option(_text),
    "accessKey": Option(_text),
    "secretKey": Option(_text),
    "securityToken": Option(_text),
    "tls": Option(_truth, "false"),
    "tlsCaFile": Option(_text),
}

_READ: dict[str, Option] = {
    "brokerName": Option(_names),
    "topic": Option(_names),
    "subscribe": Option(_names),
    "subscribePattern": Option(_regex),
    "queues": Option(_queues, of_timers=False),
    "scan": Option(_one_of("auto", "queue", "log"), "auto", of_timers=False),
    "startingLogOffset": Option(_from_0, only="batch", of_timers=False),
    "endingLogOffset": Option(_from_0, only="batch", of_timers=False),
    "startingOffsets": Option(_offsets, of_timers=False),
    "endingOffsets": Option(_offsets, "latest", only="batch", of_timers=False),
    "startingTimestamp": Option(_at, of_timers=False),
    "endingTimestamp": Option(_at, only="batch", of_timers=False),
    "startingOffsetsByTimestamp": Option(_ats, of_timers=False),
    "endingOffsetsByTimestamp": Option(_ats, only="batch", of_timers=False),
    "startingOffsetsByTimestampStrategy": Option(
        _one_of("latest", "error"), "latest", of_timers=False
    ),
    "tags": Option(_text),
    "sql92": Option(_text),
    "keys": Option(_names, only="batch", of_copies=False, of_timers=False),
    "liteTopics": Option(_names, only="batch", of_copies=False, of_timers=False),
    "minStoreTimestamp": Option(_moment),
    "maxStoreTimestamp": Option(_moment, only="batch"),
    "timeZone": Option(_zone),
    "includeTransactions": Option(_one_of("committed", "all"), "committed", of_timers=False),
    "internalTopics": Option(_truth, "true"),
    "timers": Option(_one_of("stored", "pending"), "stored"),
    "minPartitions": Option(_count, "1"),
    "maxRecordsPerPartition": Option(_number, str(1 << 62)),
    "maxBytesPerPartition": Option(_bytes, "128m"),
    "batchRows": Option(_count, "8192"),
    "batchBytes": Option(_bytes, "4m"),
    "includeProperties": Option(_one_of("json", "map", "none"), "json"),
    "columns": Option(_names),
    "failOnDataLoss": Option(_truth, "true"),
    "checkCrc": Option(_truth, "false"),
    "decompress": Option(_truth, "true"),
    "damageReport": Option(_text),
    "maxOffsetsPerTrigger": Option(_from_0, "0", only="stream"),
    "maxBytesPerTrigger": Option(_bytes, "1", only="stream"),
    "minOffsetsPerTrigger": Option(_from_0, "0", only="stream"),
    "maxTriggerDelay": Option(_span_ms, "15m", only="stream"),
    "stateFile": Option(_text, only="stream"),
    "commitToGroup": Option(_group, only="stream"),
    "pushdown": Option(_one_of("off", "unsafe", "auto"), "off", of_timers=False),
    "fallback": Option(_one_of("fail", "pull"), "fail", of_timers=False),
    "conf": Option(_text, of_copies=False),
    "tier": Option(_text, of_copies=False, of_timers=False),
    **_NETWORK,
}

_WRITE: dict[str, Option] = {
    "topic": Option(_text),
    "tags": Option(_text),
    "queues": Option(_queue_count, "0", only="store"),
    "jobId": Option(_text),
    "spool": Option(_text, only="store"),
    "lockTimeout": Option(_span_ms, "10s", only="store"),
    "storeConf": Option(_text, only="store"),
    "copy": Option(_truth, "false", only="store"),
    "transactional": Option(_truth, "false"),
    **_NETWORK,
}

#: Times of which ISO 8601 may leave out the zone.
_MOMENTS = [name for name, row in _READ.items() if row.parse in (_at, _moment)]


def _collect(
    given: Mapping[str, str], known: Mapping[str, Option], *, reading: bool = False
) -> dict[str, Any]:
    """Returns every option's value by its proper name; ``settings`` holds those of the store, which
    a read may name beside its own. Raises: BadOption."""
    proper = {name.lower(): name for name in known}
    strange = [n for n in given if n.lower() not in proper and n.lower() not in _OF_SPARK]
    upstream = _upstream_names() if strange and reading else {}
    for name in strange:
        if name.lower() not in upstream:
            near = nearest(name, known) or nearest(name, upstream.values())
            raise BadOption(f"unknown option '{name}'{near}")
    lower = {name.lower(): value for name, value in given.items()}
    if lower.get("timezone") and "timezone" in proper:
        zone = _zone("timeZone", lower["timezone"])
        lower |= {
            n.lower(): _in_zone(lower[n.lower()], zone) for n in _MOMENTS if n.lower() in lower
        }
    values: dict[str, Any] = {}
    for name, row in known.items():
        text = lower.get(name.lower()) or row.default
        values[name] = row.parse(name, text) if text else None
    values["given"] = {proper[n] for n, v in lower.items() if n in proper and v != ""}
    values["settings"] = {upstream[n.lower()]: given[n] for n in strange}
    return values


def _upstream_names() -> dict[str, str]:
    import pystore

    return {name.lower(): name for name in pystore.load_settings().as_dict()}


def _paths(given: Mapping[str, str], otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the paths of load(path), load([path, path]), or option path. otherwise: when none of
    them is given."""
    lower = {name.lower(): value for name, value in given.items()}
    found: list[str] = []
    for name in ("paths", "path"):
        text = lower.get(name, "").strip()
        if text and not found:
            found = [text]
            with contextlib.suppress(ValueError):
                found = [str(p) for p in _json(text)] if text.startswith("[") else found
    if not found and otherwise:
        return otherwise
    if not found:
        raise BadOption(
            "no store given: pass its directory, e.g. .load('/data/store')"
            + ("" if lower else f"; {NOT_OF_TABLES}")
        )
    if len(set(found)) != len(found):
        raise BadOption("a store is listed twice")
    return tuple(_plain(p) for p in found)


def _plain(path: str) -> str:
    """Returns the folder of a ``file:`` address; others stay as they are."""
    if path.startswith("file:"):
        return "/" + path[5:].lstrip("/")
    return path.rstrip("/") if is_remote(path) else path


def is_remote(path: str) -> bool:
    """Says whether a store is on a file system that fsspec knows, and not on a disk of the host."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def _check_remote(v: dict[str, Any], paths: tuple[str, ...], streaming: bool) -> None:
    """Checks the options of a store on another file system. Raises: BadOption for what needs more
    of a store than its queues and its log."""
    far = next(filter(is_remote, paths), None)
    if far is None:
        return
    if importlib.util.find_spec("fsspec") is None:
        raise BadOption(
            f"'{far}' is not a folder of this host, and fsspec, which reads other file systems,"
            " cannot be imported: pip install fsspec, with the package for that file system"
        )
    if streaming:
        raise BadOption(f"'{far}' is a copy that stays as it is: a stream reads a folder")
    of_folders = [name for name, row in _READ.items() if not row.of_copies]
    for name in (*of_folders, "storePathCommitLog"):
        if name in v["given"] or name in v["settings"]:
            raise BadOption(f"option {name} does not go with '{far}', which is not a folder")
    if v["timers"] == "pending":
        raise BadOption(f"option timers=pending does not go with '{far}', which is not a folder")


def _stores(
    given: Mapping[str, str], v: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[StoreSettings, ...]]:
    """Returns the folders of the stores and the settings of each.

    Settings come from option conf, one file for all or a list with one for each, and from options
    that are named as upstream's settings, which win. The files are read here, on the driver: tasks
    get what is in them. Raises: BadOption.
    """
    if not v["conf"] and not v["settings"]:
        paths = _paths(given)
        return paths, _with_tiers(v, paths, ({},) * len(paths))
    import pystore

    confs: list[str | None] = [*_listed(v["conf"], "conf")] or [None]
    try:
        loaded = [pystore.load_settings(conf, v["settings"]) for conf in confs]
        paths = _paths(given, tuple(str(each.root) for each in loaded if each.root is not None))
        if len(loaded) not in (1, len(paths)):
            raise BadOption(f"option conf names {len(loaded)} files for {len(paths)} stores")
        loaded *= len(paths) if len(loaded) == 1 else 1
        settings = [_of_reader(each, path) for each, path in zip(loaded, paths, strict=True)]
    except pystore.StoreError as e:
        raise BadOption(f"settings of the store: {e}") from None
    owner: dict[str, str] = {}
    for path, kept in zip(paths, settings, strict=True):
        for folder in str(kept.get("storePathCommitLog", path)).split(","):
            if owner.setdefault(folder, path) != path:
                raise BadOption(
                    f"the stores {owner[folder]} and {path} cannot both have their log in"
                    f" {folder}: give option conf as a JSON list with a file for each store"
                )
    return paths, _with_tiers(v, paths, settings)


def _with_tiers(
    v: dict[str, Any], paths: tuple[str, ...], settings: Sequence[dict[str, Any]]
) -> tuple[StoreSettings, ...]:
    """Returns the settings of stores with the tier of each, of which option tier names one for each
    store. Raises: BadOption."""
    tiers = [_plain(tier) for tier in _listed(v["tier"], "tier")] or [""] * len(paths)
    if len(tiers) != len(paths):
        raise BadOption(f"option tier names {len(tiers)} tiers for {len(paths)} stores")
    if len(set(tiers)) != len(tiers) and any(tiers):
        raise BadOption("option tier lists a tier twice: each broker's is a folder of its own")
    return tuple(
        tuple(sorted({**kept, **({"tier": tier} if tier else {})}.items()))
        for tier, kept in zip(tiers, settings, strict=True)
    )


def _of_reader(settings: pystore.Settings, path: str) -> dict[str, Any]:
    """Returns what tasks must know of a store's settings; folders as they are on the driver."""
    from pystore.settings import TABLE  # a broker.conf may hold a hundred others

    kept = {name: settings[name] for name in settings.explicit if TABLE[name].for_readers}
    if settings["storePathCommitLog"]:
        kept["storePathCommitLog"] = ",".join(map(str, settings.commitlog_dirs(path)))
    return kept


def _listed(text: str | None, name: str) -> list[str]:
    """Returns one path, or a JSON list of them."""
    if not text or not text.strip().startswith("["):
        return [text] if text else []
    try:
        return [str(each) for each in _json(text)]
    except ValueError as e:
        raise BadOption(f"option {name} is a path or a JSON list of paths: {e}") from None


def _start(v: dict[str, Any], streaming: bool) -> Bound:
    for name in ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"):
        if v[name] is not None:
            bound: Bound = v[name]
            if bound.kind == "latest" and not streaming:
                raise BadOption("option startingOffsets: latest would leave nothing to read")
            return bound
    return Bound("latest" if streaming else "earliest")


def _end(v: dict[str, Any]) -> Bound:
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if v[name] is not None:
            bound: Bound = v[name]
            return bound
    bound = v["endingOffsets"]
    if bound.kind == "earliest":
        raise BadOption("option endingOffsets: earliest would leave nothing to read")
    return bound


def _check_use(v: dict[str, Any], streaming: bool) -> None:
    """Refuses options that do not go together, or not with this kind of read."""
    other = "batch" if streaming else "stream"
    for name, row in _READ.items():
        if row.only == other and name in v["given"]:
            kind, use = ("a stream", "spark.read") if streaming else ("a batch", "spark.readStream")
            raise BadOption(f"option {name} does not apply to {kind}; it is for {use}")
    named = [n for n in ("topic", "subscribe", "subscribePattern") if n in v["given"]]
    if len(named) > 1:
        raise BadOption(f"give one of the options {' and '.join(named)}, not both")
    if v["tags"] and v["sql92"]:
        raise BadOption(
            "give one of the options tags and sql92: sql92 can filter tags with TAGS IN ('a', 'b')"
        )
    low, high = v["minStoreTimestamp"], v["maxStoreTimestamp"]
    if low is not None and high is not None and low > high:
        raise BadOption("option minStoreTimestamp is later than maxStoreTimestamp")
    _check_order(v)
    if "maxTriggerDelay" in v["given"] and not v["minOffsetsPerTrigger"]:
        raise BadOption(
            "option maxTriggerDelay ends the wait for minOffsetsPerTrigger, which is not given"
        )
    if v["minOffsetsPerTrigger"] > (v["maxOffsetsPerTrigger"] or 1 << 62):
        raise BadOption("option minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    if streaming and v["pushdown"] == "unsafe":
        raise BadOption(
            "option pushdown=unsafe: Spark pushes no filters into streams; leave it out"
        )
    if v["fallback"] == "pull" and not v["nameServer"]:
        raise BadOption("option fallback=pull needs nameServer, by which brokers are found")
    if v["nameServer"] and v["fallback"] != "pull":
        raise BadOption(
            "option nameServer of a read goes with fallback=pull; the read is planned from the"
            " store's folder, e.g. load('/data/store')"
        )
    if v["tier"] and (v["scan"] == "log" or v["fallback"] == "pull"):
        other = "scan=log" if v["scan"] == "log" else "fallback=pull"
        raise BadOption(f"option tier does not go with {other}: leave one of them out")
    if v["fallback"] == "pull" and v["scan"] == "log":
        raise BadOption("option scan=log reads files only: with fallback=pull leave it out")
    for name in ("startingLogOffset", "endingLogOffset"):
        if v[name] is not None and v["scan"] != "log":
            raise BadOption(f"option {name} is a byte of the log: it goes with scan=log")
    if v["timers"] == "pending":
        _check_timers(v, streaming)


_ENDS = (
    ("startingLogOffset", "endingLogOffset"),
    ("startingTimestamp", "endingTimestamp"),
    ("startingOffsets", "endingOffsets"),
    ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
)


def _check_order(v: dict[str, Any]) -> None:
    """Checks that a range ends after it begins. Raises: BadOption for a range that ends before it
    begins: it would read nothing."""
    for first, last in _ENDS:
        for where, start, end in _both_ends(v[first], v[last]):
            if start > end >= 0:
                raise BadOption(f"option {first} is after {last}{where}: {start} and {end}")


def _both_ends(first: Any, last: Any) -> Iterator[tuple[str, int, int]]:
    """Yields (of what, start, end) of all that both options name."""
    if isinstance(first, int) and isinstance(last, int):
        yield "", first, last
    if not isinstance(first, Bound) or not isinstance(last, Bound):
        return
    if first.kind == last.kind == "time":
        yield "", first.ms, last.ms
    ends = last.table or {}
    for topic, brokers in (first.table or {}).items():
        for broker, queues in brokers.items():
            known = ends.get(topic, {}).get(broker, {})
            for queue in queues.keys() & known.keys():
                yield f" in queue {topic}/{queue}", queues[queue], known[queue]


def _check_timers(v: dict[str, Any], streaming: bool) -> None:
    """Checks what stands beside timers=pending. Raises: BadOption for what makes no sense beside
    timers=pending."""
    if streaming:
        raise BadOption(
            "option timers=pending does not apply to a stream: a stream only adds rows, and timers"
            " that are delivered or recalled go; stream the topic rmq_sys_wheel_timer, which has"
            " what was asked for, or load a batch"
        )
    for name, row in _READ.items():
        if not row.of_timers and name in v["given"]:
            raise BadOption(
                f"option {name} does not go with timers=pending, which reads what waits wherever"
                " it lies: leave it out, and filter the frame"
            )


def _network(v: dict[str, Any]) -> NetworkOptions | None:
    """Returns how to reach the network, None without option nameServer. Raises: BadOption."""
    if not v["nameServer"]:
        lost = [name for name in _NETWORK if name in v["given"]]
        if lost:
            raise BadOption(f"option {lost[0]} goes with nameServer, which is not given")
        return None
    _check_broker()
    from broker.client import ClientError, Credentials
    from broker.client.options import ClientSettings, name_servers

    if bool(v["accessKey"]) != bool(v["secretKey"]) or (v["securityToken"] and not v["accessKey"]):
        raise BadOption("options accessKey and secretKey go together; securityToken goes with both")
    credentials = None
    if v["accessKey"]:
        credentials = Credentials(v["accessKey"], v["secretKey"], v["securityToken"] or "")
    try:
        name_servers(v["nameServer"], ClientSettings(credentials=credentials))
    except ClientError as e:
        raise BadOption(f"option nameServer: {e}") from None
    return NetworkOptions(v["nameServer"], credentials, v["tls"], v["tlsCaFile"] or "")


def _check_broker() -> None:
    """Checks where the client comes from: a job's own broker.py comes before the package with the
    client. Raises: BadOption."""
    from pystore.errors import BadArgument
    from pystore.files.packages import check_package

    try:
        check_package("broker")
    except BadArgument as error:
        raise BadOption(f"option nameServer: {error}") from None


def parse_columns(given: Mapping[str, str]) -> tuple[tuple[str, ...], str, bool]:
    """Reads the options columns and includeProperties, and whether timers=pending; all others
    checked too. Raises: BadOption."""
    if {name.lower() for name in given} >= _OF_TABLES:
        raise BadOption(f"a table of Spark's catalogue cannot read a store: {NOT_OF_TABLES}")
    v = _collect(given, _READ, reading=True)
    _stores(given, v)
    return v["columns"] or (), v["includeProperties"], v["timers"] == "pending"


def parse_read(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Returns the options of a reader. Raises: BadOption, a sentence with the option's name."""
    v = _collect(given, _READ, reading=True)
    _check_use(v, streaming)
    paths, settings = _stores(given, v)
    _check_remote(v, paths, streaming)
    brokers = v["brokerName"] or ()
    if brokers and len(brokers) != len(paths):
        raise BadOption(f"option brokerName names {len(brokers)} brokers for {len(paths)} stores")
    if len(set(brokers)) != len(brokers):
        raise BadOption("option brokerName lists a broker twice")
    return ReadOptions(
        paths=paths,
        settings=settings,
        brokers=brokers,
        topics=v["topic"] or v["subscribe"] or (),
        pattern=v["subscribePattern"] or "",
        queues=v["queues"] or (),
        scan="queue" if v["fallback"] == "pull" else v["scan"],
        start=_start(v, streaming),
        end=_end(v),
        log_start=v["startingLogOffset"],
        log_end=v["endingLogOffset"],
        strategy=v["startingOffsetsByTimestampStrategy"],
        tags=v["tags"] or "",
        sql=v["sql92"] or "",
        keys=v["keys"] or (),
        lite=v["liteTopics"] or (),
        time_min=v["minStoreTimestamp"],
        time_max=v["maxStoreTimestamp"],
        transactions=v["includeTransactions"],
        internal=v["internalTopics"],
        timers=v["timers"],
        min_partitions=v["minPartitions"],
        max_records=v["maxRecordsPerPartition"],
        max_bytes=v["maxBytesPerPartition"],
        batch_rows=v["batchRows"],
        batch_bytes=v["batchBytes"],
        properties=v["includeProperties"],
        columns=v["columns"] or (),
        fail_on_loss=v["failOnDataLoss"],
        check_crc=v["checkCrc"],
        decompress=v["decompress"],
        report=v["damageReport"] or "",
        trigger_offsets=v["maxOffsetsPerTrigger"],
        trigger_bytes=v["maxBytesPerTrigger"] if "maxBytesPerTrigger" in v["given"] else 0,
        trigger_min=v["minOffsetsPerTrigger"],
        trigger_delay_ms=v["maxTriggerDelay"],
        state_file=v["stateFile"] or "",
        group=v["commitToGroup"] or "",
        pushdown=v["pushdown"],
        network=_network(v),
    )


def _conf(text: str) -> Mapping[str, str] | str:
    """Returns the settings of the store: JSON, or the name of a broker.conf."""
    if not text.strip().startswith("{"):
        return text
    try:
        return dict(_json(text))
    except ValueError as e:
        raise BadOption(f"option storeConf is a broker.conf or JSON; it is neither: {e}") from None


def parse_write(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Returns the options of a writer. Raises: BadOption."""
    v = _collect(given, _WRITE)
    if streaming and v["jobId"]:
        # Numbers of batches begin at 0 again with each checkpoint: under a name that outlives it,
        # the first batches of a new one would be taken for those that are stored.
        raise BadOption(
            "option jobId is for a batch write: a stream writes each batch once under the id of"
            " its query, which is in its checkpoint; leave it out"
        )
    network = _network(v)
    paths = _target(given, v, network)
    job = v["jobId"] or ""
    if job and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", job):
        raise BadOption(f"option jobId is letters, digits, '.', '_' and '-', not '{job}'")
    return WriteOptions(
        path=paths[0],
        topic=v["topic"] or "",
        tags=v["tags"] or "",
        queues=v["queues"],
        job=job,
        spool=v["spool"] or "",
        lock_timeout_s=v["lockTimeout"] / 1000,
        conf=_conf(v["storeConf"] or ""),
        network=network,
        transactional=v["transactional"],
        certain=bool(v["given"] - _READ.keys() - {"copy"}) or v["copy"],
    )


def _target(
    given: Mapping[str, str], v: dict[str, Any], network: NetworkOptions | None
) -> tuple[str, ...]:
    """Returns the one store of a write; "" for a write over the network. Raises: BadOption."""
    if v["transactional"] and network is None:
        raise BadOption(
            "option transactional is for a write over the network; a write into a store takes each"
            " message once without it"
        )
    paths = _paths(given, ("",) if network else ())
    if len(paths) > 1:
        raise BadOption("a write goes to one store")
    if is_remote(paths[0]):
        raise BadOption(f"'{paths[0]}' is not a local directory: a write opens the store itself")
    if network is not None:
        if paths[0]:
            raise BadOption(f"give a path or option nameServer, not both: '{paths[0]}'")
        for name, row in _WRITE.items():
            if row.only == "store" and name in v["given"]:
                raise BadOption(f"option {name} is for a write into a store, not over the network")
    return paths
