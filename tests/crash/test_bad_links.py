"""A pair over a link that is slow, loses packets and is cut (a network namespace of its own, which
needs root), and a slave whose disk is full or that is stopped: nothing acknowledged is lost, and
the logs are the same in the end.

``PS_CUTS`` cuts (6), ``PS_SEED`` repeats a run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from pairs import SMALL, send, until_alike
from test_pair_kill import Load, end_of, missing, running_pair
from waiting import BOUND_S, until

from broker import Broker, NameServer

CHILD = Path(__file__).with_name("links_child.py")
CUTS = int(os.environ.get("PS_CUTS", "6"))

pytestmark = pytest.mark.long


def _may(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_a_pair_over_a_link_that_is_slow_loses_packets_and_is_cut(
    tmp_path: Path, seed: int
) -> None:
    shape = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 32k latency 1ms"
    if not _may("unshare", "-n", "sh", "-c", shape):
        pytest.skip("no network namespace of its own here")
    words = ["unshare", "-n", sys.executable, str(CHILD), str(tmp_path), str(seed), str(CUTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    print(done.stdout)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _may("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)):
        pytest.skip("no file system of its own here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_slave_with_a_full_disk_goes_on_when_it_has_room(
    small_disk: Path, tmp_path: Path
) -> None:
    small: dict[str, Any] = SMALL | {"mappedFileSizeCommitLog": 1 << 20}
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1", kvConfigPath="") as server:
        names = f"127.0.0.1:{server.port}"
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(34 << 20))
        with (
            Broker(tmp_path / "m", namesrvAddr=names, brokerRole="ASYNC_MASTER", **small) as master,
            Broker(small_disk / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **small)
            as slave,
        ):  # fmt: skip
            master.create_topic("orders", 4)
            replication = master.services.replication
            until(lambda: replication.master.slaves, "the slave")
            while end(slave) + (4 << 20) > end(master):
                send(master, 2000)
            assert end(slave) < end(master)
            ballast.unlink()
            until_alike(master, slave)


def end(broker: Broker) -> int:
    return int(broker.store.info().log_max)


def test_a_slave_that_is_stopped_for_long_catches_up(tmp_path: Path, rng: random.Random) -> None:
    with (
        launch.name_server("ours", tmp_path / "names") as names,
        running_pair(tmp_path / "pair", names, rng) as pair,
    ):
        load: Load = pair.load
        process = pair.slave.broker_server.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            unsure = load.unsure
            until(lambda: load.unsure > unsure + 20, "answers of 12")
        finally:
            process.send_signal(signal.SIGCONT)
        load.until_acknowledged()
        load.stop()
        until(lambda: end_of(pair.slave.broker) == end_of(pair.master.broker), "the end of the log")
        for peer in (pair.master, pair.slave):
            assert missing(peer.store, load.sent) == []
