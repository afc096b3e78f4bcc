"""Offsets of broadcasting consumers: a file of their own, in the form of upstream's clients."""

from __future__ import annotations

from pathlib import Path

from broker.client.message import MessageQueue
from broker.remoting import mqjson
from pystore.files import write_whole

__all__ = ["OffsetFile"]


class OffsetFile:
    """``FOLDER/GROUP/offsets.json``. Written beside and renamed: a crash leaves the old one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[MessageQueue, int] = {}

    @classmethod
    def of(cls, folder: str | None, group: str) -> OffsetFile:
        """folder: None is ~/.rocketmq_offsets, as upstream's."""
        base = Path(folder) if folder is not None else Path.home() / ".rocketmq_offsets"
        return cls(base / group / "offsets.json")

    def load(self) -> None:
        """An absent file is empty. Raises: ValueError for a damaged one, OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        try:
            table = mqjson.loads(data)["offsetTable"]
            self._offsets = {
                queue: int(offset)
                for queue, offset in table.items()
                if isinstance(queue, MessageQueue)
            }
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise ValueError(
                f"{self.path} is damaged ({bad}); delete it to begin as 'start' says"
            ) from bad

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def save(self) -> None:
        """Raises: OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, mqjson.dumps({"offsetTable": self._offsets}))
