"""Offsets of broadcasting consumers: a file of their own, in the form of upstream's clients."""

from __future__ import annotations

from pathlib import Path

from broker.client.errors import OffsetFileFailed
from broker.client.message import MessageQueue
from broker.wire import mqjson
from pystore.errors import StoreError
from pystore.files import write_whole

__all__ = ["OffsetFile"]


class OffsetFile:
    """The file ``FOLDER/GROUP/offsets.json``. It is written beside and renamed, so that a crash
    leaves the old one."""

    def __init__(self, path: Path, group: str) -> None:
        self.path = path
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}

    @classmethod
    def of(cls, folder: str | None, group: str) -> OffsetFile:
        """Returns the file of a group. folder: its default is ~/.rocketmq_offsets, as
        upstream's."""
        base = Path(folder) if folder is not None else Path.home() / ".rocketmq_offsets"
        return cls(base / group / "offsets.json", group)

    def load(self) -> None:
        """Reads the offsets; an absent file is empty. Raises: OffsetFileFailed, for a damaged one,
        too."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as failed:  # a name with a null byte
            raise OffsetFileFailed(
                f"the offsets of {self._group} cannot be read: {self.path}"
                f" ({failed}); name another offsets_folder"
            ) from failed
        try:
            table = mqjson.loads(data)["offsetTable"]
            self._offsets = {
                queue: int(offset)
                for queue, offset in table.items()
                if isinstance(queue, MessageQueue)
            }
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise OffsetFileFailed(
                f"{self.path} is damaged ({bad}); delete it to begin as 'start' says"
            ) from bad

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def save(self) -> None:
        """Writes the offsets. Raises: OffsetFileFailed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, mqjson.dumps({"offsetTable": self._offsets}))
        except (OSError, StoreError) as failed:
            raise OffsetFileFailed(
                f"the offsets of {self._group} cannot be kept: {self.path} ({failed}); make"
                " room, or name another offsets_folder"
            ) from failed
