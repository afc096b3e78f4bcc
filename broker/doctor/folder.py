"""The folder of a store, and the machine that it lies on. Nothing there is changed: what is written
to measure a disk has no name."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.settings import loaded, of_problems
from broker.start_checks import Ask, on_this_machine
from pystore import Info, Reader
from pystore.cli.verbs import holder_of
from pystore.errors import StoreError
from pystore.files import javajson
from pystore.settings import Settings

__all__ = ["FILES_MIN", "check_folder", "disk_room", "sync_times"]

_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_MOUNTS = Path("/proc/mounts")
_VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph")
#: Syncs that are measured, bytes of each, and the median that is slow, seconds.
_SYNCS, _SYNC_BYTES, _SLOW_S = 15, 4096, 0.05
#: Fewer open files are soon used up by connections.
FILES_MIN = 10_000
_INODES_MIN = 10_000
#: How much older than the newest message a clock may be, ms.
_BEHIND_MS = 10_000
_SOON_H = 48.0
#: A file of JSON that is longer is not looked at, bytes.
_JSON_MAX = 64 << 20
#: A rate over less than this says little, seconds.
_SPAN_MIN_S = 60.0


def check_folder(path: Path, conf: Path | None, given: Mapping[str, object]) -> Iterator[Diagnosis]:
    """Checks a store, ours or Java's, whether a broker holds it or not. conf, given: settings of
    its broker, if they are known."""
    known, problems = loaded(conf, given)
    where = str(path)
    if conf is not None or given:
        if known is not None:
            wrong = frozenset(each.name for each in problems if each.is_error)
            ask = Ask(known, conf, path, thorough=not holder_of(path).locked)
            problems += on_this_machine(ask, wrong)
        yield from of_problems(problems, str(conf or "--set"))
    if not path.is_dir():
        there = "this is not a folder" if os.path.lexists(path) else "there is no such folder"
        yield diagnosed("not-a-store", where, there)
        return
    yield from _rights(path)
    log = path / "commitlog"
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        return
    if not log.is_dir() and (known is None or not known["storePathCommitLog"]):
        yield diagnosed("not-a-store", where, "it has no folder commitlog")
        return
    yield from _disk(path, known)
    yield from _limits(path)
    yield from _contents(path)
    if known is not None and (conf is not None or given):
        yield from _sizes(path, known)


# ---- whose it is ----


def _rights(path: Path) -> Iterator[Diagnosis]:
    user = pwd.getpwuid(os.geteuid()).pw_name
    owners: set[int] = set()
    refused: list[Path] = []
    for at in _files(path):
        try:
            owners.add(at.stat().st_uid)
        except OSError:
            continue
        mode = os.R_OK | os.W_OK | (os.X_OK if at.is_dir() else 0)
        if not os.access(at, mode, effective_ids=True):
            refused.append(at)
    if refused:
        text = f"{user} may not read and write {refused[0]}"
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        yield diagnosed("no-rights", str(path), text + more, user=user)
    if len(owners) > 1:
        names = ", ".join(sorted(_name_of(uid) for uid in owners))
        yield diagnosed("other-owner", str(path), f"its files belong to {names}", user=user)


def _files(path: Path) -> Iterator[Path]:
    """Yields the folder and what lies in it, but not each queue of each topic."""
    yield path
    for folder in ("", "commitlog", "index", "config", "meta", "consumequeue"):
        try:
            yield from sorted((path / folder).iterdir())
        except OSError:
            continue


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- its disk ----


def _disk(path: Path, settings: Settings | None) -> Iterator[Diagnosis]:
    kind = _filesystem(path)
    if kind in _VOLATILE:
        yield diagnosed("volatile-disk", str(path), f"it lies on {kind}, which is memory")
    elif kind in _NETWORK:
        yield diagnosed("network-disk", str(path), f"it lies on {kind}")
    stat = os.statvfs(path)
    if stat.f_files and stat.f_favail < _INODES_MIN:
        yield diagnosed("inodes-short", str(path), f"{stat.f_favail} inodes are free")
    yield from _room(path, settings)
    times = sync_times(path)
    if times and statistics.median(times) > _SLOW_S:
        text = f"a sync of 4 KiB takes {statistics.median(times) * 1000:.0f} ms (median)"
        yield diagnosed("slow-disk", str(path), text)


def _filesystem(path: Path) -> str:
    """Returns the kind of the file system that a folder lies on; empty where nobody says."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in lines:
        _, mounted, found, *_ = line.split()
        mounted = mounted.encode().decode("unicode_escape")
        inside = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind


def _room(path: Path, settings: Settings | None) -> Iterator[Diagnosis]:
    limit = settings.clamped("diskSpaceWarningLevelRatio") / 100 if settings is not None else 0.9
    reserved = settings["fileReservedTime"] if settings is not None else 0
    info = _info(path)
    log, rate = (0, 0.0) if info is None else (info.log_max - info.log_min, _bytes_a_second(info))
    yield from disk_room(str(path), _disk_use(path), limit, log, rate, reserved)


def disk_room(
    where: str, disk: tuple[float, float], limit: float, log: int, rate: float, reserved_h: float
) -> Iterator[Diagnosis]:
    """Checks the room on a disk. disk: the bytes that are used, and the bytes of it all. limit:
    where puts are refused, from 0 to 1. log: its bytes. rate: bytes a second by which it grows; 0:
    nobody knows. reserved_h: fileReservedTime; 0: nobody knows."""
    used, whole = disk
    if used / whole >= limit:
        text = f"{used / whole:.0%} of the disk are used, puts are refused from {limit:.0%} on"
        yield diagnosed("disk-full", where, text)
        return
    if rate <= 0:
        return
    hours, speed = (limit * whole - used) / rate / 3600, f"at {rate / 1e6:.1f} MB/s"
    if hours < _SOON_H:
        text = f"{limit:.0%} of the disk are used in {hours:.0f} h, {speed}"
        yield diagnosed("disk-full-soon", where, text)
    kept = hours + log / rate / 3600
    if kept < reserved_h:
        text = f"fileReservedTime is {reserved_h:g} h, {speed} the disk holds {kept:.0f} h"
        yield diagnosed("disk-under-retention", where, text)


def _info(path: Path) -> Info | None:
    """Returns what a store says of itself; None where it cannot be read."""
    try:
        with Reader(path) as reader:
            return reader.info()
    except (StoreError, OSError):
        return None


def _disk_use(path: Path) -> tuple[int, int]:
    """Returns the bytes that are used, and the bytes of it all, as the core counts them: what is
    kept for the system is neither."""
    found = shutil.disk_usage(path)
    return found.used, max(1, found.used + found.free)


def _bytes_a_second(info: Info) -> float:
    """Returns how fast the log has grown, over what it holds; 0 when nothing can be said."""
    seconds = (info.store_timestamp_max - info.store_timestamp_min) / 1000
    return (info.log_max - info.log_min) / seconds if seconds >= _SPAN_MIN_S else 0.0


def sync_times(folder: Path) -> list[float]:
    """Returns the seconds that syncs of a file without a name take; empty where none can be
    made."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return []
    try:
        found = []
        for number in range(_SYNCS):
            os.pwrite(file, b"\0" * _SYNC_BYTES, number * _SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(file)
            found.append(time.perf_counter() - began)
        return found
    except OSError:
        return []
    finally:
        os.close(file)


# ---- limits of the machine ----


def _limits(path: Path) -> Iterator[Diagnosis]:
    holder = holder_of(path)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    who = "this shell"
    if holder.pid:
        found = _limit_of(holder.pid)
        if found is not None:
            hard, who = found, f"process {holder.pid}"
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        yield diagnosed("few-files", str(path), f"{who} may open {hard} files")
    try:
        most = int(_MAP_COUNT.read_text())
    except (OSError, ValueError):
        return
    count = sum(len(files) for _, _, files in os.walk(path))
    if count * 1.2 > most:
        yield diagnosed("few-mappings", str(path), f"{count} files, {most} mappings are allowed")


def _limit_of(pid: int) -> int | None:
    """Returns how many files a process may open; None when it does not say, or has no limit."""
    try:
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                return int(line.split()[3])
    except (OSError, ValueError):
        pass
    return None


# ---- what lies in it ----


def _contents(path: Path) -> Iterator[Diagnosis]:
    if (path / "abort").exists() and not holder_of(path).locked:
        yield diagnosed("crashed", str(path), "it was not closed")
    for file in sorted((path / "config").glob("*.json")):
        try:
            if file.stat().st_size > _JSON_MAX:
                continue
            javajson.loads(file.read_bytes() or b"{}")
        except ValueError as bad:
            yield diagnosed("config-broken", str(path), f"config/{file.name} is not JSON: {bad}")
        except OSError:
            continue
    info = _info(path)
    behind = 0 if info is None else info.store_timestamp_max - time.time_ns() // 1_000_000
    if behind > _BEHIND_MS:
        text = f"the newest message is {behind / 1000:.0f} s ahead of the clock"
        yield diagnosed("clock-behind", str(path), text)


_SIZES = (
    ("commitlog", "mappedFileSizeCommitLog", 1),
    ("consumequeue", "mappedFileSizeConsumeQueue", 20),
)


def _sizes(path: Path, settings: Settings) -> Iterator[Diagnosis]:
    for folder, name, unit in _SIZES:
        wanted = -(-settings[name] // unit) * unit
        for file in (each for each in sorted((path / folder).rglob("*")) if each.is_file()):
            if file.name.isdigit() and file.stat().st_size != wanted:
                size = file.stat().st_size
                text = f"{file.relative_to(path)} has {size} bytes, {name} is {wanted}"
                yield diagnosed("segment-size", str(path), text, name=name, size=size)
                break
