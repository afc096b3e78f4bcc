"""Proxies of one make before brokers of the other, over every request of POP that a proxy sends:
each acknowledgement counts, and nothing that was acknowledged comes again.

Apache's proxy (5.3.3) sends 200050, 200051, 200053 and 200151. None of its classes names the header
of PEEK_MESSAGE, NOTIFICATION or POLLING_INFO (200052, 200054, 200055), and its remoting port
registers no handler for them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "grpc"))

import launch
from caller import CODE, Caller, message
from popping import Popper
from proxies import Addresses, proxy
from waiting import BOUND_S, until

from broker.grpc.schema import pb
from broker.remoting.client import RemotingClient

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC, GROUP = pb.Resource(name="Normal"), pb.Resource(name="g")
#: ms: the least that a proxy takes over gRPC.
INVISIBLE_MS = 10_000
MAKE_TOPIC, MAKE_GROUP = 17, 200
OURS_BEFORE_JAVA = "ours before java"


@pytest.fixture(scope="module", params=["java before ours", OURS_BEFORE_JAVA])
def made(reference: Any, request: Any, tmp_path_factory: Any) -> Iterator[tuple[Any, Addresses]]:
    """A broker and a proxy before it; Apache's sends BATCH_ACK_MESSAGE where it can."""
    front, _, back = request.param.split(" ")
    folder = tmp_path_factory.mktemp("proxies")
    given = {"enableBatchAck": True} if front == "java" else {}
    with launch.running(back, folder / "peer") as peer:
        fields = {
            "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": "+message.type=NORMAL",
        }  # fmt: skip
        for topic in ("Normal", "T"):
            code, _, body = launch.ask(peer.broker, MAKE_TOPIC, {**fields, "topic": topic})
            assert code == 0, body
            named = {"topic": topic}
            until(
                lambda named=named: launch.ask(peer.namesrv, launch.ROUTE, named)[0] == 0,
                "its route",
            )
        for group in (b"g", b"r"):
            body = b'{"groupName":"%s","consumeEnable":true,"retryQueueNums":1}' % group
            assert launch.ask(peer.broker, MAKE_GROUP, {}, body)[0] == 0
        with proxy(front, peer.namesrv, folder / "proxy", **given) as addresses:
            yield peer, addresses


def receive(caller: Caller, count: int) -> dict[bytes, Any]:
    """That many messages at least, by their bodies."""
    found: dict[bytes, Any] = {}
    while len(found) < count:
        replies = caller.stream(
            "ReceiveMessage", group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=32, invisible_duration=pb.Duration(seconds=INVISIBLE_MS // 1000),
            long_polling_timeout=pb.Duration(seconds=5),
        )  # fmt: skip
        found |= {
            each.message.body: each.message
            for each in replies
            if each.WhichOneof("content") == "message"
        }
    return found


def acked(caller: Caller, *handles: str) -> list[int]:
    entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
    answer = caller("AckMessage", group=GROUP, topic=TOPIC, entries=entries)
    return [each.status.code for each in answer.entries]


def handle_of(found: Any) -> str:
    return str(found.system_properties.receipt_handle)


def test_every_delivery_over_grpc_can_be_acknowledged_changed_and_buried(made: Any) -> None:
    """One by one, many at once, after a change, of a retry topic; and what was not comes back."""
    with Caller(made[1].grpc) as caller:
        caller.telemetry().subscribe("g", "Normal")
        bodies = [b"one", b"two", b"three", b"four", b"changed", b"soon", b"buried", b"left"]
        for body in bodies:
            until(
                lambda body=body: caller.send(message("Normal", body)).status.code == CODE.OK,
                "the proxy knows the broker",
            )
        found = receive(caller, len(bodies))
        assert set(found) == set(bodies)
        handles = {body: handle_of(each) for body, each in found.items()}
        assert acked(caller, handles[b"one"]) == [CODE.OK]
        many = [handles[each] for each in (b"two", b"three", b"four")]
        assert acked(caller, *many) == [CODE.OK] * 3
        for body, seconds in ((b"changed", 60), (b"soon", 10)):
            changed = caller(
                "ChangeInvisibleDuration", group=GROUP, topic=TOPIC, message_id="m",
                receipt_handle=handles[body], invisible_duration=pb.Duration(seconds=seconds),
            )  # fmt: skip
            assert changed.status.code == CODE.OK, changed
            handles[body] = changed.receipt_handle
        assert acked(caller, handles[b"changed"]) == [CODE.OK]
        buried = caller(
            "ForwardMessageToDeadLetterQueue", group=GROUP, topic=TOPIC, message_id="m",
            receipt_handle=handles[b"buried"], delivery_attempt=1, max_delivery_attempts=1,
        )  # fmt: skip
        assert buried.status.code == CODE.OK, buried
        again = receive(caller, 2)
        assert set(again) == {b"soon", b"left"}, "what was acknowledged came again"
        assert all(each.system_properties.delivery_attempt == 2 for each in again.values())
        assert acked(caller, *map(handle_of, again.values())) == [CODE.OK] * 2


class At(Popper):
    """The same client, of a remoting port; a proxy is told the broker."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.broker, self.address, self.client = self, address, client

    async def ask(self, *given: Any, **ext: Any) -> Any:
        return await super().ask(*given, **ext, bname="broker-a")

    async def come(self, count: int) -> dict[bytes, Any]:
        """Handle and topic of that many messages at least, by their bodies. Apache's broker answers
        when the poll's time is over since bornTime, not since the request came."""
        found: dict[bytes, Any] = {}
        while len(found) < count:
            born_ms = time.time_ns() // 1_000_000
            answer = await self.pop(
                group="r", invisible=INVISIBLE_MS, poll=2_000, bornTime=born_ms
            )  # fmt: skip
            assert answer.code in (0, 210), answer.remark
            for handle, topic, body in self.handles_of(answer, group="r"):
                found[body] = handle._replace(broker="broker-a"), topic
        return found


@pytest.mark.parametrize("made", [OURS_BEFORE_JAVA], indirect=True)
def test_every_delivery_over_the_remoting_port_can_be_acknowledged_and_changed(made: Any) -> None:
    """Not at Apache's proxy (5.3.3), which reads POP_MESSAGE as PULL_MESSAGE there, and answers
    neither 200051 nor 200053."""

    async def work() -> None:
        async with asyncio.timeout(BOUND_S), RemotingClient() as client:
            p = At(made[1].remoting, client)
            for body in (b"one", b"later", b"left"):
                assert (await At(made[0].broker, client).send(body)).code == 0
            found = await p.come(3)
            handle, topic = found[b"one"]
            done = await p.ack(handle, topic, "r")
            assert done.code == 0, done.remark
            handle, topic = found[b"later"]
            done = await p.change(handle, 60_000, topic, "r")
            assert done.code == 0, done.remark
            assert int(done.ext["popTime"]) > handle.pop_ms
            assert set(await p.come(1)) == {b"left"}

    asyncio.run(work())
