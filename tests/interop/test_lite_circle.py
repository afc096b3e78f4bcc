"""A folder with a thousand lite topics goes from our broker to Apache's 5.5.0 and back: each serves
what the other one left, from where its consumers were."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import launch
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from popping import records
from waiting import BOUND_S

from broker.remoting.client import RemotingClient
from broker.wire import mqjson
from broker.wire.command import Command
from pystore.audit import verify
from pystore.format.properties import encode_properties
from pystore.repair import rebuild

pytestmark = [pytest.mark.java, pytest.mark.long]

PARENT, GROUP, COUNT, AT_ONCE = "chat", "g", 1000, 50
SEND, POP, SUBSCRIBE, ACK, MAKE_TOPIC, MAKE_GROUP, MAX_OFFSET = (
    310, 200070, 200071, 200051, 17, 200, 30,
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "enableLmq": "true", "enableMultiDispatch": "true", "mappedFileSizeConsumeQueue": 6000,
    "mappedFileSizeCommitLog": 4 << 20, "maxClientEventCount": 4000,
}  # fmt: skip
NAMES = [f"s{number}" for number in range(COUNT)]
#: What Java's broker makes of its own beside the lite topics.
NEW = [f"java{number}" for number in range(50)]


def make_topic(at: launch.Peer) -> None:
    fields = {
        "topic": PARENT, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=LITE",
    }  # fmt: skip
    assert launch.ask(at.broker, MAKE_TOPIC, fields)[0] == 0
    said = {"+lite.bind.topic": PARENT, "+lite.sub.client.max.event.cnt": "4000"}
    body = mqjson.dumps({"groupName": GROUP, "attributes": said})
    assert launch.ask(at.broker, MAKE_GROUP, body=body)[0] == 0


Asked = tuple[int, dict[str, Any], bytes]


async def answers(client: RemotingClient, at: launch.Peer, asked: Iterable[Asked]) -> list[Command]:
    """Of requests that are on their way together."""

    async def one(code: int, ext: dict[str, Any], body: bytes) -> Command:
        named = {name: str(value) for name, value in ext.items()}
        return await client.request(at.broker, Command(code, named, body=body), timeout=BOUND_S)

    return await asyncio.gather(*(one(*each) for each in asked))


async def send(at: launch.Peer, names: list[str], text: str) -> None:
    def message(number: int, name: str) -> Asked:
        said = encode_properties({"UNIQ_KEY": f"{name}-{text}", "__LITE_TOPIC": name}).decode()
        values = ("p", PARENT, "TBW102", 4, number % 4, 0, 1, 0, said, 0, "false")
        fields = dict(zip("abcdefghijk", values, strict=True))
        return SEND, fields, f"{name} {text}".encode()

    async with RemotingClient() as client:
        for begin in range(0, len(names), AT_ONCE):
            some = [message(i, name) for i, name in enumerate(names[begin : begin + AT_ONCE])]
            assert {each.code for each in await answers(client, at, some)} == {0}


async def subscribe(at: launch.Peer, names: list[str]) -> None:
    row = {"action": "COMPLETE_ADD", "clientId": "c", "group": GROUP, "topic": PARENT,
           "liteTopicSet": names, "version": 0}  # fmt: skip
    body = mqjson.dumps({"subscriptionSet": [row]})
    async with RemotingClient() as client:
        assert [each.code for each in await answers(client, at, [(SUBSCRIBE, {}, body)])] == [0]


async def read(at: launch.Peer, count: int, most: int = 32) -> dict[str, list[str]]:
    """Pops until there are so many, and acknowledges each: bodies by lite topic."""
    found: dict[str, list[str]] = {}
    pop = {
        "clientId": "c", "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": most,
        "invisibleTime": 3600000, "pollTime": 1000, "bornTime": 0,
    }  # fmt: skip
    async with RemotingClient() as client, asyncio.timeout(5 * BOUND_S):
        while sum(map(len, found.values())) < count:
            (answer,) = await answers(client, at, [(POP, pop, b"")])
            assert answer.code in (0, 209, 210), answer.remark
            acks = []
            for _, text, told, *_ in records(answer.body) if answer.code == 0 else ():
                name, offset = told["__LITE_TOPIC"], told["INNER_MULTI_QUEUE_OFFSET"]
                found.setdefault(name, []).append(text.decode().partition(" ")[2])
                handle = f"0 {answer.ext['popTime']} 3600000 999 0 broker-a 0 {offset}"
                ack = {"consumerGroup": GROUP, "topic": PARENT, "queueId": 0, "offset": offset,
                       "liteTopic": name, "extraInfo": handle}  # fmt: skip
                acks.append((ACK, ack, b""))
            assert {each.code for each in await answers(client, at, acks)} <= {0}
    return found


async def ends(at: launch.Peer, names: Iterable[str]) -> set[str]:
    asked = [(MAX_OFFSET, {"topic": f"%LMQ%${PARENT}${name}", "queueId": 0}, b"") for name in names]
    async with RemotingClient() as client:
        return {each.ext["offset"] for each in await answers(client, at, asked)}


@contextmanager
def over(make: str, folder: Path, names: str) -> Iterator[launch.Peer]:
    """A broker of that make over the folder; ended cleanly, and what it leaves is sound."""
    peer = launch.MAKES[make](folder, launch.SETTINGS | SETTINGS, "5.5.0", names)
    peer.broker_server.start()
    try:
        peer.wait_ready()
        yield peer
    finally:
        peer.stop()
    assert not (peer.store / "abort").exists(), peer.broker_server.said()
    assert verify(peer.store, mappedFileSizeConsumeQueue=6000).errors == []


@pytest.mark.parametrize("at_stop", [False, True], ids=["by the verb", "at the stop"])
async def test_a_folder_with_lite_topics_goes_to_java_and_back(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_stop: bool
) -> None:
    os.environ.setdefault("HEAP", "384m")
    monkeypatch.setitem(SETTINGS, "lightFilesAtStop", str(at_stop).lower())
    folder = tmp_path / "folder"
    with launch.name_server("ours", tmp_path / "names") as names:
        with over("ours", folder, names) as at:
            make_topic(at)
            await send(at, NAMES, "1")
            await send(at, NAMES, "2")
            await subscribe(at, NAMES)
            # Where the group is goes along: of some of them the first message was acknowledged.
            read_here = await read(at, COUNT // 2, most=1)
        if not at_stop:
            assert rebuild(at.store, light_files=True, mappedFileSizeConsumeQueue=6000).good

        with over("java", folder, names) as at:
            assert await ends(at, NAMES) == {"2"}
            await subscribe(at, NAMES + NEW)
            read_there = await read(at, 2 * COUNT - sum(map(len, read_here.values())))
            both = {name: read_here.get(name, []) + read_there.get(name, []) for name in NAMES}
            assert both == {name: ["1", "2"] for name in NAMES}
            await send(at, NAMES + NEW, "3")
            assert await ends(at, NAMES) == {"3"}

        with over("ours", folder, names) as at:
            await subscribe(at, NAMES + NEW)
            assert await read(at, COUNT + len(NEW)) == {name: ["3"] for name in NAMES + NEW}
            await send(at, NAMES, "4")
            assert await read(at, COUNT) == {name: ["4"] for name in NAMES}
