"""Consumer offsets. While a broker runs the core's table is the truth, since a pull commits there
at no cost; this loads it at the start and brings what changed into the metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence

from broker.remoting.hot import OffsetRow
from broker.services.hotpath import HotPath
from pystore.errors import BadArgument
from pystore.metadata import Metadata

__all__ = ["Offsets"]

log = logging.getLogger(__name__)


class Offsets:
    """The next offset of each (group, topic, queue)."""

    def __init__(self, metadata: Metadata, core: HotPath) -> None:
        self._metadata = metadata
        self._core = core
        self._unsaved: dict[tuple[str, str, int], int] = {}

    def start(self) -> None:
        """Fills the core's table."""
        for each in self._metadata.offsets.all():
            self._core.commit_offset(each.group, each.topic, each.queue, each.offset)
        self._core.take_changed_offsets()  # these are on the disk already

    def get(self, group: str, topic: str, queue: int) -> int | None:
        return self._core.offset(group, topic, queue)

    def all(self, group: str | None = None, topic: str | None = None) -> Sequence[OffsetRow]:
        return self._core.offsets(group, topic)

    def topics_of(self, group: str) -> set[str]:
        return {topic for _, topic, _, _ in self.all(group=group)}

    def topics_by_group(self) -> dict[str, set[str]]:
        """Of every group, in one pass."""
        found: dict[str, set[str]] = {}
        for group, topic, _, _ in self.all():
            found.setdefault(group, set()).add(topic)
        return found

    def groups_of(self, topic: str) -> set[str]:
        return {group for group, _, _, _ in self.all(topic=topic)}

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Also backwards, as clients may; ignored while a reset is pending."""
        self._core.commit_offset(group, topic, queue, offset)

    def reset(self, group: str, topic: str, queue: int, target: int) -> None:
        """Now, and for the consumer with its next pull."""
        self._core.commit_offset(group, topic, queue, target)
        self._core.reset_offset(group, topic, queue, target)

    def delete(self, group: str | None = None, topic: str | None = None) -> None:
        """Of a group, of a topic, or of both together."""
        self._take()
        self._core.delete_offsets(group, topic)
        for key in list(self._unsaved):
            if group in (None, key[0]) and topic in (None, key[1]):
                del self._unsaved[key]
        self._metadata.offsets.delete(group, topic)

    # ---- to the disk ----

    def _take(self) -> None:
        for group, topic, queue, offset in self._core.take_changed_offsets():
            self._unsaved[group, topic, queue] = offset

    async def persist(self) -> None:
        """Brings what changed to the disk; what could not be stays for the next time."""
        self._take()
        if self._unsaved:
            rows, self._unsaved = self._unsaved, {}
            try:
                await asyncio.to_thread(self._write, list(rows.items()))
            except BaseException:
                self._unsaved = rows | self._unsaved
                raise

    def persist_now(self) -> None:
        """The same at the very end, when nothing else runs."""
        self._take()
        rows, self._unsaved = self._unsaved, {}
        if rows:
            self._write(rows.items())

    def _write(self, rows: Iterable[tuple[tuple[str, str, int], int]]) -> None:
        with self._metadata.batch():
            for key, offset in rows:
                # A name that no file could hold came from a hostile client, and goes with it.
                with contextlib.suppress(BadArgument):
                    self._metadata.offsets.commit(*key, offset, reset=True)
