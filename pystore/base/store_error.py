"""The root of the exceptions of the store, which errors.py has all of."""

from __future__ import annotations

import os
from typing import Any, ClassVar

__all__ = ["StoreError", "by_code", "make"]

#: The exceptions of the table, which enter themselves.
by_code: dict[int, type[StoreError]] = {}


class StoreError(Exception):
    """Root of all errors of the store; itself only for a code that this version has no name for.

    str() is one sentence: what was wrong, where, and what to do next.
    """

    code: int = 0
    """The C core's code (PS_E_ in csrc/base/errors.def)."""
    status: ClassVar[str] = ""
    """The PutMessageStatus that upstream answers to a put refused so, or empty."""
    meaning: ClassVar[str] = "the store failed in a way that this version has no name for"
    next_step: str = "report it with the code and the path named here"
    text: str
    """What was wrong this time."""
    where: str | None
    """The path concerned."""
    offset: int | None
    """The physical offset concerned."""
    pid: int | None
    """The process that holds the lock."""
    errno: int | None
    """errno of the system call that failed."""

    _default_errno: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):
            by_code.setdefault(cls.code, cls)

    def __init__(
        self,
        text: str | None = None,
        where: str | None = None,
        offset: int | None = None,
        pid: int | None = None,
        errno: int | None = None,
        code: int | None = None,
    ) -> None:
        self.text = text or self.meaning
        if errno is None:
            errno = self._default_errno
        if isinstance(self, OSError):
            OSError.__init__(self, errno, self.text, where)  # sets errno, strerror and filename
        else:
            super().__init__(self.text)
        self.where = where
        self.offset = offset
        self.pid = pid
        self.errno = errno
        if code is not None and code != self.code:
            self.code = code

    def __str__(self) -> str:
        place = f": {self.where}" if self.where else ""
        at = f" (at offset {self.offset})" if self.offset is not None else ""
        return f"{self.text}{place}{at} \u2014 {self.next_step}"

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own way would lose what is not among its arguments.
        state = (self.text, self.where, self.offset, self.pid, self.errno, self.code)
        return (type(self), state)


def make(
    code: int,
    text: str = "",
    where: str = "",
    offset: int = -1,
    pid: int = 0,
    sys_errno: int = 0,
) -> StoreError:
    """Makes the exception for what the C core filled into its ps_error."""
    cls = by_code.get(code, StoreError)
    if sys_errno:  # the core's sentences leave it to whoever shows them
        text = f"{text or cls.meaning} ({os.strerror(sys_errno)})"
    return cls(
        text or None,
        where or None,
        offset if offset >= 0 else None,
        pid or None,
        sys_errno or None,
        code,
    )
