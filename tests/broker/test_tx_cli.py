"""`pystore tx` on a store at rest and beside a running broker."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from loops import run
from transacting import COMMIT, DISCARDED, transacting

from pystore import Reader


@pytest.fixture
def tx(command):
    return partial(command, "tx")


@pytest.fixture
def store(tmp_path, small):
    """Halves 0 to 4: 0 is committed, 1 was discarded, the others are open."""

    async def work():
        async with transacting(tmp_path / "s", small, transactionCheckMax=1) as t:
            p = await t.producer()
            done = await p.half(body=b"0")
            await p.end(done, COMMIT)
            await p.half(body=b"1", properties={"KEYS": "gone"})
            await t.round(), await t.round()
            for i in range(2, 5):
                await p.half(
                    "orders" if i < 4 else "others", b"%d" % i, properties={"KEYS": f"k{i}"}
                )

    run(work())
    return tmp_path / "s"


def committed(store, topic="orders"):
    with Reader(store) as reader:
        return [bytes(m.body) for q in reader.queues(topic)
                for m in reader.read(topic, q.queue, q.min_offset, max_messages=100)]  # fmt: skip


def test_list(store, tx):
    code, out, _ = tx("ls", store, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, [row["keys"] for row in rows]) == (0, ["k2", "k3", "k4"])
    assert {row["group"] for row in rows} == {"makers"}
    assert len(tx("ls", store, "--topic", "others")[1].splitlines()) == 1
    assert len(tx("ls", store, "--max", "2")[1].splitlines()) == 2
    assert tx("ls", store, "--older", "3600")[1] == ""


def test_stats(store, tx):
    said = json.loads(tx("stats", store, "--json")[1])
    assert (said["transactions"]["open"], said["transactions"]["given_up"]) == (3, 1)
    assert [(r["topic"], r["open"]) for r in said["by topic"]] == [("orders", 2), ("others", 1)]


def test_show(store, tx):
    code, out, _ = tx("show", store, 3)
    assert (code, "k3" in out, "REAL_TOPIC" in out) == (0, True, True)
    assert tx("show", store, 0)[0] == 1


def test_commit_and_rollback_by_hand(store, tx):
    assert tx("commit", store, 2, "--dry-run")[0] == 0
    assert committed(store) == [b"0"]
    assert tx("commit", store, 2)[0] == 0
    assert tx("rollback", store, 3)[0] == 0
    assert committed(store) == [b"0", b"2"]
    assert tx("commit", store, 3)[0] == 1
    assert len(tx("ls", store)[1].splitlines()) == 1


def test_resume_of_one_that_was_given_up(store, tx):
    _, out, _ = tx("ls", store, "--discarded")
    (line,) = out.splitlines()
    message_id = line.split()[0]
    assert tx("resume", store, message_id, "--dry-run")[0] == 0
    assert len(tx("ls", store)[1].splitlines()) == 3
    assert tx("resume", store, message_id)[0] == 0
    rows = [json.loads(line) for line in tx("ls", store, "--json")[1].splitlines()]
    assert ("gone", 0) in [(row["keys"], row["checks"]) for row in rows]
    with Reader(store) as reader:
        assert len(reader.read(DISCARDED, 0, 0)) == 1


async def test_beside_a_running_broker(store, small, tx):
    async with transacting(store, small) as t:
        refused = await asyncio.to_thread(tx, "commit", store, 2)
        assert (refused[0], "open" in refused[2]) == (4, True)
        at = ("--broker", t.broker.address)
        assert (await asyncio.to_thread(tx, "commit", store, 2, *at))[0] == 0
        assert (await asyncio.to_thread(tx, "rollback", store, 4, *at))[0] == 0
        assert {h.offset for h in t.service.halves.all()} == {3}
        again = await asyncio.to_thread(tx, "rollback", store, 2, *at)
        assert again[0] == 1 or "first decision" in again[2]
    assert committed(store) == [b"0", b"2"]


def test_stats_of_a_running_broker(tmp_path, small, tx):
    async def work():
        async with transacting(tmp_path / "s", small) as t:
            p = await t.producer()
            await p.end(await p.half(), COMMIT)
            await p.half()
            return await asyncio.to_thread(
                tx, "stats", tmp_path / "s", "--broker", t.broker.address, "--json"
            )

    code, out, _ = run(work())
    facts = json.loads(out)["since the broker's start"]
    assert code == 0
    assert facts['rocketmq_half_messages{topic="orders"}'] == 1
    assert facts['rocketmq_commit_messages_total{topic="orders"}'] == 1
