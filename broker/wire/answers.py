"""What a client reads: answers of plain sends settled in bulk, every other frame as a command.

The frames are cut and looked at in C (csrc/wire/client.h), all of one read in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from broker.wire import codec
from broker.wire.codec import FRAME_MAX
from broker.wire.command import Command
from broker.wire.framer import READ_MAX, FramerFactory, PlainFramer, SendWaiter
from pystore.native import ffi, lib, raise_error

__all__ = ["answer_framers"]

_ROWS = 256
#: ps_answered.
_ROW = struct.Struct("@4iq6q")


#: Link.take_send.
TakeSend = Callable[[int], SendWaiter | None]


class AnswerFramer(PlainFramer):
    """A PlainFramer for one connection of a client."""

    __slots__ = ("_error", "_numbers", "_rows", "_rows_view", "_shared", "_take", "_unescaped")

    def __init__(self, room: _Room, take: TakeSend, frame_max: int) -> None:
        super().__init__(room.scratch, frame_max)
        self._take = take
        self._shared = room.pointer
        self._unescaped = room.unescaped
        self._rows, self._rows_view = room.rows, room.rows_view
        self._numbers = room.numbers
        self._error = room.error

    def received(self, count: int) -> Sequence[Command]:
        if not count and not self.more:
            return ()
        end = self._filled + count
        view, at, found, size = self._view, self._from, _ROWS, 0
        self.more = False
        own = self._own
        start = self._shared if own is None else ffi.from_buffer("uint8_t[]", own)
        numbers = self._numbers
        commands: list[Command] = []
        while found == _ROWS:
            found = lib.ps_client_answers(
                start + at, end - at, self._frame_max, self._unescaped, self._rows, _ROWS, numbers,
                numbers + 1, self._error,
            )  # fmt: skip
            if found < 0:
                raise_error(self._error[0], found)
            self._settle(view[at:end], found, commands)
            at += numbers[0]
            size = numbers[1]
        self._keep(view, at, end, size)
        return commands

    def _settle(self, view: memoryview, count: int, commands: list[Command]) -> None:
        take = self._take
        # A copy: whoever gets an answer may have others read meanwhile.
        for row in _ROW.iter_unpack(bytes(self._rows_view[: count * _ROW.size])):
            sent, opaque, code, queue, offset, at, size, ids_at, ids_len, tx_at, tx_len = row
            if sent and (waiter := take(opaque)) is not None:
                waiter.sent(
                    code, queue, offset, str(view[ids_at : ids_at + ids_len], "utf-8"),
                    str(view[tx_at : tx_at + tx_len], "utf-8") if tx_len else "",
                )  # fmt: skip
            else:
                commands.append(codec.decode(view[at : at + size]))


class _Room:
    """What the framers of one client share."""

    def __init__(self) -> None:
        read = bytearray(READ_MAX)
        self.scratch = memoryview(read)
        self.pointer = ffi.from_buffer("uint8_t[]", read)
        self.unescaped = ffi.new("uint8_t[]", lib.PS_HEADER_MAX)
        self.rows = ffi.new("ps_answered[]", _ROWS)
        self.rows_view = memoryview(ffi.buffer(self.rows)).cast("B")
        self.numbers = ffi.new("int64_t[2]")
        self.error = ffi.new("ps_error *")


def answer_framers(frame_max: int = FRAME_MAX) -> FramerFactory:
    """Returns framers for the connections of one client, around one read buffer."""
    room = _Room()
    return lambda connection: AnswerFramer(room, connection.take_send, frame_max)
