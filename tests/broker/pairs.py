"""A master and its slave, both ours, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import until

from broker import Broker, Message

__all__ = ["SMALL", "master_of", "send", "slave_of", "until_alike"]

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 100,
    "maxIndexNum": 400, "bindAddress": "127.0.0.1", "listenPort": 0, "brokerName": "b",
}  # fmt: skip


@contextlib.contextmanager
def master_of(
    folder: Path, names: str, role: str = "ASYNC_MASTER", **more: Any
) -> Iterator[Broker]:
    with Broker(folder, namesrvAddr=names, brokerRole=role, **SMALL, **more) as broker:
        yield broker


@contextlib.contextmanager
def slave_of(folder: Path, names: str, **more: Any) -> Iterator[Broker]:
    with Broker(
        folder, namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **SMALL, **more
    ) as broker:
        yield broker


def send(broker: Broker, count: int, topic: str = "orders") -> None:
    with broker.producer(send_timeout_s=10) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number * 50, keys=f"k{number}"))


def until_alike(master: Broker, slave: Broker) -> None:
    """The logs are equal byte for byte, and so are the ends of the queues."""
    end = master.store.info().log_max
    until(lambda: slave.store.info().log_max == end, "the end of the master's log")
    for file in sorted((Path(master.store.path) / "commitlog").iterdir()):
        base = int(file.name)
        if base >= end:  # made ahead
            continue
        copy = Path(slave.store.path) / "commitlog" / file.name
        assert file.read_bytes()[: end - base] == copy.read_bytes()[: end - base]
    for queue in range(4):
        until(
            lambda queue=queue: (
                slave.store.range("orders", queue) == master.store.range("orders", queue)
            ),
            "the master's queue",
        )
