"""Every option of docs/spark.md, by what it changes: a case for each row of the page's tables.

Without a session: plans, tasks and commits are called as Spark calls them.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore
from broker import Broker
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings
from broker.testing import SETTINGS
from pystore.format.names import HALF_TOPIC

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from pystore.cold.push import push
from pystore.cold.tier import new_tier
from spark_ext import schema, sink
from spark_ext.batch import read_part
from spark_ext.errors import BadOption, DataLoss, SinkError, SourceError
from spark_ext.options import parse_read, parse_write
from spark_ext.plan import Part, plan
from spark_ext.pushdown import wanted
from spark_ext.sender import send
from spark_ext.source import RocketmqSource
from spark_ext.timers import plan_timers, read_timers
from spark_ext.transactional import send_halves, settled
from tests.spark.losses import damage
from tests.spark.test_sink import SMALL, spooled
from tests.spark.test_stream import reader_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
#: The heading above each table of options, by the name that it has here.
TABLES = {
    "read": "## Options of a read",
    "stream": "## Streams",
    "write": "## Writing",
    "send": "### Over the network",
}
#: "t" of queue 0: each a millisecond or more after the one before.
COUNT = 12

Case = Callable[["Here"], None]
CASES: dict[tuple[str, str], Case] = {}


def of(table: str, *options: str) -> Callable[[Case], Case]:
    """A case for options of a table."""

    def note(case: Case) -> Case:
        for option in options:
            assert (table, option) not in CASES
            CASES[table, option] = case
        return case

    return note


class Here:
    """path: a closed store that many cases read. tmp: of one case. stamps: of queue t/0, in ms."""

    def __init__(self, path: Path, stamps: list[int], tmp: Path) -> None:
        self.path, self.stamps, self.tmp = path, stamps, tmp

    def fresh(self) -> Path:
        """A copy that a case may change."""
        return shutil.copytree(self.path, self.tmp / "copy")

    def parts(self, path: Path | None = None, **given: object) -> list[Part]:
        return plan(self._options(path, given))

    def batches(self, path: Path | None = None, **given: object) -> list[Any]:
        options = self._options(path, given)
        layout = schema.ColumnLayout(
            ("topic", "brokerName", "queueId", "queueOffset", "body", "commitLogOffset"),
            (False,) * 6, options.properties,
        )  # fmt: skip
        return [b for part in plan(options) for b in read_part(part, layout, options)]

    def rows(self, path: Path | None = None, **given: object) -> list[tuple[str, int, int]]:
        """(topic, queue, offset) of each message, sorted."""
        rows = [row for batch in self.batches(path, **given) for row in batch.to_pylist()]
        return sorted((r["topic"], r["queueId"], r["queueOffset"]) for r in rows)

    def offsets(self, path: Path | None = None, **given: object) -> list[int]:
        """Those of t/0."""
        return [r[2] for r in self.rows(path, topic="t", queues=0, **given)]

    def _options(self, path: Path | None, given: dict[str, object]) -> Any:
        text = {name: str(value) for name, value in given.items()}
        return parse_read({"path": str(path or self.path), **text}, streaming=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    path, stamps = tmp_path_factory.mktemp("options") / "store", []
    with pystore.open(path, **SMALL, maxHashSlotNum=512, maxIndexNum=1024) as store:
        for i in range(COUNT):
            put = store.put(
                "t",
                b"x" * 100,
                queue=0,
                tags="ab"[i % 2],
                keys=[f"k{i}", f"p{i % 2}"],
                properties={"n": str(i)},
            )
            stamps.append(put.store_timestamp)
            while store.put("clock", b"").store_timestamp == stamps[-1]:
                pass
        store.put("t", b"one", queue=1)
        store.put("t-old", b"other", queue=0)
        store.put("packed", zlib.compress(b"long " * 100), queue=0, sys_flag=1)
        store.put(HALF_TOPIC, b"half", queue=0)
    return path, stamps


@pytest.fixture
def here(shared: tuple[Path, list[int]], tmp_path: Path) -> Here:
    return Here(*shared, tmp_path)


# ---- a read: which messages ----


@of("read", "path")
def _(here: Here) -> None:
    assert len(here.rows()) > COUNT
    assert parse_read({"path": "/a"}, streaming=False).paths == ("/a",)
    assert parse_read({"path": '["/a", "/b"]'}, streaming=False).paths == ("/a", "/b")


@of("read", "brokerName")
def _(here: Here) -> None:
    def names(**given: object) -> set[str]:
        return {b["brokerName"][0].as_py() for b in here.batches(topic="t", **given)}

    assert (names(), names(brokerName="x")) == ({"broker-a"}, {"x"})


@of("read", "topic", "subscribe")
def _(here: Here) -> None:
    for option in ("topic", "subscribe"):
        assert {r[0] for r in here.rows(**{option: "t, t-old"})} == {"t", "t-old"}
        with pytest.raises(SourceError, match="none"):
            here.rows(**{option: "none"})


@of("read", "subscribePattern")
def _(here: Here) -> None:
    assert {r[0] for r in here.rows(subscribePattern="t.*")} == {"t", "t-old"}
    assert here.rows(subscribePattern="-old") == []


@of("read", "queues")
def _(here: Here) -> None:
    assert here.rows(topic="t", queues="1") == [("t", 1, 0)]
    assert len(here.rows(topic="t", queues="0,1")) == COUNT + 1


@of("read", "startingOffsets", "endingOffsets")
def _(here: Here) -> None:
    at = lambda n: json.dumps({"t": {"broker-a": {"0": n}}})  # noqa: E731
    assert here.offsets(startingOffsets=at(9)) == [9, 10, 11]
    assert here.offsets(endingOffsets=at(2)) == [0, 1]
    assert here.offsets(startingOffsets=at(-1)) == here.offsets(endingOffsets=at(-2)) == []
    assert here.offsets(startingOffsets="earliest", endingOffsets="latest") == [*range(COUNT)]
    assert here.offsets(startingOffsets=at(3), endingOffsets='{"t": {"0": 5}}') == [3, 4]


@of("read", "startingTimestamp", "endingTimestamp")
def _(here: Here) -> None:
    assert here.offsets(startingTimestamp=here.stamps[9]) == [9, 10, 11]
    assert here.offsets(endingTimestamp=here.stamps[2]) == [0, 1]
    assert here.offsets(startingTimestamp=here.stamps[-1] + 1) == []


@of("read", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
def _(here: Here) -> None:
    at = lambda n: json.dumps({"t": {"0": here.stamps[n]}})  # noqa: E731
    assert here.offsets(startingOffsetsByTimestamp=at(9)) == [9, 10, 11]
    assert here.offsets(endingOffsetsByTimestamp=at(2)) == [0, 1]


@of("read", "startingOffsetsByTimestampStrategy")
def _(here: Here) -> None:
    late = {"startingTimestamp": here.stamps[-1] + 1}
    assert here.offsets(**late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(SourceError, match="t/0 was stored at or after"):
        here.offsets(**late, startingOffsetsByTimestampStrategy="error")


@of("read", "tier")
def _(here: Here) -> None:
    hot, cold = here.tmp / "hot", here.tmp / "cold"
    with pystore.open(hot, mappedFileSizeCommitLog=1 << 16) as store:
        store.put_many("t", [b"x" * 100] * 1000, queues=[0] * 1000)
    with pystore.Reader(hot) as reader:
        push(reader, new_tier(cold, "c", "broker-a"))
    for segment in sorted((hot / "commitlog").iterdir())[:-1]:
        segment.unlink()
    assert here.offsets(hot)[0] > 0
    assert here.offsets(hot, tier=cold) == [*range(1000)]


@of("read", "liteTopics")
def _(here: Here) -> None:
    named = {"INNER_MULTI_DISPATCH": "%LMQ%$chats$s", "__LITE_TOPIC": "s"}
    with pystore.open(here.tmp / "lite", **SMALL) as store:
        store.lights.begin()
        other = {"INNER_MULTI_DISPATCH": "%LMQ%$chats$u", "__LITE_TOPIC": "u"}
        for at in range(6):
            store.put("chats", b"", queue=0, properties=({}, named, other)[at % 3])
    given = {"path": here.tmp / "lite", "topic": "chats"}
    assert here.rows(**given, liteTopics="s") == [("chats", 0, 1), ("chats", 0, 4)]
    assert [at for _, _, at in here.rows(**given, liteTopics="s,u")] == [1, 2, 4, 5]
    read = here.parts(**given, liteTopics="s,u")
    assert sum(end - start for part in read for _, _, start, end in part.ranges) == 4


@of("read", "tags")
def _(here: Here) -> None:
    assert here.offsets(tags="b") == [*range(1, COUNT, 2)]
    assert here.offsets(tags="a || b") == [*range(COUNT)]


@of("read", "sql92")
def _(here: Here) -> None:
    for scan in ("queue", "log"):
        assert [at for _, _, at in here.rows(sql92="n > 8 AND TAGS = 'b'", scan=scan)] == [9, 11]
        assert ("t", 1, 0) in here.rows(sql92="n IS NULL", scan=scan)
    with pytest.raises(BadOption, match="option sql92: "):
        here.rows(sql92="n >")


@of("read", "keys")
def _(here: Here) -> None:
    assert here.offsets(keys="k3, k5") == [3, 5]
    assert here.offsets(keys="p1") == [*range(1, COUNT, 2)]
    assert here.offsets(keys="none") == []


@of("read", "minStoreTimestamp", "maxStoreTimestamp")
def _(here: Here) -> None:
    assert here.offsets(minStoreTimestamp=here.stamps[9]) == [9, 10, 11]
    assert here.offsets(maxStoreTimestamp=here.stamps[2]) == [0, 1, 2]


@of("read", "includeTransactions")
def _(here: Here) -> None:
    half = (HALF_TOPIC, 0, 0)
    for scan in ("queue", "log"):
        assert {*here.rows(scan=scan, includeTransactions="all")} - {*here.rows()} == {half}
    assert here.rows(topic=HALF_TOPIC) == [half]


@of("read", "timers")
def _(here: Here) -> None:
    path, due = here.tmp / "timers", time.time_ns() // 1_000_000 + 3_600_000
    with pystore.open(path, **SMALL) as store:
        store.put("t", b"stored", queue=0)
        store.put_message("t", b"waits", properties={"TIMER_DELIVER_MS": str(due)}, queue=0)
    assert here.offsets(path, timers="stored") == [0]
    options = parse_read({"path": str(path), "timers": "pending"}, streaming=False)
    layout = schema.ColumnLayout(("topic", "body"), (False, False), "json")
    rows = [b.to_pylist() for p in plan_timers(options) for b in read_timers(p, layout, options)]
    assert rows == [[{"topic": "t", "body": b"waits"}]]


@of("read", "scan")
def _(here: Here) -> None:
    """By queues or in the order of the log; both are the same messages."""
    by = lambda scan: here.parts(topic="t", scan=scan)  # noqa: E731
    assert all(part.log is None and part.ranges for part in by("queue"))
    assert all(part.log is not None and not part.ranges for part in by("log"))
    assert [part.ranges for part in by("auto")] == [part.ranges for part in by("queue")]
    assert here.rows(scan="queue") == here.rows(scan="log", maxBytesPerPartition="600")
    assert len(here.parts(scan="log", maxBytesPerPartition="600")) > 3


@of("read", "startingLogOffset", "endingLogOffset")
def _(here: Here) -> None:
    with pystore.Reader(here.path) as reader:
        at, end = reader.read("t", 0, 6)[0].physical_offset, reader.info().log_max
    log = {"topic": "t", "scan": "log"}
    after, before = here.rows(**log, startingLogOffset=at), here.rows(**log, endingLogOffset=at)
    assert after == [*(("t", 0, i) for i in range(6, COUNT)), ("t", 1, 0)]
    assert before == [("t", 0, i) for i in range(6)]
    with pytest.raises(SourceError, match=f"does not hold bytes 0 to {end + 1}"):
        here.rows(**log, endingLogOffset=end + 1)


# ---- a read: how it comes ----


@of("read", "includeProperties", "columns")
def _(here: Here) -> None:
    ddl = lambda **o: RocketmqSource({"path": str(here.path), **o}).schema()  # noqa: E731
    assert "properties string" in ddl(includeProperties="json")
    assert "properties map<string,string>" in ddl(includeProperties="map")
    assert "properties" not in ddl(includeProperties="none")
    assert ddl(columns="tags, queueOffset") == "tags string, queueOffset bigint NOT NULL"


@of("read", "minPartitions", "maxBytesPerPartition", "maxRecordsPerPartition")
def _(here: Here) -> None:
    one = {"topic": "t", "queues": "0"}
    assert len(here.parts(**one)) == 1
    for more in ({"minPartitions": 4}, {"maxBytesPerPartition": "600"},
                 {"maxRecordsPerPartition": 3}):  # fmt: skip
        assert len(here.parts(**one, **more)) >= 4, more
        assert here.offsets(**more) == [*range(COUNT)]


@of("read", "batchRows", "batchBytes")
def _(here: Here) -> None:
    sizes = lambda **o: [b.num_rows for b in here.batches(topic="t", queues=0, **o)]  # noqa: E731
    assert (sizes(), sizes(batchRows=5)) == ([COUNT], [5, 5, 2])
    assert 1 < len(sizes(batchBytes=600)) < COUNT


def _damaged(here: Here) -> tuple[Path, int]:
    """A copy of the store whose record at offset 6 of t/0 cannot be read, and where that lies."""
    path = here.fresh()
    with pystore.Reader(path) as reader:
        at = reader.read("t", 0, 6)[0].physical_offset
    damage(path, at)
    return path, at


@of("read", "failOnDataLoss")
def _(here: Here) -> None:
    path, at = _damaged(here)
    with pytest.raises(DataLoss, match=f"t/0, offset 6.* physical offset {at} cannot be read"):
        here.offsets(path)
    assert here.offsets(path, failOnDataLoss="false") == [*range(6), *range(7, COUNT)]


@of("read", "damageReport")
def _(here: Here) -> None:
    path, at = _damaged(here)
    here.offsets(path, failOnDataLoss="false", damageReport=here.tmp / "notes")
    (note,) = [json.loads(p.read_text()) for p in (here.tmp / "notes").iterdir()]
    assert (note["skipped"], note["firstSkipped"], note["store"]) == (1, at, str(path))


@of("read", "checkCrc")
def _(here: Here) -> None:
    path = here.fresh()
    with pystore.Reader(path) as reader:
        at = reader.read("t", 0, 6)[0].physical_offset
    damage(path, at + 120, b"y")  # within the body
    assert here.offsets(path, checkCrc="false") == [*range(COUNT)]
    with pytest.raises(DataLoss, match=str(at)):
        here.offsets(path, checkCrc="true")
    left = here.offsets(path, checkCrc="true", failOnDataLoss="false")
    assert left == [*range(6), *range(7, COUNT)]


@of("read", "decompress")
def _(here: Here) -> None:
    body = lambda **o: here.batches(topic="packed", **o)[0]["body"][0].as_py()  # noqa: E731
    assert body() == b"long " * 100
    assert zlib.decompress(body(decompress="false")) == b"long " * 100


@of("read", "conf", "storePathCommitLog and other settings")
def _(here: Here) -> None:
    path, log = here.fresh(), here.tmp / "disk"
    (path / "commitlog").rename(log)
    conf = here.tmp / "broker.conf"
    conf.write_text(f"storePathCommitLog = {log}\n")
    with pytest.raises(SourceError, match="storePathCommitLog"):
        here.offsets(path)
    assert here.offsets(path, storePathCommitLog=log) == [*range(COUNT)]
    assert here.offsets(path, conf=conf) == [*range(COUNT)]
    conf.write_text("storePathCommitLog = /nowhere\n")
    assert here.offsets(path, conf=conf, storePathCommitLog=log) == [*range(COUNT)]


@of("read", "pushdown")
def _(here: Here) -> None:
    """Whether the reader is the one that takes filters; what it does with them: test_pushdown."""

    def given(value: str) -> Any:
        return parse_read({"path": "/s", "pushdown": value}, streaming=False)

    took = {v: [wanted(given(v).pushdown, s) for s in ("4.3.0", "5.0.0")] for v in
            ("off", "unsafe", "auto")}  # fmt: skip
    assert took == {"off": [False, False], "unsafe": [True, True], "auto": [False, True]}


# ---- reaching brokers: of a read and of a write ----

PAIR = {"accessKey": "writers", "secretKey": "hidden1"}


@contextlib.contextmanager
def running(path: Path, **more: Any) -> Iterator[Broker]:
    given = SETTINGS | {"brokerName": "broker-a"} | more
    with Broker(path, listenPort=0, with_namesrv=True, drain_s=0.0, **given) as made:
        yield made


@contextlib.contextmanager
def guarded(tmp: Path) -> Iterator[Broker]:
    """A broker that asks for the pair."""
    (tmp / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: writers\n  secretKey: hidden1\n  topicPerms:\n  - t=PUB|SUB\n"
        "  groupPerms:\n  - rocketmq-spark=SUB\n"
    )
    (tmp / "plain_acl.yml").chmod(0o600)
    with running(tmp / "guarded", aclEnable=True) as broker:
        yield broker


@contextlib.contextmanager
def enforcing(tmp: Path) -> Iterator[tuple[Broker, Path]]:
    """A broker that speaks TLS alone, and the certificate that vouches for it."""
    for name, text in zip(("cert", "key"), self_signed("localhost"), strict=True):
        (tmp / name).write_text(text)
    tls = TlsSettings(mode="enforcing", cert_path=str(tmp / "cert"), key_path=str(tmp / "key"))
    with running(tmp / "tls", tls=tls) as broker:
        yield broker, tmp / "cert"


def pulled(here: Here, broker: Broker, **given: object) -> list[int]:
    """What a host without the store gets of the broker's."""
    text = {name: str(value) for name, value in given.items()}
    options = parse_read(
        {"path": str(broker.store.path), "topic": "t", "nameServer": broker.namesrv_address,
         "fallback": "pull", **text}, streaming=False,
    )  # fmt: skip
    layout = schema.ColumnLayout(("queueOffset",), (False,), "json")
    parts = plan(options)
    for part in parts:
        part.path = str(here.tmp / "elsewhere")
    batches = [b for part in parts for b in read_part(part, layout, options)]
    return [row["queueOffset"] for b in batches for row in b.to_pylist()]


def sent(broker: Broker, **given: object) -> int:
    text = {"nameServer": broker.namesrv_address, "topic": "t"}
    text |= {name: str(value) for name, value in given.items()}
    return send([pa.record_batch({"body": ["x"]})], parse_write(text), "job", 0).rows


@of("read", "fallback", "nameServer")
def _(here: Here) -> None:
    with running(here.fresh()) as broker:
        assert [*pulled(here, broker, queues=0)] == [*range(COUNT)]
        (part,) = here.parts(topic="t", queues=0)
        part.path = str(here.tmp / "elsewhere")
        options = parse_read({"path": str(here.path), "fallback": "fail"}, streaming=False)
        layout = schema.ColumnLayout(("queueOffset",), (False,), "json")
        with pytest.raises(SourceError, match="elsewhere"):
            list(read_part(part, layout, options))


@of("read", "accessKey", "secretKey", "securityToken")
def _(here: Here) -> None:
    with guarded(here.tmp) as broker:
        sent(broker, **PAIR)
        broker.store.flush()
        assert pulled(here, broker, **PAIR) == [0]
        for wrong in ({}, PAIR | {"accessKey": "other"}, PAIR | {"secretKey": "other"}):
            with pytest.raises(SourceError):
                pulled(here, broker, **wrong)
    _token_travels()


@of("send", "accessKey", "secretKey", "securityToken")
def _(here: Here) -> None:
    with guarded(here.tmp) as broker:
        assert sent(broker, **PAIR) == 1
        for wrong in ({}, PAIR | {"accessKey": "other"}, PAIR | {"secretKey": "other"}):
            with pytest.raises(SinkError):
                sent(broker, **wrong)
    _token_travels()


def _token_travels() -> None:
    """Brokers of ours ask for no token: it is in the credentials that sign each request."""
    given = {"nameServer": "h:1", "securityToken": "hidden2", **PAIR}
    network = parse_write(given).network
    assert network is not None and network.credentials is not None
    assert network.credentials.security_token == "hidden2" and "hidden2" not in repr(network)


@of("read", "tls", "tlsCaFile")
def _(here: Here) -> None:
    with enforcing(here.tmp) as (broker, cert):
        sent(broker, tls="true")
        broker.store.flush()
        assert pulled(here, broker, tls="true") == pulled(here, broker, tlsCaFile=cert) == [0]
        with pytest.raises(SourceError):
            pulled(here, broker)


@of("send", "tls", "tlsCaFile")
def _(here: Here) -> None:
    with enforcing(here.tmp) as (broker, cert):
        assert sent(broker, tls="true") == sent(broker, tlsCaFile=cert) == 1
        other = here.tmp / "other"
        other.write_text(self_signed("other")[0])
        for wrong in ({}, {"tlsCaFile": other}):
            with pytest.raises(SinkError):
                sent(broker, **wrong)
        with pytest.raises(BadOption, match="option tlsCaFile: "):
            sent(broker, tlsCaFile=here.tmp / "none")


@of("send", "nameServer", "topic", "jobId")
def _(here: Here) -> None:
    with running(here.tmp / "sent") as broker:
        given = {"nameServer": broker.namesrv_address, "topic": "u", "jobId": "mine"}
        options = parse_write(given)
        send([pa.record_batch({"body": ["x"]})], options, options.job, 0)
        (message,) = [m for m in broker.store.messages() if m.topic == "u"]
        assert message.properties["SPARK_JOB"] == "mine"


@of("send", "tags")
def _(here: Here) -> None:
    with running(here.tmp / "sent") as broker:
        sent(broker, tags="paid")
        assert [m.tags for m in broker.store.messages() if m.topic == "t"] == ["paid"]


@of("send", "transactional")
def _(here: Here) -> None:
    with running(here.tmp / "sent") as broker:
        options = parse_write(
            {"nameServer": broker.namesrv_address, "topic": "t", "transactional": "true"}
        )
        halves = send_halves([pa.record_batch({"body": ["x"]})], options, "job", 0)
        topics = lambda: [m.topic for m in broker.store.messages()]  # noqa: E731
        assert (topics().count(HALF_TOPIC), topics().count("t")) == (1, 0)
        settled(options, [halves])
        assert topics().count("t") == 1


# ---- streams ----


def taken(reader: Any, start: Any = None) -> dict[str, int]:
    """The ends of the next batch, by queue of t."""
    begin = start or reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    return {queue: int(n) for queue, n in end["o"]["t"]["broker-a"].items()}


@of("stream", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
def _(here: Here) -> None:
    given = {"topic": "t", "queues": 0, "startingOffsets": "earliest"}
    assert taken(reader_of(here.path, **given)) == {"0": COUNT}
    assert taken(reader_of(here.path, **given, maxOffsetsPerTrigger=5)) == {"0": 5}
    few = taken(reader_of(here.path, **given, maxBytesPerTrigger=600))
    assert 1 <= few["0"] < COUNT / 2


@of("stream", "minOffsetsPerTrigger", "maxTriggerDelay")
def _(here: Here) -> None:
    path = here.fresh()
    given = {"topic": "t", "queues": 0, "startingOffsets": "earliest", "minOffsetsPerTrigger": 5}
    reader = reader_of(path, **given, maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    at = reader.latestOffset(reader.initialOffset(), limit)
    with pystore.open(path, **SMALL) as store:
        store.put_many("t", [b"x"] * 3, queue=0)
    reader._look_again = 0
    assert reader.latestOffset(at, limit) == at  # three are too few
    reader._triggered -= 3601
    reader._look_again = 0
    assert taken(reader, at) == {"0": COUNT + 3}  # an hour is long enough


@of("stream", "stateFile")
def _(here: Here) -> None:
    path, state = here.fresh(), here.tmp / "state" / "file"
    given = {"topic": "t", "queues": 0, "startingOffsets": "latest"}
    first = reader_of(path, **given, stateFile=state).initialOffset()
    kept = json.loads(state.read_text())
    assert (kept["v"], kept["o"]) == (1, {"t": {"broker-a": {"0": COUNT}}})
    with pystore.open(path, **SMALL) as store:
        store.put_many("t", [b"x"] * 3, queue=0)
    assert reader_of(path, **given, stateFile=state).initialOffset() == first
    assert reader_of(path, **given).initialOffset() != first


@of("stream", "commitToGroup")
def _(here: Here) -> None:
    path = here.fresh()
    given = {"topic": "t", "queues": 0, "startingOffsets": "earliest"}
    for options, want in (({}, None), ({"commitToGroup": "g"}, COUNT)):
        reader = reader_of(path, **given, **options)
        limit = reader.getDefaultReadLimit()
        reader.commit(reader.latestOffset(reader.initialOffset(), limit))
        with pystore.Reader(path) as store:
            assert store.metadata.offsets.get("g", "t", 0) == want


# ---- a write into a store ----


def written(here: Here, path: Path | None = None, **given: object) -> list[pystore.Message]:
    """Three rows through a task and a commit; what is in the store then."""
    path = path or here.tmp / "written"
    text = {"path": str(path), "topic": "w", "storeConf": json.dumps(SMALL)}
    options = parse_write(text | {name: str(value) for name, value in given.items()})
    job = options.job or "job"
    sink._commit(options, job, 0, [spooled(options, job, 0, ["a", "b", "c"])])
    with pystore.Reader(path) as reader:
        return [m for m in reader.messages() if m.topic == options.topic]


@of("write", "path", "topic")
def _(here: Here) -> None:
    assert [bytes(m.body) for m in written(here, here.tmp / "made", topic="v")] == [
        b"a",
        b"b",
        b"c",
    ]


@of("write", "tags")
def _(here: Here) -> None:
    options = parse_write({"path": str(here.tmp / "w"), "topic": "w", "tags": "paid"})
    made = sink._spool(iter([pa.record_batch({"body": ["a"]})]), options, "job", 0)
    sink._commit(options, "job", 0, [made])
    with pystore.Reader(here.tmp / "w") as reader:
        assert [m.tags for m in reader.messages()] == ["paid"]


@of("write", "queues")
def _(here: Here) -> None:
    assert {m.queue for m in written(here, queues=2, topic="new")} <= {0, 1, 2}
    written(here, here.tmp / "wide", queues=30)
    with pystore.Reader(here.tmp / "wide") as reader:
        assert reader.metadata.topics.get("w").write_queue_nums >= 30


@of("write", "jobId")
def _(here: Here) -> None:
    assert len(written(here, jobId="load")) == len(written(here, jobId="load")) == 3
    assert len(written(here, jobId="another")) == 6


@of("write", "spool")
def _(here: Here) -> None:
    for given, folder in (({}, here.tmp / "s.spool"), ({"spool": here.tmp / "x"}, here.tmp / "x")):
        text = {name: str(value) for name, value in given.items()}
        options = parse_write({"path": str(here.tmp / "s"), "topic": "w", **text})
        made = sink._spool(iter([pa.record_batch({"body": ["a"]})]), options, "job", 0)
        assert Path(made.path).is_relative_to(folder)


@of("write", "lockTimeout")
def _(here: Here) -> None:
    path, begun = here.tmp / "held", time.monotonic()
    with pystore.open(path, **SMALL), pytest.raises(SinkError, match="no broker or other program"):
        written(here, path, lockTimeout="300ms")
    assert time.monotonic() - begun >= 0.3


@of("write", "storeConf")
def _(here: Here) -> None:
    conf = here.tmp / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog = 131072\n")
    for n, given in enumerate((conf, json.dumps({"mappedFileSizeCommitLog": 131072}))):
        path = here.tmp / f"sized-{n}"
        written(here, path, storeConf=given)
        assert (path / "commitlog" / f"{0:020d}").stat().st_size == 131072
    with pytest.raises(BadOption, match="storeConf"):
        written(here, storeConf="{")


@of("read", "internalTopics")
def _(here: Here) -> None:
    path = here.tmp / "internal"
    names = ["t", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"]
    with pystore.open(path, **SMALL) as store:
        for name in names:
            store.put_many(name, [b"x"], queue=0)
    for scan in ("queue", "log"):
        assert topics(path, scan=scan) == sorted(names)
        assert topics(path, internalTopics="false", scan=scan) == ["t"]
    assert topics(path, internalTopics="false", topic="%DLQ%g") == ["%DLQ%g"]
    assert topics(path, internalTopics="false", subscribePattern=".*g") == []


@of("read", "timeZone")
def _(here: Here) -> None:
    def at(text: str, **more: str) -> int | None:
        return parse_read(
            {"path": "/s", "minStoreTimestamp": text, **more}, streaming=False
        ).time_min

    noon = at("2026-07-01T10:00:00Z")
    for zone in ("Europe/Berlin", "+02:00"):
        assert at("2026-07-01T12:00", timeZone=zone) == noon
        assert at("2026-07-01T10:00:00Z", timeZone=zone) == noon
        assert at("1000", timeZone=zone) == 1000
    with pytest.raises(BadOption, match="minStoreTimestamp names no zone, and Spark does not tell"):
        at("2026-07-01T12:00")
    with pytest.raises(BadOption, match="option timeZone is a zone such as Europe/Berlin"):
        at("2026-07-01T12:00", timeZone="Mars/Base")


@of("write", "copy")
def _(here: Here) -> None:
    """What an INSERT INTO a view brings is refused, unless an option says that it is a write."""
    frame = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])

    def writer(path: Path, **given: str) -> None:
        sink.BatchWriter(parse_write({"path": str(path), "topic": "w", **given}), frame, False)

    writer(here.tmp / "new")
    written(here, here.tmp / "there")
    for given in ({}, {"copy": "false"}):
        with pytest.raises(
            SinkError, match=r"columns of a read \(queueOffset\).* copy=true adds them"
        ):
            writer(here.tmp / "there", **given)
    for given in ({"copy": "true"}, {"jobId": "a"}, {"storeConf": "{}"}):
        writer(here.tmp / "there", **given)


def topics(path: Path, **given: str) -> list[str]:
    options = parse_read({"path": str(path), **given}, streaming=False)
    layout = schema.ColumnLayout(("topic",), (False,), "json")
    parts = plan(options)
    return sorted(
        {t for p in parts for b in read_part(p, layout, options) for t in b.column(0).to_pylist()}
    )


# ---- the page ----


def tables() -> set[tuple[str, str]]:
    """(table, option) of every row of the page."""
    text, found = PAGE.read_text(encoding="utf-8"), set()
    for name, heading in TABLES.items():
        begin = text.index(f"\n{heading}\n")
        table = re.compile(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
        rows = table.search(text, begin)
        assert rows is not None, heading
        cells = (row.split("|")[1] for row in rows[1].splitlines())
        found |= {(name, option.strip()) for cell in cells for option in cell.split(",")}
    return found


def test_every_option_of_the_page_has_a_case():
    """And the page has as many tables as are looked at."""
    assert PAGE.read_text(encoding="utf-8").count("\n| option |") == len(TABLES)
    assert {*CASES} == tables()


@pytest.mark.parametrize("case", dict.fromkeys(CASES.values()), ids=lambda case: "-".join(
    dict.fromkeys(word for table, option in CASES if CASES[table, option] is case
                  for word in (table, option.split()[0]))
))  # fmt: skip
def test_an_option_does_what_the_page_says(case: Case, here: Here) -> None:
    case(here)
