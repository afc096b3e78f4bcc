"""The official Python client, unchanged, with a broker of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from caller import serving
from waiting import BOUND_S, until

from broker import Broker

pytest.importorskip("rocketmq", reason="needs rocketmq-python-client")
PROGRAM = Path(__file__).with_name("official.py")


def start(
    broker: Any, home: Path, *words: str, address: str | None = None, program: Path = PROGRAM
) -> Any:
    """The client's process. It writes its log below its home."""
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": "", "PYTHONWARNINGS": ""}
    return subprocess.Popen(
        [sys.executable, program, address or broker.grpc_address, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        text=True,
    )  # fmt: skip


def run(broker: Any, home: Path, *words: str, program: Path = PROGRAM) -> list[dict[str, Any]]:
    out, err = start(broker, home, *words, program=program).communicate(timeout=BOUND_S)
    assert "Traceback" not in err, err
    return [json.loads(line) for line in out.splitlines()]


def taken(broker: Broker, topic: str, count: int) -> list[Any]:
    """What a consumer of the remoting protocol gets of a topic."""
    with broker.consumer(f"readers-of-{topic}", topic, start="first") as consumer:
        messages = iter(consumer)
        return [next(messages) for _ in range(count)]


def test_it_sends_messages_of_every_kind(broker: Broker, tmp_path: Path) -> None:
    """And a consumer of the remoting protocol sees what was sent."""
    said = {each["topic"]: each for each in run(broker, tmp_path, "send")}
    assert sorted(said) == ["Delay", "Fifo", "Normal"]
    for topic, facts in said.items():
        (message,) = taken(broker, topic, 1)
        assert message.message_id == facts["id"]
        assert message.body == f"body of {topic}".encode()
        assert (message.tags, message.keys) == ("fruit", ["k1"])
        assert message.properties["colour"] == "grün"
        assert message.properties["PGROUP"] == topic


def test_its_transactions_commit_and_roll_back(broker: Broker, tmp_path: Path) -> None:
    said = {each["end"]: each["id"] for each in run(broker, tmp_path, "transact")}
    (message,) = taken(broker, "Tx", 1)
    assert message.message_id == said["commit"]
    assert broker.run(_open(broker)) == 0


async def _open(broker: Broker) -> int:
    transactions = broker.services.transactions
    assert transactions is not None
    return int(transactions.halves.state().open)


def test_another_producer_decides_for_one_that_is_gone(tmp_path: Path) -> None:
    """Killed between half and end; the check asks whoever publishes the topic now."""
    with serving(tmp_path / "store", transactionTimeOut=1) as broker:
        (orphan,) = run(broker, tmp_path, "orphan")
        assert broker.run(_open(broker)) == 1
        checker = start(broker, tmp_path, "check")
        try:
            assert json.loads(checker.stdout.readline()) == {"ready": True}
            until(lambda: broker.run(_checked(broker)), "a check that was asked")
            asked = json.loads(checker.stdout.readline())
            until(lambda: broker.run(_open(broker)) == 0, "the decision", pause_s=0.05)
        finally:
            checker.communicate("", timeout=BOUND_S)
        assert asked == {
            "asked": orphan["id"], "topic": "Tx", "body": "body of Tx", "tag": "fruit",
            "colour": "grün", "corrupted": False,
        }  # fmt: skip
        (message,) = taken(broker, "Tx", 1)
        assert message.message_id == orphan["id"]


async def _checked(broker: Broker) -> int:
    transactions = broker.services.transactions
    assert transactions is not None
    return (await transactions.check()).asked
