"""``kill -9`` of one of two brokers under etcd, or of both, at every step of what they do with
their tier, an S3 that fails one request in twenty: while a segment, a page or a manifest is
written, while segments are deleted locally, while the collector deletes, while a broker looks,
reads, or becomes the master. What was acknowledged is there, in a broker or in the tier, and
nothing is there twice.

``PS_COLD_ROLES`` kills (`make crash-cold`: 200), ``PS_SEED`` repeats a run but for its times.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from controllers import Controller, member_of
from etcd_server import PROGRAM, etcd
from s3_server import s3_server
from test_failover_kills import NAME, record_of

import pystore
from broker import Consumer, Message, Producer
from broker.client.errors import ClientError
from pystore.cli import main
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import collect, verify
from tests.cold.duty_kit import bodies_of
from tests.cold.faulty_s3 import FaultyS3, faulty_s3

pytestmark = [
    *([] if "PS_COLD_ROLES" in os.environ else [pytest.mark.long]),
    pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)"),
]

KILLS = int(os.environ.get("PS_COLD_ROLES", "16"))
#: Kills of one pair and its tier, before another one begins.
KILLS_A_PAIR = 28
BROKER = Path(__file__).with_name("cold_broker.py")
TOPIC, QUEUES = "orders", 2
INFO, MAKE_TOPIC, PULL, CLEAN = 28, 17, 11, 329
#: One request in so many fails.
SELDOM = 20
#: After so long without the request of a step the kill comes anyway.
PATIENCE_S = 30.0
SETTINGS = {
    "tieredUploadWaitMillis": 1000, "tieredPutsPerHour": 100_000_000, "fileReservedTime": 0,
    "cleanResourceInterval": 0, "mappedFileSizeCommitLog": 16 << 10,
    "flushIntervalConsumeQueue": 50, "controllerHeartBeatTimeoutMills": 3000,
}  # fmt: skip
#: By name: how a request begins that is of a step, and what is in its path.
REQUESTS = {
    "segment": ("PUT", "/COMMIT_LOG/"), "page": ("PUT", "/page-"),
    "manifest": ("PUT", "/rmq_sys_MANIFEST/"), "collector": ("POST", "?delete"),
    "look": ("GET", "list-type"), "read": ("GET", "/COMMIT_LOG/"),
}  # fmt: skip
STEPS = (
    *itertools.product(REQUESTS, (False, True)), ("local deletion", False), ("move", False),
    ("both", False), ("any time", False),
)  # fmt: skip

Places = dict[tuple[int, int], bytes]


class Sends:
    """Sends one message after the other, each once, and remembers where the acknowledged ones
    are."""

    def __init__(self, names: str, chance: random.Random) -> None:
        self.acknowledged: Places = {}
        self.problem = ""
        self._names, self._chance = names, chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Sends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with Producer("p", self._names, send_timeout_s=3, retries=0) as producer:
            for number in itertools.count():
                if self._over.wait(0.01):
                    return
                body = b"%d:" % number + b"." * self._chance.randrange(20, 2000)
                try:
                    sent = producer.send(Message(TOPIC, body))
                except (ClientError, OSError, TimeoutError, ValueError) as failed:
                    self.problem = f"{type(failed).__name__} {failed}"[:300]
                    continue
                if sent.status.name != "SEND_OK":
                    self.problem = sent.status.name
                    continue
                where = sent.queue.queue, sent.queue_offset
                if where in self.acknowledged:
                    self.problem = f"two messages were acknowledged at {where}"
                    return
                self.acknowledged[where] = body

    def wait(self, more: int) -> None:
        wanted = len(self.acknowledged) + more

        def enough() -> bool:
            assert self._thread.is_alive(), self.problem
            return len(self.acknowledged) >= wanted

        launch.wait(f"{more} acknowledged", enough)


class Trap:
    """Kills the first broker of which a request of a step comes. passed: once it was passed on."""

    def __init__(self, step: str, passed: bool) -> None:
        self._method, self._part = REQUESTS[step]
        self._manifests, self._passed = step == "manifest", passed
        self._lock = threading.Lock()
        self.caught: launch.Peer | None = None

    def meets(self, peer: launch.Peer, method: str, path: str, passed: bool) -> bool:
        """Says whether the request is of a broker that is no more."""
        with self._lock:
            wanted = (method, passed) == (self._method, self._passed) and self._part in path
            if self.caught is None and wanted and not (self._manifests and "/page-" in path):
                peer.kill()
                self.caught = peer
            return self.caught is peer


class Pair:
    """Two brokers, each before a server of its own that fails, their sender and their tier."""

    def __init__(self, controller: str, names: str, peers: list[launch.Peer],
                 fronts: list[FaultyS3], root: str, sends: Sends) -> None:  # fmt: skip
        self.controller, self.names, self.peers = controller, names, peers
        self.fronts, self.root, self.sends = fronts, root, sends
        self.gone = 0

    @property
    def tier(self) -> Tier:
        return new_tier(self.root, "DefaultCluster", NAME)

    def master(self) -> launch.Peer:
        address = record_of(self.controller).address
        return next(each for each in self.peers if each.broker == address)

    def settle(self) -> None:
        """Until both run, are in sync, and one serves."""

        def settled() -> bool:
            for peer in self.peers:
                if peer.broker_server.process is None:
                    peer.restart()
                assert peer.broker_server.process.poll() is None, peer.broker_server.said()
            record = record_of(self.controller)
            runs = [launch.ask(each.broker, INFO)[0] == 0 for each in self.peers]
            return all(runs) and bool(record.address) and len(record.in_sync) == 2

        launch.wait("two in sync", settled)

    # ---- the steps ----

    def kill_at(self, step: str, passed: bool, chance: random.Random) -> str:
        """Kills at a step, or soon. Returns what it was."""
        if step in REQUESTS:
            return self._trapped(step, passed, chance)
        time.sleep(chance.uniform(0, 1.5))
        if step == "local deletion":
            self._clean(chance)
        elif step == "move":
            self._move(chance)
        else:
            some = self.peers if step == "both" else [chance.choice(self.peers)]
            for peer in some:
                peer.kill()
        return step

    def _trapped(self, step: str, passed: bool, chance: random.Random) -> str:
        trap = Trap(step, passed)
        for peer, front in zip(self.peers, self.fronts, strict=True):
            front.watch = lambda *about, peer=peer: trap.meets(peer, *about)
        try:
            if step == "look":
                self._move(None)
            end_s = time.monotonic() + PATIENCE_S
            while trap.caught is None and time.monotonic() < end_s:
                if step == "read":
                    self._read(chance)
                time.sleep(0.02)
        finally:
            for front in self.fronts:
                front.watch = None
        if trap.caught is None:
            self.master().kill()
            return f"no {step}"
        return f"{step} {'after' if passed else 'before'}"

    def _read(self, chance: random.Random) -> None:
        """Has brokers read what may be in the tier alone."""
        for peer in self.peers:
            ext = {
                "consumerGroup": "readers", "topic": TOPIC,
                "queueId": str(chance.randrange(QUEUES)),
                "queueOffset": str(chance.randrange(20)), "maxMsgNums": "16", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            asking = threading.Thread(target=_unless_gone, args=(peer.broker, PULL, ext))
            asking.daemon = True
            asking.start()

    def _clean(self, chance: random.Random) -> None:
        """One of both is killed while it deletes what is out."""
        victim = chance.choice(self.peers)
        asking = threading.Thread(target=_unless_gone, args=(victim.broker, CLEAN, {}))
        asking.start()
        time.sleep(chance.choice((0, 0.01, 0.1)) * chance.random())
        victim.kill()
        asking.join()

    def _move(self, chance: random.Random | None) -> None:
        """Another one is to be the master; one of both is killed meanwhile."""
        record = record_of(self.controller)
        others = sorted(set(record.in_sync) - {record.master})
        if not others:
            return
        words = ["ha", "move", self.controller, NAME, str(others[0])]
        moving = threading.Thread(target=main, args=(words,))
        moving.start()
        if chance is not None:
            time.sleep(chance.choice((0.05, 1)) * chance.random())
            chance.choice(self.peers).kill()
        moving.join()

    def thin_out(self) -> None:
        """Has both delete what is out: while nobody lacks any of it, or he would need a copy."""
        for peer in self.peers:
            _unless_gone(peer.broker, CLEAN, {})

    # ---- what must hold ----

    def check(self) -> None:
        audit = verify(self.tier)
        assert (audit.wrong, audit.more) == ([], 0)
        known = dict(self.sends.acknowledged)
        found: list[Places] = []
        for path in (*(peer.store for peer in self.peers), self.tier.objects.address):
            with pystore.Reader(path) as reader:
                places = bodies_of(reader, TOPIC)
                self.gone = max(self.gone, reader.info().log_min)
            assert len(set(places.values())) == len(places), f"a message is twice in {path}"
            found.append(places)
        whole: Places = {}
        for places in found:
            strange = [at for at, body in places.items() if whole.setdefault(at, body) != body]
            assert not strange, f"two messages at {strange[:5]}"
        lost = [at for at, body in known.items() if whole.get(at) != body]
        assert not lost, f"{len(lost)} of {len(known)} are lost, as {sorted(lost)[:5]}"

    def check_consumed(self) -> None:
        """What a new group gets is everything, each message once."""
        known, found = dict(self.sends.acknowledged), Counter[tuple[int, int]]()
        with Consumer("late", TOPIC, namesrv=self.names, start="first") as consumer:

            def take() -> bool:
                for m in consumer.poll(1.0):
                    place = m.queue.queue, m.queue_offset
                    assert known.get(place, m.body) == m.body
                    found[place] += 1
                    consumer.ack(m)
                return known.keys() <= found.keys()

            launch.wait("everything", take)
        assert set(found.values()) == {1}


def _unless_gone(address: str, code: int, ext: dict[str, str]) -> None:
    """Asks a broker that may be killed meanwhile, and then answers nothing, or half of it."""
    with suppress(OSError, ValueError, struct.error):
        launch.ask(address, code, ext)


@contextmanager
def running_pair(folder: Path, behind: str, root: str, chance: random.Random) -> Iterator[Pair]:
    with ExitStack() as stack:
        at = stack.enter_context(etcd(folder / "etcd"))
        names = stack.enter_context(launch.name_server("ours", folder / "n"))
        under = Controller(names, at.address, launch.Server([], folder))
        fronts, peers = [], []
        for number in range(2):
            rng = random.Random(chance.random())
            front = stack.enter_context(faulty_s3(behind, rng, seldom=SELDOM, named=False))
            more = SETTINGS | {"tieredStoreFilePath": root}
            peer = member_of("ours", under, folder / f"m{number}", NAME, **more)
            server = peer.broker_server
            server.words = [sys.executable, str(BROKER), *server.words[2:]]
            server.env["AWS_ENDPOINT_URL"] = front.address
            server.start()
            stack.callback(server.stop)
            front.fails = True
            fronts.append(front)
            peers.append(peer)
        launch.wait("two in sync", lambda: len(record_of(at.address).in_sync) == 2)
        made = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
                "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false"}  # fmt: skip
        launch.wait(
            "a topic", lambda: launch.ask(record_of(at.address).address, MAKE_TOPIC, made)[0] == 0
        )
        sends = stack.enter_context(Sends(names, random.Random(chance.random())))
        yield Pair(at.address, names, peers, fronts, root, sends)


def kill_some(pair: Pair, steps: list[tuple[str, bool]], chance: random.Random) -> list[str]:
    met = []
    launch.wait("something in the tier", lambda: pair.tier.queues())
    for step, passed in steps:
        pair.settle()
        if chance.random() < 0.4:
            pair.thin_out()
        pair.sends.wait(10)
        met.append(pair.kill_at(step, passed, chance))
        print(f"{len(pair.sends.acknowledged)} acknowledged; killed: {met[-1]}", flush=True)
        time.sleep(chance.choice((0, chance.uniform(0, 4))))  # so that the other one is elected
        pair.settle()
        try:
            pair.check()
        except AssertionError as wrong:
            said = [each.broker_server.said() for each in pair.peers]
            raise AssertionError("\n---- ".join((f"after {met}: {wrong}", *said))) from None
    return met


def test_a_pair_killed_at_every_step_over_a_store_that_fails_loses_and_repeats_nothing(
    tmp_path: Path, seed: int
) -> None:
    import boto3

    chance, met, epochs, sent, gone = random.Random(seed), Counter[str](), 0, 0, 0
    steps = [STEPS[number % len(STEPS)] for number in range(KILLS)]
    chance.shuffle(steps)
    faults: Counter[str] = Counter()
    with s3_server() as behind:
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.close()
        for at in range(0, KILLS, KILLS_A_PAIR):
            root = f"s3://bucket/{at}"
            with running_pair(tmp_path / str(at), behind, root, chance) as pair:
                met.update(kill_some(pair, steps[at : at + KILLS_A_PAIR], chance))
                pair.settle()
                pair.thin_out()
                pair.check_consumed()
                pair.check()
                epochs += record_of(pair.controller).epoch
                sent, gone = sent + len(pair.sends.acknowledged), max(gone, pair.gone)
                for front in pair.fronts:
                    faults.update(front.faults)
            collect(pair.tier, grace_s=-1)
            audit = verify(pair.tier)
            assert (audit.wrong, audit.orphans) == ([], 0)
    print(f"{sent} acknowledged over {epochs} epochs, {gone} bytes of the log deleted")
    print(dict(met), dict(faults))
    assert gone > 0
