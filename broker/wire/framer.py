"""Between bytes and commands: what a connection reads into and writes out of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker.wire import codec
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.decision import AskedSend, PutDecision, PutOutcome
from broker.wire.handlers import Peer

__all__ = [
    "FRAMES_ENOUGH", "Framer", "FramerFactory", "Link", "Parts", "PlainFramer",
    "SendWaiter", "plain_framers",
]  # fmt: skip

#: Bytes of one read at most. All connections of a loop share one such buffer.
READ_MAX = 256 << 10
#: A part of a frame up to here is put before the next read; a longer one gets a buffer of its own,
#: since copying it again for each read would let a slow sender buy much work with few bytes.
PART_MAX = 4096
#: Commands of one call of received().
FRAMES_ENOUGH = 64
_NO_STORE = "no store is behind this port: messages cannot be sent to it"
#: First size of such a buffer. It doubles as bytes come: a frame that only says it is long costs
#: nothing.
OWN_MIN = 64 << 10


Parts = list[bytes | bytearray | memoryview]


class Link(Peer, Protocol):
    """What a framer may touch of its connection."""

    #: What flush() writes.
    parts: Parts

    def abort(self, why: str, detail: str = "") -> None:
        """Closes at once. why: logged, once a minute for each kind."""

    @property
    def open(self) -> bool:
        """Returns whether it is neither closed nor about to be."""

    @property
    def paused(self) -> bool:
        """Returns whether nothing is to be read for the moment."""

    def flush(self) -> None:
        """Writes what was sent and what the framer has answered."""

    def hold(self, size: int) -> None:
        """Counts so many bytes that are kept for a frame whose end is still to come (budget.py)."""

    def take_send(self, opaque: int) -> SendWaiter | None:
        """Removes and returns the waiter for the answer of a send of ours; None when there is
        none."""


class SendWaiter(Protocol):
    """Waits for the answer of a send, and is called with what the answer says, without a Command
    between."""

    def sent(self, code: int, queue: int, offset: int, ids: str, transaction: str) -> None: ...


class Framer(Protocol):
    """Makes commands of what one connection reads, and may answer some of them by itself.

    Calls of buffer() and received() or keep() come in pairs, with nothing of another connection
    between them. Its answers go into Link.parts; its caller calls flush()."""

    #: It has stopped before whole frames, since it has much output, many commands, or no more time:
    #: received(0) goes on.
    more: bool

    def buffer(self, hint: int) -> memoryview:
        """Returns room to read into, at least one byte. hint: says how many bytes the reader would
        like."""

    def received(self, count: int) -> Sequence[Command]:
        """Takes `count` bytes that are in the room given last, and returns the whole commands that
        Python must serve.

        Raises: BadFrame, after which the connection is closed."""

    def keep(self, count: int) -> Sequence[Command]:
        """Takes the same bytes, which are not looked at before received() is called again. What it
        returns was found already."""

    def serve_raw(self, command: Command) -> bool:
        """Serves a pull that received() had given to Python; its answer comes at once, or later,
        when the framer calls Link.flush(). Returns False when it cannot."""

    def direct(self) -> tuple[int, int] | None:
        """Returns what ps_conn_send takes in the place of buffer() and received(): the addresses of
        the connection and of the step. None means that only bytes are understood, or that part of a
        frame was read."""

    def sent_directly(self, answered: bool) -> bool:
        """Follows a call of ps_conn_send. answered: says that its caller has the answer. Returns
        True when received(0) must be called now, for what else the send has brought about."""

    def keep_heartbeat(self, opaque: int, says_changed: bool) -> None:
        """Keeps a heartbeat: see Peer.keep_heartbeat."""

    def forget_heartbeat(self) -> None:
        """Forgets it: see Peer.forget_heartbeat."""

    @property
    def heartbeat_at(self) -> float:
        """See Peer.heartbeat_at."""

    @property
    def known(self) -> bool:
        """Returns whether access control has let a request in."""

    def know(self) -> None:
        """Knows the peer: see Peer.know."""

    def read_send(self, command: Command) -> AskedSend:
        """Reads a send: see Peer.read_send."""

    def decide(self, command: Command, decision: PutDecision) -> PutOutcome | None:
        """Decides about a send: see Peer.decide."""

    def delegate(self) -> None:
        """Makes received() give every command to Python from now on."""

    def close(self) -> None:
        """Follows the end of the connection; nothing is called after this."""


FramerFactory = Callable[[Link], Framer]


class PlainFramer:
    """Gives every command to Python.

    It holds no buffer while no frame is begun, so that thousands of idle connections cost
    little."""

    __slots__ = (
        "_filled", "_frame_max", "_from", "_hold", "_own", "_part", "_scratch", "_total", "_view",
        "more",
    )  # fmt: skip

    known = False
    heartbeat_at = 0.0

    def __init__(
        self,
        scratch: memoryview,
        frame_max: int = codec.FRAME_MAX,
        hold: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Takes its buffers. scratch: shared by framers that are never between buffer() and
        received() together. hold: called with how many bytes of a frame are kept."""
        self._scratch = scratch
        self._hold = hold
        self._frame_max = frame_max
        self._part = b""
        self._own: bytearray | None = None
        self._view = scratch
        #: Bytes that were read, and how many of them are done with.
        self._filled = self._from = 0
        self._total = 0
        self.more = False

    def buffer(self, hint: int) -> memoryview:
        if self._own is not None:
            return self._room_of_own(self._own)
        part = self._part
        self._view = self._scratch
        self._filled = len(part)
        if part:
            self._scratch[: len(part)] = part
            return self._scratch[len(part) :]
        return self._scratch

    def _room_of_own(self, own: bytearray) -> memoryview:
        if self._from:
            own = own[self._from :]
            self._filled -= self._from
            self._total -= self._from
            self._from = 0
        if self._filled == len(own):
            size = 2 * len(own)
            grown = bytearray(min(self._total, size) if self._total > len(own) else size)
            grown[: self._filled] = own
            own = grown
            self._hold(len(own))
        self._own = own
        self._view = memoryview(own)
        return self._view[self._filled :]

    def received(self, count: int) -> Sequence[Command]:
        if not count and not self.more:
            return ()
        end = self._filled + count
        view, at = self._view, self._from
        commands: list[Command] = []
        size = 0
        self.more = False
        while end - at >= 4:
            size = codec.frame_size(view[at : at + 4], self._frame_max)
            if size > end - at:
                break
            if len(commands) == FRAMES_ENOUGH:
                self.more = True
                break
            commands.append(codec.decode(view[at : at + size]))
            at += size
            size = 0
        self._keep(view, at, end, size)
        return commands

    def keep(self, count: int) -> Sequence[Command]:
        if count:
            self.more = True
            self._keep(self._view, self._from, self._filled + count, 0)
        return ()

    def _keep(self, view: memoryview, at: int, end: int, size: int) -> None:
        """Keeps what begins at `at`. size: that of the frame there, 0 when not yet known."""
        self._keep_bytes(view, at, end, size)
        self._hold(len(self._own) if self._own is not None else len(self._part))

    def _keep_bytes(self, view: memoryview, at: int, end: int, size: int) -> None:
        left = end - at
        if self._own is not None and (at == self._from or self.more):
            self._from, self._filled = at, end
            self._total = at + size
            return
        self._from = 0
        if self.more:
            self._own = bytearray(view[at:end])
            self._view = memoryview(self._own)
            self._filled, self._total = left, 0
            return
        if left <= PART_MAX:
            self._own = None
            self._part = bytes(view[at:end]) if left else b""
            return
        self._part = b""
        self._own = bytearray(min(size, max(OWN_MIN, 2 * left)))
        self._own[:left] = view[at:end]
        self._filled = left
        self._total = size

    def direct(self) -> tuple[int, int] | None:
        return None

    def sent_directly(self, answered: bool) -> bool:
        return False

    def keep_heartbeat(self, opaque: int, says_changed: bool) -> None:
        """Does nothing: all heartbeats come up to Python."""

    def forget_heartbeat(self) -> None:
        pass

    def know(self) -> None:
        """Does nothing: its frames have the same limit, whoever sends them."""

    def serve_raw(self, command: Command) -> bool:
        return False

    def read_send(self, command: Command) -> AskedSend:
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _NO_STORE)

    def decide(self, command: Command, decision: PutDecision) -> PutOutcome | None:
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _NO_STORE)

    def delegate(self) -> None:
        pass

    def close(self) -> None:
        self._own = None
        self._part = b""
        self._view = self._scratch


def plain_framers(frame_max: int = codec.FRAME_MAX) -> FramerFactory:
    """Returns framers for the connections of one loop, around one read buffer."""
    scratch = memoryview(bytearray(READ_MAX))
    return lambda connection: PlainFramer(scratch, frame_max, connection.hold)
