"""The slave's end: finds the master, makes sure that its log is ours so far, and follows it in a
thread of the core (csrc/ha/slave.c)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.replication.divergence import find_common_end
from broker.services.replication.elected_role import ElectedRole
from broker.services.replication.epochs import Epoch, EpochFile, common_end, merge
from broker.services.replication.greeting import ClosedUnheard, connected, greet_master
from broker.services.replication.log_comparer import digest_of, record_before
from broker.services.replication.master import stream_conf, with_epochs
from broker.services.replication.synchronize import Ask
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore import Store
from pystore.errors import NotFound, StoreError
from pystore.files.javaproperties import parse_java_properties
from pystore.format.records import check_record
from pystore.native import ffi, lib, raise_error
from pystore.store import hosting

__all__ = ["Diverged", "HaSlave", "MasterKnown", "Overtaken"]

log = SafeLogger(__name__)
quiet = RateLimitedLogger(log)

#: The longest pause before the next connection, and the first one, which is doubled until then:
#: whether anybody listens there says whether the master still lives.
_RETRY_S, _FIRST_RETRY_S = 1.0, 0.1
#: A connection that lasted so long, or brought any of the log, begins the pauses again.
_HELD_S = 1.0
#: Between two comparisons of the last record with the master's, while it is followed.
_COMPARE_S = 60.0
_WHY = {
    lib.PS_HA_CLOSED: "it closed the connection",
    lib.PS_HA_EPOCH: "a new epoch has begun",
    lib.PS_HA_SILENT: "it was silent for haHousekeepingInterval",
}
_RESET = (errno.ECONNRESET, errno.EPIPE)


@dataclass(slots=True)
class MasterKnown:
    """Where the master is. address: of its main port; ha: of its port for slaves; is_told: by a
    name server, so that the master itself knows better."""

    address: str = ""
    ha: str = ""
    is_told: bool = False


def _is_closed(sock: socket.socket) -> bool:
    """Says whether the other end has closed a connection, of whose bytes nothing is taken."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def _ended(work: Coroutine[Any, Any, object]) -> None:
    """Waits for the end of a write, also when it is cancelled: one that goes on would meet that of
    the next role. Raises: what it raises."""
    writing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(writing)
    finally:
        await asyncio.wait({writing})


def _numbers(said: Mapping[str, Any], name: str) -> dict[str, int]:
    """Returns a member of what a master tells, with a number by each name. Raises: ValueError."""
    found = said.get(name) or {}
    if not isinstance(found, dict) or any(type(each) is not int for each in found.values()):
        raise ValueError(f"the master tells {name:.200} as {found!s:.200}")
    return found


def _kept_out(here: str) -> ConnectionError:
    """Returns the error of a slave that is kept out. A master that refuses a slave says nothing: it
    closes the connection."""
    return ConnectionError(
        f"it closed the connection from {here} before it sent anything, as a master does whose"
        f" trustedSlaves does not name {here}; its log says why"
    )


class Diverged(Exception):
    """The master's log is not the one that this store began with."""


class Overtaken(Diverged):
    """The master's log begins after the end of this one."""

    def __init__(self, begin: int, last: int) -> None:
        super().__init__(
            f"retention has deleted its log up to {begin}, and the last record here is at {last}:"
            " begin with an empty store, or with a copy of the master's"
        )


class HaSlave:
    """Follows a master as long as it runs. Lives on the event loop.

    problem: why it does not follow just now, empty: it does. connected: to a port of this address.
    rate: bytes received in the last second. heard_at: when the master of the last connection was
    heard, on the monotonic clock. refused: nobody listens there, as was found since.
    """

    def __init__(
        self, store: Store, config: Config, master: MasterKnown, ask: Ask,
        elected: ElectedRole | None, epochs: EpochFile,
        ha_address: Callable[[], Awaitable[str]],
    ) -> None:  # fmt: skip
        """Takes whom to follow. elected: under a controller, with the epochs of this log.
        ha_address: where the master takes slaves; empty: unknown; it raises as `ask`."""
        self._ha_address = ha_address
        self._elected, self._epochs = elected, epochs
        self._store, self._config, self._master, self._ask = store, config, master, ask
        #: Told where the log is to end, with haTruncateDiverged; the store is then opened again.
        self.cut_back: Callable[[int], None] | None = None
        #: With a cold tier: says what of this store is not out there, but for topics that were
        #: deleted at these places of the log; empty: nothing. It raises StoreError. And begins the
        #: store again, which is opened once more.
        self.lacks: Callable[[Mapping[str, int]], Awaitable[str]] | None = None
        self.begin_again: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        #: Tasks that were cancelled, and still end what they were at.
        self._ending: set[asyncio.Task[None]] = set()
        self._handle = ffi.NULL
        self._pause_s = _RETRY_S
        #: The reason that was logged last.
        self._told = ""
        self.problem = "no master is known yet"
        #: Our log and that of the master part.
        self.diverged = False
        self.connected = ""
        #: The main port of the master whose log is taken just now, or is about to be; empty:
        #: nobody's is.
        self.followed = ""
        #: Awaited when a master's log was found to be ours so far, before it is taken.
        self.before_following: Callable[[], Awaitable[None]] | None = None
        #: Called when a master's log begins to be taken.
        self.on_followed: Callable[[], None] | None = None
        #: Since it was told of this master.
        self.has_followed = False
        #: Called when a connection is over.
        self.on_lost: Callable[[], None] | None = None
        self.rate = 0
        self.heard_at, self.refused = -math.inf, False
        self._counted = (time.monotonic(), 0)
        #: Where the master's log ended when it was greeted last, under a controller.
        self._their_end = 0

    def start(self) -> None:
        """Starts to follow; the store does already, and under a controller hides what is not
        confirmed (broker/startup.py)."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def again(self) -> None:
        """Ends the connection; the master may be another one now."""
        self.has_followed = False
        if self._task is not None:
            self._end(self._task)
            self._task = asyncio.get_running_loop().create_task(self._run_after())

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _run_after(self) -> None:
        await self._all_ended()
        await self._run()

    async def _all_ended(self) -> None:
        """Waits until nothing goes on that was ended: a write of it would meet that of the next
        role. One that was ended while it waited for others has left them to this one."""
        while self._ending:
            await asyncio.wait(set(self._ending))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._end(task)
            await self._all_ended()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def state(self) -> tuple[int, int, int]:
        """Returns the end of the log here, bytes received, ms since the master was heard; of the
        connection there is."""
        end = self._store.info().log_max
        if self._handle == ffi.NULL:
            return end, 0, 0
        shown = ffi.new("ps_ha_state *")
        lib.ps_ha_slave_show(self._handle, shown)
        return end, shown.bytes, shown.silent_ms

    def look(self) -> None:
        """Looks after the stream: a job of the duty, every second."""
        now, count = time.monotonic(), self.state()[1]
        then, before = self._counted
        self._counted = now, count
        # A new connection counts from 0.
        self.rate = int(max(count - before, 0) / max(now - then, 0.001))

    @property
    def follows(self) -> bool:
        """Whether the master is connected."""
        return bool(self._handle != ffi.NULL)

    @property
    def has_caught_up(self) -> bool:
        """Under a controller: whether this log has all that the master's had when it was
        connected."""
        return self.follows and self._store.info().log_max >= self._their_end

    # ---- following ----

    async def _run(self) -> None:
        while True:
            try:
                await self.follow_once()
            except Overtaken as late:
                self._tell("diverged", str(late))
                await self._begin_again(late)
            except Diverged as other:
                self._tell("diverged", str(other))
                await self._leave_the_past()
            except (OSError, TimeoutError, ValueError, StoreError) as failed:
                self.refused = isinstance(failed, ConnectionRefusedError)
                self._tell("failed", reason_of(failed))
            except Exception as unknown:  # noqa: BLE001 - its master goes on without a copy
                self.problem = reason_of(unknown)
                quiet.error(type(unknown), unknown, "Following the master failed")
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _RETRY_S)

    async def _begin_again(self, late: Overtaken) -> None:
        """Begins with an empty store, if all that is here is in the cold tier: it is read there,
        and what follows comes from the master."""
        if self.lacks is None or self.begin_again is None:
            return
        try:
            deleted = _numbers(await self._queues_of_master(), "deletedTopics")
            lacks = await self.lacks(deleted)
        except (OSError, TimeoutError, ValueError, StoreError) as failed:
            self._tell("not compared", f"{late}; what the cold tier has is not known: {failed}")
            return
        if lacks:
            self._tell("diverged", f"{late}; the cold tier does not have {lacks}")
            return
        log.warning("This store is in the cold tier, and begins again where the master's log does")
        self.begin_again()
        await asyncio.Event().wait()  # until this store is closed

    async def _leave_the_past(self) -> None:
        """Cuts the log back, with haTruncateDiverged, to the place where it is the master's."""
        if (
            self._elected is not None
            or not self._config["haTruncateDiverged"]
            or self.cut_back is None
        ):
            return
        try:
            begin, _ = await self.master_range()
            at = await find_common_end(self._store, begin, self._is_the_masters)
        except (OSError, TimeoutError, ValueError, StoreError) as failed:
            self._tell("no fork", f"where the two logs part is unknown: {failed}")
            return
        if at < 0:
            self._tell("no past", "no record of this log is the master's, so there is no place to"
                                  " cut it back to: begin with an empty store")  # fmt: skip
        elif at < (end := self._store.info().log_max):
            log.warning("The log is cut back from %d to %d, where it is the master's: what follows"
                        " is kept in aside/ (haTruncateDiverged)", end, at)  # fmt: skip
            self.cut_back(at)
            await asyncio.Event().wait()  # until this store is closed

    async def _is_the_masters(self, at: int) -> bool:
        """Says whether a place of this log is the master's. Raises: OSError, TimeoutError,
        StoreError."""
        answer = await self._view(at)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            raise OSError(f"asked for the record at {at}, it answers {answer.code} {answer.remark}")
        mine = self._store.message(at).record
        return answer.code == ResponseCode.SUCCESS and bytes(answer.body) == bytes(mine)

    def _tell(self, kind: str, problem: str) -> None:
        """Logs a reason; one that is not the one of before is not hidden by that one."""
        self.problem, self.diverged = problem, kind == "diverged"
        is_new, self._told = problem != self._told, problem
        quiet.warning(kind, "The master at %s is not followed: %s", self.connected or "?", problem,
                      at_once=is_new)  # fmt: skip

    async def follow_once(self) -> None:
        """Follows until the connection is over. Raises: OSError and TimeoutError, when it is;
        Diverged; StoreError, when the log cannot be taken."""
        try:
            if self._elected is not None:
                await self._follow_by_epochs(self._elected.number)
            else:
                await self._follow_by_records()
        finally:
            self.followed = ""

    async def _follow_by_records(self) -> None:
        """Follows where the last record here tells whether two logs are one. Raises: as
        follow_once."""
        address = self.connected = self._config["haMasterAddress"] or await self._ha_address()
        if not address:
            raise OSError("no name server knows a master of this broker's name, and"
                          " haMasterAddress is not set")  # fmt: skip
        master = self._master.address
        sock = await connected(address)
        try:
            await self._join(sock)
            if master:
                await self._show_end()
            await self._begin_to_follow(master)
        except BaseException:
            sock.close()
            raise
        await self._hand_over(sock)

    async def _join(self, sock: socket.socket) -> None:
        """Compares, and begins an empty log, unless the master keeps this broker out: it has closed
        the connection before it answered what was asked after it. Raises: as _compare."""
        try:
            found = await self._compare()
        except Diverged:
            if _is_closed(sock):  # by its word nothing here is cut back
                raise _kept_out(sock.getsockname()[0]) from None
            raise
        begins = found is not None and found[0] > 0 and self._store.info().log_max == 0
        ends = await self._queue_ends() if begins else {}
        record = await self._first_record(*found) if found is not None else None
        if _is_closed(sock):
            raise _kept_out(sock.getsockname()[0])
        if found is not None and record is not None:
            await self._begin(found[0], ends, record)

    async def _begin(self, at: int, ends: Mapping[str, Mapping[int, int]], record: bytes) -> None:
        """Begins an empty log where the master's does. ends: of queues that lie before it all.
        record: what it begins with, or nothing. Raises: StoreError."""
        if ends:
            await _ended(asyncio.to_thread(hosting.begin_queues, self._store, ends))
        error = ffi.new("ps_error *")
        if lib.ps_follow_append(self._store.c_handle(), at, record, len(record), error) < 0:
            raise_error(error[0], error.code)

    async def _queues_of_master(self) -> Mapping[str, Any]:
        """Returns what a master of ours tells of its queues beside their topics. Raises: OSError,
        TimeoutError, ValueError."""
        ext = {"pystore": "1", "queueEnds": "1"}
        answer = await self._ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG, ext))
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"asked for its queues, it answers {answer.code} {answer.remark}")
        found = await asyncio.to_thread(mqjson.loads, bytes(answer.body))
        if not isinstance(found, dict):
            raise ValueError("asked for its queues, it does not answer with an object")
        return found

    async def _queue_ends(self) -> dict[str, dict[int, int]]:
        """Returns where queues of the master go on of which its log has nothing: without that they
        would begin at 0 here, and once this broker is the master give each offset twice. One of
        Java's does not tell. Raises: OSError, TimeoutError, ValueError."""
        said = (await self._queues_of_master()).get("queueEnds") or {}
        ends: dict[str, dict[int, int]] = {}
        if not isinstance(said, dict):
            raise ValueError(f"the master sent invalid ends of queues: {said!s:.200}")
        for topic in said:
            ends[topic] = {int(queue): at for queue, at in _numbers(said, topic).items()}
            if not all(0 <= queue < 65536 and at > 0 for queue, at in ends[topic].items()):
                raise ValueError(f"the master tells impossible ends of {topic:.200}")
        return ends

    async def _follow_by_epochs(self, number: int) -> None:
        """Follows under a controller, where epochs tell where two logs part. Raises: as
        follow_once."""
        master = self._master.address
        self.connected = address = await self._ha_address()
        if not address:
            raise OSError("where the master takes slaves is not known yet")
        sock = await connected(address)
        try:
            try:
                theirs = await greet_master(sock, number)
            except ClosedUnheard:
                raise _kept_out(sock.getsockname()[0]) from None
            await self._agree(theirs.epochs, theirs.end)
            self._their_end = theirs.end
            await self._begin_to_follow(master)
        except BaseException:
            sock.close()
            raise
        await self._hand_over(sock)

    async def _agree(self, theirs: list[Epoch], their_end: int) -> None:
        """Cuts this log where it stops being the master's, and takes its epochs. Raises: Diverged,
        OSError, ValueError."""
        end = self._store.info().log_max
        at = common_end(self._epochs.epochs, end, theirs, their_end) if end > 0 else 0
        if at < 0:
            raise Diverged(
                "the two logs have no epoch in common, so nothing says that they are the same:"
                " begin with an empty store"
            )
        if at < end:
            if self.cut_back is None:
                raise OSError("the log cannot be cut back while the broker starts")
            log.warning("The log is cut back from %d to %d, where it is the master's: what follows"
                        " is kept in aside/", end, at)  # fmt: skip
            self.cut_back(at)
            await asyncio.Event().wait()  # until this store is closed
        merged = merge(self._epochs.epochs, theirs, at)
        await _ended(asyncio.to_thread(self._epochs.replace, merged))
        begin, _ = await self.master_range()
        if 0 < end < begin:
            raise Overtaken(begin, end)
        if end == 0 < begin:
            ends = await self._queue_ends()
            if (await self.master_range())[0] != begin:
                raise OSError("retention has just deleted the beginning of its log")
            await self._begin(begin, ends, b"")

    async def _begin_to_follow(self, master: str) -> None:
        self.followed = master
        if self.before_following is not None:
            await self.before_following()

    async def _hand_over(self, sock: socket.socket) -> None:
        """Follows until the connection is over."""
        conf, began_s, began = stream_conf(self._config), time.monotonic(), self.state()[0]
        kept = with_epochs(conf, self._epochs) if self._elected is not None else None
        loop, told, error = asyncio.get_running_loop(), os.eventfd(0), ffi.new("ps_error *")
        here: str = sock.getsockname()[0]
        sock.setblocking(True)
        over = asyncio.Event()
        loop.add_reader(told, over.set)
        handle = lib.ps_ha_slave_start(self._store.c_handle(), conf, sock.detach(), told, error)
        del kept  # the core has a copy
        try:
            if handle == ffi.NULL:
                raise_error(error[0], error.code)
            self._handle, self.problem, self.diverged = handle, "", False
            self.has_followed, self.refused = True, False
            quiet.info("follows", "Follows the master at %s", self.connected)
            if self.on_followed is not None:
                self.on_followed()
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COMPARE_S):
                        await over.wait()
                if not over.is_set() and self._elected is None:
                    await self._compare_again()
            self._raise_why(handle, here)
        finally:
            if handle != ffi.NULL:
                now_s, (end, _, silent_ms) = time.monotonic(), self.state()
                self.heard_at = now_s - silent_ms / 1000
                if end > began or now_s - began_s > _HELD_S:
                    self._pause_s = _FIRST_RETRY_S
            self._handle, self.followed = ffi.NULL, ""
            if self.on_lost is not None:
                self.on_lost()
            loop.remove_reader(told)
            if handle != ffi.NULL:
                await asyncio.to_thread(lib.ps_ha_slave_stop, handle)
            os.close(told)

    @staticmethod
    def _raise_why(handle: object, here: str) -> None:
        """Raises what ended the stream. here: the address that it was connected from."""
        shown = ffi.new("ps_ha_state *")
        lib.ps_ha_slave_show(handle, shown)
        is_reset = shown.over == lib.PS_HA_FAILED and shown.error.sys_errno in _RESET
        if not shown.bytes and (shown.over == lib.PS_HA_CLOSED or is_reset):
            raise _kept_out(here)
        if shown.over in _WHY:
            raise OSError(_WHY[shown.over])
        if shown.over == lib.PS_HA_FAILED:
            raise ConnectionError(ffi.string(shown.error.text).decode(errors="replace"))
        raise_error(shown.error, shown.error.code)

    # ---- whose log it is ----

    async def _compare(self) -> tuple[int, int] | None:
        """Checks that the last record here, and the size of segments, are the master's. Returns
        where its log begins and ends, when there is no record here. Raises: Diverged, and OSError,
        TimeoutError, when it cannot be asked."""
        last = await self._last_record()
        if not self._master.address:
            if last < 0:
                return None
            raise OSError("the name server does not say where the master is, which has to be asked"
                          " for its last records before its log is taken")  # fmt: skip
        await self._compare_sizes()
        begin, end = await self.master_range()
        if last < 0:
            return begin, end
        if last < begin:
            raise Overtaken(begin, last)
        if not await self._is_the_masters(last):
            at = last
        elif await self._has_record_in_blank(last):
            at = last + len(self._store.message(last).record)
        else:
            return None
        raise Diverged(
            f"its log has another record at {at} than this one, or none: the two logs have"
            " different pasts. Keep this store aside and begin with an empty one, or with a copy"
            " of the master's, or set haTruncateDiverged"
        )

    async def _last_record(self) -> int:
        """Returns where it begins, -1: there is none. Queues do not have it when its topic was
        deleted, or made again at the master: then the segment is read."""
        end = self._store.info().log_max
        last = int(lib.ps_last_record(self._store.c_handle()))
        if last < 0 or last + len(self._store.message(last).record) < end:
            last, _ = await asyncio.to_thread(record_before, self._store, end)
        return last

    async def _has_record_in_blank(self, last: int) -> bool:
        """Says whether the master has a record in our blank. A master of Java's that was killed
        after the blank of a segment begins again where the blank is, and may put a record there,
        which a slave that has the blank would never get."""
        end = last + len(self._store.message(last).record)
        if self._store.info().log_max == end:
            return False
        with contextlib.suppress(NotFound):  # as it is of a blank
            self._store.message(end)
            return False  # the log has grown since
        answer = await self._view(end)
        return answer.code == ResponseCode.SUCCESS and check_record(bytes(answer.body)) is not None

    async def _first_record(self, begin: int, end: int) -> bytes | None:
        """Returns what an empty log begins with where the master's does; None: it is not empty, or
        the master's is. A master of Java's sends whoever reports 0 its last segment alone, so what
        is reported must not be 0. Raises: OSError, TimeoutError."""
        if self._store.info().log_max > 0 or end == 0:
            return None
        if begin >= end:
            return b""
        answer = await self._view(begin)  # and with a record there is something to compare
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"asked for its first record, it answers {answer.code} {answer.remark}")
        return bytes(answer.body)

    async def _show_end(self) -> None:
        """Shows the master that the last record here is its own, which it has to know before it
        sends anything, and cannot ask everybody for: a clone is registered nowhere. Java's masters
        do not look at it. Raises: Diverged, OSError, TimeoutError, StoreError."""
        end = self._store.info().log_max
        last, _ = await asyncio.to_thread(record_before, self._store, end)
        if last < 0:
            return
        mine = bytes(self._store.message(last).record)
        answer = await self._view(last, replicaEnd=str(end), replicaDigest=digest_of(mine))
        if answer.code != ResponseCode.SUCCESS or bytes(answer.body) != mine:
            raise Diverged(f"its log has another record at {last} than this one, or none")

    async def _view(self, at: int, **more: str) -> Command:
        ext = {"offset": str(at), **more}
        return await self._ask(Command(RequestCode.VIEW_MESSAGE_BY_ID, ext))

    async def master_range(self) -> tuple[int, int]:
        """Returns where the master's log begins and ends. Raises: OSError, TimeoutError,
        ValueError."""
        answer = await self._ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"asked where its log begins, it answers {answer.code} {answer.remark}")
        table = mqjson.loads(bytes(answer.body)).get("table") or {}
        return int(table.get("commitLogMinOffset", 0)), int(table.get("commitLogMaxOffset", 0))

    async def _compare_again(self) -> None:
        """Compares while it follows. Raises: Diverged."""
        try:
            await self._compare()
        except (OSError, TimeoutError, ValueError, StoreError) as failed:
            quiet.warning("not compared", "The master's last records are not compared: %s",
                          failed)  # fmt: skip

    async def _compare_sizes(self) -> None:
        answer = await self._ask(Command(RequestCode.GET_BROKER_CONFIG))
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"asked for its settings, it answers {answer.code} {answer.remark}")
        given = parse_java_properties(bytes(answer.body).decode(errors="replace"))
        _, theirs = given.get("mappedFileSizeCommitLog", (0, ""))
        ours = self._store.info().commitlog_file_size
        if theirs != str(ours):
            raise Diverged(f"its segments have {theirs} bytes, and those of this store {ours}:"
                           " set mappedFileSizeCommitLog alike")  # fmt: skip
