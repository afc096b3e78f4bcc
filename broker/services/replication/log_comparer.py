"""The master's end: whether what a slave has when it comes is this log. Its report says how much it
has, not what: Java's slaves follow with any log, and would count as copies of what they lack, and
append what follows here to what they have (docs/replication.md#logs-with-different-pasts)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from broker.access.addresses import address_of
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.remoting.client import parse_address
from broker.services.replication.greeting import connected, greet_master
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore import Store
from pystore.errors import StoreError
from pystore.files.javaproperties import parse_java_properties
from pystore.native import ffi, lib

__all__ = ["LogComparer", "digest_of", "record_before"]

quiet = RateLimitedLogger(SafeLogger(__name__))

#: Asks the broker at this address. Raises: OSError, TimeoutError.
AskAt = Callable[[str, Command], Awaitable[Command]]
#: The brokers of this name by their ids, as the name servers know them. Raises: OSError,
#: TimeoutError, ValueError.
Members = Callable[[], Awaitable[Mapping[int, str]]]

#: What slaves have shown by themselves, and hosts that were refused, are remembered for so many.
_KEPT = 256
#: Ends of logs that were refused, of one host: the lowest count, nearest to where logs part.
_ENDS = 16
#: For a connection to a slave's own port for slaves, and for each piece of its log.
_PIECE_S = 10.0
_PIECE = 1 << 18
_REPORT, _FRAME = struct.Struct(">q"), struct.Struct(">qi")
#: The same under a controller (csrc/ha/ha.h): state, end; state, length, place, epoch and its
#: start, confirm offset.
_EPOCH_REPORT, _EPOCH_FRAME, _TRANSFER = struct.Struct(">iq"), struct.Struct(">iiqiqq"), 2


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A broker that the slave may be. begin: of its log. knows: whether it says what it has."""

    address: str
    begin: int
    knows: bool


class _NotKnown(Exception):
    """It cannot be said whether the log is this one."""


class LogComparer:
    """Compares the logs of slaves with the one here, before they are sent anything."""

    def __init__(
        self, store: Store, members: Members, ask: AskAt, number: int | None = None
    ) -> None:
        """Compares with this store. number: of this broker, under a controller."""
        self._store, self._members, self._ask, self._number = store, members, ask, number
        #: Hosts with the ends of their logs, of slaves that have shown what is there.
        self._shown: OrderedDict[tuple[object, int], None] = OrderedDict()
        #: Ends of logs that were not this one, by hosts.
        self._refused: OrderedDict[object, list[int]] = OrderedDict()

    def take_proof(self, host: str, at: int, record: bytes, ext: Mapping[str, str]) -> None:
        """Notes that a slave of ours has asked for the record at `at`, the last one of its log, and
        has shown that it has the same (`replicaEnd`, `replicaDigest`)."""
        with contextlib.suppress(ValueError):
            end, size = int(ext.get("replicaEnd", "")), self._store.info().commitlog_file_size
            closes = at + len(record)
            blank = end % size == 0 and 0 < end - closes < size
            if ext.get("replicaDigest") == digest_of(record) and (end == closes or blank):
                self._shown[address_of(host), end] = None
                while len(self._shown) > _KEPT:
                    self._shown.popitem(last=False)

    async def compare(self, host: str, end: int) -> bool | None:
        """Says whether a log of a slave at this host that ends at `end` is ours so far; None:
        nobody says. The end may lie within a record: a Java slave's does after its connection
        broke."""
        known = address_of(host)
        if known not in self._refused and (known, end) in self._shown:
            return True
        try:
            same = [await self._is_ours(each, known, end) for each in await self._who(known, end)]
        except (_NotKnown, OSError, TimeoutError, ValueError, StoreError) as failed:
            quiet.warning(
                "not compared",
                "The slave at %s gets no data until its log up to %d has been compared: %s",
                host, end, reason_of(failed),
            )  # fmt: skip
            return None
        if all(same):
            self._refused.pop(known, None)
            return True
        ends = self._refused.setdefault(known, [])
        self._refused[known] = sorted({*ends, end})[:_ENDS]
        while len(self._refused) > _KEPT:
            self._refused.popitem(last=False)
        return False

    # ---- which broker it is ----

    async def _who(self, host: object, end: int) -> list[_Candidate]:
        """Returns those whose logs end where this slave's does, of its host if there are any:
        nothing moves that end before it is compared. Raises: _NotKnown, OSError, TimeoutError,
        ValueError."""
        here: list[_Candidate] = []
        elsewhere: list[_Candidate] = []
        problem = ("no other broker of this name is registered: the slave needs the brokerName and"
                   " the name servers of this one")  # fmt: skip
        for number, address in (await self._members()).items():
            if number == 0:
                continue
            is_here = address_of(parse_address(address)[0]) == host
            try:
                found = await self._range_of(address)
            except (OSError, TimeoutError) as failed:
                if is_here:
                    raise
                problem = f"{address}: {reason_of(failed)}"
                continue
            if found is None and is_here:  # without rights
                here.append(_Candidate(address, 0, False))
            elif found is not None and found[1] == end:
                (here if is_here else elsewhere).append(_Candidate(address, found[0], True))
            else:
                problem = "no broker of this name has a log that ends there"
        if not here and not elsewhere:
            raise _NotKnown(problem)
        return here or elsewhere

    async def _range_of(self, address: str) -> tuple[int, int] | None:
        """Returns where its log begins and ends; None: it does not say. Raises: OSError,
        TimeoutError, ValueError."""
        answer = await self._ask(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        if answer.code != ResponseCode.SUCCESS:
            return None
        table = mqjson.loads(bytes(answer.body)).get("table") or {}
        return int(table.get("commitLogMinOffset", 0)), int(table.get("commitLogMaxOffset", -1))

    # ---- whether its log is ours ----

    async def _is_ours(self, one: _Candidate, host: object, end: int) -> bool:
        """Says whether the log of a slave is ours. Raises: _NotKnown, OSError, TimeoutError,
        ValueError, StoreError."""
        last, border = await asyncio.to_thread(record_before, self._store, end)
        if last >= max(0, one.begin) and not await self._has_record(one, last):
            return False
        refused = [each for each in self._refused.get(host, ()) if each < end]
        if refused:
            return await self._is_ours_as_a_whole(one, refused, border, end)
        return border == end or await self._has_rest(one, border, end)

    async def _has_record(self, one: _Candidate, at: int) -> bool:
        """Says whether a slave has our record. Raises: _NotKnown, OSError, TimeoutError,
        StoreError."""
        view = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at)})
        answer = await self._ask(one.address, view)
        if answer.code == ResponseCode.SUCCESS:
            return bytes(answer.body) == bytes(self._store.message(at).record)
        # Java's answers 1 to whoever has no rights, too.
        if answer.code == ResponseCode.SYSTEM_ERROR and one.knows:
            return False
        return await self._shows_record(one, at, f"{answer.code} {answer.remark or ''}".strip())

    async def _shows_record(self, one: _Candidate, at: int, said: str) -> bool:
        """Compares the record of a slave that does not know this broker and gives it no answer: its
        port for slaves asks nobody for rights. Raises: _NotKnown, ValueError, StoreError."""
        try:
            return await self._has_bytes(one, at, at + len(self._store.message(at).record))
        except (OSError, TimeoutError) as failed:
            raise _NotKnown(
                f"asked for the record at {at}, {one.address} answers {said}, and its own port for"
                f" slaves does not serve: {reason_of(failed)}. Give this broker rights there"
                " (innerClientAuthenticationCredentials), or open that port for it"
            ) from failed

    async def _is_ours_as_a_whole(
        self, one: _Candidate, refused: list[int], border: int, end: int
    ) -> bool:
        """Says whether all of a log is ours, of a host whose log was another one before: what
        follows here may have been appended to that by somebody else. Raises: as _is_ours."""
        info = self._store.info()
        begin = max(info.log_min, one.begin)
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            return await self._has_bytes(one, begin, end)
        if border < end and not await self._has_rest(one, border, end):
            return False
        # Its log cannot be read: where each segment begins, and wherever it was another one.
        before = [await asyncio.to_thread(record_before, self._store, each) for each in refused]
        places = {at for at, *_ in before}
        size = info.commitlog_file_size
        places |= set(range(begin - begin % size, border, size))
        for at in sorted(places):
            if at >= begin and not await self._has_record(one, at):
                return False
        return True

    async def _has_rest(self, one: _Candidate, border: int, end: int) -> bool:
        """Says whether it has our bytes of a record that it has half of. Raises: _NotKnown,
        ValueError."""
        try:
            return await self._has_bytes(one, border, end)
        except (OSError, TimeoutError) as failed:
            raise _NotKnown(
                f"it ends within the record at {border}, and its own port for slaves, where the"
                f" half could be read, does not serve: {reason_of(failed)}. A new"
                " start of that slave cuts the half off"
            ) from failed

    async def _has_bytes(self, one: _Candidate, at: int, end: int) -> bool:
        """Says whether its log is ours between the two places. Java's brokers serve the log at
        their port for slaves whatever their role is, from any place but 0. Raises: OSError,
        TimeoutError, ValueError."""
        at = max(at, 1)  # the highest byte of a size
        reader, writer = await self._log_from(one.address, at)
        try:
            while at < end:
                async with asyncio.timeout(_PIECE_S):
                    place, left = await self._read_frame(reader)
                if place != at or left <= 0:
                    raise OSError(f"asked for {at} of its log, it sends {left} bytes of {place}")
                while left > 0 and at < end:
                    async with asyncio.timeout(_PIECE_S):
                        data = await reader.readexactly(min(left, _PIECE))
                    left -= len(data)
                    data = data[: end - at]
                    if not await asyncio.to_thread(has_bytes, self._store, at, data):
                        return False
                    at += len(data)
        except asyncio.IncompleteReadError as cut:
            raise OSError("the connection was closed") from cut
        finally:
            writer.close()
        return True

    async def _log_from(
        self, address: str, at: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Follows it as a slave that has its log up to there. Raises: as _has_bytes."""
        sock = await connected(await self._port_for_slaves(address))
        try:
            if self._number is not None:
                await greet_master(sock, self._number, learner=True)
            reader, writer = await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
        is_classic = self._number is None
        writer.write(_REPORT.pack(at) if is_classic else _EPOCH_REPORT.pack(_TRANSFER, at))
        return reader, writer

    async def _read_frame(self, reader: asyncio.StreamReader) -> tuple[int, int]:
        """Returns the place of the next one, and its length. Raises: OSError,
        IncompleteReadError."""
        if self._number is None:
            place, left = _FRAME.unpack(await reader.readexactly(_FRAME.size))
            return place, left
        head = await reader.readexactly(_EPOCH_FRAME.size)
        state, left, place, *_ = _EPOCH_FRAME.unpack(head)
        if state != _TRANSFER:
            raise OSError(f"it sends a frame of state {state} instead of its log")
        return place, left

    async def _port_for_slaves(self, address: str) -> str:
        """Returns where a broker serves slaves. Raises: OSError, TimeoutError, ValueError."""
        answer = await self._ask(address, Command(RequestCode.GET_BROKER_CONFIG))
        text = bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""
        given = parse_java_properties(text.decode(errors="replace"))
        host, port = parse_address(address)
        return f"{host}:{int(given.get('haListenPort', (0, '0'))[1]) or port + 1}"


def record_before(store: Store, place: int) -> tuple[int, int]:
    """Returns where the last whole record begins that ends at or before `place`, -1: none does; and
    where a record or a blank ends there. Reads a segment: not on the loop."""
    border = ffi.new("int64_t *")
    return int(lib.ps_record_before(store.c_handle(), place, border)), int(border[0])


def has_bytes(store: Store, at: int, data: bytes) -> bool:
    """Says whether the log has these bytes there."""
    return bool(lib.ps_has_bytes(store.c_handle(), at, data, len(data)))


def digest_of(record: bytes) -> str:
    return hashlib.blake2b(record, digest_size=16).hexdigest()
