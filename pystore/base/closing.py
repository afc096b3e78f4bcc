"""Classes that ``with`` closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["ClosedByWith"]


class ClosedByWith:
    """``with`` closes it at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
