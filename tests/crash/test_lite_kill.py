"""``kill -9`` under load on lite topics, shared and exclusive: nothing that was acknowledged to a
producer is lost, the order within a lite topic is kept, nothing comes again after an acknowledged
acknowledgement, and nothing is handed out twice within its invisible time.

``PS_LITE_KILLS`` lives of the broker (`make crash-lite`: 50), each on the store that the last one
left, with ``PS_LITE_TOPICS`` lite topics and ``PS_LITE_CLIENTS`` clients of each of two groups. The
subscriptions of a broker that died are those that its next life begins with; in half of the lives
no client says its own again.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from bisect import bisect_left
from contextlib import AsyncExitStack
from pathlib import Path

from waiting import BOUND_S

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from popping import records

from broker.remoting.client import RemotingClient
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.audit import verify
from pystore.format.properties import encode_properties

CHILD = Path(__file__).with_name("lite_child.py")
ROUNDS = int(os.environ.get("PS_LITE_KILLS", "2"))
TOPICS = int(os.environ.get("PS_LITE_TOPICS", "40"))
CLIENTS = int(os.environ.get("PS_LITE_CLIENTS", "3"))
GROUPS = ("Shared", "Exclusive")
INVISIBLE_MS = 1500
#: An acknowledgement that is answered later may have come too late.
SAFE_MS = 700
#: A client says all its subscriptions again so often (official ones: 30 s): those that a broker
#: took in the second before it died are forgotten.
COMPLETE_S = 3
#: Nothing is left when nothing has come for so long. A client that has no room for more events
#: (maxClientEventCount) gets the rest with a look every ten seconds.
IDLE_S = 3 * INVISIBLE_MS / 1000 + (12 if TOPICS > 100 else 0)
MOST_A_LIFE = 3000


def now_ms():
    return time.time_ns() // 1_000_000


class Topic:
    """What one group was told of one lite topic, by number of the message. asked: acknowledgements
    that were sent; they may count, answered or not. over: until when each is out."""

    def __init__(self):
        self.seen: set[int] = set()
        self.asked: set[int] = set()
        self.acked: set[int] = set()
        self.over: dict[int, float] = {}


class Ledger:
    def __init__(self):
        #: By lite topic, ascending: what a producer was told is stored.
        self.sent: dict[str, list[int]] = {f"s{i}": [] for i in range(TOPICS)}
        self.next = dict.fromkeys(self.sent, 0)
        self.groups = {group: {name: Topic() for name in self.sent} for group in GROUPS}
        self.again: list[tuple[str, str, int]] = []
        self.early: list[tuple[str, str, int]] = []
        self.skipped: list[tuple[str, str, int, int]] = []
        self.stored = self.acknowledged = 0

    def lost(self):
        """What was stored and no member of a group has had."""
        return [
            (group, name, number)
            for group, topics in self.groups.items()
            for name, numbers in self.sent.items()
            for number in numbers
            if number not in topics[name].seen and number not in topics[name].asked
        ]

    def forget_what_is_out(self):
        for topics in self.groups.values():
            for topic in topics.values():
                topic.over.clear()

    def delivered(self, group, name, numbers, popped):
        topic, sent = self.groups[group][name], self.sent[name]
        assert numbers == sorted(set(numbers)), (group, name, numbers)
        for number in numbers:
            if number in topic.acked:
                self.again.append((group, name, number))
            if popped < topic.over.get(number, 0):
                self.early.append((group, name, number))
            topic.over[number] = popped + INVISIBLE_MS
        known = topic.asked.union(numbers)
        for number in sent[: bisect_left(sent, numbers[-1])]:
            if number not in known:
                self.skipped.append((group, name, number, numbers[-1]))
        topic.seen.update(numbers)


class Client:
    """A consumer: the lite topics that it subscribes to, and its own connection. may_refuse: codes
    of a broker that ends serving, or whose slaves are late."""

    may_refuse: frozenset[int] = frozenset()

    def __init__(self, number, group, ledger, chance):
        self.id, self.group = f"{group}-{number}", group
        self.ledger, self.chance = ledger, chance
        names = list(ledger.sent)
        # Each lite topic has two members of the shared group, and one of the other.
        near = {number, (number + 1) % CLIENTS} if group == "Shared" else {number}
        self.names = [name for i, name in enumerate(names) if i % CLIENTS in near]

    async def ask(self, code, body=b"", **ext):
        named = {key: str(value) for key, value in ext.items()}
        return await self.link.request(
            self.address, Command(code, named, body=body), timeout=BOUND_S
        )

    async def subscribe(self, action, names):
        row = {"action": action, "clientId": self.id, "group": self.group, "topic": "chat",
               "liteTopicSet": names}  # fmt: skip
        body = mqjson.dumps({"subscriptionSet": [row]})
        while (answer := await self.ask(Code.LITE_SUBSCRIPTION_CTL, body)).code in self.may_refuse:
            await asyncio.sleep(0.05)
        assert answer.code == 0, answer.remark

    async def batches(self, poll):
        """Pops; returns the pop time and the rows of each lite topic."""
        answer = await self.ask(
            Code.POP_LITE_MESSAGE, clientId=self.id, consumerGroup=self.group, topic="chat",
            maxMsgNum=self.chance.choice((1, 4, 32)), invisibleTime=INVISIBLE_MS, pollTime=poll,
            bornTime=now_ms(),
        )  # fmt: skip
        found: dict[str, list[tuple[int, int]]] = {}
        for _, body, said, *_ in records(answer.body) if answer.code == 0 else ():
            name, number = body.decode().split(":")
            assert said["__LITE_TOPIC"] == name
            found.setdefault(name, []).append((int(number), int(said["INNER_MULTI_QUEUE_OFFSET"])))
        popped = int(answer.ext.get("popTime", 0))
        for name, rows in found.items():
            self.ledger.delivered(self.group, name, [number for number, _ in rows], popped)
        return popped, found

    def handle(self, popped, offset):
        return f"0 {popped} {INVISIBLE_MS} 999 0 b 0 {offset}"

    async def ack(self, name, number, offset, popped):
        topic = self.ledger.groups[self.group][name]
        topic.asked.add(number)
        answer = await self.ask(
            Code.ACK_MESSAGE, consumerGroup=self.group, topic="chat", queueId=0, offset=offset,
            liteTopic=name, extraInfo=self.handle(popped, offset),
        )  # fmt: skip
        assert answer.code in {0} | self.may_refuse, answer.remark
        if answer.code == 0 and now_ms() - popped < SAFE_MS:
            topic.acked.add(number)
            self.ledger.acknowledged += 1

    async def nack(self, name, number, offset, popped):
        over = self.ledger.groups[self.group][name].over
        over[number] = 0  # while nobody knows whether it counts
        answer = await self.ask(
            Code.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup=self.group, topic="chat", queueId=0,
            offset=offset, liteTopic=name, invisibleTime=200, extraInfo=self.handle(popped, offset),
        )  # fmt: skip
        assert answer.code in {0} | self.may_refuse, answer.remark

    async def consume(self):
        again = time.monotonic() + COMPLETE_S
        while True:
            if time.monotonic() > again:
                again += COMPLETE_S
                await self.subscribe("COMPLETE_ADD", self.names)
            if self.group == "Exclusive" and self.chance.random() < 0.02:
                taken = self.chance.choice(list(self.ledger.sent))
                await self.subscribe("PARTIAL_ADD", [taken])
            popped, found = await self.batches(200)
            for name, rows in found.items():
                luck = self.chance.random()
                if luck < 0.1:
                    self.chance.shuffle(rows)
                for number, offset in rows:
                    if self.chance.random() < 0.03:
                        await self.nack(name, number, offset, popped)
                    elif now_ms() - popped < SAFE_MS and luck < 0.97:
                        await self.ack(name, number, offset, popped)

    async def drain(self, until):
        """Until nothing has come for a while; where something is missing that is until the bound
        of all tests, for a slow machine loses nothing."""
        await self.subscribe("COMPLETE_ADD", self.names)
        end = time.monotonic() + BOUND_S
        while time.monotonic() < until[0] or (self.ledger.lost() and time.monotonic() < end):
            popped, found = await self.batches(500)
            for name, rows in found.items():
                for number, offset in rows:
                    await self.ack(name, number, offset, popped)
                until[0] = time.monotonic() + IDLE_S


async def produce(link, address, ledger, names, chance):
    most = ledger.stored + MOST_A_LIFE
    while ledger.stored < most:
        name = chance.choice(names)
        number = ledger.next[name]
        ledger.next[name] += 1
        said = {"UNIQ_KEY": f"{name}-{number}", "__LITE_TOPIC": name}
        ext = {
            "a": "p", "b": "chat", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
            "g": str(now_ms()), "h": "0", "j": "0", "k": "false", "m": "false",
            "i": encode_properties(said).decode(),
        }  # fmt: skip
        answer = await link.request(
            address, Command(Code.SEND_MESSAGE_V2, ext, body=f"{name}:{number}".encode()),
            timeout=BOUND_S,
        )  # fmt: skip
        if answer.code == 0:
            ledger.sent[name].append(number)
            ledger.stored += 1


async def served(
    address, clients, ledger, chance, kill, *, sends=True, says=False, serves=lambda: True
):
    """Clients of a broker, until so much is done that `kill` ends it, or it does not serve any
    more. says: clients say what they subscribe to."""
    async with AsyncExitStack() as links:
        await connect(links, address, clients)
        if says:
            for client in clients:
                await client.subscribe("COMPLETE_ADD", client.names)
        names = list(ledger.sent)
        own = await links.enter_async_context(RemotingClient())
        work = [client.consume() for client in clients]
        if sends:
            work += [produce(own, address, ledger, names[i::2], chance) for i in range(2)]
        tasks = [asyncio.ensure_future(each) for each in work]
        stored = ledger.stored + (chance.randrange(50, 50 + 2 * TOPICS) if sends else 0)
        acked = ledger.acknowledged + 20
        while (
            (ledger.stored < stored or ledger.acknowledged < acked)
            and not any(task.done() and task.exception() for task in tasks)
            and await asyncio.to_thread(serves)
        ):
            await asyncio.sleep(0.005)
        await asyncio.to_thread(kill)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        gone = ConnectionError | OSError | TimeoutError | None
        assert [each for each in done if not isinstance(each, gone)] == []


async def connect(links, address, clients):
    for client in clients:
        client.link = await links.enter_async_context(RemotingClient())
        client.address = address


async def drained(address, clients, serves=lambda: True):
    """Whether clients have had all that there is; else this broker does not serve any more."""
    async with AsyncExitStack() as links:
        await connect(links, address, clients)
        until = [time.monotonic() + IDLE_S]
        work = asyncio.gather(*(client.drain(until) for client in clients))
        while not (await asyncio.wait({work}, timeout=1))[0]:
            if not await asyncio.to_thread(serves):
                work.cancel()
                await asyncio.wait({work})
                return False
        await work
        return True


async def one_life(path, clients, ledger, chance, *, last=False):
    words = [sys.executable, str(CHILD), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            address = f"127.0.0.1:{int(await asyncio.to_thread(child.stdout.readline))}"
            if last:
                await drained(address, clients)
                return
            says = chance.random() < 0.5 or not ledger.stored
            await served(address, clients, ledger, chance, child.kill, says=says)
        finally:
            child.kill()


def test_killed_under_load_lite_topics_lose_and_repeat_nothing(store_path, seed):
    ledger, chance = Ledger(), random.Random(seed)
    clients = [Client(i, group, ledger, chance) for group in GROUPS for i in range(CLIENTS)]

    async def lives():
        for round_ in range(ROUNDS):
            await one_life(store_path, clients, ledger, chance)
            bad = [each.kind for each in verify(store_path).errors]
            assert bad == [], (round_, bad)
        await one_life(store_path, clients, ledger, chance, last=True)

    asyncio.run(lives())
    print(f"{ledger.stored} stored, {ledger.acknowledged} acknowledged in {ROUNDS} lives")
    assert (ledger.lost(), ledger.again, ledger.skipped, ledger.early) == ([], [], [], [])
    assert ledger.stored >= 50 * ROUNDS and ledger.acknowledged >= 20 * ROUNDS
