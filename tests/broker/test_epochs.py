"""Epochs of logs: where two of them part, Java's file, what is said before the log is sent."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until_async

from broker.services.replication.epochs import Epoch, EpochFile, common_end, merge
from broker.services.replication.greeting import MasterGreeting, greet_master, greet_slave
from broker.services.replication.slave import HaSlave

#: As a 5.3.3 broker wrote it.
JAVAS = b"1\n1725254278\n1-0\n"


def test_the_file_is_javas(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    EpochFile(path, 0o644, []).replace([Epoch(1, 0)])
    assert path.read_bytes() == JAVAS
    assert EpochFile.load(path, 0o644, 0).epochs == [Epoch(1, 0)]


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    made = EpochFile(path, 0o644, [])
    made.begin(1, 0)
    made.begin(4, 500)
    path.write_bytes(path.read_bytes().replace(b"4-500", b"4-501"))
    assert EpochFile.load(path, 0o644, 900).epochs == [Epoch(1, 0)]


def test_a_damaged_file_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(JAVAS.replace(b"1-0", b"1-9"))
    with pytest.raises(ValueError, match="checksum"):
        EpochFile.load(path, 0o644, 900)


def test_epochs_beyond_the_log_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    EpochFile(path, 0o644, []).replace([Epoch(1, 0), Epoch(2, 500)])
    assert EpochFile.load(path, 0o644, 499).epochs == [Epoch(1, 0)]


def test_an_epoch_that_goes_back_is_refused(tmp_path: Path) -> None:
    made = EpochFile(tmp_path / "epochFileCheckpoint", 0o644, [])
    made.begin(3, 100)
    with pytest.raises(ValueError, match="epoch 2"):
        made.begin(2, 200)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "expected"),
    [
        ([(1, 0)], 100, [(1, 0)], 300, 100),  # behind
        ([(1, 0)], 300, [(1, 0)], 100, 100),  # beyond
        ([(1, 0)], 300, [(1, 0), (2, 200)], 250, 200),  # a tail that the next master lacked
        ([(1, 0), (2, 100)], 300, [(1, 0), (3, 100)], 400, 100),
        ([(1, 0), (2, 100)], 300, [(1, 0), (2, 150)], 400, 100),
        ([(1, 0), (3, 150)], 300, [(1, 0), (2, 100), (3, 200)], 400, 100),
        ([(1, 0), (2, 500)], 300, [(1, 0), (3, 400)], 600, 300),  # nothing of epoch 2 came
        ([(1, 0)], 100, [(2, 0)], 100, -1),
        ([], 100, [(1, 0)], 100, -1),
    ],
)
def test_where_two_logs_part(
    ours: list[tuple[int, int]], our_end: int, theirs: list[tuple[int, int]], their_end: int,
    expected: int,
) -> None:  # fmt: skip
    one, other = [Epoch(*e) for e in ours], [Epoch(*e) for e in theirs]
    assert common_end(one, our_end, other, their_end) == expected


class History:
    """A log whose bytes are known by the epoch that put them."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.bytes: list[int] = []

    def lead(self, epoch: int, count: int) -> None:
        self.epochs.append(Epoch(epoch, len(self.bytes)))
        self.bytes += [epoch] * count

    def follow(self, master: History, upto: int) -> None:
        end = len(self.bytes)
        at = common_end(self.epochs, end, master.epochs, len(master.bytes)) if end else 0
        assert at >= 0
        assert self.bytes[:at] == master.bytes[:at]
        self.epochs = merge(self.epochs, master.epochs, at)
        self.bytes = master.bytes[: max(at, upto)]


def test_logs_of_any_history_are_alike_up_to_where_they_are_said_to_part(
    rng: random.Random,
) -> None:
    for _ in range(200):
        logs = [History() for _ in range(3)]
        logs[0].lead(1, 5)
        for log in logs[1:]:
            log.follow(logs[0], 5)
        for epoch in range(2, 12):
            master = rng.choice(logs)
            master.lead(epoch, rng.randrange(6))
            for log in logs:
                if log is not master and rng.random() < 0.6:
                    log.follow(master, rng.randrange(len(master.bytes) + 1))
                    log.epochs = [e for e in log.epochs if e.start <= len(log.bytes)]


async def test_master_and_slave_tell_each_other_who_they_are() -> None:
    one, other = socket.socketpair()
    for each in (one, other):
        each.setblocking(False)
    epochs = [Epoch(1, 0), Epoch(5, 700)]
    slave, master = await asyncio.gather(greet_slave(one, epochs, 900), greet_master(other, 7))
    assert (slave.number, slave.learner, slave.compares) == (7, False, True)
    assert master == MasterGreeting(900, epochs)
    one.close()
    other.close()


@pytest.mark.parametrize("data", [b"\0" * 16, b"\xff" * 16, b"GET / HTTP/1.1\r\n"])
async def test_whoever_is_no_slave_is_not_greeted(data: bytes) -> None:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.sendall(data)
    with pytest.raises((ValueError, OSError)):
        await greet_slave(one, [Epoch(1, 0)], 0)
    one.close()
    other.close()


class _SlowFile(EpochFile):
    """Its write takes until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 0o644, [])
        self.begun, self.may_end = threading.Event(), threading.Event()

    def replace(self, epochs: Any) -> None:
        self.begun.set()
        self.may_end.wait()
        super().replace(epochs)


@pytest.mark.parametrize("masters", range(3))
async def test_a_slave_that_is_stopped_ends_its_write_first(tmp_path: Path, masters: int) -> None:
    """What comes after it, such as a master that begins its epoch, writes the same file: also where
    it has heard of other masters meanwhile, at once after each other."""
    epochs = _SlowFile(tmp_path / "epochFileCheckpoint")
    slave = HaSlave.__new__(HaSlave)
    slave._epochs, slave._task, slave._ending = epochs, None, set()
    slave._store = SimpleNamespace(info=lambda: SimpleNamespace(log_max=0))  # type: ignore
    slave._run = lambda: slave._agree([Epoch(1, 0)], 10)  # type: ignore
    slave.start()
    await until_async(epochs.begun.is_set)
    for _ in range(masters):
        slave.again()
    stopping = asyncio.create_task(slave.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    ended = stopping.done()
    epochs.may_end.set()
    await stopping
    assert not ended
    assert EpochFile.load(epochs.path, 0o644, 10).epochs == [Epoch(1, 0)]
