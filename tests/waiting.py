"""The one way in which tests wait: for a condition, with a bound that only a hang reaches.

No verdict depends on how fast the machine is: a test says what is to hold, never how soon. Where an
order of events is the point, the test forces it (an event, a call that blocks, a clock of its own).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["BOUND_S", "STARVED", "settled_async", "until", "until_async"]

T = TypeVar("T")

#: Seconds. The slowest machine that still works is well within it.
BOUND_S = 300.0
#: Spark waits ten seconds for a Python process of a stream to start, and no setting changes that:
#: on a starved machine the test is repeated.
STARVED = "Python worker failed to connect back"


def _late(what: str) -> AssertionError:
    return AssertionError(f"waited {BOUND_S:.0f} s in vain for: {what}")


def until(holds: Callable[[], T], what: str = "the condition", pause_s: float = 0.005) -> T:
    """What `holds` returns, as soon as it is true. Raises: AssertionError."""
    end = time.monotonic() + BOUND_S
    while not (found := holds()):
        if time.monotonic() > end:
            raise _late(what)
        time.sleep(pause_s)
    return found


async def until_async(
    holds: Callable[[], T], what: str = "the condition", pause_s: float = 0.005
) -> T:
    """The same on an event loop."""
    end = time.monotonic() + BOUND_S
    while not (found := holds()):
        if time.monotonic() > end:
            raise _late(what)
        await asyncio.sleep(pause_s)
    return found


async def settled_async(value: Callable[[], T], turns: int = 100) -> T:
    """Waits until the value stays the same for so many turns of the loop, and returns it.

    For what servers and clients on this one loop do to each other: a turn is a chance for each of
    them, however slow the machine is.
    """
    end = time.monotonic() + BOUND_S
    same, last = 0, value()
    while same < turns:
        await asyncio.sleep(0.001)
        now = value()
        same, last = (same + 1, last) if now == last else (0, now)
        if time.monotonic() > end:
            raise _late("a value that stays the same")
    return last
