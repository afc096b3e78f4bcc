"""A slave that its master does not let in: why, in its log and as its problem, and nothing of the
master's log is stored here."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from listening import listening
from pairs import master_of, send, slave_of
from waiting import BOUND_S, until

import pystore
from broker import NameServer
from broker.services.config import Config
from broker.services.replication.elected_role import ElectedRole
from broker.services.replication.epochs import EpochFile
from broker.services.replication.slave import HaSlave, MasterKnown
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from pystore import Store
from pystore.native import ffi, lib
from pystore.settings import load

SEGMENT = 1 << 17
KEPT_OUT = "from 127.0.0.1 before it sent anything.* trustedSlaves"


def test_the_reason_is_logged_at_once_and_nothing_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        names = f"127.0.0.1:{server.port}"
        with caplog.at_level(logging.WARNING), slave_of(tmp_path / "s", names) as slave:
            shown = slave.services.replication.slave
            until(lambda: "no name server" in shown.problem, "a first reason")
            with master_of(tmp_path / "m", names, trustedSlaves="10.0.0.1") as master:
                master.create_topic("orders", 1)
                send(master, 10)
                until(lambda: "trustedSlaves" in shown.problem, "the second one")
                assert "closed the connection from 127.0.0.1" in shown.problem
                assert slave.store.info().log_max == 0
        said = [each for each in caplog.messages if "is not followed" in each]
        assert any("trustedSlaves does not name 127.0.0.1" in each for each in said)


def first_record(path: Path) -> bytes:
    with pystore.open(path, mappedFileSizeCommitLog=SEGMENT) as store:
        store.put("orders", b"x" * 100)
        return bytes(store.message(0).record)


@asynccontextmanager
async def kept_out(
    store: Store, close_after: int, record: bytes, elected: ElectedRole | None = None
) -> AsyncIterator[tuple[HaSlave, list[Command]]]:
    """A slave of a master with this first record, which closes each connection after so many bytes.
    And what was asked for."""
    asked: list[Command] = []

    async def ask(command: Command) -> Command:
        asked.append(command)
        await asyncio.sleep(0.01)
        if command.code == RequestCode.GET_BROKER_CONFIG:
            return command.reply(body=f"mappedFileSizeCommitLog={SEGMENT}\n".encode())
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            ends = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(record))}
            return command.reply(body=json.dumps({"table": ends}).encode())
        return command.reply(body=record)

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(close_after)

    async with listening(close) as address:

        async def ha_address() -> str:
            return address

        epochs = EpochFile(store.path / "epochFileCheckpoint", 0o644, [])
        known = MasterKnown("127.0.0.1:1")
        yield HaSlave(store, Config(load()), known, ask, elected, epochs, ha_address), asked


async def why_not(
    store: Store, close_after: int, record: bytes, elected: ElectedRole | None = None
) -> tuple[OSError, list[Command]]:
    """What ends such a slave, and what was asked for."""
    async with kept_out(store, close_after, record, elected) as (slave, asked):
        with pytest.raises(OSError, match=KEPT_OUT) as why:
            await slave.follow_once()
    return why.value, asked


@pytest.fixture
def follower(tmp_path: Path) -> Callable[[bytes], Store]:
    def begin(data: bytes) -> Store:
        store = pystore.open(tmp_path / "s", mappedFileSizeCommitLog=SEGMENT)
        assert lib.ps_follow_begin(store.c_handle()) == 0
        error = ffi.new("ps_error *")
        if data:
            assert lib.ps_follow_append(store.c_handle(), 0, data, len(data), error) == 0
        return store

    return begin


def test_an_empty_log_begins_with_nothing_of_a_master_that_keeps_it_out(
    tmp_path: Path, follower: Callable[[bytes], Store]
) -> None:
    record = first_record(tmp_path / "m")
    with follower(b"") as store:
        _, asked = asyncio.run(why_not(store, 0, record))
        assert store.info().log_max == 0
        assert {each.code for each in asked} >= {RequestCode.VIEW_MESSAGE_BY_ID}


def test_by_the_word_of_a_master_that_keeps_it_out_no_log_is_another_one(
    tmp_path: Path, follower: Callable[[bytes], Store]
) -> None:
    """Which haTruncateDiverged would cut back."""
    record = first_record(tmp_path / "m")
    with follower(record) as store:
        asyncio.run(why_not(store, 0, record[:-1] + b"?"))


@pytest.mark.parametrize("elected", [None, ElectedRole(2)])
def test_a_connection_that_ends_before_a_frame_has_the_same_reason(
    elected: ElectedRole | None, tmp_path: Path, follower: Callable[[bytes], Store]
) -> None:
    """After the report, or after the greeting under a controller."""
    record = first_record(tmp_path / "m")
    with follower(record) as store:
        asyncio.run(why_not(store, 16 if elected else struct.calcsize(">q"), record, elected))


async def pauses_of(slave: HaSlave, monkeypatch: pytest.MonkeyPatch, count: int) -> list[float]:
    """Its first pauses between two connections, none of which is waited for."""
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float) -> None:
        if delay >= 0.1:  # not one of the master's
            pauses.append(delay)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    slave.start()
    async with asyncio.timeout(BOUND_S):
        while len(pauses) < count:
            await real(0.001)
    await slave.stop()
    return pauses[:count]


def test_a_connection_that_ends_at_once_does_not_begin_the_pauses_again(
    tmp_path: Path, follower: Callable[[bytes], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = first_record(tmp_path / "m")

    async def run(store: Store) -> list[float]:
        async with kept_out(store, struct.calcsize(">q"), record) as (slave, _):
            return await pauses_of(slave, monkeypatch, 3)

    with follower(record) as store:
        assert asyncio.run(run(store)) == [1.0] * 3


def test_a_slave_goes_on_after_an_error_that_nobody_expected(
    tmp_path: Path, follower: Callable[[bytes], Store], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async def fail() -> None:
        raise RuntimeError("odd")

    async def run(store: Store) -> list[float]:
        async with kept_out(store, 0, b"") as (slave, _):
            monkeypatch.setattr(slave, "follow_once", fail)
            pauses = await pauses_of(slave, monkeypatch, 2)
            assert slave.problem == "odd"
            return pauses

    with follower(b"") as store:
        assert asyncio.run(run(store)) == [1.0] * 2
    assert "RuntimeError: odd" in caplog.text
