"""Timers handed over to Apache RocketMQ: ``timerlog/`` and ``config/timercheck`` as its timer store
reads them (docs/internals/timers.md#handing-over; upstream TimerLog, TimerCheckpoint).

One unit a timer that waits, in order of the timer topic's queue; Java makes the wheel from them.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pystore import files
from pystore.store.timers import Timer, Timers

if TYPE_CHECKING:
    from pystore.store._store import Store

__all__ = ["HANDED_OVER", "hand_over", "write_timer_files"]

#: Timers that are written for Java at a stop, some microseconds each.
HANDED_OVER = 500_000

_UNIT = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqI")
_BLANK_MAGIC = 0xCBD43194
_CHECK = struct.Struct(">7q")
_CHECK_SIZE = 4096
#: timerPrecisionMs and timerRollWindowSlot of the reader: upstream's defaults.
_PRECISION_MS = 1000
_WINDOW = 172_800
_PLAIN, _ROLL = 1, 3


def _slot(out_ms: int, now: int) -> tuple[int, int]:
    """Returns magic and slot time of a unit that is written now: upstream's rule of rolling."""
    window = _WINDOW * _PRECISION_MS
    if out_ms - now < window:
        return _PLAIN, out_ms
    if out_ms - now - window < _WINDOW // 3 * _PRECISION_MS:
        return _ROLL, now + _WINDOW // 2 * _PRECISION_MS
    return _ROLL, now + window


class _Log:
    """timerlog, written from its beginning."""

    def __init__(self, folder: Path, file_size: int, file_mode: int) -> None:
        self._folder, self._size, self._mode = folder, file_size, file_mode
        self._file: BinaryIO | None = None
        self.end = 0

    def append(self, unit: bytes) -> None:
        if self.end % self._size == 0:
            self._next()
        assert self._file is not None
        left = self._size - self.end % self._size
        if left < _UNIT.size + _BLANK.size:
            self._file.write(_BLANK.pack(left, 0, _BLANK_MAGIC))
            self.end += left
            self._next()
        self._file.write(unit)
        self.end += len(unit)

    def place(self) -> int:
        """Returns where the next unit comes to lie."""
        left = self._size - self.end % self._size
        return self.end + left if left < _UNIT.size + _BLANK.size else self.end

    def _next(self) -> None:
        self.close()
        self._file = files.new_file(self._folder / f"{self.end:020}", self._mode)
        self._file.truncate(self._size)

    def close(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def hand_over(store: Store, timers: Timers, queue_end: int, now_ms: int) -> bool:
    """Leaves the folder so that Java's broker goes on where this store stops. False: more than
    HANDED_OVER wait; Java then reads the queue, which loses nothing, but repeats deliveries.

    queue_end: of the timer topic's queue, everything before it was read. Raises: OSError.
    """
    count = timers.count()
    if count > HANDED_OVER:
        _forget_timer_files(store.path)
        return False
    waiting = [t for t in timers.waiting(most=count) if t.physical >= 0]
    size, mode = store.settings["mappedFileSizeTimerLog"], store.settings.file_mode
    write_timer_files(store.path, waiting, queue_end, now_ms, size, mode)
    return True


def _forget_timer_files(root: Path) -> None:
    """Removes what an earlier owner of the folder knew: Java then reads the queue from its
    beginning."""
    for path in (*root.glob("timerwheel*"), root / "timerlog", root / "config" / "timercheck"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_timer_files(
    root: Path, timers: Sequence[Timer], queue_end: int, now_ms: int, file_size: int,
    file_mode: int = files.FILE_MODE,
) -> None:  # fmt: skip
    """Writes the files that Java reads. timers: all that wait. queue_end: of the timer topic's
    queue, everything before it was read. file_size: mappedFileSizeTimerLog. file_mode:
    storeFileMode. Raises: OSError."""
    _forget_timer_files(root)
    files.make_folders(root / "timerlog", file_mode)
    now = now_ms - now_ms % _PRECISION_MS
    log = _Log(root / "timerlog", file_size, file_mode)
    last: dict[int, int] = {}
    first_slot = now
    for timer in sorted(timers, key=lambda each: each.offset):
        magic, slot = _slot(timer.out_ms, now)
        at = log.place()
        delay = max(slot - now, -(1 << 31))
        log.append(
            _UNIT.pack(
                _UNIT.size, last.get(slot, -1), magic, now, delay, timer.physical, timer.size,
                timer.topic_hash, 0,
            )
        )  # fmt: skip
        last[slot] = at
        first_slot = min(first_slot, slot)
    log.close()
    check = _CHECK.pack(first_slot, log.end, queue_end, queue_end, 0, now_ms, 1)
    files.make_folders(root / "config", file_mode)
    content = check.ljust(_CHECK_SIZE, b"\0")
    files.replace_file(root / "config" / "timercheck", content, keep_old=False, mode=file_mode)
