"""Status values under upstream's names."""

from __future__ import annotations

import enum

__all__ = ["NamedInt", "PutStatus"]


class NamedInt(enum.IntEnum):
    """A number that is shown by its name."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec[-1:] in tuple("bcdnoxX") else format(self.name, spec)


class PutStatus(enum.Enum):
    """How a put ended (docs/internals/format.md#flushing-and-status; upstream
    ``PutMessageStatus``).

    The first four mean that the message is stored. The others come as the ``status`` of the
    exception that a refused put raises.
    """

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"

    @property
    def stored(self) -> bool:
        """Whether the message is in the log."""
        return self in _STORED


_STORED = frozenset(
    (
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    )
)
