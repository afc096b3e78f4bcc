"""Slaves of a master that has deleted the beginning of its log, which its cold tier has: new ones,
and such that were away for too long."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from pairs import SMALL, master_of, send, slave_of, until_alike
from waiting import until

import pystore
from broker import Broker, Consumer
from broker.services.cold import cold
from broker.services.cold.covers import lacks
from broker.services.cold.handle import TierHandle
from broker.services.replication.slave import HaSlave
from broker.wire.command import Command
from pystore.audit import verify
from pystore.cold.push import push
from pystore.cold.tier import new_tier
from pystore.cold.upkeep import remove
from pystore.errors import BadArgument
from pystore.native import ffi, lib
from pystore.store import hosting

#: Of the queue that got its last message before the log begins.
QUIET = 30


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "_ROUND_S", 0.01)


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, object]:
    return {
        "tieredStoreFilePath": str(tmp_path / "cold"), "tieredUploadWaitMillis": 0,
        "tieredUploadRateMax": 0, "tieredPutsPerHour": 100_000_000,
    }  # fmt: skip


def begin(master: Broker) -> None:
    for topic, queues in (("orders", 4), ("quiet", 1)):
        master.create_topic(topic, queues)
    send(master, QUIET, "quiet")
    send(master, 40)


def lose_beginning(master: Broker) -> None:
    """Has retention delete what is in the tier, of the quiet queue all."""
    send(master, 4000)

    def is_gone() -> bool:
        master.store.clean(immediate=True)
        return master.store.range("quiet", 0) == (QUIET, QUIET)

    until(is_gone, "the beginning of the log is gone")
    assert master.store.info().log_min > 0


def read(names: str, topic: str, count: int) -> set[tuple[int, int]]:
    seen = set()
    with Consumer(f"g-{topic}", topic, namesrv=names, start="first") as consumer:
        for message in consumer:
            seen.add((message.queue.queue, message.queue_offset))
            if len(seen) == count:
                break
    return seen


def until_whole(master: Broker, slave: Broker) -> None:
    until_alike(master, slave)
    until(lambda: slave.store.range("quiet", 0) == (QUIET, QUIET), "the quiet queue's end")
    until(lambda: slave.services.topics.get("quiet") is not None, "the topic")
    until(lambda: slave.services.cold.reads.is_known, "a look at the tier")


def test_a_new_slave_goes_on_where_queues_ended_and_reads_the_rest_in_the_tier(
    names: str, tmp_path: Path, tier: dict[str, object]
) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(master_of(tmp_path / "m", names, **tier))
        begin(master)
        lose_beginning(master)
        with slave_of(tmp_path / "s", names, slaveReadEnable=True, **tier) as slave:
            until_whole(master, slave)
            master.run(commit(master))
            until(lambda: slave.services.offsets.get("g", "quiet", 0) == QUIET, "the offset")
            stack.close()
            for topic, count in (("quiet", QUIET), ("orders", 4040)):  # from the slave alone
                assert len(read(names, topic, count)) == count
    assert verify(tmp_path / "s").findings == []
    with Broker(tmp_path / "s", **SMALL) as alone:
        assert alone.store.range("quiet", 0) == (QUIET, QUIET)
        send(alone, 1, "quiet")
        assert alone.store.range("quiet", 0) == (QUIET, QUIET + 1)


async def commit(master: Broker) -> None:
    master.services.offsets.commit("g", "quiet", 0, QUIET)


def test_a_slave_that_was_away_for_too_long_begins_again_if_the_tier_has_all_of_it(
    names: str, tmp_path: Path, tier: dict[str, object]
) -> None:
    with master_of(tmp_path / "m", names, **tier) as master:
        begin(master)
        with slave_of(tmp_path / "s", names, **tier) as slave:
            until_alike(master, slave)
        lose_beginning(master)
        with slave_of(tmp_path / "s", names, slaveReadEnable=True, **tier) as slave:
            until(lambda: slave._services is not None and slave.store.info().log_min > 0,
                  "it begins again")  # fmt: skip
            until_whole(master, slave)
    assert verify(tmp_path / "s").findings == []


#: Around the size of a file of units.
ENDS = {0: 1, 1: 999, 2: 1000, 3: 1001, 4: 2500}
SMALL_STORE = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20_000}


def test_queues_that_ended_before_the_log_are_there_after_a_restart_and_go_on(
    tmp_path: Path,
) -> None:
    """Also when a first try ended before the log began; and none begins so once it has."""
    with pystore.open(tmp_path / "m", **SMALL_STORE) as master:
        for number in range(200):
            master.put("orders", b"%d" % number * 300, queue=0)
        master.flush()
        assert master.clean(immediate=True).log_files
        at = master.info().log_min
        record = bytes(master.message(at).record)
    spans = {queue: (end, end) for queue, end in ENDS.items()}
    for turn in range(3):
        with pystore.open(tmp_path / "s", **SMALL_STORE) as slave:
            if turn < 2:
                lib.ps_follow_begin(slave.c_handle())
                hosting.begin_queues(slave, {"quiet": {queue: end + turn - 1 or 1
                                              for queue, end in ENDS.items()}})  # fmt: skip
                if turn:
                    error = ffi.new("ps_error *")
                    assert lib.ps_follow_append(
                        slave.c_handle(), at, record, len(record), error
                    ) == 0  # fmt: skip
                    with pytest.raises(BadArgument, match="has begun"):
                        hosting.begin_queues(slave, {"quiet": {0: 9}})
            if turn:
                assert {queue: slave.range("quiet", queue) for queue in ENDS} == spans
            if turn == 2:
                put = [slave.put("quiet", b"x", queue=queue).queue_offset for queue in ENDS]
                assert put == list(ENDS.values())
    assert verify(tmp_path / "s").findings == []


@pytest.mark.parametrize("said", [5, {"t": 5}, {"t": {"x": 1}}, {"t": {"0": 0}},
                                  {"t": {"0": "1"}}, {"t": {"65536": 1}}])  # fmt: skip
async def test_ends_that_a_master_makes_up_are_named(said: object) -> None:
    slave = HaSlave.__new__(HaSlave)

    async def ask(_: Command) -> Command:
        return Command(0, body=json.dumps({"queueEnds": said}).encode())

    slave._ask = ask
    with pytest.raises(ValueError):
        await slave._queue_ends()


def test_what_the_tier_lacks_of_a_store_is_named(tmp_path: Path) -> None:
    with pystore.open(tmp_path / "s", mappedFileSizeCommitLog=1 << 16) as store:
        for number in range(5):
            store.put("orders", b"%d" % number, queue=0)
        store.flush()
        handle = TierHandle(store, str(tmp_path / "cold"), "c", "b")
        assert lacks(store, handle, {}) == "offsets 0 to 4 of orders/0"
        assert lacks(store, handle, {"orders": store.info().log_max}) == ""
        target = new_tier(tmp_path / "cold", "c", "b")
        push(store, target)
        assert lacks(store, handle, {}) == ""
        with pystore.open(tmp_path / "other") as other:
            for number in range(6):
                other.put("orders", b"other %d" % number, queue=0)
            other.flush()
            remove(target, "orders")
            push(other, target)
        assert lacks(store, handle, {}) == "message 4 of orders/0"
