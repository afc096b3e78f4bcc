"""Messages that were pulled and wait for a taker: the iterator, poll(), or a handler's worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from broker.client.message import ReceivedMessage
from broker.client.progress import QueueProgress

__all__ = ["ReadyMessages"]


class ReadyMessages:
    """Messages in the order in which they came, and the tasks that wait for one."""

    def __init__(self) -> None:
        self._messages: deque[ReceivedMessage] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        """Adds messages at the end, and wakes one waiter."""
        self._messages.extend(messages)
        self.wake_one()

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Puts back messages that were taken and did not reach their taker: they come next."""
        left = [m for m in messages if m.progress.is_open(m.queue_offset)]
        self._messages.extendleft(reversed(left))
        self.wake_one()

    def keep(self, wanted: Callable[[ReceivedMessage], bool]) -> None:
        """Drops the messages that are no longer wanted."""
        self._messages = deque(filter(wanted, self._messages))

    def drop(self, progress: QueueProgress) -> list[ReceivedMessage]:
        """Drops the messages of one queue or batch, and returns them."""
        dropped = [m for m in self._messages if m.progress is progress]
        if dropped:
            self.keep(lambda m: m.progress is not progress)
        return dropped

    def batches(self) -> set[QueueProgress]:
        """Returns the queues or batches of the messages."""
        return {message.progress for message in self._messages}

    def take(self) -> ReceivedMessage | None:
        """Returns the next message, or None when none waits."""
        messages = self._messages
        while messages:
            message = messages.popleft()
            if not message.progress.dropped:
                return message
        return None

    def take_many(self, most: int) -> list[ReceivedMessage]:
        """Returns the next messages, at most so many."""
        messages = self._messages
        if len(messages) <= most:
            batch = [m for m in messages if not m.progress.dropped]
            messages.clear()
            return batch
        return [m for _ in range(most) if (m := self.take()) is not None]

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for a message. Returns False after the timeout, or when the consumer closes."""
        while not self._messages:
            if self._closed:
                return False
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                return False
        return True

    def wake_one(self) -> None:
        """Wakes one waiter if a message is left for it. The waiter does the same once it waits
        itself, so that short work does not wake everybody for each message."""
        waiting = self._waiters
        while waiting and self._messages:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                break

    def close(self) -> None:
        """Wakes every waiter: nothing comes any more."""
        self._closed = True
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    def clear(self) -> None:
        """Drops all messages."""
        self._messages.clear()
