"""How far a consumer is with one queue: what was pulled, what is done, what may be committed.

No I/O, no clock. An offset may be committed when everything before it is done: so a crash repeats
messages, and never skips one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from broker.wire.mqjson import MessageQueue

__all__ = ["QueueProgress"]


class QueueProgress:
    """next_offset: where the next pull begins. dropped: the queue belongs to somebody else by now,
    and nothing of it counts any more."""

    __slots__ = (
        "_done", "_open", "committed", "dropped", "epoch", "locked_until", "next_offset", "paused",
        "queue", "shown", "wake",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, offset: int, shown: Callable[[str], str] = str) -> None:
        self.queue = queue
        self.next_offset = offset
        #: What the broker was told last; -1: nothing yet.
        self.committed = -1
        self.dropped = False
        self.paused = False
        #: Raised by seek(): messages that were pulled before it do not count.
        self.epoch = 0
        #: Until when this client holds the broker's lock on the queue (loop time, seconds).
        self.locked_until = 0.0
        #: A topic without its namespace.
        self.shown = shown
        #: Called when room comes free; set by whoever waits for that.
        self.wake: Callable[[], None] | None = None
        self._open: deque[int] = deque()
        self._done: set[int] = set()

    @property
    def pending(self) -> int:
        """The number of messages that were pulled and are not done."""
        return len(self._open) - len(self._done)

    @property
    def commit_offset(self) -> int:
        """The offset before which everything is done."""
        return self._open[0] if self._open else self.next_offset

    def pulled(self, offsets: Iterable[int], next_offset: int) -> None:
        """Notes the messages that a pull brought; the next one begins at next_offset."""
        self._open.extend(offsets)
        self.next_offset = next_offset

    def done(self, *offsets: int) -> None:
        """Notes messages that were processed, or were handed to the retry topic. A repeat is
        harmless."""
        opened, finished = self._open, self._done
        for offset in offsets:
            if not opened:
                break
            if opened[0] == offset:
                opened.popleft()
                while finished and opened and opened[0] in finished:
                    finished.discard(opened.popleft())
            elif offset > opened[0]:
                finished.add(offset)
        if self.wake is not None:
            self.wake()

    def is_open(self, offset: int) -> bool:
        """Says whether the message was pulled and is not done."""
        return bool(self._open) and offset >= self._open[0] and offset not in self._done

    def reset(self, offset: int) -> None:
        """Continues at another offset; what was pulled before is forgotten."""
        self._open.clear()
        self._done.clear()
        self.next_offset = offset
        self.committed = -1
        self.epoch += 1
        if self.wake is not None:
            self.wake()
