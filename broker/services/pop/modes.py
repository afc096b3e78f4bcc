"""Whether a group pops a topic or pulls it, as a tool has said (docs/internals/pop.md#modes;
upstream MessageRequestModeManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.jsonbody import INT, OBJECT, TEXT, JsonMember, Shape, enum
from pystore import files
from pystore.errors import BadArgument

__all__ = ["POP", "PULL", "Mode", "RequestModes", "as_json"]

log = SafeLogger("broker.pop")

PULL, POP = "PULL", "POP"
_FILE = Shape(messageRequestModeMap=OBJECT)
_MODE = Shape(
    topic=TEXT, consumerGroup=TEXT, mode=JsonMember(enum(PULL, POP), PULL),
    popShareQueueNum=JsonMember(INT, 0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode. `share` says how many other clients' queues each client of a group pops, too; with 0
    or less all clients pop all queues."""

    mode: str
    share: int = 0


#: By topic and group.
_Table = dict[str, dict[str, Mode]]
#: All of it is written at each change.
_MODES_MAX = 65_536


class RequestModes:
    """The modes by topic and group; they change at once, and are on the disk before a tool is
    answered."""

    def __init__(self, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode
        self._table: _Table = {}
        #: Whether the disk does not have all of it yet.
        self._changed = False
        self._writing = asyncio.Lock()

    def get(self, topic: str, group: str) -> Mode | None:
        return self._table.get(topic, {}).get(group)

    async def put(self, topic: str, group: str, mode: Mode) -> None:
        """Sets a mode. Raises: StoreError when it cannot be written; it is in force
        nevertheless. BadArgument when there are too many."""
        is_new = self.get(topic, group) is None
        if is_new and sum(map(len, self._table.values())) >= _MODES_MAX:
            raise BadArgument(f"there are {_MODES_MAX} request modes, one more is too many")
        self._table.setdefault(topic, {})[group] = mode
        self._changed = True
        async with self._writing:
            if self._changed:  # else what was written meanwhile has it
                await self._keep()

    async def _keep(self) -> None:
        self._changed = False
        try:
            await asyncio.to_thread(self._write, self.table())
        except BaseException:
            self._changed = True
            raise

    def _write(self, table: _Table) -> None:
        data = mqjson.dumps(as_json(table))
        files.make_folders(self._path.parent, self._file_mode)
        files.replace_file(self._path, data, keep_old=True, mode=self._file_mode)

    def table(self) -> _Table:
        """Returns a copy of all modes."""
        return {topic: dict(groups) for topic, groups in self._table.items()}

    def load(self) -> None:
        """Reads the file; one that cannot be read counts as none, so that groups pull."""
        try:
            data = files.read_file(self._path)
            if data is None:
                return
            table = _FILE.loads(data)["messageRequestModeMap"] or {}
        except (OSError, ValueError) as bad:
            log.warning("Request modes cannot be read: %s: %s", self._path, bad)
            return
        self._take(table)

    async def take_over(self, body: Mapping[str, Any]) -> None:
        """Replaces all that are here by those of the master, at a slave: the body of
        GET_ALL_MESSAGE_REQUEST_MODE. Raises: ValueError, StoreError."""
        before, self._table = self._table, {}
        self._take(_FILE(body)["messageRequestModeMap"] or {})
        if self._table != before:
            async with self._writing:
                await self._keep()

    def _take(self, table: Mapping[str, Any]) -> None:
        for topic, groups in table.items():
            for group, value in groups.items() if isinstance(groups, dict) else ():
                try:
                    said = _MODE(value)
                except ValueError as bad:
                    log.warning("The request mode of %s and %s is ignored: %s", topic, group, bad)
                    continue
                mode = Mode(said["mode"], said["popShareQueueNum"])
                self._table.setdefault(str(topic), {})[str(group)] = mode


def as_json(table: _Table) -> dict[str, Any]:
    """Returns the body of GET_ALL_MESSAGE_REQUEST_MODE, which is the file's as well."""
    modes = {
        topic: {
            group: {
                "consumerGroup": group, "mode": each.mode, "popShareQueueNum": each.share,
                "topic": topic,
            }
            for group, each in groups.items()
        }
        for topic, groups in table.items()
    }  # fmt: skip
    return {"messageRequestModeMap": modes}
