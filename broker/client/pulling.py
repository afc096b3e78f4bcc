"""Pulls one queue for as long as it is ours (docs/internals/wire.md#pull).

There is no task for a queue and none for a pull: an answer is worked on where it is read, and the
next pull goes out with those of the other queues. Only what has to wait, for a connection or after
a failure, is a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

from broker.client.errors import (
    UNREADABLE,
    BadAnswer,
    BrokerRefused,
    ClientError,
    RequestTimeout,
    Unreachable,
)
from broker.client.member import Member
from broker.client.network import number_in, request_of
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.client.subscription import TopicSubscription
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.remoting.connection import Connection
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import BINARY, Command

__all__ = ["Puller"]

log = SafeLogger("broker.client")
_quiet = RateLimitedLogger(log)

#: Bits of a pull's sysFlag.
SUSPEND, SUBSCRIPTION = 2, 4
#: How much longer than the broker holds a pull its answer may take.
GRACE_S = 15.0
REST_S = 0.02
BACKOFF_S = (0.2, 3.0)


class Puller:
    """Asks for the next messages of one queue, and waits for the answer itself. Failures are
    logged, and tried again slower and slower."""

    def __init__(self, member: Member, progress: QueueProgress) -> None:
        self._member = member
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._subscription: TopicSubscription | None = None
        self._fields: dict[str, str] = {}
        self._tags: frozenset[bytes] | None = None
        self._address = ""
        #: Which of the brokers of the queue's name the last answer says to ask: 0 is the master.
        self._broker_id = 0
        self._asked: Command | None = None
        self._connection: Connection | None = None
        self._opaque = self._reads = 0
        self._asked_at = 0.0
        #: An answer that came during a pause.
        self._kept: Command | None = None
        self._task: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._pause_s, self._rest_s = BACKOFF_S[0], REST_S
        #: What each record of an answer names; a light queue's are of the topics they came by.
        topic = progress.queue.topic
        self._topic = None if topic.startswith("%LMQ%") else topic.encode()
        self._limit_s = member.settings.poll_wait_s + GRACE_S
        self._stopped = False
        #: It was connected for this pull, which was not sent yet.
        self._connected = False

    def stop(self) -> None:
        """Ends the asking: no more messages are asked for or taken."""
        self._stopped = True
        self._progress.wake = None
        self._kept = None
        for waiting in (self._task, self._late):
            if waiting is not None:
                waiting.cancel()
        if self._connection is not None:
            self._connection.forget(self._opaque)

    def next(self) -> None:
        """Asks for messages if there is room for them and no pause. Harmless when repeated."""
        if self._stopped or self._asked is not None or self._task is not None:
            return
        progress = self._progress
        if progress.paused or progress.pending >= self._member.settings.buffer_messages:
            progress.wake = self._woken
            return
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._take(kept)
            return
        try:
            self._ask()
        except Exception as failed:  # noqa: BLE001 - a hook's, too: the queue goes on after it
            self._fail(failed)

    def _woken(self) -> None:
        progress = self._progress
        if not progress.paused and progress.pending < self._member.settings.buffer_messages:
            progress.wake = None
            self.next()

    # ---- asking ----

    def _ask(self) -> None:
        member, queue = self._member, self._progress.queue
        self._subscribe()
        self._address = address = member.broker_of(queue, self._broker_id)
        fields = self._fields.copy()
        fields["queueOffset"] = str(self._progress.next_offset)
        command = Command(RequestCode.PULL_MESSAGE, fields, serialize=BINARY)
        begun = member.network.begin(address, command, self)
        if begun is None:
            if self._connected:
                self._connected = False
                raise Unreachable(f"{address} hangs up as soon as a connection is made")
            self._connected = True
            self._spawn(lambda: member.network.connect(address))
            return
        self._connected = False
        self._asked = command
        self._connection, self._opaque = begun
        self._reads = self._connection.reads
        self._asked_at = self._loop.time()
        if self._late is None:
            self._late = self._loop.call_later(self._limit_s, self._look)

    def _subscribe(self) -> None:
        """Makes the part of pulls that stays the same until something else is subscribed to."""
        member, queue = self._member, self._progress.queue
        found = member.subscriptions.get(queue.topic)
        if found is self._subscription and self._fields:
            return
        self._subscription = found
        wanted = found if found is not None else TopicSubscription(queue.topic)
        # Brokers compare hashes of tags, which may collide.
        tags = wanted.tags
        self._tags = None if tags is None else frozenset(tag.encode() for tag in tags)
        fields = {
            "consumerGroup": member.group, "topic": queue.topic, "queueId": queue.queue,
            "maxMsgNums": member.settings.pull_batch, "sysFlag": SUSPEND | SUBSCRIPTION,
            "commitOffset": 0, "suspendTimeoutMillis": int(member.settings.poll_wait_s * 1000),
            "subscription": wanted.expression, "subVersion": wanted.version,
            "expressionType": wanted.kind, "bname": queue.broker,
        }  # fmt: skip
        self._fields = request_of(RequestCode.PULL_MESSAGE, fields).ext

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs something during which nothing is asked for."""
        self._task = task = self._member.network.spawn(self._guarded(work))
        task.add_done_callback(self._task_ended)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except ClientError as failed:
            await self._recover(failed)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            self.next()

    # ---- answers; a connection calls these ----

    def done(self) -> bool:
        return self._stopped or self._asked is None

    def set_result(self, answer: Command) -> None:
        asked, self._asked = self._asked, None
        if self._stopped or asked is None:
            return
        try:
            self._member.network.after(self._address, asked, answer)
            self._broker_id = _broker_in(answer)
            self._take(answer)
        except Exception as failed:  # noqa: BLE001 - the connection serves other queues, too
            self._fail(failed)

    def set_exception(self, error: Exception) -> None:
        """Ends the pull: the connection is gone, or the answer did not come in time."""
        self._asked = None
        if not self._stopped:
            self._fail(error if isinstance(error, ClientError) else Unreachable(str(error)))

    def _look(self) -> None:
        """Ends a pull that is overdue. One timer serves many pulls: it is set again for what is
        left."""
        self._late = None
        if self._stopped or self._asked is None:
            return
        left = self._asked_at + self._limit_s - self._loop.time()
        if left > 0:
            self._late = self._loop.call_later(left, self._look)
            return
        assert self._connection is not None
        self._connection.forget(self._opaque)
        if self._connection.reads == self._reads:  # it may be gone silently
            self._connection.abort("no response", "a pull")
        self.set_exception(
            RequestTimeout(f"{self._address} did not answer a pull within {self._limit_s:g} s")
        )

    def _take(self, answer: Command) -> None:
        progress = self._progress
        if progress.paused:  # it began while the pull was held
            self._kept = answer
            progress.wake = self._woken
            return
        try:
            self._read(answer)
        except UNREADABLE as bad:
            raise BadAnswer(f"a pull of {progress.queue}", bad, self._address) from bad
        self._pause_s = BACKOFF_S[0]
        self.next()

    def _read(self, answer: Command) -> None:
        code, progress = answer.code, self._progress
        if code == ResponseCode.SUCCESS:
            self._found(answer)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._nothing(answer)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            offset = number_in(answer, "nextBeginOffset")
            if offset != progress.next_offset:  # a reset may name where the member is already
                log.warning(
                    "%s: the broker moves this group from offset %d to %d", progress.queue,
                    progress.next_offset, offset,
                )  # fmt: skip
            progress.reset(offset)
            self._rest_longer()
        elif code == ResponseCode.FLOW_CONTROL:
            self._rest_longer()
        elif code == ResponseCode.GO_AWAY:
            self._member.network.forget(self._address)
            self._rest_longer()
        else:
            raise BrokerRefused(f"pulling {progress.queue}", code, answer.remark, self._address)

    def _found(self, answer: Command) -> None:
        progress = self._progress
        self._subscribe()  # it may have changed while the broker held the pull
        delta = int(answer.ext.get("offsetDelta", 0))
        messages = received(bytes(answer.body), progress, self._tags, delta, self._topic)
        first, after = progress.next_offset, number_in(answer, "nextBeginOffset")
        if messages and messages[0].queue_offset < first:
            messages = [m for m in messages if m.queue_offset >= first]
        offsets = [m.queue_offset for m in messages]
        if after <= first or offsets != sorted(offsets) or (offsets and offsets[-1] >= after):
            shown = f"{offsets[0]} to {offsets[-1]}" if offsets else "none"
            raise ValueError(
                f"from offset {first} on were asked for, messages {shown} came, and the next would"
                f" be {after}"
            )
        progress.pulled(offsets, after)
        self._rest_s = REST_S
        if messages:
            self._member.arrived(messages)

    def _nothing(self, answer: Command) -> None:
        """Continues at an offset before which there is no message for this group."""
        progress = self._progress
        first, after = progress.next_offset, number_in(answer, "nextBeginOffset")
        if after < first:
            raise ValueError(f"offset {first} was asked for, and the next would be {after}")
        progress.pulled((), after)
        self._rest_s = REST_S
        if after == first and self._loop.time() - self._asked_at < REST_S:
            self._rest()

    def _rest(self) -> None:
        """Pauses before the next pull: a broker may go on with such answers."""
        self._spawn(lambda: asyncio.sleep(REST_S))

    def _rest_longer(self) -> None:
        """Pauses after answers that a sound broker gives once: each time longer, until one brings
        messages."""
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, BACKOFF_S[1])
        self._spawn(lambda: asyncio.sleep(rest_s))

    # ---- failures ----

    def _fail(self, failed: Exception) -> None:
        if not isinstance(failed, ClientError):
            log.error("Pulling from %s failed", self._progress.queue, exc_info=failed)
        self._spawn(lambda: self._recover(failed))

    async def _recover(self, failed: Exception) -> None:
        """Logs once a minute what goes on failing: the first time it may be a broker that
        restarts."""
        kind, queue = (self._address, type(failed)), self._progress.queue
        self._broker_id = 0  # a slave may be gone, or serve no pulls
        if isinstance(failed, BadAnswer):
            _quiet.warning(kind, "%s stands still; will ask again: %s", queue, failed)
        elif self._pause_s > BACKOFF_S[0]:
            _quiet.warning(kind, "Cannot pull from %s; will retry: %s", queue, failed)
        else:
            log.info("Cannot pull from %s; will retry: %s", queue, failed)
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, BACKOFF_S[1])
        with contextlib.suppress(ClientError):
            await self._member.network.route(self._progress.queue.topic, fresh=True)


def _broker_in(answer: Command) -> int:
    """Returns the id of the broker that it says to ask next: a slave, when the master would have to
    read from its disk."""
    text = answer.ext.get("suggestWhichBrokerId", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
