"""Python clients that come and go, beside Java members of the same groups, and a broker that is
killed again and again: what was acknowledged is in the log, and is delivered to somebody.

PS_CHAOS_S is how long it takes (4 seconds; `make chaos` takes ten minutes, with Java members),
PS_SEED repeats a run, PS_JUDGE=java lets Apache's broker prove the harness.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import launch
from java_member import JavaMember
from waiting import BOUND_S, until_async

from broker import AsyncConsumer, AsyncProducer, AsyncTransactionProducer, LocalState, Message
from broker.client import ClientError

pytestmark = [pytest.mark.slow]

SECONDS = float(os.environ.get("PS_CHAOS_S", "4"))
MAKES = os.environ.get("PS_JUDGE", "ours").split(",")
LIVES = {"ours": (1.0, 5.0), "java": (14.0, 18.0)}
TOPIC, GROUP, WRITERS = "chaos", "chaos-readers", "chaos-writers"
SETTINGS = {
    "transactionTimeOut": 1000, "transactionCheckInterval": 1000,
    "flushConsumerOffsetInterval": 1000,
}  # fmt: skip


class Chaos:
    """Producers, consumers and their ledger, on one event loop."""

    def __init__(self, namesrv: str, rng: random.Random) -> None:
        self.namesrv = namesrv
        self.rng = rng
        self.numbers = itertools.count()
        self.acknowledged: set[bytes] = set()
        #: Rolled back: nobody may see them.
        self.withdrawn: set[bytes] = set()
        self.got: Counter[bytes] = Counter()
        #: By the Java consumer; what the Java producer was told is stored.
        self.got_java: Counter[bytes] = Counter()
        self.java: set[bytes] = set()
        self.refused = self.lives = 0
        #: No more is sent; then nothing is under way either.
        self.ending = self.over = False

    def message(self) -> Message:
        return Message(TOPIC, b"%d" % next(self.numbers), keys="k")

    async def produce(self) -> None:
        """One life after the other: singles, batches, transactions."""
        while not self.ending:
            self.lives += 1
            kind = self.rng.choice((AsyncProducer, AsyncTransactionProducer))
            options = {"check": self.check} if kind is AsyncTransactionProducer else {}
            try:
                async with kind(WRITERS, self.namesrv, send_timeout_s=5.0, **options) as it:
                    for _ in range(self.rng.randrange(20, 200)):
                        await self.send(it)
                        await asyncio.sleep(0.002)
                        if self.ending:
                            break
            except ClientError:
                self.refused += 1
                await asyncio.sleep(0.1)

    def check(self, message: object) -> LocalState:
        body = message.body  # type: ignore[attr-defined]
        return LocalState.ROLLBACK if body in self.withdrawn else LocalState.COMMIT

    async def send(self, producer: AsyncProducer) -> None:
        messages = [self.message() for _ in range(self.rng.choice((1, 1, 8)))]
        try:
            if isinstance(producer, AsyncTransactionProducer):
                async with producer.transaction(messages[0]) as tx:
                    if self.rng.random() < 0.3:
                        self.withdrawn.add(messages[0].body)
                        tx.rollback()
                if messages[0].body not in self.withdrawn:
                    self.acknowledged.add(messages[0].body)
            elif len(messages) > 1:
                await producer.send_batch(messages)
                self.acknowledged.update(m.body for m in messages)
            else:
                await producer.send(messages[0])
                self.acknowledged.add(messages[0].body)
        except ClientError:
            self.refused += 1

    async def handle(self, message: object) -> None:
        self.got[message.body] += 1  # type: ignore[attr-defined]

    async def consume(self) -> None:
        while not self.done:
            self.lives += 1
            try:
                async with AsyncConsumer(
                    GROUP, TOPIC, namesrv=self.namesrv, start="first", handler=self.handle,
                    auto_commit_s=0.5, rebalance_s=1.0,
                ):  # fmt: skip
                    end = time.monotonic() + self.rng.uniform(2.0, 6.0)
                    while time.monotonic() < end and not self.done:
                        await asyncio.sleep(0.05)
            except ClientError:
                self.refused += 1
                await asyncio.sleep(0.1)

    @property
    def done(self) -> bool:
        return self.over and self.acknowledged <= self.got.keys() | self.got_java.keys()

    async def run(self, peer: launch.Peer, with_java: bool) -> int:
        """How often the broker was killed."""
        # It lives to the end: somebody must answer for transactions whose producer is gone.
        async with AsyncTransactionProducer(WRITERS, self.namesrv, check=self.check) as witness:
            await witness.send(Message(TOPIC, b"first"))
            self.acknowledged.add(b"first")
            producers, consumers = (
                [asyncio.create_task(each) for each in work]
                for work in ((self.produce(), self.produce()), (self.consume(), self.consume()))
            )
            member = await self.join_java() if with_java else None
            try:
                kills = await asyncio.to_thread(self.batter, peer)
                self.ending = True
                await asyncio.wait_for(asyncio.gather(*producers), BOUND_S)
                if member is not None:
                    member.say()
                    await until_async(lambda: "quiet" in member.lines, "the end of Java's sends")
                    self.java = {body.encode() for body in member.acknowledged}
                    self.acknowledged |= self.java
                self.over = True
                await asyncio.wait_for(asyncio.gather(*consumers), BOUND_S)
                if member is not None:
                    await member.stop()
            finally:
                if member is not None:
                    member.kill()
        return kills

    async def join_java(self) -> JavaMember:
        """A Java producer and a Java consumer in the groups of the Python ones, at work."""

        def got(line: str) -> None:
            self.got_java[line.encode()] += 1

        member = JavaMember(self.namesrv, TOPIC, GROUP, WRITERS, got=got)
        try:
            await until_async(
                lambda: member.acknowledged and len(member.lines) > 1, "messages to and from Java"
            )
        except BaseException:
            member.kill()
            raise
        return member

    def batter(self, peer: launch.Peer) -> int:
        kills, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(self.rng.uniform(*LIVES[peer.make]))
            peer.kill()
            kills += 1
            peer.restart()
            peer.wait_ready()
        return kills


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(
    "members", ["python", pytest.param("java", marks=[pytest.mark.long, pytest.mark.java])]
)
def test_nothing_acknowledged_is_lost(members, make, tmp_path, request, rng):
    if "java" in (make, members):
        request.getfixturevalue("reference")
    with (
        launch.name_server(make, tmp_path / "names") as namesrv,
        launch.running(make, tmp_path / "peer", SETTINGS, namesrv=namesrv) as peer,
    ):
        chaos = Chaos(namesrv, rng)
        kills = uvloop.run(chaos.run(peer, members == "java"))
    got = chaos.got + chaos.got_java
    twice = sum(count > 1 for count in got.values())
    print(
        f"{kills} kills, {chaos.lives} lives, {len(chaos.acknowledged)} acknowledged"
        f" ({len(chaos.java)} of Java), {chaos.refused} refused, {twice} delivered again,"
        f" {len(chaos.got_java)} to Java"
    )
    assert kills >= 1
    assert len(chaos.acknowledged) > 50
    assert chaos.acknowledged <= got.keys()
    assert not chaos.withdrawn & got.keys()
    if members == "java":
        assert chaos.java & chaos.got.keys() and chaos.got_java.keys() - chaos.java
