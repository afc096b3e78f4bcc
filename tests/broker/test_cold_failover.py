"""A pair of brokers under etcd with one cold tier: its master is replaced while something goes
out, and all disks of the pair are lost."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from etcd_server import PROGRAM, etcd
from pairs import SMALL
from test_failover_etcd import in_sync, is_master, member, send
from waiting import BOUND_S, until

from broker import Broker, Consumer, Message
from broker.services.cold import cold
from pystore.cli import main
from pystore.cold.manifest import Manifest
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import collect, verify
from pystore.errors import StoreClosed
from tests.cold.duty_kit import bodies_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)"),
]

#: By queue and offset.
Places = dict[tuple[int, int], bytes]
CLUSTER = "DefaultCluster"


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "_ROUND_S", 0.01)
    monkeypatch.setattr(cold, "_END_S", 0.1)


@contextmanager
def pair(names: str, root: Path, tier: Path) -> Iterator[tuple[Broker, Broker, str]]:
    """Yields a master, a slave that is in sync, and where their controller is, which is new."""
    root.mkdir()
    given = {
        "tieredStoreFilePath": str(tier), "tieredUploadWaitMillis": 0, "tieredUploadRateMax": 0,
        "tieredPutsPerHour": 100_000_000,
    }  # fmt: skip
    with etcd(root / "etcd") as at, member(root / "a", names, at, **given) as one:
        until(lambda: is_master(one), "the first master")
        with member(root / "b", names, at, **given) as other:
            until(lambda: in_sync(one) == 2, "both in sync")
            yield one, other, at.address


def move(controller: str, to: Broker, number: int) -> None:
    assert main(["ha", "move", controller, SMALL["brokerName"], str(number)]) == 0
    until(lambda: is_master(to) and in_sync(to) == 2, "the move")


def tier_of(folder: Path) -> Tier:
    return new_tier(folder, CLUSTER, SMALL["brokerName"])


def manifests(folder: Path) -> list[Manifest]:
    return list(tier_of(folder).load_all())


def until_out(folder: Path, sent: Places) -> None:
    """Waits until as many messages are in the tier as were sent; they are those, each once."""
    until(lambda: sum(m.end for m in manifests(folder)) >= len(sent), "everything is out", 0.05)
    assert verify(tier_of(folder)).wrong == []
    with ColdReader(folder) as reader:
        assert bodies_of(reader, "orders") == sent


def consumed(names: str, group: str, count: int) -> Places:
    """Returns what a new group gets, until it has so many messages."""
    found: Places = {}
    with Consumer(group, "orders", namesrv=names, start="first") as consumer:

        def take() -> bool:
            for m in consumer.poll(1.0):
                place = m.queue.queue, m.queue_offset
                assert found.setdefault(place, m.body) == m.body
                consumer.ack(m)
            return len(found) >= count

        until(take, f"{count} messages")
    return found


class Gate:
    """An object store at which the first PUT of a sort waits until it is let through, at its end
    at the latest."""

    def __init__(self, objects: Any, sort: str) -> None:
        self._objects, self._sort = objects, sort
        self.reached, self.opened, self.done = (threading.Event() for _ in range(3))

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def put_new(self, key: str, *rest: Any, **more: Any) -> Any:
        waits = f"/{self._sort}/" in f"/{key}" and not self.reached.is_set()
        if waits:
            self.reached.set()
            assert self.opened.wait(BOUND_S)
        try:
            return self._objects.put_new(key, *rest, **more)
        finally:
            if waits:
                self.done.set()


@pytest.mark.parametrize("sort", ["COMMIT_LOG", "rmq_sys_MANIFEST"])
def test_a_master_that_is_replaced_in_the_middle_of_a_put_leaves_nothing_twice(
    names: str, tmp_path: Path, sort: str
) -> None:
    tier = tmp_path / "cold"
    with pair(names, tmp_path / "g", tier) as (former, later, controller):
        handle = former.services.cold.handle
        until(lambda: handle.tier is not None, "a look at the tier")
        with Gate(handle.tier.objects, sort) as gate:
            handle.tier.objects = gate
            sent = send(names, 40)
            until(gate.reached.is_set, "a PUT that is under way")
            move(controller, later, 2)
            sent |= send_more(names, sent, 40)
            until_out(tier, sent)
        until(gate.done.is_set, "the former master's PUT")
        sent |= send_more(names, sent, 40)
        until_out(tier, sent)
    assert {m.epoch for m in manifests(tier)} == {2}
    collect(tier_of(tier), grace_s=-1)
    audit = verify(tier_of(tier))
    assert (audit.wrong, audit.orphans) == ([], 0)


def send_more(names: str, before: Places, count: int) -> Places:
    """Sends to queues that go on where they were."""
    more, ends = send(names, count), Counter(queue for queue, _ in before)
    for queue, had in ends.items():
        new = sorted(offset for number, offset in more if number == queue)
        assert new == list(range(had, had + len(new)))
    return more


def test_a_pair_that_has_lost_all_disks_goes_on_where_its_tier_ends(
    names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its controller is lost, too: an operator says that a lower epoch counts."""
    tier = tmp_path / "cold"
    with pair(names, tmp_path / "g", tier) as (_, later, controller):
        move(controller, later, 2)
        sent = send(names, 100)
        until_out(tier, sent)
    shutil.rmtree(tmp_path / "g")
    with pair(names, tmp_path / "h", tier) as (one, other, controller):
        assert consumed(names, "first", len(sent)) == sent
        sent |= send_more(names, sent, 100)
        part = one.services.cold
        until(lambda: part.uploads.fenced, "the look that finds a later epoch")
        assert "pystore cold epoch TIER 1" in part.problem
        assert sum(m.end for m in manifests(tier)) == 100
        where = next(tier.glob("*/b"))
        assert main(["cold", "epoch", str(where), "1"]) == 0
        part.handle.looked_s = None  # a look is due
        until_out(tier, sent)
        assert not part.uploads.fenced and part.problem == ""
        move(controller, other, 2)
        assert consumed(names, "second", len(sent)) == sent
        sent |= send_more(names, sent, 40)
        until_out(tier, sent)
    assert {m.epoch for m in manifests(tier)} == {2}


def test_a_member_that_comes_late_or_is_back_late_serves_all_and_goes_on_with_all_queues(
    names: str, tmp_path: Path
) -> None:
    """Retention has deleted the beginning of the master's log: it is in the tier alone."""
    given = {
        "tieredStoreFilePath": str(tmp_path / "cold"), "tieredUploadWaitMillis": 0,
        "tieredUploadRateMax": 0, "tieredPutsPerHour": 100_000_000,
    }  # fmt: skip
    with etcd(tmp_path / "etcd") as at, member(tmp_path / "a", names, at, **given) as one:
        until(lambda: is_master(one), "the first master")
        sent = send(names, 40)
        for turn in range(2):  # a new member, and one that was away
            begin = one.store.info().log_min
            _lose_beginning(one, begin)
            with member(tmp_path / "b", names, at, **given) as other:
                # Who was away may still count as in sync.
                until(partial(_has_all, other, one, begin), "it has all queues of the log of now")
                until(lambda: in_sync(one) == 2, "both in sync")
                if turn:
                    move(at.address, other, 2)
                    assert consumed(names, "late", len(sent)) == sent
                    send_more(names, sent, 40)


def _has_all(slave: Broker, master: Broker, begin: int) -> bool:
    """Says whether a slave's log begins after a place, and its queues end as the master's."""
    ends = {(q.topic, q.queue): q.max_offset for q in master.store.queues()}
    try:
        there = {(q.topic, q.queue): q.max_offset for q in slave.store.queues()}
        return slave.store.info().log_min > begin and ends.items() <= there.items()
    except (RuntimeError, StoreClosed):  # it starts again, with an empty store
        return False


def _lose_beginning(broker: Broker, begin: int) -> None:
    """Has retention delete all that the log had so far, which is in the tier."""
    end = broker.store.info().log_max
    with broker.producer(send_timeout_s=BOUND_S) as producer:
        for _ in range(2 * SMALL["mappedFileSizeCommitLog"] // 1000):
            producer.send(Message("filler", bytes(1000)))

    def is_gone() -> bool:
        broker.store.clean(immediate=True)
        return broker.store.info().log_min > max(begin, end - SMALL["mappedFileSizeCommitLog"])

    until(is_gone, "the beginning of the log is gone")
