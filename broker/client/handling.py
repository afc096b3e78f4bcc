"""Push: messages to a handler, many at once or each queue in order."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from broker.client.checks import check_count
from broker.client.errors import ClientError, HandlerStuck, Misuse
from broker.client.member import Member, Worker
from broker.client.message import ReceivedMessage
from broker.client.options import INT_MAX
from broker.client.progress import QueueProgress
from broker.client.retrying import FIRST_LEVEL, republish
from broker.loop.safe_log import SafeLogger

__all__ = [
    "ConcurrentHandling", "Handling", "OrderlyHandling", "RetryLater", "awaitable",
]  # fmt: skip

log = SafeLogger("broker.client")

HandlerFunction = Callable[[ReceivedMessage], Awaitable[object]]
#: A message that could not be sent back is given to the handler again after this time.
AGAIN_S = 5.0
#: An orderly queue waits so long after a failure.
ORDERLY_PAUSE_S = 1.0
SWEEP_S = 1.0


def awaitable(handler: Callable[[ReceivedMessage], object]) -> HandlerFunction:
    """Makes a coroutine function of a handler that may be a plain one. Raises: Misuse."""
    if inspect.iscoroutinefunction(handler):
        return handler
    if not callable(handler):
        raise Misuse(f"the handler is {type(handler).__name__}; pass a function")

    async def called(message: ReceivedMessage) -> object:
        working = handler(message)
        return await working if inspect.isawaitable(working) else working

    return called


class RetryLater(Exception):
    """A handler raises it to have the message again. delay_level: as of Consumer.nack().

    >>> import threading
    >>> from broker import Consumer, Message, Producer, RetryLater
    >>> attempts, done = [], threading.Event()
    >>> def handle(message):
    ...     attempts.append(message.attempt)
    ...     if message.attempt == 1:
    ...         raise RetryLater(delay_level=1)  # after the broker's first delay: a second
    ...     done.set()
    >>> with Producer("orders-api") as producer:
    ...     result = producer.send(Message("mail", b"to send"))
    >>> with Consumer("postman", "mail", start="first", handler=handle):
    ...     done.wait(300)
    True
    >>> attempts
    [1, 2]
    """

    def __init__(self, delay_level: int = 0) -> None:
        """Raises: Misuse."""
        check_count("delay_level", delay_level, -1, INT_MAX)
        super().__init__(f"the message is to come again, delay level {delay_level}")
        self.delay_level = delay_level


#: A worker that never has to wait lets others run after so many messages.
YIELD_EVERY = 256


class Handling(Protocol):
    def start(self) -> None: ...

    def takes(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Says whether it keeps the messages itself."""

    def assigned(self, progress: Sequence[QueueProgress]) -> None: ...

    async def revoked(self, progress: Sequence[QueueProgress]) -> None: ...

    async def stop(self, timeout_s: float) -> ClientError | None: ...


class ConcurrentHandling:
    """Has workers that take whatever message is next."""

    def __init__(self, consumer: Worker, handler: HandlerFunction) -> None:
        self._consumer = consumer
        self._handler = handler
        self._workers: set[asyncio.Task[None]] = set()
        #: What each worker has under way, and since when.
        self._running: dict[asyncio.Task[None], tuple[ReceivedMessage, float]] = {}
        self._spreading = False
        self._stopping = False

    def start(self) -> None:
        for _ in range(self._consumer.settings.concurrency):
            self._add_worker()
        self._consumer.network.spawn(self._sweep())

    def _add_worker(self) -> None:
        task = self._consumer.network.spawn(self._work())
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    def takes(self, messages: Sequence[ReceivedMessage]) -> bool:
        return False

    def assigned(self, progress: Sequence[QueueProgress]) -> None:
        pass

    async def revoked(self, progress: Sequence[QueueProgress]) -> None:
        pass

    async def _work(self) -> None:
        consumer, running = self._consumer, self._running
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        clock, count, ready = loop.time, 0, consumer.ready
        while not self._stopping:
            message = ready.take()
            if message is None:
                if not await ready.wait():
                    return
                continue
            count += 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if not self._spreading:  # once this worker has to wait
                self._spreading = True
                loop.call_soon(self._spread)
            running[task] = (message, clock())
            try:
                await self._handler(message)
            except RetryLater as later:
                await self._failed(message, later.delay_level)
            except (Exception, asyncio.CancelledError):
                if task.cancelling():  # else something that the handler waited for was cancelled
                    raise
                log.exception("Handler of %s failed for %s", consumer.network.name, message)
                await self._failed(message, 0)
            else:
                message.progress.done(message.queue_offset)
            finally:
                running.pop(task, None)
            if task not in self._workers:  # it was replaced while the handler did not return
                return

    def _spread(self) -> None:
        self._spreading = False
        self._consumer.ready.wake_one()

    async def _failed(self, message: ReceivedMessage, delay_level: int) -> None:
        """Sends the message back. When no broker takes it, it waits here and comes again."""
        consumer, progress = self._consumer, message.progress
        if consumer.settings.broadcast:
            log.warning("No retries in broadcast mode: dropped %s", message)
            progress.done(message.queue_offset)
            return
        if progress.dropped:
            return
        try:
            await consumer.nack(message, delay_level)
        except ClientError as failed:
            log.warning("Cannot send back %s; will redeliver locally: %s", message, failed)
            _count_failure(message)
            asyncio.get_running_loop().call_later(AGAIN_S, consumer.arrived, [message])

    async def _sweep(self) -> None:
        """Replaces workers whose handler does not return, so that they hold up no queue for
        ever."""
        limit = self._consumer.settings.handler_timeout_s
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(SWEEP_S, limit))
            for task, (message, since) in list(self._running.items()):
                if clock() - since < limit:
                    continue
                log.error(
                    "Handler of %s has not returned for %g s: sent %s back for another"
                    " delivery", self._consumer.network.name, limit, message,
                )  # fmt: skip
                self._running.pop(task, None)
                self._workers.discard(task)
                task.cancel()
                self._add_worker()
                await self._failed(message, 0)

    async def stop(self, timeout_s: float) -> ClientError | None:
        self._stopping = True
        busy = {task for task in self._workers if task in self._running}
        if busy:
            await asyncio.wait(busy, timeout=timeout_s)
        stuck = [message for message, _ in self._running.values()]
        for task in list(self._workers):
            task.cancel()
        if not stuck:
            return None
        return _stuck(self._consumer, stuck, timeout_s)


class OrderlyHandling:
    """Has one worker for each queue, while the broker's lock on the queue is ours; `concurrency`
    work at once."""

    def __init__(self, consumer: Member, handler: HandlerFunction) -> None:
        self._consumer = consumer
        self._handler = handler
        self._slots = asyncio.Semaphore(consumer.settings.concurrency)
        self._buffers: dict[QueueProgress, deque[ReceivedMessage]] = {}
        self._wakers: dict[QueueProgress, asyncio.Event] = {}
        self._workers: dict[QueueProgress, asyncio.Task[None]] = {}
        self._running: dict[QueueProgress, ReceivedMessage] = {}
        self._stopping = False

    def start(self) -> None:
        pass

    def takes(self, messages: Sequence[ReceivedMessage]) -> bool:
        progress = messages[0].progress
        if progress in self._buffers:
            self._buffers[progress].extend(messages)
            self._wakers[progress].set()
        return True

    def assigned(self, progress: Sequence[QueueProgress]) -> None:
        for each in progress:
            self._buffers[each] = deque()
            self._wakers[each] = asyncio.Event()
            self._workers[each] = self._consumer.network.spawn(self._work(each))

    async def revoked(self, progress: Sequence[QueueProgress]) -> None:
        """Lets queues go once the message under way is finished: the next owner must come after
        it."""
        for each in progress:
            self._buffers[each].clear()
        tasks = [self._end(each) for each in progress]
        if tasks:
            await asyncio.gather(*tasks)

    async def _end(self, progress: QueueProgress) -> None:
        task = self._workers[progress]
        if progress in self._running:
            timeout = self._consumer.settings.stop_timeout_s
            while progress in self._running and timeout > 0:
                await asyncio.sleep(0.01)
                timeout -= 0.01
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # Not before: a close() meanwhile waits for the message that is under way.
        self._workers.pop(progress, None)
        self._buffers.pop(progress, None)
        self._wakers.pop(progress, None)

    async def _work(self, progress: QueueProgress) -> None:
        buffer, waker = self._buffers[progress], self._wakers[progress]
        clock = asyncio.get_running_loop().time
        epoch = progress.epoch
        while not self._stopping:
            if epoch != progress.epoch:
                buffer = self._only_open(progress, buffer)
                epoch = progress.epoch
            if not buffer:
                waker.clear()
                await waker.wait()
                continue
            if clock() > progress.locked_until:
                await asyncio.sleep(0.1)
                continue
            message = buffer[0]
            if not progress.is_open(message.queue_offset):
                buffer.popleft()
                continue
            async with self._slots:
                self._running[progress] = message
                try:
                    done = await self._handle(message)
                finally:
                    self._running.pop(progress, None)
            if done and buffer and buffer[0] is message:
                buffer.popleft()
            if not done:
                await asyncio.sleep(ORDERLY_PAUSE_S)
            elif epoch == progress.epoch:  # of a queue that goes, too, whose buffer is empty by now
                progress.done(message.queue_offset)

    def _only_open(
        self, progress: QueueProgress, buffer: deque[ReceivedMessage]
    ) -> deque[ReceivedMessage]:
        """Leaves out messages that were pulled before a seek()."""
        kept = [m for m in buffer if progress.is_open(m.queue_offset)]
        buffer.clear()
        buffer.extend(kept)
        return buffer

    async def _handle(self, message: ReceivedMessage) -> bool:
        """Says whether the message is done: processed, or a dead letter by now."""
        consumer = self._consumer
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._handler(message)
            return True
        except RetryLater:
            pass
        except (Exception, asyncio.CancelledError):
            if task.cancelling():
                raise
            log.exception("Handler of %s failed for %s", consumer.network.name, message)
        tries = message.head.reconsume_times
        if 0 <= consumer.settings.max_retries <= tries:
            try:
                await republish(consumer, message, FIRST_LEVEL + tries)
                return True
            except ClientError as failed:
                log.warning("Cannot send back %s; will retry: %s", message, failed)
        _count_failure(message)
        return False

    async def stop(self, timeout_s: float) -> ClientError | None:
        self._stopping = True
        busy = [self._workers[p] for p in self._running]
        for waker in self._wakers.values():
            waker.set()
        if busy:
            await asyncio.wait(busy, timeout=timeout_s)
        stuck = list(self._running.values())
        for task in self._workers.values():
            task.cancel()
        return _stuck(self._consumer, stuck, timeout_s) if stuck else None


def _count_failure(message: ReceivedMessage) -> None:
    """Counts a delivery that failed and comes again from here, of which the broker does not know,
    as upstream's clients do."""
    head = message.head
    message._head = head._replace(reconsume_times=head.reconsume_times + 1)


def _stuck(consumer: Worker, messages: Sequence[ReceivedMessage], timeout_s: float) -> ClientError:
    shown = ", ".join(map(str, messages[:3]))
    return HandlerStuck(
        f"{len(messages)} handlers of {consumer.network.name} had not returned {timeout_s:g} s"
        f" after close() ({shown}); they were cancelled, and their messages come again. Give"
        " handlers a timeout of their own, or raise stop_timeout_s"
    )
