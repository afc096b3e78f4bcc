"""Whether what a slave has when it comes is its master's log: before slaves that answer as Java's
do, and serve their logs at their own ports for slaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from listening import listening

import pystore
from broker.services.replication.log_comparer import LogComparer, digest_of, record_before
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore import Store

SEGMENT = 1 << 17
COUNT = 60


@dataclass
class Slave:
    """A slave of Java's with this log."""

    log: bytes
    address: str = "127.0.0.1:11911"
    ha_port: int = 1
    #: Under a controller.
    has_epochs: bool = False
    #: With access control, which does not know the master.
    denies: bool = False
    read: int = field(default=0)

    def answer(self, command: Command) -> Command:
        if self.denies:
            return command.reply(ResponseCode.NO_PERMISSION, "who is that?")
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            ends = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(self.log))}
            return command.reply(body=json.dumps({"table": ends}).encode())
        if command.code == RequestCode.GET_BROKER_CONFIG:
            return command.reply(body=f"haListenPort={self.ha_port}\n".encode())
        at = int(command.ext["offset"])
        size = int.from_bytes(self.log[at : at + 4], "big")
        if 0 < size <= len(self.log) - at:
            return command.reply(body=self.log[at : at + size])
        return command.reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self.has_epochs:
                _, _, learner, _ = struct.unpack(">ihhq", await reader.readexactly(16))
                assert learner == 1, "it would be waited for"
                writer.write(struct.pack(">iiqiiq", 1, 12, len(self.log), 7, 7, 0))
                await reader.readexactly(4)
            at = struct.unpack(">q", await reader.readexactly(8))[0]
            with contextlib.suppress(OSError):
                while at < len(self.log):
                    data = self.log[at : at + 32_768]
                    head = struct.pack(">qi", at, len(data))
                    if self.has_epochs:
                        head = struct.pack(">iiqiqq", 2, len(data), at, 7, 0, 0)
                    writer.write(head + data)
                    await writer.drain()
                    at, self.read = at + len(data), self.read + len(data)

        async with listening(serve) as address:
            self.ha_port = int(address.rpartition(":")[2])
            if self.denies:
                self.address = f"127.0.0.1:{self.ha_port - 1}"
            yield


def comparer(store: Store, *slaves: Slave) -> LogComparer:
    async def members() -> dict[int, str]:
        return {0: "127.0.0.1:10911"} | {n: each.address for n, each in enumerate(slaves, 1)}

    async def ask(address: str, command: Command) -> Command:
        return next(each for each in slaves if each.address == address).answer(command)

    return LogComparer(store, members, ask, 3 if any(each.has_epochs for each in slaves) else None)


def compared(found: LogComparer, slave: Slave, host: str = "127.0.0.1") -> bool | None:
    async def run() -> bool | None:
        async with slave.serving():
            return await found.compare(host, len(slave.log))

    return asyncio.run(run())


def filled(folder: Path, letter: bytes) -> Iterator[Store]:
    with pystore.open(folder, mappedFileSizeCommitLog=SEGMENT) as store:
        for number in range(COUNT):
            store.put("orders", letter * (5000 + number), queue=0)
        yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield from filled(tmp_path / "m", b"a")


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[bytes]:
    for each in filled(tmp_path / "f", b"b"):
        yield log_of(each)


def log_of(store: Store) -> bytes:
    files = sorted((Path(store.path) / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[: store.info().log_max]


def border(store: Store) -> int:
    """Of a record in the middle."""
    return record_before(store, store.info().log_max // 2)[1]


def test_a_log_that_is_ours_is_ours(store: Store) -> None:
    log = log_of(store)
    for end in (border(store), SEGMENT, len(log)):
        slave = Slave(log[:end])
        assert compared(comparer(store, slave), slave) is True


def test_another_one_is_not(store: Store, foreign: bytes) -> None:
    slave = Slave(foreign[: border(store)])
    assert compared(comparer(store, slave), slave) is False


@pytest.mark.parametrize(("into", "has_epochs"), [(1, False), (7, False), (4000, False), (7, True)])
def test_half_a_record_is_compared_by_its_bytes(into: int, has_epochs: bool, store: Store) -> None:
    """The link of a healthy Java slave broke while it caught up."""
    slave = Slave(log_of(store)[: border(store) + into], has_epochs=has_epochs)
    assert compared(comparer(store, slave), slave) is True
    assert slave.read == into


def test_half_of_another_record_is_found(store: Store, foreign: bytes) -> None:
    """All whole records are the master's, and the half is of a message that it never had."""
    at = border(store)
    slave = Slave(log_of(store)[:at] + foreign[at : at + 4000])
    assert compared(comparer(store, slave), slave) is False


def test_who_may_not_be_asked_is_compared_by_its_bytes(store: Store, foreign: bytes) -> None:
    at = border(store)
    for log, same in ((log_of(store), True), (foreign, False)):
        slave = Slave(log[:at], denies=True)
        assert compared(comparer(store, slave), slave) is same
    assert asyncio.run(comparer(store, slave).compare("127.0.0.1", at)) is None  # its port is shut


def test_half_a_record_that_cannot_be_read_is_not_known(store: Store) -> None:
    at = border(store)
    slave = Slave(log_of(store)[: at + 100])
    assert asyncio.run(comparer(store, slave).compare("127.0.0.1", at + 100)) is None


def test_the_first_record_may_be_the_half(store: Store) -> None:
    slave = Slave(log_of(store)[:2000])
    assert compared(comparer(store, slave), slave) is True


def test_a_good_slave_of_the_same_host_does_not_vouch_for_another(
    store: Store, foreign: bytes
) -> None:
    at = border(store)
    good = Slave(log_of(store), "127.0.0.1:11911")
    bad = Slave(foreign[:at], "127.0.0.1:12911")
    assert compared(comparer(store, good, bad), bad) is False
    assert compared(comparer(store, good, bad), good) is True


def test_a_slave_that_comes_from_another_address_is_known_by_its_end(store: Store) -> None:
    slave = Slave(log_of(store)[: border(store)], "10.0.0.7:10911")
    found = comparer(store, slave)
    assert asyncio.run(found.compare("192.168.0.9", len(slave.log))) is True
    assert asyncio.run(found.compare("192.168.0.9", len(slave.log) - 1)) is None


@pytest.mark.parametrize("reads", [True, False])
def test_who_was_refused_is_compared_as_a_whole(reads: bool, store: Store, foreign: bytes) -> None:
    """The end of its log is the master's, as somebody else has appended it."""
    ours, at = log_of(store), border(store)
    bad, glued = Slave(foreign[:at]), Slave(foreign[:at] + ours[at:])
    slaves: dict[int, Slave] = {1: bad}

    async def members() -> dict[int, str]:
        return {1: "127.0.0.1:11911"}

    async def ask(_: str, command: Command) -> Command:
        return slaves[1].answer(command)

    found = LogComparer(store, members, ask)
    assert compared(found, bad) is False
    for slaves[1], same in ((glued, False), (Slave(ours), True), (glued, True)):
        if reads:
            assert compared(found, slaves[1]) is same
        else:
            assert asyncio.run(found.compare("127.0.0.1", len(ours))) is same


def test_a_slave_of_ours_shows_its_end_by_itself(store: Store) -> None:
    """A clone is registered nowhere, and nobody could ask it."""
    found, at = comparer(store), border(store)
    last, _ = record_before(store, at)
    record = bytes(store.message(last).record)
    shown = {"replicaEnd": str(at), "replicaDigest": digest_of(record)}
    for wrong in ({"replicaDigest": digest_of(record[:-1])}, {"replicaEnd": str(at + 1)}, {}):
        found.take_proof("10.0.0.7", last, record, shown | wrong if wrong else {})
        assert asyncio.run(found.compare("10.0.0.7", at)) is None
    found.take_proof("10.0.0.7", last, record, shown)
    assert asyncio.run(found.compare("10.0.0.7", at)) is True
    assert asyncio.run(found.compare("10.0.0.8", at)) is None


def test_the_record_before_a_place_is_whole(store: Store) -> None:
    starts = [each.physical_offset for each in store.messages()]
    end = store.info().log_max
    closes = {at: at + len(store.message(at).record) for at in starts}
    for place in (0, 1, *starts[:3], SEGMENT - 1, SEGMENT, SEGMENT + 1, end - 1, end, end + 9):
        last, found = record_before(store, place)
        assert last == max((at for at in starts if closes[at] <= place), default=-1)
        assert (last == -1) or closes[last] <= found <= place
