"""Clients that do one operation after the other, without retries, and write down each with the
times of its call and of its answer (README.md has the format)."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from world import now_ns

from broker.remoting.client import RemotingClient
from broker.services.controlled.controller import Controller
from broker.services.replication.elected_role import ElectionRecord
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command

__all__ = ["Client", "History", "Look", "bodies", "is_of_tier", "read_whole"]

_PATIENCE_S = 2.0
_BATCH = 16
#: Bytes of a record before its body, whose length is the last four of them.
_HEAD = struct.Struct(">i80xi")
GROUP = "readers"
#: What goes wrong with a request.
FAILURES = (OSError, TimeoutError, ValueError, KeyError)


def bodies(records: bytes | memoryview) -> list[str]:
    """Of the messages of a pull's answer: the first word of each, also of what nobody has sent."""
    found, at = [], 0
    while at < len(records):
        size, length = _HEAD.unpack_from(records, at)
        body = bytes(records[at + _HEAD.size : at + _HEAD.size + length])
        found.append(body.partition(b" ")[0].decode(errors="replace"))
        at += size
    return found


def is_of_tier(records: bytes | memoryview) -> bool:
    """Says whether the first record lies in the cold tier alone: its place in the log says so."""
    return len(records) >= 36 and int.from_bytes(records[28:36], "big") >= 1 << 62


class History:
    """A file with a line an operation."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("w")
        self.counts: Counter[str] = Counter()

    def note(self, op: str, call: int, *, answered: bool = True, **rest: Any) -> None:
        self.counts[op] += 1
        self.counts["acknowledged"] += op == "send" and "offset" in rest
        line = {"op": op, "call": call, **rest} | ({"return": now_ns()} if answered else {})
        self._out.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._out.close()


class Look:
    """What the controller has of the group, as often as somebody asks, at most every 0.2 s."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.record: ElectionRecord | None = None
        self._asking = asyncio.Lock()

    async def now(self) -> ElectionRecord | None:
        """None: it is not reached."""
        async with self._asking:
            try:
                self.record = await asyncio.wait_for(self.controller.look(), _PATIENCE_S)
            except FAILURES:
                return None
            except Exception as refused:
                if type(refused).__name__ != "ControllerRefused":
                    raise
                return None
            return self.record


class Client:
    """number: its own. brokers: addresses of all. topic: has `queues` queues."""

    def __init__(
        self, number: int, seed: int, history: History, look: Look, brokers: Sequence[str],
        topic: str, queues: int, sizes: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """sizes: bytes of a body, at least and at most; 0: of its name alone."""
        self._sizes = sizes
        self.number, self._history, self._look = number, history, look
        self._brokers, self._topic, self._queues = list(brokers), topic, queues
        self._chance = random.Random(seed * 1000 + number)
        self._wire = RemotingClient(connect_s=_PATIENCE_S)
        self._at = self._brokers[0]
        self._next = 0
        #: The highest end of each queue that it has heard of.
        self._ends = dict.fromkeys(range(queues), 0)

    async def run(self, over: Callable[[], bool], pause_s: float) -> None:
        works = [self._send, self._read, self._commit, self._committed, self._end]
        while not over():
            (work,) = self._chance.choices(works, (60, 28, 5, 4, 3))
            await work()
            await asyncio.sleep(self._chance.uniform(0, 2 * pause_s))

    async def close(self) -> None:
        await self._wire.close()

    # ---- operations ----

    async def _send(self) -> None:
        # Old masters must not take anything either.
        astray = self._chance.random() < 0.1
        address = self._chance.choice(self._brokers) if astray else self._at
        if await self.send(address, self._chance.randrange(self._queues)):
            self._at = address
        elif not astray:
            record = self._look.record
            known = record.address if record is not None else ""
            others = [known] if known in self._brokers else self._brokers
            self._at = self._chance.choice([*others, *self._brokers])

    async def send(self, address: str, queue: int) -> bool:
        """Whether it was acknowledged."""
        self._next += 1
        name, rest = f"c{self.number}-{self._next}", self._of(queue)
        ext = {
            "producerGroup": "makers", "topic": self._topic, "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": str(queue), "sysFlag": "0", "flag": "0",
            "bornTimestamp": "1700000000000", "properties": f"UNIQ_KEY\x01{name}\x02",
            "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        body, (least, most) = name.encode(), self._sizes
        if most:
            body += b" "
            size = int(least * (most / least) ** self._chance.random())
            body += self._chance.randbytes(max(size - len(body), 0))
        call = now_ns()
        answer = await self._ask(address, Command(RequestCode.SEND_MESSAGE, ext, body))
        if answer is None or answer.code != 0:
            # Whatever was said: it may be there.
            self._history.note("send", call, id=name, answered=False, **rest)
            return False
        offset = int(answer.ext["queueOffset"])
        self._ends[queue] = max(self._ends[queue], offset + 1)
        self._history.note("send", call, id=name, offset=offset, **rest)
        return True

    async def _read(self) -> None:
        queue = self._chance.randrange(self._queues)
        end = self._ends[queue]
        low = max(0, end - _BATCH) if self._chance.random() < 0.7 else 0
        await self.read(self._chance.choice(self._brokers), queue,
                        self._chance.randint(low, end))  # fmt: skip

    async def read(self, address: str, queue: int, offset: int) -> list[str] | None:
        """None: no answer, or nothing is there."""
        ext = {
            "consumerGroup": GROUP, "topic": self._topic, "queueId": str(queue),
            "queueOffset": str(offset), "maxMsgNums": str(_BATCH), "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        call = now_ns()
        answer = await self._ask(address, Command(RequestCode.PULL_MESSAGE, ext))
        if answer is None or answer.code != 0:
            return None
        found = bodies(answer.body)
        self._history.counts["of the tier"] += is_of_tier(answer.body)
        self._ends[queue] = max(self._ends[queue], offset + len(found))
        self._history.note("read", call, offset=offset, ids=found, broker=self._number_of(address),
                           **self._of(queue))  # fmt: skip
        return found

    async def _commit(self) -> None:
        queue = self._chance.randrange(self._queues)
        offset = self._chance.randint(0, self._ends[queue])
        ext = self._place(queue) | {"commitOffset": str(offset)}
        call = now_ns()
        answer = await self._ask(self._at, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
        self._history.note("commit", call, answered=answer is not None and answer.code == 0,
                           group=GROUP, offset=offset, **self._of(queue))  # fmt: skip

    async def _committed(self) -> None:
        queue = self._chance.randrange(self._queues)
        ext = self._place(queue) | {"setZeroIfNotFound": "false"}
        address = self._chance.choice(self._brokers)
        call = now_ns()
        answer = await self._ask(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, ext))
        if answer is not None and answer.code == 0:
            self._history.note("committed", call, group=GROUP, offset=int(answer.ext["offset"]),
                               **self._of(queue))  # fmt: skip

    async def _end(self) -> None:
        """The end of a queue, of a broker that was the master at that time: by its own word
        before, by the controller's after."""
        queue = self._chance.randrange(self._queues)
        before = await self._look.now()
        if before is None or before.master is None or before.address not in self._brokers:
            return
        said = await self._ask(before.address, Command(RequestCode.GET_BROKER_EPOCH_CACHE))
        if said is None or said.code != 0 or not _is_master(said, before.epoch):
            return
        call = now_ns()
        end = await self.end_of(before.address, queue)
        after = await self._look.now()
        if end is not None and after is not None and after.epoch == before.epoch:
            self._history.note("end", call, offset=end, broker=self._number_of(before.address),
                               **self._of(queue))  # fmt: skip

    async def end_of(self, address: str, queue: int) -> int | None:
        ext = {"topic": self._topic, "queueId": str(queue)}
        answer = await self._ask(address, Command(RequestCode.GET_MAX_OFFSET, ext))
        return int(answer.ext["offset"]) if answer is not None and answer.code == 0 else None

    # ---- requests ----

    async def clean(self, address: str) -> None:
        """Has a broker delete segments that may go."""
        await self._ask(address, Command(RequestCode.DELETE_EXPIRED_COMMITLOG))

    async def make_topic(self, address: str) -> bool:
        ext = {
            "topic": self._topic, "defaultTopic": "TBW102", "readQueueNums": str(self._queues),
            "writeQueueNums": str(self._queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        answer = await self._ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
        return answer is not None and answer.code == ResponseCode.SUCCESS

    async def _ask(self, address: str, command: Command) -> Command | None:
        try:
            return await self._wire.request(address, command, _PATIENCE_S)
        except FAILURES:
            return None

    def _of(self, queue: int) -> dict[str, Any]:
        return {"client": self.number, "queue": f"{self._topic}/{queue}"}

    def _place(self, queue: int) -> dict[str, str]:
        return {"consumerGroup": GROUP, "topic": self._topic, "queueId": str(queue)}

    def _number_of(self, address: str) -> int:
        return self._brokers.index(address) + 1


def _is_master(said: Command, epoch: int) -> bool:
    """Whether an answer to 1007 is a master's, of that epoch."""
    found = json.loads(bytes(said.body))
    rows = found.get("epochList") or []
    return found.get("brokerId") == 0 and bool(rows) and rows[-1]["epoch"] == epoch


async def read_whole(client: Client, history: History, address: str, queue: int, end: int) -> int:
    """All of a queue, which has `end` messages and gets no more, as one read. Returns how many."""
    call, found, patience = now_ns(), list[str](), 100
    while len(found) < end and patience:
        more = await client.read(address, queue, len(found))
        if not more:
            patience -= 1
            await asyncio.sleep(0.1)
        found += more or []
    history.note("read", call, offset=0, ids=found, whole=True,
                 broker=client._number_of(address), **client._of(queue))  # fmt: skip
    return len(found)
