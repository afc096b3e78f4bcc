"""The captured stream of a 5.3.3 master and its slave (tests/golden/ha-5.3.3.jsonl.xz): our slave
takes it and ends where Java's did; our master offers the same frames for the same log."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import lzma
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import BOUND_S, until

import pystore
from pystore import Store
from pystore.native import ffi, lib

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ha-5.3.3.jsonl.xz"
SEGMENT = 65_536
BEGIN, END = 196_608, 356_230
SHA = "1e9273529197b8e36acd947dd5ff379911622ff7f7f411649dcdb84db9cbc210"
#: The ends of the queues of the topic.
QUEUES = [206, 205, 204, 203]
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
    lib.ps_follow_end(store.c_handle())
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
        assert lib.ps_ha_master_take(master, its.detach(), 1, 1, error) == 0
        mine.settimeout(BOUND_S)
        mine.sendall(said("slave", connection)[:8])
        for frame in expected:
            if frame.at >= end:  # it was put while the slave was connected
                append(store, frame.at, frame.body)
            assert receive(mine, len(frame.raw)) == frame.raw
            mine.sendall(struct.pack(">q", frame.at + len(frame.body)))
        until(lambda: acked(master) == expected[-1].at + len(expected[-1].body), "the report")
        lib.ps_ha_master_stop(master)


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, "the master closed the connection"
        data += more
    return data


def acked(master: Any) -> int:
    room = ffi.new("ps_ha_peer[]", 2)
    return room[0].acked if lib.ps_ha_master_peers(master, room, 2) == 1 else -1
