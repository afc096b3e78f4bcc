"""What becomes of a message that is to be put: Python decides, the C core composes, places, puts
and answers (csrc/core/decision.h, docs/internals/send-path.md).

The core's tables decide most sends. Those that they have no rule for come up to Python, which reads
them with :meth:`Peer.read_send` and gives its :class:`PutDecision` to :meth:`Peer.decide`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from pystore.format.properties import encode_properties
from pystore.native import ffi, lib

__all__ = [
    "QUEUE_ANY",
    "AskedSend",
    "PutDecision",
    "PutOutcome",
    "Role",
    "fill",
    "read_asked",
    "sent_of",
]

#: Some queue of the topic that may be written to.
QUEUE_ANY: int = lib.PS_QUEUE_ANY
_AS_ASKED: int = lib.PS_AS_ASKED


class Role(IntEnum):
    """The role of a message. A PLAIN one is visible at once, or when its delay is over; a HALF one
    once its transaction commits."""

    PLAIN = lib.PS_ROLE_PLAIN
    HALF = lib.PS_ROLE_HALF


class AskedSend(NamedTuple):
    """The numbers of a send's header, and what its properties ask for: read in C, so that nothing
    of it is read twice.

    `bad` is the letter (version 2) of a field that is missing or not a number, or "". A negative
    `queue` stands for any. `max_reconsume` is -1 when the client did not say. `level` is that of
    DELAY, 0 for none. `transaction` means that TRAN_MSG is true, `timed` that there is a TIMER_
    property, and `queues` that it names a lite topic or other light queues."""

    bad: str
    born_timestamp: int
    template_queues: int
    queue: int
    sys_flag: int
    flag: int
    reconsume_times: int
    max_reconsume: int
    unit: bool
    batch: bool
    level: int
    transaction: bool
    timed: bool
    has_id: bool
    queues: bool

    def is_half(self, level: int | None = None) -> bool:
        """Returns whether it is a half message once its delay level is this one; None stands for
        the one that was asked for."""
        asks = lib.PS_ASKS_TRANSACTION if self.transaction else 0
        delay = self.level if level is None else level
        return bool(lib.ps_send_is_half(asks, self.reconsume_times, delay))


class PutOutcome(NamedTuple):
    """What a decision brought about.

    `code` is that of the answer. `messages` counts those that were put or are repeated; 0 means
    refused. `queue`, `offset` and `physical_offset` are those of the first, -1 when refused. `end`
    is the end of the last one, in the log, and `size` the bytes put; 0 for a repeat. `ids` has the
    offset message ids, separated by commas."""

    code: int
    messages: int
    queue: int
    offset: int
    physical_offset: int
    end: int
    size: int
    half: bool
    ids: str


@dataclass(slots=True)
class PutDecision:
    """What a message becomes. None stands for what the send asks.

    With `refused` nothing is put, and code and remark are the answer. `code` is that of the answer
    to a message that was put; 0 says how the put went. `topic` and `queue` are those that it is
    meant for; it goes there at once, or when its delay is over or its transaction committed.
    `level` is the delay level. `wait` says whether its answer waits until it is as safe as
    flushDiskType asks. A repeat of it is known by `key`. `drop` names properties that are removed;
    `add` are properties that take the place of those of the same name. The answer names `logical`,
    a place of a static topic: the logical queue, and what is added to offsets; None: they are not
    decided. `after` is called once it is answered."""

    refused: bool = False
    code: int = 0
    remark: str | None = None
    topic: str | None = None
    queue: int | None = None
    level: int | None = None
    role: Role | None = None
    wait: bool | None = None
    key: str | None = None
    drop: Sequence[str] = ()
    add: Mapping[str, str] = field(default_factory=dict)
    logical: tuple[int, int | None] | None = None
    after: Callable[[PutOutcome], None] | None = None

    @classmethod
    def refusal(cls, code: int, remark: str | None) -> PutDecision:
        return cls(refused=True, code=int(code), remark=remark)


_NUMBERS = struct.Struct("@q16i")


def read_asked(raw: Any) -> AskedSend:
    """Reads `raw`, a ``ps_send *`` that C has filled."""
    (
        born, _, bad, template_queues, queue, sys_flag, flag, reconsume, most, unit, batch, asks,
        level, _, _, _, _,
    ) = _NUMBERS.unpack_from(ffi.buffer(raw, _NUMBERS.size))  # fmt: skip
    return AskedSend(
        chr(bad) if bad else "", born, template_queues, queue, sys_flag, flag, reconsume, most,
        unit != 0, batch != 0, level, asks & lib.PS_ASKS_TRANSACTION != 0,
        asks & lib.PS_ASKS_TIME != 0, raw.uniq.len > 0, asks & lib.PS_ASKS_QUEUES != 0,
    )  # fmt: skip


def _as_asked(value: int | bool | None) -> int:
    return _AS_ASKED if value is None else int(value)


def _logical(place: tuple[int, int | None] | None) -> tuple[int, int, int]:
    if place is None:
        return 0, 0, 0
    queue, delta = place
    if delta is None:
        return lib.PS_LOGICAL_QUEUE, queue, 0
    return lib.PS_LOGICAL_PLACE, queue, delta


def fill(decision: PutDecision, raw: Any) -> Sequence[Any]:
    """Writes a decision into a ``ps_decision *``; what it points to lives as long as the result.

    Raises: BadArgument for a text that no property can hold.
    """
    drop = "".join([f"{name}\1" for name in decision.drop]).encode()
    keep = (
        (decision.remark or "").encode("utf-8", "replace"),
        None if decision.topic is None else decision.topic.encode(),
        None if decision.key is None else decision.key.encode(),
        drop,
        encode_properties(decision.add) if decision.add else b"",
    )
    held = [ffi.NULL if data is None else ffi.from_buffer("char[]", data) for data in keep]
    raw.code, raw.put = decision.code, not decision.refused
    raw.queue_id, raw.level = _as_asked(decision.queue), _as_asked(decision.level)
    raw.role, raw.wait = _as_asked(decision.role), _as_asked(decision.wait)
    raw.logical, raw.logical_queue, raw.logical_delta = _logical(decision.logical)
    raw.remark, raw.topic, raw.key, raw.drop, raw.add = held
    raw.remark_len, raw.topic_len, raw.key_len, raw.drop_len, raw.add_len = [
        0 if data is None else len(data) for data in keep
    ]
    return held


def sent_of(raw: Any) -> PutOutcome:
    """Reads `raw`, a ``ps_sent *`` that C has filled."""
    ids = bytes(ffi.buffer(raw.ids, raw.ids_len)).decode() if raw.ids_len else ""
    return PutOutcome(
        raw.code, raw.count, raw.queue_id, raw.queue_offset, raw.physical_offset, raw.end,
        raw.bytes, raw.half != 0, ids,
    )  # fmt: skip
