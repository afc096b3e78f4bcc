"""A table of the metadata as the event loop sees it: changed at once, on the disk soon after.

A commit of the metadata waits for the disk, and so may the lock that guards it; the loop must not.
So changes are made here and written by a thread, many at once. A topic that a crash takes from the
metadata is made again from the log when the store opens.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from broker.loop.safe_log import SafeLogger
from broker.wire.mqjson import JsonText
from pystore.errors import DiskFull, StoreError
from pystore.meta.configfiles import DataVersion, SubscriptionGroup, TopicConfig
from pystore.metadata import Metadata, Table

__all__ = ["KeptTexts", "WriteBehindTable"]

log = SafeLogger(__name__)

_RETRY_S = 1.0
_Row = TypeVar("_Row", TopicConfig, SubscriptionGroup)


class WriteBehindTable(Generic[_Row]):
    """Rows by name, used like a Table, except that nothing waits for the disk. Without a running
    loop it writes at once. Subclasses say what may be changed."""

    def __init__(self, metadata: Metadata, table: Table[_Row], name: str) -> None:
        self._metadata = metadata
        self._table: Table[_Row] = table
        self._name = name
        self._rows: dict[str, _Row] = {row.name: row for row in table.list()}
        #: Sorted: to sort tens of thousands takes the loop longer than to keep them so.
        self._names = sorted(self._rows)
        self._unwritten: dict[str, _Row | None] = {}
        self._bump = False
        self._task: asyncio.Task[None] | None = None
        #: What the last attempt to write failed with; None: it went well.
        self._failed: StoreError | None = None
        self._attempted = asyncio.Event()
        #: dataVersion of the table, what is still to be written included.
        self.version: DataVersion = metadata.version(name)

    def get(self, name: str) -> _Row | None:
        return self._rows.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @property
    def count(self) -> int:
        return len(self._rows)

    def all(self) -> list[_Row]:
        """Returns all rows, in the order of their names."""
        rows = self._rows
        return [rows[name] for name in self._names]

    # ---- changes ----

    def _put_row(self, row: _Row) -> bool:
        """Puts a row and returns whether anything changed. Raises: BadArgument."""
        self._table.check(row)
        old = self._rows.get(row.name)
        if old == row:
            return False
        if old is None:
            insort(self._names, row.name)
        self._rows[row.name] = self._unwritten[row.name] = row
        self._soon()
        return True

    def _delete_row(self, name: str) -> bool:
        """Deletes a row and returns whether there was one."""
        if self._rows.pop(name, None) is None:
            return False
        del self._names[bisect_left(self._names, name)]
        self._unwritten[name] = None
        self._soon()
        return True

    def _bump_version(self) -> None:
        """Gives the table a new version although no row changed."""
        self._bump = True
        self._soon()

    def _soon(self) -> None:
        self.version = self.version.bumped()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.write_now()
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())

    # ---- to the disk ----

    async def settled(self) -> None:
        """Waits until all changes are on the disk. Raises: StoreError when they cannot be written
        now; they are tried again."""
        while self._task is not None and not self._task.done():
            attempt = asyncio.ensure_future(self._attempted.wait())
            await asyncio.wait({self._task, attempt}, return_when=asyncio.FIRST_COMPLETED)
            attempt.cancel()
            if self._failed is not None and not self._task.done():
                raise self._failed

    def write_now(self) -> None:
        """Tries to write for the last time. Raises: StoreError."""
        if self._task is not None:
            self._task.cancel()
        self._write(*self._take())

    def _take(self) -> tuple[dict[str, _Row | None], bool]:
        rows, self._unwritten = self._unwritten, {}
        bump, self._bump = self._bump, False
        return rows, bump

    async def _work(self) -> None:
        failing = False
        while self._unwritten or self._bump:
            rows, bump = self._take()
            self._failed = None
            self._attempted.clear()
            try:
                try:
                    await asyncio.to_thread(self._write, rows, bump)
                except DiskFull:  # the metadata was full, and has grown
                    await asyncio.to_thread(self._write, rows, bump)
            except BaseException as failed:
                self._unwritten = rows | self._unwritten
                self._bump = bump or self._bump
                if not isinstance(failed, StoreError):
                    raise
                if not failing:
                    log.error("Cannot write %s; will retry: %s", self._name, failed)
                failing = True
                self._failed = failed
                self._attempted.set()
                await asyncio.sleep(_RETRY_S)

    def _write(self, rows: Mapping[str, _Row | None], bump: bool) -> None:
        if not rows and not bump:
            return
        with self._metadata.batch():
            for name, row in rows.items():
                if row is None:
                    self._table.delete(name)
                else:
                    self._table.put(row)
            if bump:
                self._metadata.bump(self._name)


class KeptTexts(Generic[_Row]):
    """Rows as JSON, each written once until it changes: tens of thousands take a second, and who
    asks for all of them is sent them again and again."""

    def __init__(
        self, rows: WriteBehindTable[_Row], to_json: Callable[[_Row], dict[str, Any]]
    ) -> None:
        """Takes what is written. to_json: makes no message queues."""
        self._rows: WriteBehindTable[_Row] = rows
        self._to_json: Callable[[_Row], dict[str, Any]] = to_json
        self._kept: dict[str, tuple[_Row, JsonText]] = {}

    def of(self, row: _Row) -> JsonText:
        """Returns a row as JSON, on any thread."""
        kept = self._kept.get(row.name)
        if kept is None or kept[0] is not row:
            kept = row, JsonText.of_plain(self._to_json(row))
            if self._rows.get(row.name) is row:
                self._kept[row.name] = kept
        return kept[1]

    def forget(self, name: str) -> None:
        self._kept.pop(name, None)
