"""An object store that fails, and a writer that ends, at every step: nothing is lost, nothing comes
twice, and nothing of it is loaded by who does not ask for it."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from duty_kit import FailingObjects

import pystore
from pystore.cold.buffers import BufferPool
from pystore.cold.failures import TierUnreachable
from pystore.cold.objects import open_objects
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import collect, verify


@pytest.fixture
def source(filled: Path) -> Any:
    with pystore.Reader(filled) as reader:
        yield reader


def _when(late: bool) -> str:
    return "after" if late else "before"


def tier_of(root: Path) -> Tier:
    return new_tier(root, "c1", "broker-a")


def check(source: pystore.Reader, root: Path) -> None:
    with ColdReader(root) as reader:
        for queue in source.queues("orders"):
            wanted = source.read("orders", queue.queue, 0, max_messages=1000)
            found = [
                (m.queue_offset, bytes(m.body))
                for batch in reader.batches(topic="orders", queue=queue.queue)
                for m in batch
            ]
            assert found == [(m.queue_offset, bytes(m.body)) for m in wanted]
    collect(tier_of(root), grace_s=-1)
    audit = verify(tier_of(root))
    assert (audit.wrong, audit.orphans) == ([], 0)


@pytest.mark.parametrize("late", [False, True])
def test_a_writer_that_ends_at_any_step_loses_nothing(
    source: pystore.Reader, tmp_path: Path, late: bool
):
    step = 0
    while True:
        root = tmp_path / f"{step}"
        tier, left = tier_of(root), iter([""] * step + [_when(late)])
        tier.objects = FailingObjects(tier.objects, partial(next, left, ""))
        try:
            push(source, tier, topics=["orders"], segment_bytes=16 << 10)
        except TierUnreachable:
            push(source, tier_of(root), topics=["orders"], segment_bytes=16 << 10)
            check(source, root)
            step += 1
        else:
            break  # there are no more steps
    assert step > 15


@pytest.mark.parametrize("late", [False, True])
def test_a_store_that_fails_now_and_then_gets_everything_once(
    source: pystore.Reader, tmp_path: Path, late: bool
):
    rng, runs = random.Random(5), 0
    while True:
        tier = tier_of(tmp_path / "cold")
        tier.objects = FailingObjects(
            tier.objects, lambda: _when(late) if rng.random() < 0.05 else ""
        )
        try:
            done = push(source, tier, topics=["orders"], segment_bytes=4096)
        except TierUnreachable:
            continue
        runs += 1
        if done.messages == 0:
            break
    check(source, tmp_path / "cold")


def test_an_object_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(TierUnreachable, match="No space left"):
            open_objects(tmp_path).put_new("segment", b"data")
    assert list(tmp_path.iterdir()) == []


def test_who_has_no_tier_loads_nothing_of_it(filled: Path, tmp_path: Path):
    code = (
        "import sys, pystore\n"
        f"with pystore.Reader({str(filled)!r}) as reader: reader.read('orders', 0, 0)\n"
        "from broker import Broker\n"
        f"with Broker({str(tmp_path)!r}, listenPort=0): pass\n"
        "print([name for name in sys.modules if 'cold' in name or name == 'obstore'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("refused", [None, "flag", "write", "part"])
def test_an_object_of_any_size_is_written_whole_whatever_the_file_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str | None
):
    pwrite, passed = os.pwrite, []

    def write(fd: int, data: Any, at: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            passed.append(len(data))
            if refused == "write":
                raise OSError(errno.EINVAL, "Invalid argument")
            if refused == "part" and at:
                return pwrite(fd, data[:4096], at)
        return pwrite(fd, data, at)

    def set_flags(fd: int, command: int, flags: int = 0) -> int:
        if refused == "flag" and command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl.fcntl(fd, command, flags)

    monkeypatch.setattr("pystore.cold.objects.os.pwrite", write)
    monkeypatch.setattr("pystore.cold.objects.fcntl", SimpleNamespace(
        fcntl=set_flags, F_GETFL=fcntl.F_GETFL, F_SETFL=fcntl.F_SETFL))  # fmt: skip
    objects, pool = open_objects(tmp_path), BufferPool()
    for size in (0, 1, 4096, 1 << 20, (1 << 20) + 1, (3 << 20) + 4095):
        data = pool.take(size)
        data[:] = random.Random(size).randbytes(size)
        for number, given in enumerate((data, data[1:], bytes(data))):
            assert objects.put_new(f"{size}-{number}", given)
            assert (tmp_path / f"{size}-{number}").read_bytes() == given
    assert bool(passed) == (refused != "flag")


def test_a_disk_that_is_full_in_the_midst_of_an_object_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pwrite = os.pwrite

    def write(fd: int, data: Any, at: int) -> int:
        if at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data[:8192], at)

    monkeypatch.setattr("pystore.cold.objects.os.pwrite", write)
    with pytest.raises(TierUnreachable, match="No space left"):
        open_objects(tmp_path).put_new("segment", BufferPool().take(2 << 20))
    assert list(tmp_path.iterdir()) == []
