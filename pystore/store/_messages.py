"""Messages as views on the store's own mapping, and the batches that keep the mapping alive."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, overload

from pystore.base.enums import NamedInt
from pystore.errors import RecordDamaged
from pystore.format.compression import inflate
from pystore.format.properties import parse_properties
from pystore.format.records import RecordHead, record_head
from pystore.native import ffi, lib, raise_error, view_of

__all__ = ["Batch", "GetStatus", "Message"]

_COMPRESSED = int(lib.PS_SYS_COMPRESSED)
_MAGIC = slice(lib.PS_AT_MAGIC, lib.PS_AT_MAGIC + 4)
_BORN_HOST = int(lib.PS_AT_BORN_HOST)
_INFO = struct.Struct("@3i4x4q4iq")  # the head of ps_batch_info
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
#: One byte, not 0 once any file of the process was found to be cut off while it was mapped.
_CUT = memoryview(ffi.buffer(lib.ps_sigbus_met(), 1))


class GetStatus(NamedInt):
    """What a read met (docs/internals/format.md#reading-a-queue; upstream ``GetMessageStatus``)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    #: Ours: the message is in the cold tier, and is asked for there.
    IN_TIER = 9
    #: Ours: it is, and too much is asked for there already.
    TIER_BUSY = 10


_GET_STATUS = tuple(GetStatus)


def _host_text(raw: memoryview) -> str:
    """Returns ``address:port`` of a host field, IPv6 written out in full groups as Java does."""
    address, port = bytes(raw[:-4]), _INT.unpack(raw[-4:])[0]
    if len(address) == 4:
        return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}:{port}"
    groups = struct.unpack(">8H", address)
    return ":".join(f"{g:x}" for g in groups) + f":{port}"


class Message:
    """One message of a batch. Every attribute is decoded when asked for; nothing is copied before.

    Field names are upstream's (docs/internals/format.md#record). Times are milliseconds since 1970.
    """

    __slots__ = ("_batch", "_i")

    def __init__(self, batch: Batch, i: int) -> None:
        self._batch = batch
        self._i = i

    @property
    def raw_body(self) -> memoryview:
        """The stored bytes, compressed or not; a read-only view on the mapping.

        Raises: FileSizeMismatch when another process has cut the file off since it was read.
        """
        batch = self._batch
        i = self._i
        return batch._slice(i, batch._starts[i], batch._ends[i])

    @property
    def body(self) -> memoryview | bytes:
        """The body: a read-only view on the mapping, or bytes when it had to be inflated.

        Raises: RecordDamaged when a compressed body does not inflate, FileSizeMismatch when another
        process has cut the file off since it was read.
        """
        if self._batch._compressed and self.sys_flag & _COMPRESSED:
            try:
                return inflate((self.sys_flag >> 8) & 7, self.raw_body)
            except (ValueError, EOFError) as e:
                raise RecordDamaged(
                    f"cannot decompress the body: {e}", offset=self.physical_offset
                ) from e
        return self.raw_body

    @property
    def record(self) -> memoryview:
        """The whole record as it lies in the log."""
        v = self._view
        return self._batch._slice(self._i, v.start, v.start + v.size)

    @property
    def _view(self) -> Any:
        return self._batch._views[self._i]

    @property
    def topic(self) -> str:
        v = self._view
        at = v.start + v.topic_start
        return str(self._batch._slice(self._i, at, at + v.topic_len), "utf-8", "replace")

    @property
    def queue(self) -> int:
        at = self._view.start + lib.PS_AT_QUEUE_ID
        return int(_INT.unpack(self._batch._slice(self._i, at, at + _INT.size))[0])

    @property
    def queue_offset(self) -> int:
        return int(self._view.queue_offset)

    @property
    def physical_offset(self) -> int:
        return int(self._view.physical_offset)

    @property
    def size(self) -> int:
        """totalSize of the record, bytes."""
        return int(self._view.size)

    @property
    def magic(self) -> int:
        return int.from_bytes(self.record[_MAGIC], "big")

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body, bit 31 dropped."""
        return int(_INT.unpack_from(self.record, lib.PS_AT_BODY_CRC)[0])

    @property
    def flag(self) -> int:
        return int(_INT.unpack_from(self.record, lib.PS_AT_FLAG)[0])

    @property
    def sys_flag(self) -> int:
        return int(self._view.sys_flag)

    @property
    def born_timestamp(self) -> int:
        return int(_LONG.unpack_from(self.record, lib.PS_AT_BORN_TIMESTAMP)[0])

    @property
    def store_timestamp(self) -> int:
        return int(self._view.store_timestamp)

    @property
    def _head(self) -> RecordHead:
        """All fields, for those that stand after a host."""
        return record_head(self.record)

    @property
    def born_host(self) -> str:
        return _host_text(self.record[_BORN_HOST : self._head.born_host_end])

    @property
    def store_host(self) -> str:
        return _host_text(self._store_host_raw)

    @property
    def _store_host_raw(self) -> memoryview:
        head = self._head
        return self.record[head.host_at : head.host_at + head.host_len]

    @property
    def reconsume_times(self) -> int:
        return int(self._view.reconsume_times)

    @property
    def prepared_transaction_offset(self) -> int:
        return self._head.prepared_offset

    @property
    def raw_properties(self) -> bytes:
        v = self._view
        return bytes(self.record[v.properties_start : v.properties_start + v.properties_len])

    @property
    def properties(self) -> dict[str, str]:
        return parse_properties(self.raw_properties)

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The tokens of KEYS."""
        return self.properties.get("KEYS", "").split()

    @property
    def uniq_key(self) -> str | None:
        """The id the client gave it (UNIQ_KEY), if any."""
        return self.properties.get("UNIQ_KEY")

    @property
    def offset_message_id(self) -> str:
        """Store host, port and physical offset in hexadecimal
        (docs/internals/format.md#identifiers)."""
        return (bytes(self._store_host_raw) + _LONG.pack(self.physical_offset)).hex().upper()

    @property
    def message_id(self) -> str:
        """``uniq_key`` where there is one, else ``offset_message_id``, as official clients show
        it."""
        return self.uniq_key or self.offset_message_id

    def __repr__(self) -> str:
        return (
            f"<Message {self.topic}/{self.queue}@{self.queue_offset} at {self.physical_offset},"
            f" {len(self.raw_body)} bytes>"
        )


class Batch(Sequence[Message]):
    """Messages that one call read, with what the store said about the place.

    status: GetStatus. next_offset: where to read on (a queue offset, or a log offset for reads of
    the log). min_offset, max_offset: of the queue at that moment. damaged: messages passed over on
    the way since they are damaged; first_damaged: the queue offset of the first of them.

    Views into it stay valid as long as the batch, or the view itself, is alive, even when the store
    is closed or the segment deleted in the meantime. A body that is taken after another process has
    cut the segment off is ``FileSizeMismatch``; a view that was taken before shows zeros.
    """

    __slots__ = (
        "__dict__",
        "_compressed",
        "_count",
        "_handle",
        "_info",
        "_segments",
        "damaged",
        "first_damaged",
        "max_offset",
        "min_offset",
        "next_offset",
        "outcome",
        "status",
        "suggest_slave",
    )

    def __init__(self, handle: Any, memory: Any = None) -> None:
        """Takes a ``ps_batch``. memory: what it points into, if not a store: kept as long as it."""
        free = lib.ps_batch_free
        self._handle = ffi.gc(handle, free if memory is None else lambda raw, _=memory: free(raw))
        self._info = info = ffi.new("ps_batch_info *")
        lib.ps_batch_get(handle, info)
        (
            status,
            self._count,
            self._segments,
            self.next_offset,
            self.min_offset,
            self.max_offset,
            _,
            slave,
            self._compressed,
            self.outcome,
            self.damaged,
            self.first_damaged,
        ) = _INFO.unpack_from(ffi.buffer(info))
        self.status = _GET_STATUS[status]
        self.suggest_slave = bool(slave)

    # What points into the mapping is made when it is first looked at: an empty batch costs little.

    @cached_property
    def _views(self) -> Any:
        return self._info.views

    @cached_property
    def _starts(self) -> list[int]:
        return list(ffi.unpack(self._info.body_starts, self._count))

    @cached_property
    def _ends(self) -> list[int]:
        return list(ffi.unpack(self._info.body_ends, self._count))

    @cached_property
    def _maps(self) -> tuple[memoryview, ...]:
        segments, handle = self._info.segments, self._handle
        return tuple(view_of(handle, segments[i]) for i in range(self._segments))

    def _slice(self, i: int, start: int, end: int) -> memoryview:
        """Returns bytes of the segment of message `i`. Raises: FileSizeMismatch."""
        maps = self._maps
        segment = maps[0] if len(maps) == 1 else maps[self._views[i].segment]
        segment[end - 1]  # when its page is gone, this is what sets _CUT
        if _CUT[0]:
            self._check_whole()
        return segment[start:end]

    def _check_whole(self) -> None:
        error = ffi.new("ps_error *")
        if lib.ps_batch_whole(self._handle, error) < 0:
            raise_error(error)

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[Message]:
        return map(Message, repeat(self, self._count), range(self._count))

    @overload
    def __getitem__(self, i: int) -> Message: ...
    @overload
    def __getitem__(self, i: slice) -> list[Message]: ...
    def __getitem__(self, i: int | slice) -> Message | list[Message]:
        if isinstance(i, slice):
            return [Message(self, k) for k in range(*i.indices(self._count))]
        if not -self._count <= i < self._count:
            raise IndexError(f"message {i} of a batch of {self._count}")
        return Message(self, i % self._count)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return int(self._info.bytes)

    def offsets(self) -> list[int]:
        """Returns the queue offset of every message."""
        views = self._views
        return [views[i].queue_offset for i in range(self._count)]

    def records(self) -> bytes:
        """Returns every record as it is stored, one after the other. Raises: FileSizeMismatch."""
        to = bytearray(self.size)
        if to:
            lib.ps_batch_records(self._info, ffi.from_buffer(to))
        if _CUT[0]:
            self._check_whole()
        return bytes(to)

    def raw_bodies(self) -> list[memoryview]:
        """Returns every stored body as a read-only view: the quickest way through a backlog.

        Raises: FileSizeMismatch, as ``Message.raw_body`` does.
        """
        maps = self._maps
        if len(maps) == 1:
            m = maps[0]
            self._slice(0, 0, self._ends[-1])  # for its check
            return [m[a:b] for a, b in zip(self._starts, self._ends, strict=True)]
        return [m.raw_body for m in self]

    def bodies(self) -> list[memoryview | bytes]:
        """Returns every body, inflated where it is compressed; views else."""
        if self._compressed:
            return [m.body for m in self]
        return list(self.raw_bodies())

    def __repr__(self) -> str:
        return f"<Batch {self.status.name}, {self._count} messages, next {self.next_offset}>"
