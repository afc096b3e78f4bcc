"""The mappings of this broker's static topics, kept in config/topicQueueMapping.json (upstream
TopicQueueMappingManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.wire.jsonbody import OBJECT, Shape
from broker.wire.static_topics import Parts, TopicMapping, parse_mapping
from pystore import files
from pystore.errors import RecordDamaged
from pystore.files import javajson
from pystore.meta.configfiles import DataVersion, version_from_json, version_to_json

__all__ = ["MappingTable", "Unfit", "read_body"]

_FILE = Shape(topicQueueMappingInfoMap=OBJECT, dataVersion=OBJECT)
NAME = "topicQueueMapping.json"
#: Parts of all logical queues together; each takes some 300 bytes, and all are written at a change.
PARTS_MAX = 131_072


class Unfit(Exception):
    """A mapping that does not follow the one that is there."""


class MappingTable:
    """Mappings by topic; they change at once, and are on the disk before a tool is answered."""

    def __init__(self, folder: Path, file_mode: int, broker: str) -> None:
        self._path, self._file_mode, self._broker = folder / NAME, file_mode, broker
        self._table: dict[str, TopicMapping] = {}
        self.version = DataVersion()
        #: Whether the disk does not have all of it yet.
        self._changed = False
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Reads the file. Raises: RecordDamaged for one that cannot be read: without it, numbers of
        logical queues would be taken for those of the broker's own."""
        problem: Exception | None = None
        for path in (self._path, self._path.with_name(NAME + ".bak")):
            try:
                data = files.read_file(path)
                if data is not None:
                    self._take(data)
                    return
            except ValueError as bad:
                problem = bad
        if problem is not None:
            raise RecordDamaged(
                f"the mappings of static topics cannot be read ({problem}): restore the file, or"
                " move it away if there are no static topics",
                str(self._path),
            )

    def _take(self, data: bytes) -> None:
        if not data.strip():
            return
        file = _FILE(javajson.loads(data))
        rows = file["topicQueueMappingInfoMap"] or {}
        self._table = {name: parse_mapping(row) for name, row in rows.items()}
        self.version = version_from_json(file["dataVersion"] or {})

    # ---- asking ----

    def get(self, topic: str) -> TopicMapping | None:
        return self._table.get(topic)

    def __contains__(self, topic: object) -> bool:
        return topic in self._table

    def all(self) -> list[TopicMapping]:
        return list(self._table.values())

    def infos(self, topics: Iterable[str]) -> dict[str, Any]:
        """Returns what is registered of these topics, on any thread."""
        get = self._table.get
        return {name: found.info() for name in topics if (found := get(name)) is not None}

    def details(self) -> Callable[[], dict[str, Any]]:
        """Returns what makes all of it, for slaves and tools, as it is now, on any thread: that may
        take a while."""
        table = dict(self._table)
        return lambda: {name: table[name].as_json() for name in sorted(table)}

    # ---- changes ----

    def following(self, new: TopicMapping, *, force: bool) -> TopicMapping:
        """Returns a mapping as it is to be put: with the queues that it does not name any more.
        force: whatever is there. Raises: Unfit, in upstream's words."""
        if new.broker != self._broker:
            raise Unfit(f"the mapping is of the broker {new.broker}, and this is {self._broker}")
        old = self._table.get(new.topic)
        more = _parts_of(new) - (_parts_of(old) if old is not None else 0)
        if more > 0 and sum(map(_parts_of, self._table.values())) + more > PARTS_MAX:
            raise Unfit(f"the mappings of a broker have at most {PARTS_MAX} parts in all")
        if old is None:
            return new
        if not force:
            if new.epoch < old.epoch:
                raise Unfit(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
            if new.scope != old.scope:
                raise Unfit(f"Can't accept data with unmatched scope {new.scope} != {old.scope}")
            for queue, parts in old.queues.items():
                _check_follows(parts, new.queues.get(queue), new.epoch == old.epoch)
        return new.with_queues({**old.queues, **new.queues})

    def put(self, mapping: TopicMapping) -> None:
        self._table[mapping.topic] = mapping
        self._bump()

    def restore(self, topic: str, before: TopicMapping | None) -> None:
        """Takes a change back that nobody has seen."""
        if before is None:
            self._table.pop(topic, None)
        else:
            self._table[topic] = before

    def delete(self, topic: str) -> None:
        if self._table.pop(topic, None) is not None:
            self._bump()

    def take_over(self, details: Mapping[str, Any]) -> list[str]:
        """Replaces all by those of the master, at a slave, and returns the topics that changed.
        Raises: ValueError."""
        new = {str(name): parse_mapping(row) for name, row in details.items()}
        changed = [name for name in {*new, *self._table} if new.get(name) != self._table.get(name)]
        if changed:
            self._table = new
            self._bump()
        return changed

    def _bump(self) -> None:
        self.version = self.version.bumped()
        self._changed = True

    async def settled(self) -> None:
        """Waits until all changes are on the disk. Raises: StoreError; they are in force
        nevertheless, and are written with the next one."""
        async with self._writing:
            if not self._changed:  # what was written meanwhile has it
                return
            self._changed = False
            try:
                await asyncio.to_thread(self._write, self.details(), self.version)
            except BaseException:
                self._changed = True
                raise

    def _write(self, details: Callable[[], dict[str, Any]], version: DataVersion) -> None:
        data = javajson.dumps(
            {"dataVersion": version_to_json(version), "topicQueueMappingInfoMap": details()}
        )
        files.make_folders(self._path.parent, self._file_mode)
        files.replace_file(self._path, data, keep_old=True, mode=self._file_mode)


def _parts_of(mapping: TopicMapping) -> int:
    return sum(map(len, mapping.queues.values()))


def _check_follows(old: Parts, new: Parts | None, same_epoch: bool) -> None:
    """Checks that parts are as they were (makeSureLogicQueueMappingItemImmutable). Raises:
    Unfit."""
    if new is None:
        if same_epoch:
            raise Unfit("Cannot accept equal epoch with null data")
        return
    known = {part.generation: part for part in new}
    for part in old:
        now = known.get(part.generation)
        if now is None:
            continue
        if now[1:3] != part[1:3] or now.start != part.start:
            raise Unfit(f"part {part.generation} of a queue is another one than before")
        if part.logical != -1 and now.logical != part.logical:
            raise Unfit(f"the logical offset of part {part.generation} is decided already")
    if same_epoch and old[-1][:3] != new[-1][:3]:
        raise Unfit("The new leader is different but epoch equal")


def read_body(body: bytes | bytearray | memoryview) -> TopicMapping:
    """Reads the body of UPDATE_AND_CREATE_STATIC_TOPIC. Raises: ValueError."""
    return parse_mapping(javajson.loads(bytes(body)))  # Java leaves the quotes of numbers out
