"""Producer and Consumer for programs without an event loop: twins of the asyncio ones.

One background thread with an event loop serves all of them in a process; it starts with the first
and ends with the last. Every method waits for its asyncio twin there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import (
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, get_type_hints, overload

from broker.client.checks import check_count, check_messages, check_offset, check_queue
from broker.client.consumer import AsyncConsumer, ConsumerOptions, ConsumerSettings
from broker.client.errors import AlreadyClosed, Forked, HandlerStuck, Misuse, NotStarted
from broker.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from broker.client.options import ClientSettings
from broker.client.producer import (
    AsyncProducer,
    ProducerOptions,
    ProducerSettings,
    refuse_unknown,
)
from broker.client.ready import ReadyMessages
from broker.client.receiving import AsyncMessageReceiver
from broker.client.transactions import (
    CHECKS_AT_ONCE,
    AsyncTransactionProducer,
    LocalState,
    Transaction,
    TransactionListener,
    TransactionResult,
    check_listener,
    refuse_unsafe,
    state_of,
    text_of,
)
from broker.loop.safe_log import SafeLogger
from broker.loop.thread import LoopThread
from pystore.base.closing import ClosedByWith

__all__ = [
    "Consumer",
    "MessageReceiver",
    "Producer",
    "Runner",
    "StartedByWith",
    "TransactionProducer",
    "twin_of",
]

log = SafeLogger("broker.client")

_T = TypeVar("_T")
_P = ParamSpec("_P")
#: Takes messages on the loop; None: there will be no more.
Taking = Callable[[], Coroutine[Any, Any, list[ReceivedMessage] | None]]

#: Messages that an iterating thread takes at once, and how often it says which are done.
TAKE_MAX = 64
TELL_DONE_S = 0.5


class SharedLoop:
    """The thread that runs the clients' event loop, and the number of clients that use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._users = 0
        self._pid = 0

    def acquire(self) -> LoopThread:
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._thread = LoopThread("rocketmq-client")
                self._pid, self._users = os.getpid(), 0
            self._users += 1
            return self._thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
        thread.stop()

    def reset(self) -> None:
        """Forgets the thread, which a forked child does not have."""
        self._lock = threading.Lock()
        self._thread, self._users = None, 0


_shared = SharedLoop()
os.register_at_fork(after_in_child=_shared.reset)


class Runner:
    """Runs coroutines of one client on the shared loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: LoopThread | None = None
        self._given: LoopThread | None = None
        self._pid = 0
        self._closed = False

    def use(self, thread: LoopThread) -> None:
        """Has coroutines run on this loop instead of the shared one."""
        self._given = thread

    def start(self) -> None:
        """Takes the loop that the client's coroutines run on. Raises: Misuse."""
        if self._closed:
            raise AlreadyClosed(f"{self._name} is closed; make a new one")
        if self._thread is not None:
            raise Misuse(f"{self._name} is started already")
        self._thread = self._given if self._given is not None else _shared.acquire()
        self._pid = os.getpid()

    @property
    def started(self) -> bool:
        return self._thread is not None

    def live(self) -> LoopThread:
        """Returns the loop of a client that is started. Raises: NotStarted, AlreadyClosed, Forked,
        Misuse on the loop's own thread."""
        if self._thread is None:
            if self._closed:
                raise AlreadyClosed(f"{self._name} is closed; make a new one")
            raise NotStarted(
                f"{self._name} is not started; use it inside 'with', or call start() first"
            )
        if self._pid != os.getpid():
            raise Forked(
                f"{self._name} was started in process {self._pid}, this is its child"
                f" {os.getpid()}; make a new one after the fork"
            )
        if self._thread.is_own():
            raise Misuse(
                f"{self._name} is used in a callback that runs on its own event loop, which would"
                " wait for itself; use the asyncio twin there"
            )
        return self._thread

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs the coroutine and returns its result. A KeyboardInterrupt here ends the coroutine,
        too."""
        try:
            thread = self.live()
        except BaseException:
            work.close()
            raise
        future = thread.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._thread = None
            if self._given is None:
                _shared.release()


@overload
def twin_of(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]: ...
@overload
def twin_of(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]: ...
def twin_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of the same name, signature and documentation that runs `method` of the
    asyncio twin on the shared loop and waits for its result."""
    name = method.__name__

    async def on_loop(work: Callable[..., Any], args: Any, options: Any) -> Any:
        return work(*args, **options)

    def wait(self: Producer | MessageReceiver, /, *args: Any, **options: Any) -> Any:
        work = getattr(self._twin, name)
        is_async = inspect.iscoroutinefunction(work)
        running = work(*args, **options) if is_async else on_loop(work, args, options)
        return self._runner.run(running)

    # Not functools.wraps: what unwraps the method would find one that has to be awaited.
    vars(wait)["__signature__"] = inspect.signature(method, eval_str=True)
    wait.__annotations__ = get_type_hints(method)
    wait.__name__, wait.__doc__ = name, method.__doc__
    wait.__qualname__ = method.__qualname__.removeprefix("Async")
    return wait


class HandOver:
    """Hands messages from the loop over to a thread. The thread may be interrupted when they have
    left the loop and before it has them: then they go back. All of it happens on the loop."""

    def __init__(self, ready: ReadyMessages) -> None:
        self._ready = ready
        self._found: list[ReceivedMessage] = []
        self._lost = False

    async def take(self, work: Taking) -> list[ReceivedMessage] | None:
        found = await work()
        self._found = found or []
        if self._lost:
            self.lose()
        return found

    def lose(self) -> None:
        """Says that the thread no longer waits: what it was to have goes back."""
        self._lost = True
        found, self._found = self._found, []
        self._ready.give_back(found)


class StartedByWith(ClosedByWith):
    """The twin of a client of asyncio, on the shared loop; ``with`` starts and closes it."""

    _twin: Any
    _runner: Runner

    def start(self) -> Self:
        """Starts it, before its first use; ``with`` does it. Raises: Misuse."""
        self._runner.start()
        try:
            self._runner.run(self._twin.start())
        except BaseException:
            self._runner.stop()
            raise
        return self

    def close(self) -> None:
        """Waits for what is under way, then leaves nothing behind. Harmless when repeated."""
        try:
            if self._runner.started:
                self._runner.run(self._twin.close())
        finally:
            self._runner.stop()

    def __enter__(self) -> Self:
        return self.start()


class TwinOfGroup(StartedByWith):
    """The same of a client that belongs to a group."""

    @property
    def group(self) -> str:
        """The group, with the namespace."""
        found: str = self._twin.group
        return found

    @property
    def client_id(self) -> str:
        """How brokers and tools show this client."""
        found: str = self._twin.client_id
        return found


class Producer(TwinOfGroup):
    """Sends messages, for programs without an event loop. ``AsyncProducer`` is its twin.

    Any thread may use it. group, namesrv, options: as of AsyncProducer.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api") as producer:  # at NAMESRV_ADDR
    ...     result = producer.send(Message("orders", b"12 apples"))
    >>> result.status.name
    'SEND_OK'
    """

    _twin: AsyncProducer

    def __init__(
        self,
        group: str = "DEFAULT_PRODUCER",
        namesrv: str | Sequence[str] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group)."""
        refuse_unknown(type(self).__name__, options, ClientSettings, ProducerSettings)
        self._twin = AsyncProducer(group, namesrv, **options)
        self._runner = Runner(self._twin.network.name)

    send = twin_of(AsyncProducer.send)
    send_batch = twin_of(AsyncProducer.send_batch)
    send_oneway = twin_of(AsyncProducer.send_oneway)
    flush = twin_of(AsyncProducer.flush)
    recall = twin_of(AsyncProducer.recall)
    request = twin_of(AsyncProducer.request)
    reply = twin_of(AsyncProducer.reply)
    queues = twin_of(AsyncProducer.queues)

    def submit(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Does as AsyncProducer.submit(); the future may be waited for in any thread."""

        async def submit() -> asyncio.Future[SendResult]:
            return await self._twin.submit(message, key=key, queue=queue)

        task = self._runner.run(submit())
        made: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        made.set_running_or_notify_cancel()

        def settle(done: asyncio.Future[SendResult]) -> None:
            if done.cancelled():
                made.set_exception(AlreadyClosed("the producer was closed before the answer"))
            elif (error := done.exception()) is not None:
                made.set_exception(error)
            else:
                made.set_result(done.result())

        self._runner.live().call(task.add_done_callback, settle)
        return made


class MessageReceiver(TwinOfGroup):
    """A consumer, as far as messages come out of it. ``AsyncMessageReceiver`` is its twin."""

    _twin: AsyncMessageReceiver

    def _take_handler(
        self, handler: Callable[[ReceivedMessage], object] | None
    ) -> Callable[[ReceivedMessage], Coroutine[Any, Any, object]] | None:
        """Keeps a handler, and returns what the twin is to call. Raises: Misuse."""
        if handler is not None and not callable(handler):
            raise Misuse(f"the handler is {type(handler).__name__}; pass a function")
        if handler is not None and inspect.iscoroutinefunction(handler):
            kind = type(self).__name__
            raise Misuse(f"the handler is a coroutine function; use Async{kind}, or a plain one")
        self._function = handler
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        return self._call if handler is not None else None

    def _begin(self, twin: AsyncMessageReceiver) -> None:
        self._twin = twin
        self._member = twin._member
        self._runner = Runner(self._member.network.name)
        self._taken: deque[ReceivedMessage] = deque()
        self._done: list[ReceivedMessage] = []
        self._tell_due = 0.0

    async def _call(self, message: ReceivedMessage) -> object:
        assert self._pool is not None and self._function is not None
        loop = asyncio.get_running_loop()
        try:
            run = contextvars.copy_context().run
            return await loop.run_in_executor(self._pool, run, self._function, message)
        except (SystemExit, KeyboardInterrupt) as ended:  # would end the loop of all clients
            raise RuntimeError(f"the handler raised {type(ended).__name__}") from ended

    def start(self) -> Self:
        """Does as the twin's start()."""
        self._runner.start()
        if self._function is not None:
            self._pool = concurrent.futures.ThreadPoolExecutor(
                self._member.settings.concurrency, "rocketmq-handler"
            )
        try:
            self._runner.run(self._twin.start())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Does as the twin's close(). A handler's thread cannot be ended from outside:
        HandlerStuck says that one is left."""
        if not self._runner.started:
            self._runner.stop()
            return
        wait = True
        try:
            self._runner.run(self._finish())
        except HandlerStuck:
            wait = False
            raise
        finally:
            self._end(wait)

    async def _finish(self) -> None:
        self._twin.ack(*self._done)
        self._done = []
        await self._twin.close()

    def _end(self, wait: bool = True) -> None:
        self._runner.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None

    # ---- receiving ----

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yields message after message. Asking for the next says that the one before is done; a
        loop that is left by an exception leaves its message to be delivered again. Ends with
        close()."""
        self._runner.live()
        while True:
            message = self._next()
            if message is None:
                return
            yield message
            self._done.append(message)

    def _next(self) -> ReceivedMessage | None:
        while True:
            while self._taken:
                message = self._taken.popleft()
                if not message.progress.dropped:
                    if time.monotonic() >= self._tell_due:
                        self._tell_done()
                    return message
            done, self._done = self._done, []
            try:
                found = self._next_ones(done, TAKE_MAX)
            except AlreadyClosed:
                return None
            if found is None:
                return None
            self._tell_due = time.monotonic() + TELL_DONE_S
            self._taken.extend(found)

    def _tell_done(self) -> None:
        done, self._done = self._done, []
        self._tell_due = time.monotonic() + TELL_DONE_S
        self._runner.live().call(self._twin.ack, *done)

    async def _take(
        self, done: Sequence[ReceivedMessage], most: int
    ) -> list[ReceivedMessage] | None:
        self._twin.ack(*done)
        if not await self._member.ready.wait():
            return None
        return await self._twin.poll(0.0, most)

    def _next_ones(
        self, done: Sequence[ReceivedMessage], most: int
    ) -> list[ReceivedMessage] | None:
        return self._handed(lambda: self._take(done, most), done)

    def _handed(
        self,
        work: Taking,
        done: Sequence[ReceivedMessage] = (),
    ) -> list[ReceivedMessage] | None:
        """Returns the coroutine's result. done: what that result acknowledges, perhaps in vain when
        the thread is interrupted."""
        handed = HandOver(self._member.ready)
        try:
            return self._runner.run(handed.take(work))
        except BaseException:
            with contextlib.suppress(Misuse):
                thread = self._runner.live()
                thread.call(self._twin.ack, *done)
                thread.call(handed.lose)
            raise

    def batches(self, max_messages: int = 1024) -> Iterator[list[ReceivedMessage]]:
        """Lists of all messages that wait. Asking for the next says that the one before is done."""
        self._runner.live()
        check_count("max_messages", max_messages, 1)
        done: Sequence[ReceivedMessage] = ()
        while True:
            try:
                found = self._next_ones(done, max_messages)
            except AlreadyClosed:
                return
            if found is None:
                return
            if found:
                yield found
            done = found

    def poll(self, timeout_s: float = 5.0, max_messages: int = 1024) -> list[ReceivedMessage]:
        """Does as AsyncMessageReceiver.poll()."""
        return self._handed(lambda: self._twin.poll(timeout_s, max_messages)) or []

    def ack(self, *messages: ReceivedMessage) -> None:
        """Does as AsyncMessageReceiver.ack()."""
        thread = self._runner.live()
        check_messages("ack()", messages)
        thread.call(self._twin.ack, *messages)

    run = twin_of(AsyncMessageReceiver.run)


class Consumer(MessageReceiver):
    """Receives messages, for programs without an event loop. ``AsyncConsumer`` is its twin.

    handler: called in one of ``concurrency`` threads. group, topics, namesrv, options: as of
    AsyncConsumer.

    >>> from broker import Consumer, Message, Producer
    >>> with Producer("orders-api") as producer:  # at NAMESRV_ADDR
    ...     result = producer.send(Message("vegetables", b"3 leeks"))
    >>> with Consumer("kitchen", "vegetables", start="first") as consumer:
    ...     for message in consumer:
    ...         print(message.body)
    ...         break
    b'3 leeks'
    """

    _twin: AsyncConsumer

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        namesrv: str | Sequence[str] | None = None,
        *,
        handler: Callable[[ReceivedMessage], object] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group)."""
        call = self._take_handler(handler)
        refuse_unknown(type(self).__name__, options, ClientSettings, ConsumerSettings)
        self._begin(AsyncConsumer(group, topics, namesrv=namesrv, handler=call, **options))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return self._twin.assignment

    nack = twin_of(AsyncConsumer.nack)
    extend = twin_of(AsyncConsumer.extend)

    # ---- queues and offsets ----

    subscribe = twin_of(AsyncConsumer.subscribe)
    unsubscribe = twin_of(AsyncConsumer.unsubscribe)
    assign = twin_of(AsyncConsumer.assign)
    queues = twin_of(AsyncConsumer.queues)
    committed = twin_of(AsyncConsumer.committed)
    min_offset = twin_of(AsyncConsumer.min_offset)
    max_offset = twin_of(AsyncConsumer.max_offset)
    offset_at = twin_of(AsyncConsumer.offset_at)
    position = twin_of(AsyncConsumer.position)
    pause = twin_of(AsyncConsumer.pause)
    resume = twin_of(AsyncConsumer.resume)

    def commit(self) -> None:
        """Does as AsyncConsumer.commit()."""

        async def commit() -> None:
            self._twin.ack(*self._done)
            self._done = []
            await self._twin.commit()

        self._runner.run(commit())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Does as AsyncConsumer.seek()."""
        check_queue(queue)
        check_offset("offset", offset)
        self._taken = deque(m for m in self._taken if m.progress.queue != queue)
        self._runner.run(self._twin.seek(queue, offset))


class TransactionProducer(Producer):
    """Sends messages that are delivered only if local work succeeds. The twin of
    AsyncTransactionProducer: local work runs in the calling thread, checks in threads of their own.

    >>> from broker import LocalState, Message, TransactionProducer
    >>> stored = set()  # a table of a database in earnest
    >>> def check(message):
    ...     known = message.transaction_id in stored
    ...     return LocalState.COMMIT if known else LocalState.UNKNOWN
    >>> with TransactionProducer("orders-tx", check=check) as producer:
    ...     with producer.transaction(Message("orders", b"12 apples")) as tx:
    ...         stored.add(tx.transaction_id)
    >>> tx.state.name
    'COMMIT'
    """

    _twin: AsyncTransactionProducer

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        listener: TransactionListener | None = None,
        check: Callable[[ReceivedMessage], LocalState | None] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Raises: Misuse without listener and check, InvalidMessage (an illegal group)."""
        check_listener(listener, check)
        self._listener = listener
        self._function: Callable[[ReceivedMessage], object] | None = (
            listener.check if listener is not None else check
        )
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        asked = self._asked if self._function is not None else None
        refuse_unknown(type(self).__name__, options, ClientSettings, ProducerSettings)
        self._twin = AsyncTransactionProducer(group, namesrv, check=asked, **options)
        self._runner = Runner(self._twin.network.name)

    async def _asked(self, message: ReceivedMessage) -> LocalState | None:
        assert self._pool is not None and self._function is not None
        loop = asyncio.get_running_loop()
        try:
            return state_of(
                "check()", await loop.run_in_executor(self._pool, self._function, message)
            )
        except (SystemExit, KeyboardInterrupt) as ended:  # would end the loop of all clients
            raise RuntimeError(f"the check raised {type(ended).__name__}") from ended

    def start(self) -> Self:
        """Does as AsyncProducer.start()."""
        self._pool = concurrent.futures.ThreadPoolExecutor(CHECKS_AT_ONCE, "rocketmq-check")
        return super().start()

    def close(self) -> None:
        """Does as AsyncProducer.close()."""
        super().close()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._twin.checks_waiting, cancel_futures=True)
            self._pool = None

    def send_in_transaction(self, message: Message, argument: object = None) -> TransactionResult:
        """Does as AsyncTransactionProducer.send_in_transaction()."""
        if self._listener is None:
            raise Misuse("send_in_transaction() needs a listener; use 'with transaction(message)'")
        run, twin = self._runner.run, self._twin
        tx = run(twin.begin(message))
        if tx.send_result.status is not SendStatus.SEND_OK:
            return run(twin.end(tx, LocalState.ROLLBACK))
        remark = None
        try:
            state = state_of("execute()", self._listener.execute(tx, argument))
        except Exception as error:
            log.exception("Local work of %s failed", tx.transaction_id)
            state, remark = LocalState.UNKNOWN, text_of(error)
        return run(twin.end(tx, state, remark))

    @contextlib.contextmanager
    def transaction(self, message: Message) -> Iterator[Transaction]:
        """Does as AsyncTransactionProducer.transaction()."""
        run, twin = self._runner.run, self._twin
        tx = run(twin.begin(message))
        run(refuse_unsafe(twin, tx))
        try:
            yield tx
        except BaseException as error:
            run(twin.end(tx, LocalState.ROLLBACK, text_of(error)))
            raise
        run(twin.end(tx, tx.state))
