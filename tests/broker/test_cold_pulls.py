"""Pulls of messages that are not in memory: other threads read them from the disk."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import pytest
from popping import records
from test_network_threads import Client, good, heartbeat, pull

import pystore
from broker.broker import Broker
from broker.wire import codec
from broker.wire.codes import ResponseCode

ROOT = Path(__file__).resolve().parents[2]
#: The last 16 MiB of a log are not asked about.
COUNT, SIZE = 30_000, 1024


def out_of_memory(path: Path) -> bool:
    """Takes the files of a store out of the page cache. False: the file system keeps them there."""
    os.sync()
    logs = sorted(path.glob("commitlog/*"))
    for file in [*logs, *path.glob("consumequeue/*/*/*")]:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with logs[0].open("rb") as first:
        return _is_cold(mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ))


def _is_cold(view: mmap.mmap) -> bool:
    """Whether looking at the first byte waits for the disk."""
    before = _waits("self")
    assert view[0] is not None
    return _waits("self") > before


def _waits(task: str) -> int:
    """Major faults of a thread of this process."""
    folder = Path("/proc/thread-self" if task == "self" else f"/proc/self/task/{task}")
    return int((folder / "stat").read_text().rpartition(")")[2].split()[9])


def waits_of_network_threads() -> int:
    names = {t.name: (t / "comm").read_text() for t in Path("/proc/self/task").iterdir()}
    return sum(_waits(task) for task, name in names.items() if name.startswith("rmq-net"))


@pytest.fixture
def cold_store():
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        path = Path(folder) / "store"
        with pystore.open(path) as store:
            bodies = [b"%06d" % n + bytes(SIZE) for n in range(COUNT)]
            store.put_many("T", bodies, queues=[0] * COUNT, tags=["a", "b"] * (COUNT // 2))
        if not out_of_memory(path):
            pytest.skip("the file system of the checkout keeps its files in memory")
        yield path


def pull_everything(client, **more):
    """Bodies' numbers, in the order of the answers."""
    offset, found = 0, []
    while True:
        command = pull(offset, offset)
        command.ext |= more
        answer = client.ask(command)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        found += [int(body[:6]) for _, body, *_ in records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])


@pytest.mark.parametrize("tags", ["*", "b"])
def test_network_threads_never_wait_for_the_disk(cold_store, tags):
    with Broker(cold_store, listenPort=0) as broker:
        broker.create_topic("T", 4)
        client = Client(broker.port)
        good([client.ask(heartbeat())])
        client.ask(pull(COUNT, 0))  # it is served without Python from now on
        before = waits_of_network_threads()
        found = pull_everything(client, subscription=tags)
        client.close()
        assert found == list(range(0 if tags == "*" else 1, COUNT, 1 if tags == "*" else 2))
        assert waits_of_network_threads() == before


def test_a_broker_stops_while_pulls_wait_for_the_disk(cold_store):
    with Broker(cold_store, listenPort=0) as broker:
        broker.create_topic("T", 4)
        client = Client(broker.port)
        good([client.ask(heartbeat())])
        client.ask(pull(COUNT, 0))
        for offset in range(0, COUNT, 500):
            client.sock.sendall(codec.encode(pull(offset, 0)))
    client.close()
    with pystore.open(cold_store) as store:
        assert store.report.mode is pystore.RecoveryMode.NORMAL
