"""Power failures: of what was not synced a random subset is left, folder entries too (power.py).

Under SYNC_FLUSH everything that was acknowledged is in the log, delivered by its queue and found by
its key, in order. Under ASYNC_FLUSH only what no sync covers may be lost, and the report says from
where to where. No committed offset leads past the end of its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import uvloop
from waiting import until, until_async

import pystore
from broker import AsyncAdmin, AsyncConsumer, AsyncProducer, Message
from broker.client import ClientError
from pystore import Action
from pystore.audit import verify
from pystore.audit.kinds import NoQueueFinding

sys.path.insert(0, str(Path(__file__).parent))
import audit
import power
import transactions

#: `make crash` makes 1,000 images.
IMAGES = int(os.environ.get("PS_POWER_IMAGES", "40"))
#: Images of one life: some while it goes on, the rest of its end.
PER_LIFE = 5
LIVES = max(1, IMAGES // (4 * PER_LIFE))
WRITER = Path(__file__).with_name("writer.py")
FLUSH = ["SYNC_FLUSH", "ASYNC_FLUSH"]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = power.build(tmp_path_factory.mktemp("shim"))
    if made is None:
        pytest.skip("needs Linux and a C compiler")
    return made


def some_settings(rng: random.Random, flush: str) -> dict[str, object]:
    return {
        "mappedFileSizeCommitLog": rng.choice((64 << 10, 256 << 10)),
        "mappedFileSizeConsumeQueue": rng.choice((400, 6000)),
        "maxHashSlotNum": 64,
        "maxIndexNum": rng.choice((100, 1024)),
        "flushDiskType": flush,
        "flushIntervalCommitLog": rng.choice((10, 100)),
        "flushIntervalConsumeQueue": rng.choice((10, 100)),
        "flushConsumeQueueThoroughInterval": rng.choice((50, 60_000)),
    }


# ---- what must hold of an image ----


def synced_end(disk: power.Disk) -> int:
    """Everything of the log below is durable."""
    root = disk.tree()
    folder = root.durable.get("commitlog")
    end = 0
    for name, file in sorted(folder.durable.items() if isinstance(folder, power.Folder) else ()):
        durable, now = disk.content(file, disk.root / "commitlog" / name)
        same = next((i for i, (a, b) in enumerate(zip(durable, now, strict=False)) if a != b), None)
        if same is not None or len(durable) < len(now):
            return int(name) + (len(durable) if same is None else same)
        end = int(name) + len(now)
    return end


def record_size(root: Path, place: int) -> int:
    """Of a record that a store wrote."""
    for file in (root / "commitlog").iterdir():
        base = int(file.name)
        if base <= place < base + file.stat().st_size:
            return int.from_bytes(file.read_bytes()[place - base :][:4], "big")
    raise AssertionError(place)


def check_tail(
    store: pystore.Store, ledger: list[list[object]], durable: int, size_at: Callable[[int], int]
) -> int:
    """What is lost was not synced, and the report names its range; how much it is."""
    there = {(m.topic, m.queue, m.queue_offset, m.physical_offset) for m in store.messages()}
    report = store.report
    lost = [row[5] for row in ledger if row[5] >= 0 and tuple(row[2:6]) not in there]
    for place in lost:
        assert place + size_at(place) > durable, (place, durable, report)
        named = [
            i for i in report.items
            if i.what == "commitlog" and i.action is not Action.KEPT and i.start <= place < i.end
        ]  # fmt: skip
        assert place >= report.log_max or named or report.items_dropped, (place, report)
    return len(lost)


@dataclass
class Claim:
    """What must hold of an image. durable: the log below is there."""

    flush: str
    ledger: list[list[object]]
    durable: int
    size_at: Callable[[int], int]

    def check(self, path: Path, settings: dict[str, object], thorough: bool) -> int:
        """Opens an image; how many acknowledged messages it lost."""
        with pystore.open(path, **settings) as store:
            nowhere = audit.check_delivered(store)
            audit.check_offsets(store)
            lost = 0
            if self.flush == "SYNC_FLUSH":
                audit.check_acknowledged(store, self.ledger, keys=50)
            else:
                lost = check_tail(store, self.ledger, self.durable, self.size_at)
            audit.check_goes_on(store)
        if thorough:  # it starts a process
            errors = verify(path).errors
            unnamed = [f for f in errors if not isinstance(f, NoQueueFinding)]
            assert not unnamed and {f.start for f in errors} == nowhere, errors
        return lost


def whole_tree(disk: power.Disk) -> bool:
    """Whether the shim has noted all that a frozen process did to folders."""

    def names(folder: power.Folder, at: str) -> set[str]:
        found = set()
        for name, what in folder.names.items():
            found.add(at + name)
            if isinstance(what, power.Folder):
                found |= names(what, f"{at}{name}/")
        return found

    there = {str(path.relative_to(disk.root)) for path in disk.root.rglob("*")}
    return names(disk.tree(), "") == there


class Images:
    """Makes images of a disk and checks each, with the number that repeats it."""

    def __init__(self, tmp: Path, settings: dict[str, object], seed: int) -> None:
        self.tmp, self.settings, self.seed = tmp, settings, seed
        self.count = self.lost = self.beyond = 0

    def take(self, disk, count, ledger, more=lambda image: None):
        """more: what else must hold of an image that was opened and closed."""
        flush, durable = str(self.settings["flushDiskType"]), synced_end(disk)
        claim = Claim(flush, ledger, durable, partial(record_size, disk.root))
        self.beyond += sum(row[5] >= durable for row in ledger)
        for _ in range(count):
            self.count += 1
            rng = random.Random(self.seed * 1_000_003 + self.count)
            image = self.tmp / f"image-{self.count}"
            disk.image(image, rng)
            given = self.settings if rng.random() < 0.5 else {}  # else sizes are the files'
            self.lost += claim.check(image, given, self.count % PER_LIFE == 0)
            more(image)
            shutil.rmtree(image)


# ---- the store by itself ----


def fresh_disk(shim, tmp, name, rng):
    return power.Disk(
        shim, tmp / f"{name}-root", tmp / f"{name}-kept", rng.randrange(1 << 30),
        speed=rng.choice((0, 50)),
    )  # fmt: skip


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("life", range(LIVES))
def test_writer(shim: Path, tmp_path: Path, seed: int, flush: str, life: int):
    """Puts one by one, in batches and delayed, while offsets are committed."""
    seed += life
    rng = random.Random(seed)
    settings = some_settings(rng, flush)
    print(settings)
    images = Images(tmp_path, settings, seed)
    disk, ledger_path = fresh_disk(shim, tmp_path, "first", rng), tmp_path / "ledger"
    ledger_path.touch()
    threads = rng.choice((1, 3))
    command = [sys.executable, WRITER, disk.root, json.dumps(settings), ledger_path]
    writer = disk.start(*command, rng.randrange(1 << 30), threads, rng.choice((0, 0.001)))

    def taken() -> bool:
        with power.frozen(writer):
            whole = whole_tree(disk)
            if whole:
                images.take(disk, 1, audit.ledger_of(ledger_path))
        return whole

    try:
        for _ in range(2):
            seen = ledger_path.stat().st_size
            until(lambda seen=seen: ledger_path.stat().st_size > seen, "a put that is acknowledged")
            time.sleep(rng.uniform(0, 0.15))
            assert writer.poll() is None, writer.stderr.read()
            until(taken, "a journal that is up to date")
    finally:
        writer.kill()
        writer.communicate()
    images.take(disk, PER_LIFE - 2, audit.ledger_of(ledger_path))
    print(f"{images.lost} lost of {images.beyond} that no sync covered")
    assert flush == "ASYNC_FLUSH" or images.beyond == 0


# ---- under the broker ----


async def send(namesrv: str, rng: random.Random, told: list[list[object]], thread: int) -> None:
    """One by one, in batches and delayed, until it is cancelled."""
    async with AsyncProducer(f"makers{thread}", namesrv) as producer:
        for number in range(1 << 30):
            run, topic = f"0-{thread}-{number}", f"T{rng.randrange(2)}"
            body = run.encode() + rng.randbytes(rng.choice((10, 3000)))
            message = Message(topic, body, keys=run, tags="a")
            if number % 9 == 7:
                message = Message(topic, body, keys=run, delay_level=1)
            if number % 9 == 8:
                await producer.send_batch([message, Message(topic, body, keys=run)])
                continue  # where each of a batch is, a client is not told
            sent = await producer.send(message)
            if number % 9 == 7:  # its offset is that of the delayed queue
                topic, queue = audit.DELAYED, 0
            else:
                queue = sent.queue.queue
            crc = zlib.crc32(body)
            told.append([thread, number, topic, queue, sent.queue_offset, -1, crc, run])


async def consume(namesrv: str) -> None:
    topics = {"T0": "*", "T1": "*"}
    options = {"namesrv": namesrv, "start": "first", "auto_commit_s": 0.05}
    async with AsyncConsumer("readers", topics, **options) as consumer:
        async for _ in consumer:
            pass


async def broker_life(disk, images: Images, rng: random.Random) -> None:
    told: list[list[object]] = []
    halves = transactions.Ledger()
    options = ("--with-namesrv", "--namesrv-port", "0")
    broker = await asyncio.to_thread(
        transactions.Broker, disk.root, images.settings, disk.start, *options
    )
    namesrv = broker.told["namesrv"]
    makers = [
        asyncio.create_task(transactions.produce(broker.port, rng, halves, b"tx%d" % i))
        for i in range(2)
    ]
    clients = [asyncio.create_task(send(namesrv, rng, told, i)) for i in range(2)]
    clients.append(asyncio.create_task(consume(namesrv)))

    def sound(image: Path) -> None:
        if images.settings["flushDiskType"] == "SYNC_FLUSH":
            transactions.audit(image, halves, forgets=True)

    try:
        for _ in range(2):
            seen = len(told)
            await until_async(lambda seen=seen: len(told) > seen + 10 and halves.told)
            await asyncio.sleep(rng.uniform(0, 0.2))
            with power.frozen(broker.process):
                images.take(disk, 1, told, sound)
    finally:
        broker.kill()
        for task in clients:
            task.cancel()
        with contextlib.suppress(ClientError, OSError):
            await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.gather(*makers)
    images.take(disk, PER_LIFE - 2, told, sound)
    assert halves.told


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("life", range(LIVES))
def test_broker(shim: Path, tmp_path: Path, seed: int, flush: str, life: int):
    """A broker with producers, a consumer and transactions."""
    seed += life
    rng = random.Random(seed)
    settings = some_settings(rng, flush) | {"transactionOpBatchInterval": 2000}
    print(settings)
    images = Images(tmp_path, settings, seed)
    uvloop.run(broker_life(fresh_disk(shim, tmp_path, "first", rng), images, rng))
    print(f"{images.lost} lost of {images.beyond} that no sync covered")


# ---- lite topics ----


async def delete_lite_topics(namesrv: str) -> None:
    """Returns once the broker has said that those of one topic are gone."""
    producer = AsyncProducer("makers", namesrv, send_timeout_s=60)
    async with AsyncAdmin(namesrv, request_timeout_s=60) as admin, producer:
        for topic in ("stays", "goes"):
            await admin.create_topic(topic, attributes={"message.type": "LITE"})
            for n in range(30):
                await producer.send(Message(topic, b"x", lite_topic=f"n{n}"))
        await admin.delete_topic("goes")


def test_deleted_lite_topics_stay_away(shim: Path, tmp_path: Path, seed: int):
    """Their messages are in the log, of which light queues are made where the files lack them."""
    rng = random.Random(seed)
    disk = power.Disk(shim, tmp_path / "root", tmp_path / "kept", rng.randrange(1 << 30))
    settings = some_settings(rng, "SYNC_FLUSH") | {"flushConsumeQueueThoroughInterval": 600_000}
    options = ("--with-namesrv", "--namesrv-port", "0")
    broker = transactions.Broker(disk.root, settings, disk.start, *options)
    try:
        uvloop.run(delete_lite_topics(broker.told["namesrv"]))
    finally:
        broker.kill()
    for n in range(PER_LIFE):
        disk.image(tmp_path / f"image-{n}", rng)
        with pystore.open(tmp_path / f"image-{n}") as store:
            found = {each.name for each in store.lights.some(0)[0]}
        assert found == {f"%LMQ%$stays$n{n}" for n in range(30)}
