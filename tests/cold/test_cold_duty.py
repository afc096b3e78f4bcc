"""What a broker does for its cold tier: what goes out and when, and what may go locally."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from duty_kit import SEGMENT, bodies_of, cold_of, manifest_of, opened, settle, tier_of
from waiting import until_async

import pystore
from broker.broker import Broker
from broker.services.cold import cold as cold_part
from broker.services.cold import reads
from broker.services.cold.cold import Cold
from broker.services.cold.pace import PutBudget
from broker.start_checks import read_start
from pystore.cold.failures import NotATier, TierUnreachable
from pystore.cold.objects import FolderObjects
from pystore.cold.reader import ColdReader
from pystore.cold.restore import begin_after
from pystore.cold.upkeep import collect, verify
from pystore.native import lib


def fill(store: pystore.Store, topic: str = "orders", count: int = 300, queues: int = 3) -> None:
    for number in range(count):
        store.put(topic, f"{topic} {number} ".encode() * 20, queue=number % queues)


@pytest.mark.parametrize(
    "address", ["s3://key:word@bucket/cold", "s3://bucket?secret=1", "ftp://host/x", "s3://"]
)
def test_an_address_with_secrets_or_without_a_bucket_is_refused(address: str):
    (problem,) = read_start(None, {"tieredStoreFilePath": address})[1]
    assert problem.is_error and problem.name == "tieredStoreFilePath"
    assert ":word" not in str(problem)


def test_what_no_slave_has_is_not_written_out(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        fill(store)
        store.flush()
        lib.ps_want_copies(store.c_handle(), 1, 100)
        cold = cold_of(store, tmp_path / "cold")
        for _ in range(3):
            cold.round()
        assert (cold.handle.spans(), cold.behind.out_to) == ([], 0)
        lib.ps_want_copies(store.c_handle(), 0, 100)
        settle(cold, store)
        assert sum(span.end for span in cold.handle.spans()) == 300


def test_retention_deletes_what_is_out_and_nothing_else(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        fill(store)
        store.flush()
        assert store.clean(immediate=True).log_files == 0
        settle(cold, store)
        fill(store, "later", 1)  # is not out, and lies in the last segment
        assert store.clean(immediate=True).log_min == store.info().log_max // SEGMENT * SEGMENT
        everything = bodies_of(ColdReader(tmp_path / "cold"), "orders")
        assert len(everything) == 300
        assert bodies_of(store, "orders").items() <= everything.items()


def test_nothing_goes_while_the_tier_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cold_part, "_ROUND_S", 0.0)
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        fill(store)
        settle(cold, store)

        def away() -> bool:
            cold._stopping.set()
            raise TierUnreachable("503 Slow Down", "s3://bucket")

        with monkeypatch.context() as patch:
            patch.setattr(cold, "round", away)
            cold._run()
        assert store.clean(immediate=True).log_files == 0
        cold.trouble = None  # of the round after it
        cold.round()
        assert store.clean(immediate=True).log_files > 0


def test_what_cannot_be_compared_with_the_tier_is_not_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        fill(store)
        settle(cold, store)
        before = cold.behind.out_to
        fill(store)
        store.flush()

        def asked(*_: object) -> bool:
            assert cold.behind.out_to == before  # nor while it is compared
            raise TierUnreachable("503 Slow Down", "s3://bucket")

        monkeypatch.setattr(cold.handle, "is_same", asked)
        monkeypatch.setattr(cold.behind, "_same", {})
        with pytest.raises(TierUnreachable):
            cold.behind.look()
        assert cold.behind.out_to == before


def test_a_store_that_is_lost_goes_on_after_more_messages_than_a_segment_has_room_for(
    tmp_path: Path,
):
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        fill(store)
        settle(cold, store)
        ends = [(q.topic, q.queue, q.max_offset) for q in store.queues()]
        small = store.settings.replaced(mappedFileSizeCommitLog=4 << 10)
    begin_after(tier_of(tmp_path / "cold"), tmp_path / "new", small)
    with pystore.open(tmp_path / "new", mappedFileSizeCommitLog=4 << 10) as store:
        assert [(q.topic, q.queue, q.max_offset) for q in store.queues()] == ends


def test_a_tier_that_is_slow_is_asked_no_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What rounds rest for is the processor that they took."""
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        cold.round()
        monkeypatch.setattr(cold.handle, "see_deletions", lambda: time.sleep(0.5))
        cold.round()
        assert cold._looking_s < 0.5


def test_a_disk_that_is_full_lets_go_only_if_it_is_told_to_and_says_so(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        away = "s3a://nowhere.invalid"
        fill(store)
        store.flush()
        for policy, gone in (("REFUSE", False), ("LET_GO", True)):
            cold = cold_of(store, away, tieredWhenFull=policy)
            assert (store.clean(immediate=True).log_files > 0) == gone
        cold._hold()
        assert cold.let_go == store.info().log_min > 0


def test_a_topic_made_again_shows_nothing_of_before(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        fill(store)
        settle(cold, store)
        store.delete_topic("orders")
        store.put("orders", b"new", queue=0)
        told: list[tuple[str, int]] = []
        cold.handle.on_note.append(lambda *place: told.append(place))
        assert cold.handle.spans() != []
        cold.handle.see_deletions()
        assert cold.handle.spans() == []
        assert sorted(told) == [("orders", queue) for queue in range(3)]
        settle(cold, store)
        assert [(s.queue, s.start, s.end) for s in cold.handle.spans()] == [(0, 0, 1)]
        assert bodies_of(ColdReader(tmp_path / "cold"), "orders") == {(0, 0): b"new"}
    assert verify(tier_of(tmp_path / "cold")).wrong == []


def test_a_broker_with_an_empty_disk_takes_nothing_from_the_tier(tmp_path: Path):
    with opened(tmp_path / "lost") as store:
        fill(store)
        settle(cold_of(store, tmp_path / "cold"), store)
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold")
        store.put("orders", b"new", queue=0)
        store.flush()
        for _ in range(3):
            cold.round()
        assert list(cold.uploads.counts.strange) == [("orders", 0)]
        assert store.clean(immediate=True).log_files == 0
        assert len(bodies_of(ColdReader(tmp_path / "cold"), "orders")) == 300
        store.delete_topic("orders")  # and nothing is told of it any more
        settle(cold, store)
        assert cold.uploads.counts.strange == {}


def test_an_empty_store_does_not_begin_before_its_tier_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: object) -> None:
        raise TierUnreachable("the store is away", "s3://bucket")

    monkeypatch.setattr(FolderObjects, "find", away)
    with (
        pytest.raises(TierUnreachable),
        Broker(tmp_path / "store", listenPort=0, tieredStoreFilePath=str(tmp_path / "cold")),
    ):
        pass
    assert not (tmp_path / "store" / "commitlog").exists()


@pytest.mark.parametrize("own", [None, "1"])
def test_messages_stay_as_long_as_their_topic_says(tmp_path: Path, own: str | None):
    """A default of no time at all takes everything but what has a time of its own; and a queue of
    which nothing is left goes on where it was."""
    reserve = {"orders": own} if own else {}
    with opened(tmp_path / "store") as store:
        fill(store)
        settle(cold_of(store, tmp_path / "cold"), store)
        cold = cold_of(store, tmp_path / "cold", tieredStoreFileReservedTime=0, reserve=reserve)
        cold.uploads._collect_s = 0.0
        cold.round()
        left = manifest_of(tmp_path / "cold", "orders")
        assert (left.segments > 0, left.end) == (own is not None, 100)
        collect(tier_of(tmp_path / "cold"), grace_s=-1)
        fill(store, count=3)
        store.flush()
        while cold.behind.queues or manifest_of(tmp_path / "cold", "orders").end == 100:
            cold.round()
        assert manifest_of(tmp_path / "cold", "orders").end == 101
    assert verify(tier_of(tmp_path / "cold")).wrong == []


def test_a_later_master_takes_over_and_the_former_writes_nothing_else(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        former = cold_of(store, tmp_path / "cold", epoch=4)
        fill(store)
        settle(former, store)
        later = cold_of(store, tmp_path / "cold", epoch=5)
        fill(store)
        settle(later, store)
        fill(store)
        store.flush()
        for _ in range(4):
            former.round()
        assert former.uploads.fenced
        assert manifest_of(tmp_path / "cold", "orders").end == 200
        settle(later, store)
        assert len(bodies_of(ColdReader(tmp_path / "cold"), "orders")) == 900


def test_a_slave_keeps_what_its_master_has_not_written_out(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        master, slave = (cold_of(store, tmp_path / "cold") for _ in range(2))
        asyncio.run(slave.follow())
        fill(store)
        settle(master, store)
        out = store.info().log_max
        fill(store, count=900)
        store.flush()
        slave.handle.looked_s = None
        while not slave.behind.out_to:
            slave.round()
        assert slave.behind.out_to == out
        assert (slave.uploads.counts.puts, slave.handle.spans()) == (0, master.handle.spans())
        while store.clean(immediate=True).log_files:
            pass
        assert store.info().log_min == out // SEGMENT * SEGMENT


def test_quiet_queues_wait_for_their_turn(tmp_path: Path):
    """Each of 40 queues has a message; a broker that may make 12 requests an hour writes one."""
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, tmp_path / "cold", tieredPutsPerHour=12)
        for number in range(40):
            store.put("orders", b"x", queue=number)
        store.flush()
        for _ in range(5):
            cold.round()
        assert (len(cold.handle.spans()), cold.uploads.counts.puts) == (1, 2)
        assert store.clean(immediate=True).log_files == 0


@pytest.mark.parametrize("an_hour", [2, 12, 1000])
def test_no_hour_has_more_requests_than_it_may(an_hour: int):
    """A day of a broker that would write all the time: whatever hour is looked at."""
    now_s = [0.0]
    budget, made = PutBudget(lambda: now_s[0]), []
    for _ in range(24 * 360):
        now_s[0] += 10
        while budget.take(2, an_hour):
            made += [now_s[0]] * 2
    for first, last in zip(made, made[an_hour:], strict=False):
        assert last >= first + 3600
    assert an_hour == 2 or len(made) >= 24 * an_hour * 0.8


def test_a_tier_that_rocketmq_writes_is_left_alone(tmp_path: Path):
    from pystore.cold.places import UNITS, broker_folder, object_name

    folder = tmp_path / "cold" / broker_folder("c1", "broker-a") / "orders" / "0"
    for kind in ("COMMIT_LOG", UNITS):
        (folder / kind).mkdir(parents=True)
        (folder / kind / object_name(0)).write_bytes(b"")
    with opened(tmp_path / "store") as store, pytest.raises(NotATier, match="RocketMQ's own"):
        cold_of(store, tmp_path / "cold").round()


def test_a_writer_that_ended_before_its_first_manifest_keeps_nobody_out(tmp_path: Path):
    with opened(tmp_path / "store") as store:
        fill(store)
        settle(cold_of(store, tmp_path / "cold"), store)
        (manifests,) = (tmp_path / "cold").glob("*/*/rmq_sys_MANIFEST")
        shutil.rmtree(manifests)
        settle(cold_of(store, tmp_path / "cold"), store)
        assert bodies_of(ColdReader(tmp_path / "cold"), "orders") == bodies_of(store, "orders")


def test_a_damaged_manifest_is_one_queue_s_trouble(tmp_path: Path):
    """It stays here, and what the tier may have of it is not passed over; others go on."""
    root = tmp_path / "cold"
    with opened(tmp_path / "store") as store:
        cold = cold_of(store, root)
        fill(store)
        settle(cold, store)
        assert store.clean(immediate=True).log_files > 0
        manifest = next(tier_of(root).objects.find("rmq_sys_MANIFEST/orders/0/")).key
        Path(tier_of(root).objects.address, manifest).write_bytes(b"[")
        fill(store)
        store.flush()
        cold = cold_of(store, root)  # a broker that starts with it
        for _ in range(5):
            cold.round()
        assert [manifest_of(root, "orders", queue).end for queue in (1, 2)] == [200, 200]
        here = store.queues("orders")[0].min_offset
        span = cold.handle.span("orders", 0)
        assert span is not None and (span.start, span.end) == (0, here)
        assert "a manifest is wrong" in cold.problem
        end = store.clean(immediate=True).log_min
        assert store.queues("orders")[0].min_offset == here and end < store.info().log_max


async def wait_for_what_is_wrong(cold: Cold, store: pystore.Store) -> None:
    cold.reads.start()
    try:
        cold.round()
        asked = lambda: store.read("orders", 0, 0) is not None and cold.reads.wrong  # noqa: E731
        await until_async(asked, "it is named")
        assert "who reads orders/0 waits" in cold.problem
        assert store.read("orders", 0, 0).next_offset == 0
        with pytest.raises(TierUnreachable, match="has not answered"):
            await cold.reads.ask(lambda *_: time.sleep(0.2))
    finally:
        await cold.reads.stop()


def test_who_waits_for_a_damaged_object_is_told_and_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reads, "_ANSWER_S", 0.05)
    with opened(tmp_path / "store") as store:
        fill(store)
        cold = cold_of(store, tmp_path / "cold", tieredCacheBytes=0)
        settle(cold, store)
        store.clean(immediate=True)
        for each in (tmp_path / "cold").rglob("orders/0/COMMIT_LOG/*"):
            data = bytearray(each.read_bytes())
            data[120] ^= 1
            each.write_bytes(data)
        asyncio.run(wait_for_what_is_wrong(cold, store))
