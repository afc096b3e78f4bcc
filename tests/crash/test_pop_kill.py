"""``kill -9`` with messages popped, acknowledged, postponed: none is lost, none that was
acknowledged comes back, and none is handed out twice within its invisible time.

``PS_POP_KILLS`` lives of the broker (`make crash-pop`: 100), each on the store that the last one
left. One group pops as it comes, another one in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from waiting import BOUND_S

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from popping import Popper

from broker.remoting.client import RemotingClient
from broker.wire.receipts import Handle

CHILD = Path(__file__).with_name("pop_child.py")
ROUNDS = int(os.environ.get("PS_POP_KILLS", "2"))
INVISIBLE_MS = 1500
#: An acknowledgement that is answered later may have come too late.
SAFE_MS = 700


def now_ms():
    return time.time_ns() // 1_000_000


class Remote(Popper):
    """The same client, of a broker in another process."""

    def __init__(self, port, client):
        self.broker = self
        self.address = f"127.0.0.1:{port}"
        self.client = client


class Ledger:
    """What clients were told. sent: bodies. acked: in time, by group. popped: by group
    and body, (pop time, visible again, attempt) of each delivery. order: bodies in order, by queue.
    asked, unanswered: of the ordered group, since an acknowledgement that a kill left without an
    answer may count: bodies, and offsets by queue."""

    def __init__(self):
        self.sent: list[bytes] = []
        self.acked: dict[str, set[bytes]] = {"g": set(), "o": set()}
        self.asked: set[bytes] = set()
        self.popped: dict[tuple[str, bytes], list[tuple[int, int, bool]]] = {}
        self.again: list[tuple[str, bytes, bool]] = []
        self.early: list[tuple[str, bytes]] = []
        #: Copies that are there twice, and a postponement that a kill left without an answer: the
        #: check points before and after it may both be open.
        self.copied: list[tuple[str, bytes]] = []
        self.postponed: set[bytes] = set()
        self.skipped: list[tuple[int, int, int]] = []
        #: Of the ordered group, by queue: every offset below it was acknowledged.
        self.done = {0: 0, 1: 0}
        self.done_ahead: dict[int, set[int]] = {0: set(), 1: set()}
        self.unanswered: dict[int, set[int]] = {0: set(), 1: set()}

    def delivered(self, group, body, handle):
        retried = handle.retry != "0"
        if body in self.acked[group]:
            self.again.append((group, body, retried))
        before = self.popped.setdefault((group, body), [])
        # A delivery of a copy is another one: its first delivery is over by then.
        early = any(popped <= handle.pop_ms < visible for popped, visible, _ in before)
        if early and group == "g":
            is_copy_again = retried and any(again for *_, again in before)
            unsure = is_copy_again or body in self.postponed
            (self.copied if unsure else self.early).append((group, body))
        before.append((handle.pop_ms, handle.pop_ms + handle.invisible_ms, retried))

    def in_order(self, queue, offsets):
        known = self.unanswered[queue] | self.done_ahead[queue]
        while self.done[queue] < offsets[0] and self.done[queue] in known:
            self.done[queue] += 1
        if offsets[0] > self.done[queue]:
            self.skipped.append((queue, offsets[0], self.done[queue]))

    def asks_in_order(self, queue, offset, body):
        self.asked.add(body)
        self.unanswered[queue].add(offset)

    def acked_in_order(self, queue, offset):
        self.unanswered[queue].discard(offset)
        self.done_ahead[queue].add(offset)
        while self.done[queue] in self.done_ahead[queue]:
            self.done_ahead[queue].discard(self.done[queue])
            self.done[queue] += 1


async def produce(p, ledger, round_, chance):
    for n in range(100_000):
        body = f"{round_}-{n}".encode()
        answer = await p.client.request(
            p.address, p_send(body, chance.randrange(2)), timeout=BOUND_S
        )  # fmt: skip
        if answer.code == 0:
            ledger.sent.append(body)


def p_send(body, queue):
    from broker.wire.codes import RequestCode
    from broker.wire.command import Command
    from pystore.format.properties import encode_properties

    ext = {
        "a": "p", "b": "orders", "c": "TBW102", "d": "2", "e": str(queue), "f": "0",
        "g": str(now_ms()), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": encode_properties({"UNIQ_KEY": body.decode()}).decode(),
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, ext, body=body)


async def consume(p, ledger, chance, stop):
    while not stop():
        answer = await p.pop(
            topic="orders", most=chance.choice((1, 4, 16)), invisible=INVISIBLE_MS, poll=200
        )
        found = p.handles_of(answer, "orders")
        # At once: by the time that the last one is acknowledged it may be with somebody else.
        for handle, _, body in found:
            ledger.delivered("g", body, handle)
        for handle, topic, body in found:
            luck = chance.random()
            if luck < 0.1:
                continue
            if luck < 0.2:
                ledger.postponed.add(body)
                changed = await p.change(handle, INVISIBLE_MS * 2, topic)
                ledger.postponed.discard(body)
                if changed.code == 0:
                    popped = int(changed.ext["popTime"])
                    ledger.popped["g", body].append((popped, popped + INVISIBLE_MS * 2, False))
                continue
            done = await p.ack(handle, topic)
            assert done.code == 0
            if now_ms() - handle.pop_ms < SAFE_MS:
                ledger.acked["g"].add(body)


async def consume_in_order(p, ledger, chance, stop):
    while not stop():
        answer = await p.pop(
            topic="orders", group="o", most=4, invisible=INVISIBLE_MS, poll=200, order="true"
        )
        found = p.handles_of(answer, "orders", "o")
        queues = {handle.queue for handle, _, _ in found}
        for queue in queues:
            offsets = [handle.offset for handle, _, _ in found if handle.queue == queue]
            ledger.in_order(queue, offsets)
        ledger.again += [("o", body, False) for *_, body in found if body in ledger.acked["o"]]
        for handle, _, body in found:
            if chance.random() < 0.1 or now_ms() - handle.pop_ms > SAFE_MS:
                break
            ledger.asks_in_order(handle.queue, handle.offset, body)
            assert (await p.ack(handle, "orders", "o")).code == 0
            ledger.acked["o"].add(body)
            ledger.acked_in_order(handle.queue, handle.offset)


async def one_life(path, ledger, round_, seed):
    chance = random.Random(seed)
    words = [sys.executable, str(CHILD), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            port = int(await asyncio.to_thread(child.stdout.readline))
            async with RemotingClient() as client:
                p = Remote(port, client)
                never = bool  # nothing is true: it goes on until the broker is gone
                tasks = [
                    asyncio.ensure_future(work)
                    for work in (
                        produce(p, ledger, round_, chance), consume(p, ledger, chance, never),
                        consume(p, ledger, chance, never),
                        consume_in_order(p, ledger, chance, never),
                    )
                ]  # fmt: skip
                most = len(ledger.sent) + chance.randrange(20, 150)
                # Both groups have acknowledged something that may not come back.
                while (len(ledger.sent) < most or not all(ledger.acked.values())) and not any(
                    task.done() for task in tasks
                ):
                    await asyncio.sleep(0.005)
                child.kill()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                wrong = [
                    e for e in done if not isinstance(e, ConnectionError | OSError | TimeoutError)
                ]
                assert not wrong, wrong
        finally:
            child.kill()


async def last_life(path, ledger):
    """Everybody works until nothing is left."""
    words = [sys.executable, str(CHILD), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            port = int(await asyncio.to_thread(child.stdout.readline))
            async with RemotingClient() as client:
                p = Remote(port, client)
                await asyncio.gather(
                    settle(p, ledger, "g", "false"), settle(p, ledger, "o", "true")
                )
        finally:
            child.kill()


async def settle(p, ledger, group, order):
    sent, ends = set(ledger.sent), time.monotonic() + BOUND_S
    idle_until = time.monotonic() + 3 * INVISIBLE_MS / 1000
    while idle_until > time.monotonic() < ends:
        answer = await p.pop(
            topic="orders", group=group, invisible=INVISIBLE_MS, poll=500, order=order
        )
        found = p.handles_of(answer, "orders", group)
        for handle, _, body in found:
            ledger.delivered(group, body, handle)
        for handle, topic, _ in found:
            await p.ack(handle, topic, group)
            idle_until = time.monotonic() + 3 * INVISIBLE_MS / 1000
    seen = ledger.acked[group] | {body for of, body in ledger.popped if of == group}
    seen |= ledger.asked if group == "o" else set()
    assert not sent - seen, f"{len(sent - seen)} messages are lost for {group}"


def test_what_a_slow_client_reads_late_is_not_early():
    """Its batch came back meanwhile, and went to somebody else, who was faster."""
    ledger, slow = Ledger(), Handle(0, 1000, 1500, 0, "0", "b", 0, 7)
    ledger.delivered("g", b"m", slow._replace(pop_ms=2600, retry="1"))
    ledger.delivered("g", b"m", slow)
    assert ledger.early == []
    ledger.delivered("g", b"m", slow._replace(pop_ms=2000))
    assert ledger.early == [("g", b"m")]
    ledger.delivered("g", b"m", slow._replace(pop_ms=3000, retry="1"))
    assert ledger.copied == [("g", b"m")]


def test_killed_again_and_again_nothing_is_lost_or_comes_back(store_path, seed):
    ledger = Ledger()

    async def lives():
        for round_ in range(ROUNDS):
            await one_life(store_path, ledger, round_, seed + round_)
        await last_life(store_path, ledger)

    asyncio.run(lives())
    assert len(ledger.sent) >= 20 * ROUNDS and ledger.acked["g"] and ledger.acked["o"]
    assert ledger.early == []
    assert ledger.skipped == []
    # A kill between a copy and its mark leaves two copies, each of which is acknowledged by itself.
    assert len(ledger.copied) <= 16 * ROUNDS
    assert [each for each in ledger.again if not each[2]] == []
    assert len(ledger.again) <= 16 * ROUNDS
