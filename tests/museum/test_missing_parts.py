"""Parts of a broker's folder that are gone, in every combination: the log kept without what is
derived from it or set beside it, and the reverse. The broker starts, what the log has is served
once, and nothing that comes afterwards is skipped; queues without their log are refused."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from storeview import everything
from waiting import until

from broker import Broker, Consumer, LocalState, Message, Producer, TransactionProducer
from pystore import MissingSegment

PARTS = ("commitlog", "consumequeue", "index", "config", "meta", "checkpoint", "timers")
EVERY = [gone for many in range(len(PARTS) + 1) for gone in itertools.combinations(PARTS, many)]
SHOWN = (
    EVERY if "PS_MUSEUM" in os.environ else random.Random(os.environ["PS_SEED"]).sample(EVERY, 3)
)
SETTINGS: dict[str, Any] = {
    "listenPort": 0, "drain_s": 0.0, "with_namesrv": True, "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 128, "maxIndexNum": 512,
    "messageDelayLevel": "1s 1h",
}  # fmt: skip


def transactions(names: str) -> TransactionProducer:
    return TransactionProducer("tx", names, check=lambda message: LocalState.UNKNOWN)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plain and delayed messages, a timer, an open and an ended transaction, and a
    group that is halfway."""
    folder = tmp_path_factory.mktemp("parts") / "store"
    with Broker(folder, **SETTINGS) as broker:
        broker.create_topic("orders", queues=1)
        names = broker.namesrv_address
        with Producer("p", names) as producer, transactions(names) as ending:
            for number in range(6):
                producer.send(Message("orders", b"plain %d" % number))
            producer.send(Message("orders", b"in an hour", delay_level=2))
            producer.send(Message("orders", b"due", delay_level=1))
            with ending.transaction(Message("orders", b"ended")):
                pass
            with ending.transaction(Message("orders", b"open")) as tx:
                tx.leave_open()
        with Consumer("billing", "orders", namesrv=names, start="first") as consumer:
            seen: list[bytes] = []
            while len(seen) < 8:
                seen += [message.body for message in consumer.poll(1.0)]
            assert {b"due", b"ended"} < set(seen)
    return folder


def remove(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def bodies(broker: Broker, topic: str) -> list[bytes]:
    """All that a topic's only queue has."""
    return [bytes(message.body) for message in everything(broker.store, topic, 0)]


@pytest.mark.random
@pytest.mark.parametrize("gone", SHOWN, ids=", ".join)
def test_a_broker_starts_whatever_is_gone(
    made: Path, tmp_path: Path, gone: tuple[str, ...]
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)
    remove(folder, gone)
    if "commitlog" in gone and "consumequeue" not in gone:
        with pytest.raises(MissingSegment), Broker(folder, **SETTINGS):
            pass
        return
    with Broker(folder, **SETTINGS) as broker:
        names = broker.namesrv_address
        broker.create_topic("orders", queues=1)
        with Producer("p", names) as producer, transactions(names) as ending:
            producer.send(Message("orders", b"new"))
            producer.send(Message("orders", b"new, due", delay_level=1))
            with ending.transaction(Message("orders", b"new, ended")):
                pass
        came = {b"new", b"new, due", b"new, ended"}
        until(lambda: came <= set(bodies(broker, "orders")), "what was sent now")
        held = Counter(bodies(broker, "orders"))
        assert set(held.values()) == {1}, "everything once"
        kept = {b"plain %d" % number for number in range(6)} | {b"due", b"ended"}
        assert ("commitlog" in gone) == (not kept & held.keys())
        assert "commitlog" in gone or kept <= held.keys()
        with Consumer("billing", "orders", namesrv=names, start="first") as consumer:
            seen: set[bytes] = set()
            until(lambda: bool(seen.update(m.body for m in consumer.poll(0.2))) or came <= seen,
                  "that the group gets what came afterwards")  # fmt: skip
