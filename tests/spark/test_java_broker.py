"""The real broker at work on a store that Spark scans and streams from, and then killed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waiting import BOUND_S, until

import pystore

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from spark_ext.errors import SinkError  # noqa: E402
from spark_ext.options import parse_write  # noqa: E402
from spark_ext.transactional import send_halves, settled  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1] / "interop"))

from admin import Admin  # noqa: E402

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow]

TOPIC = "under-load"
#: Large and few, for segments to fill with few rows for everybody to handle; clients compress those
#: of more than 4096 bytes.
BODY = b"x" * 4000
RATE = 125
#: Of a topic that the official client makes by sending to it.
QUEUES = 4
SCHEMA = "queueId int, queueOffset long, body binary, commitLogOffset long"
SETTINGS = {
    "mappedFileSizeCommitLog": 512 << 10,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 512,
    "maxIndexNum": 1024,
}


class Broker:
    """A Java broker: its folder, its name server, its client under load."""

    def __init__(self, reference: Any, folder: Path) -> None:
        self.reference = reference
        self.folder = folder
        self.store = folder / "store"
        self.ports = free_port(), free_port()
        self.address = f"127.0.0.1:{self.ports[0]}"
        self.admin = Admin(self.address, folder)
        self.runs = False

    def start(self) -> None:
        """Starts it, unless it runs: the test before may have killed it."""
        if self.runs:
            return
        variables = "RMQ_NAMESRV_PORT", "RMQ_BROKER_PORT"
        names = dict(zip(variables, map(str, self.ports), strict=True))
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        quick = {"HEAP": "512m", "NAMESRV_HEAP": "128m", "RMQ_SETTLE_S": "1"}
        started = self.reference.run("start", self.folder, *settings, **quick, **names).stdout
        assert "boot success" in started
        self.runs = True

    def kill(self) -> None:
        self.reference.run("stop", self.folder, "KILL", check=False)
        self.runs = False

    @contextlib.contextmanager
    def under_load(self) -> Iterator[None]:
        """The official client sends, RATE messages a second from four threads."""
        arguments = ["send", self.address, TOPIC, 4, len(BODY), 0, 600, 1, RATE]
        client = subprocess.Popen(
            [str(self.reference.script), "load", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            client.kill()
            client.wait()

    def queues(self) -> int:
        """How many queues of the topic hold messages."""
        files = (self.store / "consumequeue" / TOPIC).glob("*/0*")
        return len({file.parent for file in files})

    def segments(self) -> int:
        return len(list((self.store / "commitlog").iterdir()))

    def brokers(self) -> str:
        """Those that the name server knows."""
        return self.admin("clusterList")

    def ends(self) -> dict[int, int]:
        """The queues of the topic and their ends, as the broker tells them to mqadmin."""
        told = self.admin("topicStatus", "-t", TOPIC)
        rows = [line.split() for line in told.splitlines() if line.startswith("broker-a")]
        return {int(row[1]): int(row[3]) for row in rows}


@pytest.fixture(scope="module")
def shared(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(reference, tmp_path_factory.mktemp("broker"))
    try:
        yield broker
    finally:
        broker.kill()
        broker.admin.close()
    shutil.rmtree(broker.folder)


@pytest.fixture
def broker(shared: Broker) -> Broker:
    """The broker of this file, running; its topic may hold what other tests sent."""
    shared.start()
    return shared


def whole(rows: list[Any]) -> dict[int, int]:
    """How many messages of each queue there are; each once, from 0 on, and none but ours."""
    found: dict[int, list[int]] = {}
    for r in rows:
        found.setdefault(r.queueId, []).append(r.queueOffset)
        assert bytes(r.body) == BODY
    for offsets in found.values():
        assert sorted(offsets) == list(range(len(offsets)))
    return {queue: len(offsets) for queue, offsets in found.items()}


def read_all(writer: Any, stream: Any) -> None:
    """Spark gives a Python process ten seconds to start, whatever is set: on a busy machine that is
    not always enough, and the query is started again from its checkpoint."""
    end = time.monotonic() + BOUND_S
    while True:
        try:
            return stream.processAllAvailable()
        except Exception as failed:
            if "failed to connect back" not in str(failed) or time.monotonic() > end:
                raise
        finally:
            stream.stop()
        stream = writer.start()


@pytest.mark.long
def test_scans_and_a_stream_while_the_broker_writes(spark, load, broker, tmp_path):
    counts: list[int] = []
    with broker.under_load():
        until(broker.queues)
        begun = broker.segments()
        writer = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .option("subscribePattern", TOPIC)
            .load(str(broker.store))
            .select("queueId", "queueOffset", "body")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            # Batch upon batch without a pause would take the processors from the broker.
            .trigger(processingTime="2 seconds")
        )
        stream = writer.start()
        while len(counts) < 2 or counts[-1] == counts[0] or broker.segments() < begun + 2:
            if counts:  # so would scan upon scan
                before = broker.segments()
                until(lambda before=before: broker.segments() > before)
            scan = ("queue", "log")[len(counts) % 2]
            frame = load(broker.store, SCHEMA, topic=TOPIC, scan=scan, maxBytesPerPartition="1m")
            counts.append(sum(whole(frame.collect()).values()))
    assert counts == sorted(counts)
    ends: dict[int, int] = {}

    def agree() -> bool:
        """What had reached the broker when its client was killed, it may still be putting."""
        ends.update(broker.ends())
        return whole(load(broker.store, SCHEMA, topic=TOPIC).collect()) == ends

    until(agree)
    read_all(writer, stream)
    assert whole(spark.read.parquet(str(tmp_path / "out")).collect()) == ends


def test_rows_are_sent_to_it_and_pulled_from_it(broker, tmp_path):
    import pyarrow as pa

    from broker.client import NoRoute, Producer
    from spark_ext.options import parse_write
    from spark_ext.sender import send
    from tests.spark.pulls import both_ways

    def registered() -> bool:
        with Producer("p", broker.address) as producer, contextlib.suppress(NoRoute):
            return bool(producer.queues("sent"))
        return False

    until(registered)
    options = parse_write({"nameServer": broker.address, "topic": "sent", "tags": "a"})
    rows = {
        # Those with a key go one by one, and are compressed from 4096 bytes on.
        "body": [b"%d" % i * (1 if i % 5 else 2000) for i in range(300)],
        "keys": [f"k{i}" for i in range(300)],
        "shardingKey": ["x" if i % 5 == 0 else None for i in range(300)],
    }
    assert send([pa.record_batch(rows)], options, "job", 0).rows == 300

    def dispatched() -> bool:
        with pystore.Reader(broker.store) as reader:
            return sum(len(q) for q in reader.queues() if q.topic == "sent") == 300

    until(dispatched)
    elsewhere = tmp_path / "elsewhere"
    for more in ({}, {"sql92": "KEYS = 'k5'"}, {"tags": "a", "decompress": "false"}):
        files, pulled = both_ways(broker.store, broker.address, elsewhere, topic="sent", **more)
        assert files.num_rows == (1 if "sql92" in more else 300)
        assert pulled.equals(files)


@pytest.mark.long  # of golden stores of a broker that was killed: test_golden_stores.py
def test_the_copy_of_a_store_whose_broker_was_killed_under_load(load, broker, tmp_path):
    """It holds what the broker had told of before, and more."""
    with broker.under_load():
        until(lambda: broker.queues() == QUEUES)
        before, segments = broker.ends(), broker.segments()
        # Two more may have been made ahead; a third is there when one is full.
        until(lambda: broker.segments() > segments + 2)
        broker.kill()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", "--sparse=always", broker.store, copy], check=True)
    assert (copy / "abort").exists()
    found = whole(load(copy, SCHEMA, topic=TOPIC).collect())
    assert found.keys() == before.keys()
    assert all(found[queue] >= count for queue, count in before.items())
    assert sum(found.values()) > sum(before.values())
    assert load(copy, SCHEMA, topic=TOPIC, scan="log").count() == sum(found.values())


def test_half_messages_are_committed_by_the_real_broker(broker):
    options = parse_write(
        {"nameServer": broker.address, "topic": "halves", "transactional": "true"}
    )

    until(lambda: "broker-a" in broker.brokers())

    def bodies() -> list[bytes]:
        with pystore.Reader(broker.store) as reader:
            return sorted(bytes(m.body) for m in reader.messages() if m.topic == "halves")

    made, lost = (
        send_halves([pa.record_batch({"body": [name] * 20})], options, "job", 0)
        for name in ("kept", "lost")
    )
    assert bodies() == []

    def is_settled(halves: Any) -> bool:
        """As Spark does: a commit whose time ran out is made again."""
        with contextlib.suppress(SinkError):
            settled(options, [halves])
            return True
        return False

    until(lambda: is_settled(made))
    until(lambda: is_settled(lost))  # the batch once more
    until(lambda: bodies() == [b"kept"] * 20)
