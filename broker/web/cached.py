"""Answers that are kept for some seconds, so that many visitors cost as much as one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from broker.client.errors import ClientError
from pystore.errors import StoreError

__all__ = ["CachedAnswer", "CachedAnswers", "known_soon"]

_T = TypeVar("_T")
#: How long an answer is taken for the present, and how old it may be shown while a newer one is
#: under way.
_FRESH_S, _STALE_S = 5.0, 60.0
#: The first of these for what is asked for one topic or one group.
_FRESH_OF_ONE_S = 1.0
#: Topics and groups of which answers are kept.
_NAMES = 200


class CachedAnswer(Generic[_T]):
    """An answer that is asked for again when it is old; meanwhile the old one is shown."""

    def __init__(
        self, ask: Callable[[], Awaitable[_T]], fresh_s: float | None = None,
        stale_s: float = _STALE_S,
    ) -> None:  # fmt: skip
        """Keeps an answer. fresh_s: how long it is taken for the present. stale_s: how old it may
        be shown."""
        self._ask = ask
        self._fresh_s, self._stale_s = fresh_s, stale_s
        self._value: _T | None = None
        self._when = float("-inf")
        self._renewal: asyncio.Task[_T] | None = None
        self._forgotten = 0

    async def get(self) -> _T:
        """Returns the answer, which is asked for if it is too old. Raises: what asking raises."""
        value, is_fresh = self._known()
        if value is not None and is_fresh:
            return value
        asking = self._question()
        return value if value is not None else await asyncio.shield(asking)

    async def soon(self, wait_s: float) -> _T | None:
        """Returns what is there now; if that is not known in time, what was there before, and None
        where nothing is known. The question goes on. Raises: as `get`."""
        value, is_fresh = self._known()
        if value is not None and is_fresh:
            return value
        asking = self._question()
        await asyncio.wait({asking}, timeout=wait_s)
        if not asking.done() or (value is not None and asking.exception() is not None):
            return value
        return asking.result()

    def _known(self) -> tuple[_T | None, bool]:
        """Returns what may be shown, and whether it is of the present."""
        age = time.monotonic() - self._when
        is_fresh = age < (_FRESH_S if self._fresh_s is None else self._fresh_s)
        return (self._value if is_fresh or age < self._stale_s else None), is_fresh

    def _question(self) -> asyncio.Task[_T]:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._renew())
            self._renewal.add_done_callback(_ended)
        return self._renewal

    async def _renew(self) -> _T:
        before = self._forgotten
        value = await self._ask()
        if before == self._forgotten:
            self._value, self._when = value, time.monotonic()
            return value
        return await self._renew()

    def forget(self) -> None:
        """Forgets the answer: the next one who asks waits for what is there then, also where a
        question is under way."""
        self._when = float("-inf")
        self._forgotten += 1

    async def close(self) -> None:
        """Ends a question that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientError, StoreError):
                await self._renewal


class CachedAnswers(Generic[_T]):
    """The same by name, of those names that were asked for last."""

    def __init__(self, ask: Callable[[str], Awaitable[_T]]) -> None:
        self._ask = ask
        self._kept: dict[str, CachedAnswer[_T]] = {}

    def of(self, name: str) -> CachedAnswer[_T]:
        found = self._kept.pop(name, None)
        if found is None:
            found = CachedAnswer(partial(self._ask, name), _FRESH_OF_ONE_S)
            if len(self._kept) >= _NAMES:
                del self._kept[next(iter(self._kept))]
        self._kept[name] = found
        return found

    def forget(self) -> None:
        for kept in self._kept.values():
            kept.forget()

    async def close(self) -> None:
        for kept in self._kept.values():
            await kept.close()


def _ended(asking: asyncio.Task[Any]) -> None:
    """Tells those who wait why it failed; where the old answer was shown, the next one asks
    again."""
    if not asking.cancelled():
        asking.exception()


async def known_soon(
    asked: Mapping[str, tuple[CachedAnswer[Any], float]],
) -> tuple[dict[str, Any], bool]:
    """Asks for several beside each other. asked: by name, with the seconds to wait. Returns what is
    known in time, None for what is not or cannot be asked for; and whether more is to come."""

    async def one(answer: CachedAnswer[Any], wait_s: float) -> tuple[Any, bool]:
        try:
            value = await answer.soon(wait_s)
        except (ClientError, StoreError, OSError):
            return None, False
        return value, value is None

    found = await asyncio.gather(*(one(*each) for each in asked.values()))
    values = {name: value for name, (value, _) in zip(asked, found, strict=True)}
    return values, any(waits for _, waits in found)
