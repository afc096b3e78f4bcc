"""The garbage collector of a server's process, so that it never looks at everything at once.

A broker with tens of thousands of topics has hundreds of thousands of objects that stay, and a full
collection holds the event loop for as long as it takes to look at all of them. So what stays is put
aside (``gc.freeze``) as soon as a full collection takes long: those that follow look at what came
since. Objects that were put aside still go as soon as nobody refers to them; only those that refer
to each other stay, if nobody needs them later.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

__all__ = ["put_aside"]

#: Seconds of a full collection that are too long.
_LONG_S = 0.005
_FULL = 2


def put_aside(clock: Callable[[], float] = time.thread_time) -> Callable[[], None]:
    """Puts aside what there is now, and what a long full collection finds from now on. clock: in
    seconds. Returns a function that ends it."""
    began = 0.0

    def collected(phase: str, info: Mapping[str, int]) -> None:
        nonlocal began
        if info["generation"] != _FULL:
            return
        if phase == "start":
            began = clock()
        elif clock() - began > _LONG_S:
            gc.freeze()

    def end() -> None:
        gc.callbacks.remove(collected)
        gc.unfreeze()

    gc.collect()
    gc.freeze()
    gc.callbacks.append(collected)
    return end
