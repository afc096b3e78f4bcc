"""The captured stream of a 5.3.3 master and its slave (tests/golden/ha-5.3.3.jsonl.xz): our slave
takes it and ends where Java's did; our master offers the same frames for the same log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import lzma
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import BOUND_S, until

import pystore
from broker.services.config import Config
from broker.services.replication.epochs import EpochFile
from broker.services.replication.slave import Diverged, HaSlave, MasterKnown
from broker.services.replication.synchronize import Ask
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from pystore import Store
from pystore.native import ffi, lib
from pystore.settings import load

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ha-5.3.3.jsonl.xz"
SEGMENT = 65_536
BEGIN, END = 196_608, 356_230
SHA = "1e9273529197b8e36acd947dd5ff379911622ff7f7f411649dcdb84db9cbc210"
#: The ends of the queues of the topic.
QUEUES = [206, 205, 204, 203]
#: Begins here, up to the first segment's end.
BLANK = 261_668
#: Where the master's log ended when the slave connected, by connection.
CONNECTIONS = {0: 210_888, 1: 354_940, 4: 354_940}
#: Longer than a test: heartbeats have their time in the capture, and none here.
QUIET_MS = 3_600_000


class Frame(NamedTuple):
    at: int
    body: bytes

    @property
    def raw(self) -> bytes:
        return struct.pack(">qi", self.at, len(self.body)) + self.body


def said(side: str, connection: int) -> bytes:
    lines = [json.loads(line) for line in lzma.decompress(GOLDEN.read_bytes()).splitlines()]
    return b"".join(
        base64.b64decode(line["data"])
        for line in lines
        if "data" in line and (line["from"], line["conn"]) == (side, connection)
    )


def frames(connection: int) -> list[Frame]:
    """Heartbeats included."""
    found, stream, at = [], said("master", connection), 0
    while at < len(stream):
        offset, count = struct.unpack_from(">qi", stream, at)
        found.append(Frame(offset, stream[at + 12 : at + 12 + count]))
        at += 12 + count
    return found


def log() -> bytes:
    """From BEGIN on."""
    return b"".join(frame.body for each in CONNECTIONS for frame in frames(each))


def conf() -> Any:
    given = {"heartbeat_ms": QUIET_MS, "idle_ms": QUIET_MS, "batch_bytes": 32_768}
    return ffi.new("ps_ha_conf *", given)


@contextlib.contextmanager
def following(folder: Path) -> Iterator[Store]:
    with pystore.open(folder, mappedFileSizeCommitLog=SEGMENT) as store:
        assert lib.ps_follow_begin(store.c_handle()) == 0
        yield store


def append(store: Store, at: int, data: bytes) -> None:
    error = ffi.new("ps_error *")
    code = lib.ps_follow_append(store.c_handle(), at, data, len(data), error)
    assert code == 0, ffi.string(error.text)


def ends(store: Store) -> list[int]:
    error = ffi.new("ps_error *")
    assert lib.ps_follow_end(store.c_handle(), error) >= 0, ffi.string(error.text)
    return [store.range("alpha", queue)[1] for queue in range(4)]


def test_the_capture_is_what_its_description_says() -> None:
    assert hashlib.sha256(log()).hexdigest() == SHA
    assert len(log()) == END - BEGIN


@pytest.mark.parametrize("piece", [1, 7, 1009, 1 << 20])
def test_our_slave_takes_it_in_any_pieces(piece: int, tmp_path: Path) -> None:
    """It begins with a late slave's last segment."""
    with following(tmp_path / "s") as store:
        whole = log() if piece > 7 else log()[:20_000]
        for cut in range(0, len(whole), piece):
            append(store, BEGIN + cut, whole[cut : cut + piece])
        if piece > 7:
            assert store.info().log_max == END
            assert ends(store) == QUEUES


def test_our_slave_follows_it_over_a_connection_and_reports_its_end(tmp_path: Path) -> None:
    """In pieces that cut frames anywhere."""
    stream = b"".join(said("master", each) for each in CONNECTIONS)
    mine, its = socket.socketpair()
    told, error, reports = os.eventfd(0), ffi.new("ps_error *"), b""
    with following(tmp_path / "s") as store, mine:
        slave = lib.ps_ha_slave_start(store.c_handle(), conf(), its.detach(), told, error)
        assert slave != ffi.NULL
        mine.settimeout(BOUND_S)
        for cut in range(0, len(stream), 1009):
            mine.sendall(stream[cut : cut + 1009])
        while not reports.endswith(struct.pack(">q", END)):
            reports += mine.recv(4096)
        lib.ps_ha_slave_stop(slave)
        assert ends(store) == QUEUES
    os.close(told)
    numbers = [each for (each,) in struct.iter_unpack(">q", reports)]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_our_master_offers_the_frames_of_a_java_master(connection: int, tmp_path: Path) -> None:
    """To the same reports, for the same log: whole segments' ends, blanks, single records."""
    end, whole, error = CONNECTIONS[connection], log(), ffi.new("ps_error *")
    expected = [frame for frame in frames(connection) if frame.body]
    mine, its = socket.socketpair()
    with following(tmp_path / "m") as store, mine:
        append(store, BEGIN, whole[: end - BEGIN])
        master = lib.ps_ha_master_start(store.c_handle(), conf(), error)
        assert lib.ps_ha_master_take(master, its.detach(), 1, 1, 1, error) == 0
        mine.settimeout(BOUND_S)
        mine.sendall(said("slave", connection)[:8])
        compared(master)
        for frame in expected:
            if frame.at >= end:  # it was put while the slave was connected
                append(store, frame.at, frame.body)
            assert receive(mine, len(frame.raw)) == frame.raw
            mine.sendall(struct.pack(">q", frame.at + len(frame.body)))
        until(lambda: acked(master) == expected[-1].at + len(expected[-1].body), "the report")
        lib.ps_ha_master_stop(master)


def test_the_blank_at_a_segments_end_is_sent_with_what_follows_it(tmp_path: Path) -> None:
    """A master that is killed after the blank and before the next record begins again where the
    blank is, and may put a record there: its slave must not have the blank."""
    border, whole, error = BEGIN + SEGMENT, log(), ffi.new("ps_error *")
    mine, its = socket.socketpair()
    with following(tmp_path / "m") as store, mine:
        master = lib.ps_ha_master_start(store.c_handle(), conf(), error)
        append(store, BEGIN, whole[: SEGMENT // 2])
        assert lib.ps_ha_master_take(master, its.detach(), 1, 1, 1, error) == 0
        mine.settimeout(BOUND_S)
        mine.sendall(struct.pack(">q", BEGIN))
        compared(master)
        until(lambda: sent(master) > BEGIN, "the first record")
        append(store, BEGIN + SEGMENT // 2, whole[SEGMENT // 2 : BLANK - BEGIN])
        until(lambda: sent(master) == BLANK, "the last record")
        append(store, BLANK, whole[BLANK - BEGIN : SEGMENT])
        assert store.info().log_max == border
        for _ in range(50):
            time.sleep(0.001)
            assert sent(master) == BLANK
        append(store, border, whole[SEGMENT : SEGMENT + 1024])
        until(lambda: sent(master) > border, "what follows")
        lib.ps_ha_master_stop(master)


@contextlib.contextmanager
def comparing(folder: Path, ask: Ask) -> Iterator[tuple[Store, HaSlave]]:
    """A slave that has the first half of the log, and asks this of its master."""

    async def answer(command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CONFIG:
            return command.reply(body=f"mappedFileSizeCommitLog={SEGMENT}\n".encode())
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            ends = {"commitLogMinOffset": str(BEGIN), "commitLogMaxOffset": str(END)}
            return command.reply(body=json.dumps({"table": ends}).encode())
        return await ask(command)

    with following(folder) as store, socket.create_server(("127.0.0.1", 0)) as port:
        epochs = EpochFile(store.path / "epochFileCheckpoint", 0o644, [])

        async def ha_address() -> str:
            return f"127.0.0.1:{port.getsockname()[1]}"

        known = MasterKnown("127.0.0.1:1")
        yield store, HaSlave(store, Config(load()), known, answer, None, epochs, ha_address)


def record_at(whole: bytes, at: int) -> bytes:
    size = int.from_bytes(whole[at - BEGIN : at - BEGIN + 4], "big")
    return whole[at - BEGIN : at - BEGIN + size]


def test_a_slave_with_a_blank_where_the_master_has_a_record_does_not_follow(
    tmp_path: Path,
) -> None:
    """As a master of Java's has it that was killed between the two."""
    whole, asked = log(), []

    async def ask(command: Command) -> Command:
        asked.append(int(command.ext["offset"]))
        # At the blank, any record will do.
        return command.reply(body=record_at(whole, BEGIN if asked[-1] == BLANK else asked[-1]))

    with comparing(tmp_path / "s", ask) as (store, slave):
        append(store, BEGIN, whole[:SEGMENT])
        with pytest.raises(Diverged, match=f"another record at {BLANK}"):
            asyncio.run(slave.follow_once())
        assert asked[-1] == BLANK


def test_a_log_that_grows_while_it_is_compared_is_the_masters(tmp_path: Path) -> None:
    whole, half = log(), SEGMENT // 2

    async def ask(command: Command) -> Command:
        if store.info().log_max == before:
            append(store, BEGIN + half, whole[half : SEGMENT - 1024])
        return command.reply(body=record_at(whole, int(command.ext["offset"])))

    with comparing(tmp_path / "s", ask) as (store, slave):
        append(store, BEGIN, whole[:half])
        before = store.info().log_max
        asyncio.run(slave._compare())
        assert store.info().log_max > before


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, "the master closed the connection"
        data += more
    return data


def compared(master: Any) -> None:
    """The slave's log is this one, as was found."""
    until(lambda: acked(master) >= 0, "its first report")
    lib.ps_ha_master_compared(master, 1, True)


def acked(master: Any) -> int:
    room = ffi.new("ps_ha_peer[]", 2)
    return room[0].acked if lib.ps_ha_master_peers(master, room, 2) == 1 else -1


def sent(master: Any) -> int:
    room = ffi.new("ps_ha_peer[]", 2)
    return room[0].sent if lib.ps_ha_master_peers(master, room, 2) == 1 else -1
