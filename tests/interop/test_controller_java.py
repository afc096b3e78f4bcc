"""Brokers of ours under Apache's controller, alone and with brokers of Java: who is the master
changes by itself, and no acknowledged message is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import controllers
import launch
from controllers import Controller, Sender, member_of
from pairs import Link, lose_power

import pystore
from pystore import Reader

pytestmark = [pytest.mark.java, pytest.mark.long]

NAME = "broker-a"


@pytest.fixture
def under(reference: Any, tmp_path: Path) -> Iterator[Controller]:
    with controllers.controller(tmp_path / "controller") as made:
        yield made


@pytest.fixture
def peers() -> Iterator[list[launch.Peer]]:
    made: list[launch.Peer] = []
    try:
        yield made
    finally:
        for peer in made:
            peer.broker_server.stop()


def start_pair(
    under: Controller, peers: list[launch.Peer], tmp_path: Path, first: str, second: str,
    **more: Any,
) -> None:  # fmt: skip
    """The first one is the master, and both are in sync."""
    for make in (first, second):
        peer = member_of(make, under, tmp_path / f"{make}{len(peers)}", NAME, **more)
        peers.append(peer)
        peer.broker_server.start()
        count = len(peers)
        launch.wait(
            f"{count} in sync\n{peer.broker_server.said()}",
            lambda count=count: len(under.in_sync(NAME)) == count,
        )
    assert under.master(NAME) == peers[0].broker


def kill_and_wait(under: Controller, peer: launch.Peer, heir: launch.Peer) -> None:
    peer.broker_server.kill()
    launch.wait("another master", lambda: under.master(NAME) == heir.broker)


def come_back(under: Controller, peer: launch.Peer) -> None:
    peer.broker_server.start()
    launch.wait(
        f"both in sync again\n{peer.broker_server.said()}", lambda: len(under.in_sync(NAME)) == 2
    )


@pytest.mark.parametrize(
    ("first", "second"), [("ours", "ours"), ("java", "ours"), ("ours", "java")]
)
def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(
    under: Controller, peers: list[launch.Peer], tmp_path: Path, first: str, second: str
) -> None:
    start_pair(under, peers, tmp_path, first, second)
    one, other = peers
    with Sender(under.names) as sender:
        sender.wait(200)
        kill_and_wait(under, one, other)
        sender.wait(200)
        come_back(under, one)
        sender.wait(200)
        kill_and_wait(under, other, one)
        sender.wait(200)
        come_back(under, other)
        sender.wait(200)
    for peer in (other, one):
        assert peer.broker_server.stop() in (0, 143)
    sender.check(one.store, other.store)


def test_what_only_the_old_master_has_is_cut_off_and_kept_aside(
    under: Controller, peers: list[launch.Peer], tmp_path: Path
) -> None:
    # So that the dead slave stays in the set as long as the test takes.
    start_pair(under, peers, tmp_path, "ours", "ours", haMaxTimeSlaveNotCatchup=3_000_000)
    one, other = peers
    with Sender(under.names) as sender:
        sender.wait(100)
        other.broker_server.kill()
        launch.wait("a send that nobody else has", lambda: sender.problems != [])
        one.broker_server.kill()
        other.broker_server.start()
        launch.wait("another master", lambda: under.master(NAME) == other.broker)
        sender.wait(100)
        come_back(under, one)
        sender.wait(100)
    for peer in (one, other):
        assert peer.broker_server.stop() == 0
    sender.check(one.store, other.store)
    assert list((one.store / "aside").iterdir()) != []


def test_without_the_controller_a_master_acknowledges_nothing_until_it_is_back(
    under: Controller, peers: list[launch.Peer], tmp_path: Path
) -> None:
    start_pair(under, peers, tmp_path, "ours", "ours")
    one, other = peers
    with Sender(under.names) as sender:
        sender.wait(100)
        under.server.kill()
        launch.wait("that it says so", lambda: "acknowledges nothing" in one.broker_server.said())
        before = len(sender.acknowledged)
        under.server.start()
        controllers.wait_leader(under)
        launch.wait("that it goes on", lambda: len(sender.acknowledged) > before + 100)
    for peer in (other, one):
        assert peer.broker_server.stop() == 0
    sender.check(one.store, other.store)


def test_a_tool_moves_the_master(
    under: Controller, peers: list[launch.Peer], tmp_path: Path
) -> None:
    start_pair(under, peers, tmp_path, "ours", "ours")
    one, other = peers
    with Sender(under.names) as sender:
        for heir, number in ((other, 2), (one, 1)):
            sender.wait(100)
            assert under.elect(NAME, number) == 0
            launch.wait("the move", lambda heir=heir: under.master(NAME) == heir.broker)
            sender.wait(100)
            launch.wait("both in sync", lambda: len(under.in_sync(NAME)) == 2)
    code, _, body = launch.ask(one.broker, 1007)
    assert code == 0 and body.count(b'"epoch":') == 3
    for peer in (other, one):
        assert peer.broker_server.stop() == 0
    sender.check(one.store, other.store)


#: So that all of a log lies in one segment, and the dead stay in the set as long as a test takes.
ROOMY = {"mappedFileSizeCommitLog": 64 << 20, "haMaxTimeSlaveNotCatchup": 3_000_000}
#: Bytes, of what was acknowledged.
LOST = 150_000


def lose_the_power_of(peer: launch.Peer) -> None:
    with Reader(peer.store) as reader:
        end = reader.info().log_max
    assert end > 2 * LOST
    lose_power(peer.store, end, LOST)


def until_the_other_leads(
    under: Controller, peers: list[launch.Peer], sender: Sender, who: launch.Peer
) -> None:
    launch.wait("the one that has all", lambda: under.master(NAME) == who.broker)
    launch.wait("both in sync again", lambda: len(under.in_sync(NAME)) == 2)
    sender.wait(200)
    assert "log may be missing" in peers[0].broker_server.said()


def check_both(peers: list[launch.Peer], sender: Sender) -> None:
    for peer in peers:
        assert peer.broker_server.stop() in (0, 143)
    sender.check(*(peer.store for peer in peers))


@pytest.mark.parametrize("second", ["ours", "java"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_master_whose_host_lost_power_yields_to_the_one_that_has_all(
    under: Controller, peers: list[launch.Peer], tmp_path: Path, second: str, silent: bool
) -> None:
    """silent: the controller does not notice its end before it is back, as after a power failure:
    its heartbeats come through a link that says nothing of it."""
    with Link(int(under.address.rpartition(":")[2]), silent) as link:
        given = ROOMY | {"controllerAddr": link.address}
        with Sender(under.names) as sender:
            start_pair(under, peers, tmp_path, "ours", second, **given)
            one, other = peers
            sender.wait(2500)
            one.broker_server.kill()
            lose_the_power_of(one)
            assert not silent or under.master(NAME) == one.broker
            one.broker_server.start()
            until_the_other_leads(under, peers, sender, other)
        check_both(peers, sender)


def test_who_lost_power_and_is_back_first_waits_for_the_one_that_has_all(
    under: Controller, peers: list[launch.Peer], tmp_path: Path
) -> None:
    with Sender(under.names) as sender:
        start_pair(under, peers, tmp_path, "ours", "ours", **ROOMY)
        one, other = peers
        sender.wait(2500)
        other.broker_server.kill()
        one.broker_server.kill()
        lose_the_power_of(one)
        one.broker_server.start()
        launch.wait("that it waits", lambda: "leaves mastership to" in one.broker_server.said())
        assert under.master(NAME) == ""
        other.broker_server.start()
        until_the_other_leads(under, peers, sender, other)
    check_both(peers, sender)


def test_a_java_member_that_lost_its_epochs_is_no_copy_of_what_it_does_not_have(
    under: Controller, peers: list[launch.Peer], tmp_path: Path
) -> None:
    """Java's slave that reconnects before it has anything forgets the epoch that it follows, and
    does not note it again: later it cuts nothing back, and goes on after what it alone has."""
    start_pair(under, peers, tmp_path, "ours", "java", mappedFileSizeCommitLog=64 << 20)
    one, other = peers
    with Sender(under.names) as sender:
        sender.wait(100)
        assert other.broker_server.stop() == 143
        with pystore.open(other.store, mappedFileSizeCommitLog=64 << 20) as store:
            for _ in range(10):
                store.put("orders", b"of another epoch", queue=0)
        for each in other.store.glob("epochFileCheckpoint*"):
            each.unlink()
        sender.wait(3000)
        other.broker_server.start()
        launch.wait(
            "that it is compared", lambda: "different log from this" in one.broker_server.said()
        )
        sender.wait(200)
        assert under.in_sync(NAME) == [1]
    for peer in (one, other):
        assert peer.broker_server.stop() in (0, 143)
    sender.check(one.store)
