"""POP requests of a capture with a 5.3.3 broker, answered by ours: the same, but for times and
numbers of revive queues. Where the capture waits for the end of a poll, the poll is left out."""

from __future__ import annotations

import json
import lzma
import re
import time
from pathlib import Path

import pytest

from broker.broker import Broker
from broker.remoting.client import RemotingClient
from broker.wire import codec
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.format.properties import parse_properties
from pystore.meta.configfiles import TopicConfig

CAPTURE = Path(__file__).with_name("pop-5.3.3.jsonl.xz")
#: Requests of the first connection up to the watching, and those of ordered consumption.
PARTS = (range(52), range(98, 120))
#: Numbers that stand for a moment or for a turn.
FREE = {"popTime", "reviveQid", "transactionId", "msgId"}


def exchanges():
    """(request, answer) by opaque, of the hand-made requests."""
    found: dict[int, list[Command]] = {}
    with lzma.open(CAPTURE, "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            if frame["conn"] == 1:
                command = codec.decode(bytes.fromhex(frame["hex"]))
                found.setdefault(command.opaque, []).append(command)
    return [(opaque, *pair) for opaque, pair in sorted(found.items()) if len(pair) == 2]


def shown(body):
    """What the records of an answer say, apart from places in the log, times and hosts."""
    made, at, body = [], 0, bytes(body)
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        one = body[at : at + size]
        at += size
        end = 88 + int.from_bytes(one[84:88], "big")
        name_end = end + 1 + one[end]
        said = parse_properties(one[name_end + 2 :])
        said.pop("POP_CK", None)
        head = one[4:20], one[20:28], one[88:end], one[end + 1 : name_end]
        made.append((*head, {k: v for k, v in said.items() if not k.startswith("1ST")}))
    return made


class Replay:
    """Sends a request of then as one of now: deliveries are named by what we were told."""

    def __init__(self, broker, client):
        self.broker, self.client = broker, client
        #: Pop time in the capture -> (pop time, revive queue) of ours.
        self.ours: dict[str, tuple[str, str]] = {}

    def now(self, request, answer):
        ext = dict(request.ext)
        if "bornTime" in ext:
            late = answer.remark and "too much" in answer.remark
            ext["bornTime"] = str(time.time_ns() // 1_000_000 - 10_000 * bool(late))
            ext["pollTime"] = "0" if not late else ext["pollTime"]
        if "extraInfo" in ext:
            parts = ext["extraInfo"].split(" ")
            parts[1], parts[3] = self.ours[parts[1]]
            ext["extraInfo"] = " ".join(parts)
        body = bytes(request.body)
        if request.code == Code.BATCH_ACK_MESSAGE:
            for then, (pop_ms, revive) in self.ours.items():
                body = body.replace(b'"pt":' + then.encode(), b'"pt":' + pop_ms.encode())
                body = re.sub(rb'"rq":\d+', b'"rq":' + revive.encode(), body)
        return Command(request.code, ext, body=body)

    async def __call__(self, request, answer):
        got = await self.client.request(self.broker.address, self.now(request, answer))
        if "popTime" in answer.ext and answer.code == 0:
            self.ours[answer.ext["popTime"]] = got.ext["popTime"], got.ext["reviveQid"]
        return got


def text(remark):
    """Without addresses, and without the advice that follows."""
    said = re.sub(r"consumer:\[/[^\]]+\]", "consumer:[]", remark or "")
    return re.split(r"! |: ", said)[0].strip()


@pytest.mark.parametrize("part", PARTS, ids=["unordered", "ordered"])
async def test_answers_are_those_of_5_3_3(store_path, part):
    settings = {"listenPort": 0, "brokerName": "broker-a", "brokerIP1": "127.0.0.1"}
    opened = Broker(store_path, mappedFileSizeCommitLog=1 << 20, **settings)
    async with opened as broker, RemotingClient() as client:
        broker.services.topics.update(TopicConfig("pop_raw", 1, 1))
        replay = Replay(broker, client)
        compared = 0
        for opaque, request, answer in exchanges():
            sends = request.code == Code.SEND_MESSAGE
            if opaque not in part and not sends:
                continue
            if request.ext.get("attemptId") == "attempt-3":  # it came when the time was over
                broker.services.schedule.shift_clock(4_000)
            got = await replay(request, answer)
            compared += 1
            assert (got.code, text(got.remark)) == (answer.code, text(answer.remark)), opaque
            kept = answer.ext.keys() - FREE
            if request.code == Code.CHANGE_MESSAGE_INVISIBLETIME and "999" in str(answer.ext):
                kept -= {"invisibleTime"}  # counted from the pop
            assert got.ext.keys() == answer.ext.keys(), opaque
            assert {k: got.ext[k] for k in kept} == {k: answer.ext[k] for k in kept}, opaque
            if request.code in (Code.POP_MESSAGE, Code.PEEK_MESSAGE):
                assert shown(got.body) == shown(answer.body), opaque
            elif not sends:
                assert bytes(got.body) == bytes(answer.body), opaque
        assert compared >= 15


def test_the_capture_holds_what_is_replayed():
    codes = {request.code for opaque, request, _ in exchanges() if any(opaque in p for p in PARTS)}
    assert codes >= {200050, 200051, 200052, 200053, 200054, 200055, 200151, 400}
