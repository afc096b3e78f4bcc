"""The garbage collector of a server's process, so that it never looks at everything at once.

A broker with tens of thousands of topics has hundreds of thousands of objects that stay, and a full
collection holds the event loop for as long as it takes to look at all of them. So what stays is put
aside (``gc.freeze``) as soon as a full collection takes long: those that follow look at what came
since. They come often, so that little has come: by default a full collection waits for a quarter of
what the last one saw, and takes 30 to 60 ms when thousands of calls came at once. Objects that were
put aside still go as soon as nobody refers to them; only those that refer
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
#: Collections of the middle generation before a full one; Python's own is 10.
_OFTEN = 2


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
        gc.set_threshold(young, middle, full)
        gc.unfreeze()

    young, middle, full = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.collect()  # which sees nothing: a quarter of that is soon there
    gc.set_threshold(young, middle, _OFTEN)
    gc.callbacks.append(collected)
    return end
