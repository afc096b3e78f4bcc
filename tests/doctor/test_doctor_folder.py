"""The doctor of a folder and its machine: each misconfiguration is set up, and found."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import pystore
from broker.doctor import Diagnosis, examine_folder, folder

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
NOBODY = 65534


def seen(path: Path, conf: Path | None = None, **given: Any) -> dict[str, Diagnosis]:
    return {each.check: each for each in examine_folder(path, conf, given)}


def found(path: Path, check: str, conf: Path | None = None, **given: Any) -> Diagnosis:
    all_of_them = seen(path, conf, **given)
    assert check in all_of_them, all_of_them
    return all_of_them[check]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with pystore.open(path, **SMALL) as made:
        for number in range(10):
            made.put("orders", b"%d apples" % number, keys=f"k{number}")
    return path


def test_nothing_is_found_in_a_good_folder(store: Path) -> None:
    """What depends on the machine of the test does not count: its disk may be memory."""
    machine = {"volatile-disk", "network-disk", "few-files", "slow-disk", "disk-full"}
    assert not set(seen(store)) - machine
    before = sorted(store.rglob("*"))
    assert not set(seen(store, **SMALL, listenPort=0, maxMessageSize=1 << 16)) - machine
    assert sorted(store.rglob("*")) == before, "nothing is left behind"


def test_it_is_looked_at_while_a_broker_runs(tmp_path: Path) -> None:
    from examining import running

    with running(tmp_path / "s") as broker:
        conf = {**SMALL, "mappedFileSizeCommitLog": 4 << 20, "listenPort": broker.port}
        assert not {"port-taken", "crashed", "no-rights"} & set(seen(tmp_path / "s", **conf))


def test_there_is_no_store(tmp_path: Path) -> None:
    found(tmp_path / "none", "not-a-store")
    (tmp_path / "file").touch()
    assert "this is not a folder" in found(tmp_path / "file", "not-a-store").text
    (tmp_path / "empty").mkdir()
    assert "commitlog" in found(tmp_path / "empty", "not-a-store").text


@contextmanager
def without_rights_of_root():
    """Root reads everything; without two capabilities it is bound by the modes of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    before = data[0]
    data[0] &= ~(1 << 1 | 1 << 2)
    assert libc.capset(header, data) == 0
    try:
        with mock.patch("os.access", functools.partial(_access, os.access)):
            yield
    finally:
        data[0] = before
        assert libc.capset(header, data) == 0


def _access(real: Callable[..., bool], path: Any, mode: int, **_: Any) -> bool:
    return real(path, mode, effective_ids=True)


def test_files_may_not_be_written(store: Path) -> None:
    segment = next((store / "commitlog").iterdir())
    segment.chmod(0o400)
    with without_rights_of_root():
        diagnosis = found(store, "no-rights")
    assert segment.name in diagnosis.text and "chown" in diagnosis.mend


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_belong_to_two_users(store: Path) -> None:
    os.chown(next((store / "commitlog").iterdir()), NOBODY, NOBODY)
    assert "root" in found(store, "other-owner").text


def test_it_lies_in_memory(store: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        pytest.skip("there is no /dev/shm")
    there = memory / f"doctor-{os.getpid()}"
    shutil.copytree(store, there)
    try:
        assert "tmpfs" in found(there, "volatile-disk").text
    finally:
        shutil.rmtree(there)


def test_it_lies_on_a_network(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/export {store.parent} nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n")
    monkeypatch.setattr(folder, "_MOUNTS", mounts)
    found(store, "network-disk")


def test_its_disk_is_slow(store: Path, monkeypatch: Any) -> None:
    """Each sync waits longer than is allowed."""
    real = os.fdatasync

    def slow(file: int) -> None:
        time.sleep(0.06)
        real(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    assert "sync" in found(store, "slow-disk").text


def test_its_disk_is_full(disk_path: Path) -> None:
    usage = shutil.disk_usage(disk_path)
    if usage.used / usage.total < 0.36:
        pytest.skip("this disk is nearly empty")
    path = disk_path / "store"
    with pystore.open(path, **SMALL) as made:
        made.put("orders", b"apples")
    found(path, "disk-full", diskSpaceWarningLevelRatio=35, diskMaxUsedSpaceRatio=10)


def test_its_disk_is_full_soon(tmp_path: Path, monkeypatch: Any) -> None:
    """Two messages that lie two minutes apart, and a disk that has little room at this rate."""
    path = tmp_path / "s"
    with pystore.open(path, **SMALL) as made:
        made.put("orders", b"1" * 100_000)
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(folder, "_bytes_a_second", lambda at: usage.total / 3600)
    given = {"diskSpaceWarningLevelRatio": 98, "diskMaxUsedSpaceRatio": 75}
    assert "h, at" in found(path, "disk-full-soon", **given).text


def test_the_rate_is_that_of_the_log() -> None:
    class Info:
        store_timestamp_min, store_timestamp_max = 1_000_000, 1_120_000
        log_min, log_max = 4096, 4096 + 240_000

    assert folder._bytes_a_second(Info) == 2000.0


def test_the_disk_counts_as_the_store_counts_it(store: Path, monkeypatch: Any) -> None:
    """A third of its blocks is kept for the system: 50 of 60 are used, not 50 of 90."""
    usage = SimpleNamespace(total=90, used=50, free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    given = {"diskSpaceWarningLevelRatio": 80, "diskMaxUsedSpaceRatio": 75}
    assert "83%" in found(store, "disk-full", **given).text


def test_inodes_are_short(store: Path, monkeypatch: Any) -> None:
    real = os.statvfs(store)
    sizes = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")}
    few = SimpleNamespace(**sizes | {"f_files": 1000, "f_favail": 9})
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    found(store, "inodes-short")


def test_it_was_not_closed(golden: Callable[[str], Path]) -> None:
    assert found(golden("killed"), "crashed").severity.name == "INFO"


def test_a_configuration_file_is_broken(store: Path) -> None:
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_text('{"topicConfigTable": {')
    assert "topics.json" in found(store, "config-broken").text


def test_the_clock_lies_behind_the_log(store: Path, monkeypatch: Any) -> None:
    """An hour ago by this clock, the messages had not come yet."""
    real = time.time_ns

    class Slow:
        perf_counter = staticmethod(time.perf_counter)

        @staticmethod
        def time_ns() -> int:
            return real() - 3600 * 10**9

    monkeypatch.setattr(folder, "time", Slow)
    assert "ahead" in found(store, "clock-behind").text


def test_the_port_is_taken(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in found(store, "port-taken", listenPort=port).text


def test_few_files_may_be_open(store: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from broker.doctor import examine_folder;"
        f" print(*(d.check for d in examine_folder(Path({str(store)!r}))))"
    )
    line = f"ulimit -n 1024; exec {sys.executable} -c {code!r}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert "few-files" in done.stdout.split()


def test_few_mappings_are_allowed(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "max_map_count").write_text("4\n")
    monkeypatch.setattr(folder, "_MAP_COUNT", tmp_path / "max_map_count")
    assert "sysctl" in found(store, "few-mappings").mend


def test_segments_have_another_size_than_the_setting(store: Path) -> None:
    given = SMALL | {"mappedFileSizeCommitLog": 2 << 20, "maxMessageSize": 1 << 16}
    diagnosis = found(store, "segment-size", **given)
    assert "mappedFileSizeCommitLog=1048576" in diagnosis.mend
