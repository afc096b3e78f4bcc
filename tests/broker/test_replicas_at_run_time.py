"""Who is waited for, and how long, changes while the broker runs (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pairs import SMALL
from waiting import BOUND_S, until

from broker import Broker, Message, SendResult

SOME = Message("orders", b"x")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Broker]:
    """Whose answers wait for a slave that is not there."""
    with Broker(
        tmp_path / "m", brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=3_600_000,
        **SMALL,
    ) as made:  # fmt: skip
        yield made


def change(broker: Broker, **changes: Any) -> None:
    async def now() -> None:
        await broker.services.settings.update_and_keep(changes)

    broker.run(now())


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"inSyncReplicas": "1"}, "SEND_OK"), ({"slaveTimeout": "1"}, "FLUSH_SLAVE_TIMEOUT")],
)
def test_what_waits_for_a_slave_that_is_gone_is_answered_at_once(
    master: Broker, changes: dict[str, str], status: str
) -> None:
    with master.producer(send_timeout_s=BOUND_S) as producer, ThreadPoolExecutor(1) as pool:
        sent: Future[SendResult] = pool.submit(producer.send, SOME)
        until(lambda: master.store.info().log_max > 0, "the message in the log")
        assert not sent.done()
        change(master, **changes)
        assert sent.result().status.name == status


def test_answers_wait_for_slaves_from_the_change_on(master: Broker) -> None:
    with master.producer(send_timeout_s=BOUND_S) as producer:
        change(master, inSyncReplicas="1")
        assert producer.send(SOME).status.name == "SEND_OK"
        change(master, inSyncReplicas="2", slaveTimeout="1")
        assert producer.send(SOME).status.name == "FLUSH_SLAVE_TIMEOUT"


def test_a_count_that_nothing_can_fulfil_is_refused_and_changes_nothing(master: Broker) -> None:
    with pytest.raises(ValueError, match="is more than inSyncReplicas"):
        change(master, minInSyncReplicas="3")
    assert master.services.settings["minInSyncReplicas"] == 1
