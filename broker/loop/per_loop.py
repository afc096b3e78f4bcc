"""What all connections of one event loop share, one of a kind for each loop."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Self
from weakref import WeakKeyDictionary, ref

__all__ = ["PerLoop"]


class PerLoop:
    """One object of each subclass for each loop, made when it is first asked for.

    It does not keep its loop, which would never be freed: the table's keys are weak, and its values
    are not.
    """

    __slots__ = ("__weakref__", "_loop_ref")

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Self]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._of_loops = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_ref = ref(loop)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """Returns that of this loop."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        found = self._loop_ref()
        assert found is not None, "whatever uses it runs on the loop"
        return found
