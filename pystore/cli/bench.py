"""``pystore bench``: how fast a store is on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from pystore.cli._progress import ProgressBar
from pystore.cli._session import Session
from pystore.cli._values import Size, usage
from pystore.store._store import Store

__all__ = ["run"]

_TOPIC = "PystoreBench"
_QUERIES = 1000
_READ = 1024


def run(
    s: Session,
    messages: Annotated[int, typer.Option(min=1, help="Messages per measurement.")] = 200_000,
    size: Annotated[int, typer.Option(min=0, help="Body size in bytes.")] = 128,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Number of putting threads.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Messages per put_many call.")] = 1024,
    sync: Annotated[
        bool, typer.Option("--sync", help="Sync each put to disk (SYNC_FLUSH).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print machine and plan; store nothing.")
    ] = False,
) -> int | None:
    """Measure put, put_many, read and query, and print machine, payload and mode.

    STORE must be empty or missing, and is kept. Without it a temporary directory is used and
    removed. Machines are noisy: compare runs side by side, as a ratio.

    \b
    Examples:
      pystore bench
      pystore bench /mnt/disk/bench --messages 1000000 --size 512 --threads 4
      pystore bench --sync --messages 2000 --threads 16 --json
    """
    if s.named and s.exists():
        raise usage(
            f"'{s.path}' already contains a store; bench would fill it with test messages",
            "pass an empty directory, or none",
        )
    with ExitStack() as stack:
        if not s.named:
            folder = tempfile.mkdtemp(prefix="pystore-bench-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            s.path = Path(folder) / "store"
        _print_plan(s, messages, size, threads, batch, sync)
        if dry_run:
            return 0
        mode = {"flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
        store = stack.enter_context(s.writer(create=True, **mode))
        bar = stack.enter_context(s.progress("measuring", "messages"))
        rows = _Bench(store, bar, messages, size, threads, batch).rows()
        s.out.table("rates", ("work", "messages", "seconds", "messages/s", "body MB/s"), rows)
    return 0


def _print_plan(s: Session, messages: int, size: int, threads: int, batch: int, sync: bool) -> None:
    s.out.facts(
        "machine",
        {
            "processor": _processor(), "cores": os.cpu_count(), "system": platform.platform(),
            "python": platform.python_version(), "folder": str(s.path),
            "file system": _file_system(s.path),
        },
    )  # fmt: skip
    s.out.plan(
        {
            "messages": messages, "body": Size(size), "threads": threads, "batch": batch,
            "flush": "SYNC_FLUSH" if sync else "ASYNC_FLUSH", "topic": _TOPIC,
        }
    )  # fmt: skip


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(path: Path) -> str:
    """Returns the kind of the mount that holds a path, or what is known of it."""
    whole = path.absolute()
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, where, kind = line.split(" ")[:3]
        if whole.is_relative_to(where) and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


class _Bench:
    """Runs the kinds of work, one after another, on one store."""

    def __init__(
        self, store: Store, bar: ProgressBar, messages: int, size: int, threads: int, batch: int
    ) -> None:
        self._store = store
        self._bar = bar
        self._messages = messages
        self._body = bytes(97 + i % 26 for i in range(size))
        self._threads = threads
        self._batch = batch

    def rows(self) -> list[tuple[object, ...]]:
        """Returns work, messages, seconds, messages/s, MB/s."""
        works: list[tuple[str, Callable[[], int]]] = [
            ("put", self._put), ("put_many", self._put_many), ("read", self._read),
            ("query", self._query),
        ]  # fmt: skip
        rows: list[tuple[object, ...]] = []
        for name, work in works:
            self._bar.update(0, self._messages, name)
            started = time.perf_counter()
            count = work()
            seconds = time.perf_counter() - started
            rate = count / seconds
            rows.append((name, count, seconds, rate, rate * len(self._body) / 1e6))
        return rows

    def _in_threads(self, share: Callable[[int, int], None]) -> None:
        """Runs share(first, end) in each thread. Raises: what a thread raised."""
        failed: list[BaseException] = []
        stop = threading.Event()

        def one(first: int, end: int) -> None:
            try:
                while first < end and not stop.is_set():
                    step = min(end, first + max(1, self._batch))
                    share(first, step)
                    first = step
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                failed.append(error)
                stop.set()

        cuts = [self._messages * i // self._threads for i in range(self._threads + 1)]
        workers = [threading.Thread(target=one, args=ends) for ends in pairwise(cuts)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException:
            stop.set()  # Ctrl-C
            raise
        if failed:
            raise failed[0]

    def _put(self) -> int:
        def share(first: int, end: int) -> None:
            for i in range(first, end):
                self._store.put(_TOPIC, self._body, keys=f"key-{i}")
            self._bar.update(end, self._messages, "put")

        self._in_threads(share)
        return self._messages

    def _put_many(self) -> int:
        def share(first: int, end: int) -> None:
            self._store.put_many(_TOPIC, [self._body] * (end - first), tags="many")
            self._bar.update(end, self._messages, "put_many")

        self._in_threads(share)
        return self._messages

    def _read(self) -> int:
        count = 0
        for q in self._store.queues(_TOPIC):
            at = q.min_offset
            while at < q.max_offset:
                batch = self._store.read(_TOPIC, q.queue, at, max_messages=_READ)
                if not batch:
                    break
                count += len(batch.raw_bodies())
                at = batch.next_offset
                self._bar.update(count, 2 * self._messages, "read")
        return count

    def _query(self) -> int:
        """Queries keys spread over all of those put."""
        self._store.refresh()
        asked = min(_QUERIES, self._messages)
        return sum(
            len(self._store.query(_TOPIC, f"key-{self._messages * i // asked}", max_messages=1))
            for i in range(asked)
        )
