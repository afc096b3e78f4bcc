"""What of a slave's log was put at other brokers while it acted as master: a file of its own,
``config/escaped.jsonl``, since nothing may be put into the log of a slave.

A line is ``[topic, group, queue, offset]`` of a message that has gone, or, with ``address, topic,
key, born`` after that, of one that is being sent to that broker, which stores it in that topic. The
group is that of a check point of POP, else empty. The last line may be torn: nothing was sent."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.loop.safe_log import SafeLogger

__all__ = ["Doubt", "EscapeLedger", "Origin"]

log = SafeLogger("broker.acting")


class Origin(NamedTuple):
    """Where a message waits in the log that master and slaves have in common: what it is known by.
    group: for which a check point of POP brings it back; empty: of anything else."""

    topic: str
    group: str
    queue: int
    offset: int


class Doubt(NamedTuple):
    """A message that a broker may have or not, and what it is asked by."""

    address: str
    topic: str
    key: str
    born_ms: int


class _Ranges:
    """A set of numbers, as ranges: those of a queue that is worked off are one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, number: int) -> None:
        at = bisect_left(self._ends, number)  # the first that ends at it or after it
        joins = at < len(self._ends) and self._starts[at] <= number
        if joins and number < self._ends[at]:
            return
        if joins:
            self._ends[at] += 1
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
        if at + 1 < len(self._starts) and self._starts[at + 1] == self._ends[at]:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]

    def __contains__(self, number: int) -> bool:
        at = bisect_left(self._ends, number + 1)
        return at < len(self._ends) and self._starts[at] <= number

    def __iter__(self) -> Iterator[int]:
        for start, end in zip(self._starts, self._ends, strict=True):
            yield from range(start, end)


class EscapeLedger:
    """Lives on the event loop, but for sync(). `doubtful` are those that were being sent when the
    broker was killed, or when the answer was lost."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path, self._mode = path, mode
        self._gone: dict[tuple[str, str, int], _Ranges] = {}
        self.doubtful: dict[Origin, Doubt] = {}
        self._file: int | None = None

    def load(self, end_of: Callable[[str, int], int]) -> None:
        """Reads the file. end_of: a queue; what lies beyond was cut off since, and is another
        message. Raises: OSError."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in filter(None, lines):
            try:
                topic, group, queue, offset, *doubt = json.loads(line)
                origin = Origin(str(topic), str(group), int(queue), int(offset))
            except (ValueError, TypeError) as bad:
                log.warning("Skipped a line of %s: %s", self._path, bad)
                continue
            if not 0 <= origin.offset < end_of(origin.topic, origin.queue):
                continue
            if len(doubt) == len(Doubt._fields):
                address, stored_in, key, born_ms = doubt
                self.doubtful[origin] = Doubt(str(address), str(stored_in), str(key), int(born_ms))
            else:
                self._add(origin)

    def _add(self, origin: Origin) -> None:
        self._gone.setdefault(origin[:3], _Ranges()).add(origin.offset)
        self.doubtful.pop(origin, None)

    def __contains__(self, origin: Origin) -> bool:
        ranges = self._gone.get(origin[:3])
        return ranges is not None and origin.offset in ranges

    def __iter__(self) -> Iterator[Origin]:
        for place, ranges in self._gone.items():
            for offset in ranges:
                yield Origin(*place, offset)

    def __bool__(self) -> bool:
        return bool(self._gone or self.doubtful)

    def sending(self, origin: Origin, doubt: Doubt) -> None:
        """Notes a message before it is sent. Raises: OSError."""
        self._write([*origin, *doubt])
        self.doubtful[origin] = doubt

    def not_sent(self, origin: Origin) -> None:
        """Forgets a message that the other broker has refused."""
        self.doubtful.pop(origin, None)

    def gone(self, origin: Origin) -> None:
        """Notes that the other broker has it. Raises: OSError."""
        self._add(origin)
        self._write(list(origin))

    def _write(self, row: list[object]) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, self._mode)
            if os.fstat(self._file).st_size > 0:
                os.write(self._file, b"\n")  # a torn line ends here
        os.write(self._file, json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def sync(self) -> None:
        """Brings it to the disk, in any thread. Raises: OSError."""
        if self._file is not None:
            os.fdatasync(self._file)

    def forget(self) -> None:
        """Forgets everything: the master knows all of it. Raises: OSError."""
        self.close()
        self._gone.clear()
        self.doubtful.clear()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
