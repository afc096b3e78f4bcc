"""What a slave takes over from its master: no more often than it changes, and not on the loop."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from broker.services.replication import synchronize
from broker.services.replication.synchronize import Synchronizer
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command


class _Rows:
    """In the place of Topics and of Groups."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.read = 0

    def from_json(self, value: dict[str, Any]) -> Any:
        self.read += 1
        return SimpleNamespace(name=value["topicName"], attributes={})

    def to_json(self, row: Any) -> str:
        return str(row.name)

    def get(self, name: str) -> Any:
        return self.rows.get(name)

    def take(self, row: Any) -> None:
        self.rows[row.name] = row

    def all(self) -> list[Any]:
        return list(self.rows.values())

    def delete(self, name: str) -> None:
        del self.rows[name]


class _Master:
    """Answers as a master that has these topics, and these offsets of a group."""

    def __init__(self, *topics: str) -> None:
        self.topics, self.offsets = list(topics), {"0": 5}

    async def ask(self, command: Command) -> Command:
        tables: dict[int, dict[str, Any]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: {
                "topicConfigTable": {name: {"topicName": name} for name in self.topics}
            },
            RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {"t@g": self.offsets}},
        }
        return Command(0, {}, json.dumps(tables.get(command.code, {})).encode())


class _Offsets:
    def __init__(self) -> None:
        self.committed: list[int] = []

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        self.committed.append(offset)


def _made(master: _Master) -> tuple[Synchronizer, _Rows, _Offsets, Any]:
    class Batch:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    store: Any = SimpleNamespace(high=3, metadata=SimpleNamespace(batch=Batch))
    store.info = lambda: SimpleNamespace(log_max=9)
    store.range = lambda topic, queue: (0, store.high)
    store.info = lambda: SimpleNamespace(log_max=0)
    topics: Any = _Rows()
    groups: Any = _Rows()
    offsets: Any = _Offsets()
    return Synchronizer(master.ask, store, topics, groups, offsets), topics, offsets, store


def test_what_has_not_changed_is_not_read_again() -> None:
    master = _Master("a", "b")
    made, topics, _, _ = _made(master)
    for _ in range(3):
        assert asyncio.run(made.once()) == []
    assert (set(topics.rows), topics.read) == ({"a", "b"}, 2)
    master.topics = ["b", "c"]
    assert asyncio.run(made.once()) == []
    assert (set(topics.rows), topics.read) == ({"b", "c"}, 4)


def test_an_offset_is_taken_as_far_as_its_messages_are_here_until_they_all_are() -> None:
    made, _, offsets, store = _made(_Master())
    asyncio.run(made.once())
    store.high = 9
    asyncio.run(made.once())
    assert offsets.committed == [3, 5]


def test_a_negative_offset_of_a_master_of_javas_keeps_no_other_from_being_taken() -> None:
    master = _Master()
    master.offsets = {"0": -1, "1": 2}
    made, _, offsets, _ = _made(master)
    assert asyncio.run(made.once()) == []
    assert offsets.committed == [2]


def test_what_was_not_taken_whole_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, topics, _, _ = _made(_Master("a"))

    def fails(row: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(topics, "take", fails, raising=True)
    assert len(asyncio.run(made.once())) == 1
    monkeypatch.undo()
    assert asyncio.run(made.once()) == []
    assert set(topics.rows) == {"a"}


def test_a_long_answer_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, loads = set(), mqjson.loads

    def seen(body: bytes) -> Any:
        if len(body) > synchronize._AT_ONCE:
            threads.add(threading.current_thread())
        return loads(body)

    monkeypatch.setattr(mqjson, "loads", seen)
    made, topics, _, _ = _made(_Master(*(f"topic-{n:05}" for n in range(2000))))
    assert asyncio.run(made.once()) == []
    assert len(topics.rows) == 2000
    assert threads
    assert threading.main_thread() not in threads


async def test_an_earlier_answer_is_never_taken_after_a_later_one() -> None:
    """Of rounds that are asked for while one runs, as by the timer and by a caller."""
    master, asked, goes_on = _Master("a"), asyncio.Event(), asyncio.Event()
    answers = master.ask

    async def held(command: Command) -> Command:
        answer = await answers(command)
        if not asked.is_set():
            asked.set()
            await goes_on.wait()
        return answer

    master.ask = held  # type: ignore[method-assign]
    made, topics, _, _ = _made(master)
    earlier = asyncio.create_task(made.once())
    await asked.wait()
    master.topics = ["b"]
    later = asyncio.create_task(made.once())
    for _ in range(100):  # turns enough for a round whose answers wait for nothing
        await asyncio.sleep(0)
    goes_on.set()
    assert [await earlier, await later] == [[], []]
    assert set(topics.rows) == {"b"}
