"""Consumers at slaves: who is far behind is sent there, and back; when the master is gone, a slave
serves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pairs import master_of, send, slave_of, until_alike
from waiting import until

from broker import Broker, Consumer
from broker.wire.codes import RequestCode
from broker.wire.command import Command

#: Nothing counts as being in memory.
FAR = {"accessMessageInMemoryMaxRatio": 0, "slaveReadEnable": True}


def _pull(broker: Broker, offset: int) -> Command:
    fields = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip

    async def ask() -> Command:
        from broker.remoting.client import RemotingClient

        client = RemotingClient()
        try:
            command = Command(RequestCode.PULL_MESSAGE, fields)
            return await client.request(broker.address, command, 60.0)
        finally:
            await client.close()

    return broker.run(ask())


@pytest.mark.parametrize(
    ("settings", "expected"), [(FAR, "1"), (FAR | {"slaveReadEnable": False}, "0"),
                               ({"slaveReadEnable": True}, "0")],
)  # fmt: skip
def test_the_answer_says_where_to_read_on(
    settings: dict[str, Any], expected: str, names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, **settings) as master:
        master.create_topic("orders", 1)
        send(master, 3)
        assert _pull(master, 0).ext["suggestWhichBrokerId"] == expected
        # At the end of the queue nothing was read.
        assert _pull(master, 3).ext["suggestWhichBrokerId"] == "0"


def test_a_place_that_a_slave_does_not_have_yet_is_not_given_up(names: str, tmp_path: Path) -> None:
    """20, and the place that was asked for, where a master says 21."""
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 1)
        send(master, 3)
        with slave_of(tmp_path / "s", names, slaveReadEnable=True) as slave:
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
            answer = _pull(slave, 9)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "9")
            assert answer.ext["suggestWhichBrokerId"] == "0"
            assert _pull(master, 9).code == 21


def test_a_reader_that_is_far_behind_reads_from_the_slave_and_from_it_alone_when_need_be(
    names: str, tmp_path: Path
) -> None:
    with slave_of(tmp_path / "s", names, slaveReadEnable=True) as slave:
        with master_of(tmp_path / "m", names, **FAR) as master:
            master.create_topic("orders", 4)
            send(master, 600)
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
            assert _read(names, "g", 600) == 600
            assert _served(slave) > 0
            assert _served(master) > 0
        assert _read(names, "another", 600) == 600


def _read(names: str, group: str, count: int) -> int:
    seen = set()
    with Consumer(group, "orders", namesrv=names, start="first", pull_batch=8) as consumer:
        for message in consumer:
            seen.add((message.queue, message.queue_offset))
            if len(seen) == count:
                break
    return len(seen)


def _served(broker: Broker) -> int:
    return int(broker.services.core.sums().gets)
