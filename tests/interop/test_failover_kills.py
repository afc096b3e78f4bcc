"""Three brokers of ours under etcd, one of them killed at a time, at random: sends go on, and every
acknowledged one stays where it was said to be."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from controllers import Controller, Sender, member_of
from etcd_server import PROGRAM, etcd

from broker.services.controlled.etcd import EtcdController, Gateway
from broker.services.replication.elected_role import ElectionRecord

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)"),
]

NAME = "broker-a"
ROUNDS = int(os.environ.get("PS_ROUNDS", "6"))


def record_of(address: str) -> ElectionRecord:
    gateway = Gateway(address)
    controller = EtcdController(gateway, "DefaultCluster", NAME, Path("none"), 0o644, 1000)
    return asyncio.run(controller.look())


@contextmanager
def three_in_sync(folder: Path, silent_ms: int) -> Iterator[tuple[list[launch.Peer], str, str]]:
    """Three of ours under etcd, the addresses of the name server and of etcd. A master that is
    silent for `silent_ms` is dead. At the end each stops as it should."""
    peers: list[launch.Peer] = []
    with etcd(folder / "etcd") as controller, launch.name_server("ours", folder / "n") as names:
        under = Controller(names, controller.address, launch.Server([], folder))
        try:
            for number in range(3):
                at = folder / f"m{number}"
                made = member_of("ours", under, at, NAME, controllerHeartBeatTimeoutMills=silent_ms)
                peers.append(made)
                made.broker_server.start()
            launch.wait("three in sync", lambda: len(record_of(controller.address).in_sync) == 3)
            yield peers, names, controller.address
        finally:
            codes = [peer.broker_server.stop() for peer in peers]
    assert codes == [0, 0, 0]


def test_members_are_killed_at_random_and_nothing_acknowledged_is_lost(
    tmp_path: Path, rng: random.Random
) -> None:
    with three_in_sync(tmp_path, 3000) as (peers, names, address):
        pauses = []
        with Sender(names) as sender:
            for round_ in range(ROUNDS):
                sender.wait(100)
                time.sleep(rng.uniform(0.0, 1.0))
                record, before = record_of(address), len(sender.acknowledged)
                # The master is more likely.
                masters = [p for p in peers if p.broker == record.address]
                peer = rng.choice(masters * 4 + peers)
                began = time.monotonic()
                peer.broker_server.kill()
                # Who was alone in sync, after an election that came in between, comes back.
                launch.wait(
                    "an acknowledged send, or nobody else who may be elected",
                    lambda before=before, alone={record.master}: (
                        len(sender.acknowledged) > before + 20
                        or record_of(address).in_sync == alone
                    ),
                )
                pauses.append((round_, peer in masters, time.monotonic() - began))
                peer.broker_server.start()
                launch.wait("three in sync", lambda: len(record_of(address).in_sync) == 3)
        print("seconds from a kill to the next acknowledged send:", pauses)
    sender.check(*(peer.store for peer in peers))


def test_who_saw_the_master_go_does_not_wait_for_its_lease(tmp_path: Path) -> None:
    """The lease lasts an hour. What listens no more at a host that answers is gone."""
    with three_in_sync(tmp_path, 3_600_000) as (peers, names, address), Sender(names) as sender:
        sender.wait(100)
        before = record_of(address)
        master = next(peer for peer in peers if peer.broker == before.address)
        master.broker_server.kill()
        launch.wait("an epoch", lambda: record_of(address).epoch == before.epoch + 1)
        assert record_of(address).address != before.address
        sender.wait(100)
        master.broker_server.start()
        launch.wait("three again", lambda: len(record_of(address).in_sync) == 3)
    sender.check(*(peer.store for peer in peers))


def test_a_paused_master_is_replaced_and_what_it_does_not_answer_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """With -s it prints how long that takes: a silent master is dead after 3 s."""
    with three_in_sync(tmp_path, 3000) as (peers, names, address):
        times = []
        with Sender(names) as sender:
            for _ in range(ROUNDS // 2):
                sender.wait(100)
                before = record_of(address)
                master = next(peer for peer in peers if peer.broker == before.address)
                process = master.broker_server.process
                assert process is not None
                began = time.monotonic()
                process.send_signal(signal.SIGSTOP)
                try:
                    launch.wait(
                        "an election", lambda at=before: record_of(address).epoch > at.epoch
                    )
                    elected, heir = time.monotonic() - began, record_of(address).address
                    launch.wait(
                        "that it serves",
                        lambda heir=heir: launch.ask(heir, 1007)[2].count(b'"brokerId":0') == 1,
                    )
                    times.append((elected, time.monotonic() - began))
                finally:
                    process.send_signal(signal.SIGCONT)
                launch.wait("three in sync", lambda: len(record_of(address).in_sync) == 3)
        print("seconds from the pause to the election, and to a master that serves:", times)
    sender.check(*(peer.store for peer in peers))
