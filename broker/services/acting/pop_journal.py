"""What consumers pop and acknowledge at a slave that acts as master: the records that a master puts
into its log go to files of the slave, ``config/poppedAside.N.journal``, and from there to the
master that returns (docs/internals/ha.md#acting-as-master; upstream's PopMessageProcessor puts them
at another broker).

A line is ``tag revive-queue due body``, as the core writes it (csrc/pop/poprecord.c).
``whole`` says that the files before are in this one, without what is over; ``taken END`` that the
master has all of it in its log, which ends there; ``java`` that a master has returned that does not
ask for it, so that it is sent the records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.hot.check_points import CheckPoint, Key
from broker.loop.safe_log import SafeLogger
from broker.services.acting.bridge import AskAt, NotStored, PopRecord, records_command, took_it
from broker.services.acting.escape_ledger import EscapeLedger, Origin
from broker.services.context import Services
from broker.services.pop import Pop
from broker.services.pop.kept import row_of
from broker.services.pop.records import AckRecord, CheckPointScan, read_record
from pystore import files
from pystore.store.timers import Timers

__all__ = ["PopJournal"]

log = SafeLogger("broker.acting")

#: Rows of one answer to the master.
_ROWS = 2048
#: Records that are on their way to a master of Java's at once.
_AT_ONCE = 32
#: Bytes of a file, beside what is open.
_LONG = 16 << 20


@dataclass(slots=True)
class _Journal:
    """What the file says. `opened` were popped here, with their acknowledgements; `acked` are
    acknowledgements of the master's check points. `taken` is the end of
    the master's log that has all of it, -1: none has."""

    opened: dict[Key, CheckPoint] = field(default_factory=dict)
    acked: dict[Key, set[int]] = field(default_factory=dict)
    lines: list[PopRecord] = field(default_factory=list)
    taken: int = -1
    java: bool = False
    #: The log of this slave has all of it.
    is_over: bool = False

    def take(self, line: bytes) -> None:
        """Takes a line of the journal. Raises: ValueError for a malformed line."""
        tag, _, rest = line.partition(b" ")
        if tag == b"whole":
            self.opened, self.acked, self.lines = {}, {}, []
            return
        if tag == b"java":
            self.java = True
            return
        if tag == b"taken":
            self.taken = int(rest)
            return
        queue, due_ms, body = rest.split(b" ", 2)
        line_of = PopRecord(tag.decode(), int(queue), int(due_ms), body)
        record = read_record(line_of.tag, body, line_of.queue)
        self.taken, self.java = -1, False  # it is longer than what was taken
        self.lines.append(line_of)
        if isinstance(record, AckRecord):
            self._acknowledge(record)
        else:
            self.opened.setdefault(record.key, record)

    def popped(self) -> dict[tuple[str, str, int], int]:
        """Returns the next offset to pop of each (group, topic, queue)."""
        found: dict[tuple[str, str, int], int] = {}
        for ck in self.opened.values():
            queue = ck.group, ck.topic, ck.queue
            found[queue] = max(ck.offsets[-1] + 1, found.get(queue, 0))
        return found

    def _acknowledge(self, record: AckRecord) -> None:
        ck = self.opened.get(record.key)
        if ck is None:
            self.acked.setdefault(record.key, set()).update(record.offsets)
            return
        for offset in record.offsets:
            if offset in ck.offsets:
                ck.acked |= 1 << ck.offsets.index(offset)


class PopJournal:
    """The journal of one slave. It lives on the event loop. `is_on`: pops are served."""

    def __init__(self, s: Services, ledger: EscapeLedger) -> None:
        self._s, self._ledger = s, ledger
        self._folder = s.store.path / "config"
        self._file: int | None = None
        self._number = max(self._numbers(), default=1)
        #: The next file begins when this one is so long.
        self._long = _LONG
        #: What there is to give to the master; None: it is not read.
        self._rows: list[list[Any]] | None = None

    @property
    def is_on(self) -> bool:
        return self._file is not None

    def __bool__(self) -> bool:
        """Says whether the master has yet to be told something."""
        return bool(self._numbers())

    def _numbers(self) -> list[int]:
        names = (each.name.split(".") for each in self._folder.glob("poppedAside.*.journal"))
        return sorted(int(name[1]) for name in names if len(name) == 3 and name[1].isdigit())

    def _path(self, number: int) -> Path:
        return self._folder / f"poppedAside.{number}.journal"

    # ---- acting ----

    async def begin(self) -> None:
        """Finds what is open, and serves pops from now on. Raises: OSError, StoreError."""
        s, pop = self._s, self._s.pop
        schedule = s.schedule
        if self.is_on or pop is None or schedule is None or schedule.timers is None:
            return
        since = s.offsets.known_to or 0
        found, journal = await asyncio.to_thread(self._find, pop, schedule.timers.timers, since)
        if journal.is_over:
            self.forget()
        for ck in _all_open(found, journal):
            if self._is_here(ck):
                pop.points.add(ck)
        pop.go_on_at(found.popped)
        pop.replay_order(since)
        pop.go_on_at(journal.popped())
        for group in {ck.group for ck in pop.points}:
            s.groups.find(group)  # its pop may be all that made it
        s.offsets.known_to = None  # what is popped from now on is not in the log
        s.offsets.before_write = self.sync
        self._file = self._open()
        self._rows = None
        pop.points.aside(self._file)
        s.core.notify_all()  # who waits here tries again
        if s.lite is not None:
            await s.lite.dispatch_again()
        log.info("Pops are served in the master's place; %d check points are open",
                 len(pop.points))  # fmt: skip

    def _find(self, pop: Pop, timers: Timers, since: int) -> tuple[CheckPointScan, _Journal]:
        return pop.find_open(timers, since), self._read()

    def _is_here(self, ck: CheckPoint) -> bool:
        """Says whether its messages are: the log may have lost its end since."""
        return ck.offsets[-1] < self._s.store.range(ck.topic, ck.queue)[1]

    def _open(self) -> int:
        """Opens the journal. Raises: OSError."""
        mode = self._s.store.settings.file_mode
        files.make_folders(self._folder, mode)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        made = os.open(self._path(self._number), flags, mode)
        if os.fstat(made).st_size > 0:
            os.write(made, b"\n")  # a torn line ends here
        return made

    def end(self) -> None:
        """Ends popping here. Raises: OSError."""
        s, pop, file = self._s, self._s.pop, self._file
        if file is None or pop is None:
            return
        pop.points.aside(-1)
        for ck in pop.points:
            pop.points.acknowledge(ck, ck.offsets)  # here: the file has it
        s.offsets.known_to = s.store.info().log_max
        s.offsets.before_write = None
        self._file = None
        try:
            os.fdatasync(file)
        finally:
            os.close(file)
        s.core.notify_all()  # who waits here finds the master

    def sync(self) -> None:
        """Brings it to the disk, in any thread: before the offsets that rest on it. Raises:
        OSError."""
        file = self._file
        if file is not None:
            os.fdatasync(file)

    async def tidy(self) -> None:
        """Replaces a file that is long by the next one, without what is over. Raises: OSError."""
        file, pop = self._file, self._s.pop
        if file is None or pop is None or os.fstat(file).st_size < self._long:
            return
        before = self._number
        self._number += 1
        self._file = self._open()
        pop.points.aside(self._file)
        try:
            await asyncio.to_thread(self._merge, file, before)
        finally:
            os.close(file)
        self._long = max(_LONG, self._path(before).stat().st_size)

    def _merge(self, file: int, last: int) -> None:
        """Keeps what is open of the files up to this one. In any thread. Raises: OSError."""
        os.fdatasync(file)
        found = self._read_lines(last)
        ends = found.popped()
        kept = [each.line() for each in found.lines if _is_kept(found, each, ends)]
        data = b"\n".join([b"whole", *kept, b""])
        mode = self._s.store.settings.file_mode
        files.replace_file(self._path(last), data, keep_old=False, mode=mode)
        for number in self._numbers():
            if number < last:
                self._path(number).unlink(missing_ok=True)

    # ---- what is known ----

    def _read_lines(self, last: int) -> _Journal:
        """Reads the lines of the journal. Raises: OSError."""
        found = _Journal()
        for number in self._numbers():
            data = files.read_file(self._path(number)) if number <= last else None
            for line in (data or b"").split(b"\n"):
                try:
                    if line:
                        found.take(line)
                except (ValueError, TypeError) as bad:
                    log.warning("Skipped a line of %s: %s", self._path(number), bad)
        return found

    def _read(self) -> _Journal:
        """Reads the journal, in any thread. Raises: OSError."""
        found = self._read_lines(self._number)
        if 0 <= found.taken <= self._s.store.info().log_max:
            return _Journal(is_over=True)
        return found

    async def go_on(self) -> None:
        """Has offsets at least after what was popped here, which a killed process may not have
        written, before a master takes them. Raises: OSError."""
        pop = self._s.pop
        if self and pop is not None:
            pop.go_on_at((await asyncio.to_thread(self._read)).popped())

    async def rows(self, start: int) -> tuple[list[list[Any]], bool]:
        """Returns some of what the master has to know, from this row on, and whether there is more:
        ``["open", check point]`` or ``["ack", topic, group, queue, start, pop time, offsets]``.
        Raises: OSError."""
        if self._rows is None:
            self._rows = await asyncio.to_thread(lambda: list(self._make_rows(self._read())))
        return self._rows[start : start + _ROWS], start + _ROWS < len(self._rows)

    def _make_rows(self, journal: _Journal) -> Iterator[list[Any]]:
        for ck in journal.opened.values():
            for i, offset in enumerate(ck.offsets):
                if Origin(ck.topic, ck.group, ck.queue, offset) in self._ledger:
                    ck.acked |= 1 << i
            if ck.open:
                yield ["open", row_of(ck)]
        for key, offsets in journal.acked.items():
            yield ["ack", *key, sorted(offsets)]

    def taken(self, end: int) -> None:
        """Notes that the master has put all of it into its log, which ends there. Raises:
        OSError."""
        self._note(b"taken %d" % end)

    def _note(self, line: bytes) -> None:
        if self and not self.is_on:
            file = self._open()
            try:
                os.write(file, line + b"\n")
            finally:
                os.close(file)

    def forget(self) -> None:
        """Forgets what the log has. Raises: OSError."""
        self._rows = None
        if not self.is_on:
            for number in self._numbers():
                self._path(number).unlink(missing_ok=True)

    # ---- a master of Java's ----

    def owe_java(self) -> None:
        """Keeps it for a master that returns and does not ask for it. Raises: OSError."""
        self._note(b"java")

    async def pay(self, ask: AskAt, address: str) -> None:
        """Sends such a master the records, as its own slave sends them to another broker. Raises:
        OSError, TimeoutError: some have not gone."""
        journal = await asyncio.to_thread(self._read)
        pop = self._s.pop
        if not journal.java or pop is None:
            return
        lines = [each for each in journal.lines if _is_owed(journal, each)]
        lines.sort(key=lambda each: each.tag != "ck")  # before their acknowledgements
        for at in range(0, len(lines), _AT_ONCE):
            some = lines[at : at + _AT_ONCE]
            commands = [records_command(pop.log.topic, self._s.broker_name, row) for row in some]
            for answer in await asyncio.gather(*(ask(address, each) for each in commands)):
                if not took_it(answer):
                    raise NotStored(f"{address} answered {answer.code} {answer.remark}")
        self.forget()
        log.info("The master at %s was sent %d records of what was popped here", address,
                 len(lines))  # fmt: skip


def _is_kept(journal: _Journal, line: PopRecord, ends: Mapping[tuple[str, str, int], int]) -> bool:
    """Says whether it is owed, or says how far a queue was popped."""
    ck = journal.opened.get(read_record(line.tag, line.body, line.queue).key)
    return _is_owed(journal, line) or (
        ck is not None and ck.offsets[-1] + 1 == ends[ck.group, ck.topic, ck.queue]
    )


def _is_owed(journal: _Journal, line: PopRecord) -> bool:
    """Says whether it says something of a check point that is open, or of one that the master
    made."""
    record = read_record(line.tag, line.body, line.queue)
    ck = journal.opened.get(record.key)
    return ck is None or ck.open > 0


def _all_open(found: CheckPointScan, journal: _Journal) -> Iterable[CheckPoint]:
    """Returns the check points of the log less what was acknowledged here, and those that were
    popped here. One that the log knows is as the log says: a master has taken it."""
    in_log = {ck.key: ck for ck in found.open}
    for key, offsets in journal.acked.items():
        if key in in_log:
            _acknowledge(in_log[key], offsets)
    for key, ck in journal.opened.items():
        if key in in_log:
            _acknowledge(in_log[key], set(ck.offsets) - set(ck.open_offsets()))
        elif key not in found.places:
            in_log[key] = ck
    return [ck for ck in in_log.values() if ck.open]


def _acknowledge(ck: CheckPoint, offsets: Iterable[int]) -> None:
    for offset in offsets:
        if offset in ck.offsets:
            ck.acked |= 1 << ck.offsets.index(offset)
