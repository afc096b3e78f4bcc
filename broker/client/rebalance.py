"""Which queues are ours: asks who is in the group, divides, locks for orderly consumers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from broker.client.checks import check_queues
from broker.client.errors import BrokerRefused, ClientError, Misuse, reading
from broker.client.member import Member
from broker.client.message import MessageQueue
from broker.client.routes import Route
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from pystore.format.names import RETRY_PREFIX

__all__ = ["Rebalancer"]

log = SafeLogger("broker.client")
_quiet = RateLimitedLogger(log)

#: A queue that could not be started, or a group that is not yet whole, is looked at again soon.
SOON_S = 1.0
#: A lock of the broker is refreshed this often, and believed for so long.
LOCK_S, LOCK_BELIEVED_S = 20.0, 30.0


class Rebalancer:
    """Divides the queues. Anybody may call soon(); one round runs at a time."""

    def __init__(self, consumer: Member) -> None:
        self._consumer = consumer
        self._task: asyncio.Task[None] | None = None
        self._locker: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._round = asyncio.Lock()
        #: Queues whose locks may be ours: they were asked for, and not given back.
        self._locks: set[MessageQueue] = set()

    async def start(self) -> None:
        """Waits for the first round; more follow in the background."""
        await self._rebalance()
        if self._task is None:
            self._task = self._consumer.network.spawn(self._keep())
            if self._consumer.settings.orderly:
                self._locker = self._consumer.network.spawn(self._keep_locks())

    def soon(self) -> None:
        self._due.set()

    async def stop(self) -> None:
        for task in (self._task, self._locker):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = self._locker = None

    async def _keep(self) -> None:
        balanced = True
        while True:
            wait = self._consumer.settings.rebalance_s if balanced else SOON_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.wait()
            self._due.clear()
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Says whether every topic was divided and every queue of ours begun."""
        balanced = True
        async with self._round:
            for topic in list(self._consumer.subscriptions):
                try:
                    balanced &= await self._divide(topic)
                except ClientError as failed:
                    log.info("Cannot rebalance %s; will retry: %s", topic, failed)
                    balanced = False
        return balanced

    async def _divide(self, topic: str) -> bool:
        consumer = self._consumer
        route = await consumer.network.route(topic)
        if topic.startswith(RETRY_PREFIX) and not route.read:
            route = await consumer.network.route(topic, fresh=True)
        queues = route.read
        if consumer.settings.broadcast:
            mine: Collection[MessageQueue] = queues
        else:
            members = await self._members(route)
            if consumer.client_id not in members:
                return False
            mine = self._share(queues, members) if queues else ()
        consumer.beginnings.divided(topic, queues)
        held = {queue for queue in consumer.progress if queue.topic == topic}
        await consumer.revoke([queue for queue in held if queue not in mine])
        fresh = [queue for queue in mine if queue not in held]
        if consumer.settings.orderly and fresh:
            locked = await self._lock(fresh)
            whole = len(locked) == len(fresh)
            fresh = [queue for queue in fresh if queue in locked]
        else:
            whole = True
        offsets: dict[MessageQueue, int] = {}
        found = await asyncio.gather(
            *(consumer.start_offset(queue) for queue in fresh), return_exceptions=True
        )
        for queue, offset in zip(fresh, found, strict=True):
            if isinstance(offset, ClientError):
                # Who waits for messages in vain must hear why; a broker that is away comes back.
                if isinstance(offset, BrokerRefused):
                    kind = offset.address, offset.code
                    _quiet.warning(kind, "Cannot start %s; will retry: %s", queue, offset)
                else:
                    log.info("Cannot start %s; will retry: %s", queue, offset)
                whole = False
            elif isinstance(offset, BaseException):
                raise offset
            else:
                offsets[queue] = offset
        if topic in consumer.subscriptions:
            await consumer.take(offsets)
            self._note_locks(offsets)
        return whole

    def _share(
        self, queues: Sequence[MessageQueue], members: list[str]
    ) -> Collection[MessageQueue]:
        """Returns our share of the queues. Raises: Misuse for a strategy of the user's that raises,
        or does not return queues."""
        strategy = self._consumer.strategy
        try:
            return check_queues(strategy(queues, members, self._consumer.client_id))
        except Exception as failed:
            log.exception(
                "The strategy %s failed: %s gets no queues", strategy, self._consumer.group
            )
            raise Misuse(f"the strategy raised {type(failed).__name__}: {failed}") from failed

    async def _members(self, route: Route) -> list[str]:
        """Returns the client ids of the group, sorted as every member sorts them. Raises:
        ClientError."""
        consumer = self._consumer
        names = list(route.brokers)
        address = route.address(random.choice(names)) if names else None
        if address is None:
            return []
        answer = await consumer.network.request(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": consumer.group}
        )
        with reading(f"who is in the group {consumer.group}", address):
            found = mqjson.loads(answer.body or b"{}").get("consumerIdList") or ()
            return sorted(str(each) for each in found)

    # ---- locks of orderly consumers ----

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            with contextlib.suppress(ClientError):
                found[self._consumer.broker_of(queue)].append(queue)
        return found

    def _lock_body(self, queues: Collection[MessageQueue]) -> bytes:
        return mqjson.dumps(
            {
                "consumerGroup": self._consumer.group,
                "clientId": self._consumer.client_id,
                "mqSet": list(queues),
            }
        )

    async def _lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Returns the queues whose locks the brokers gave us."""
        locked: set[MessageQueue] = set()
        self._locks.update(queues)
        for address, some in self._by_broker(queues).items():
            try:
                answer = await self._consumer.network.request(
                    address, RequestCode.LOCK_BATCH_MQ, None, self._lock_body(some)
                )
                with reading("a request for locks", address):
                    given = mqjson.loads(answer.body).get("lockOKMQSet") or ()
                    locked |= {queue for each in given if (queue := mqjson.queue_of(each))}
            except ClientError as failed:
                log.info("Cannot lock queues of %s; will retry: %s", address, failed)
        return locked

    def _note_locks(self, queues: Iterable[MessageQueue]) -> None:
        until = asyncio.get_running_loop().time() + LOCK_BELIEVED_S
        for queue in queues:
            progress = self._consumer.progress.get(queue)
            if progress is not None:
                progress.locked_until = until

    async def _keep_locks(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            queues = list(self._consumer.progress)
            if queues:
                self._note_locks(await self._lock(queues))

    async def unlock(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Gives locks back, all by default, so that other members need not wait until they
        expire."""
        wanted = list(self._locks) if queues is None else self._locks.intersection(queues)
        for address, some in self._by_broker(wanted).items():
            with contextlib.suppress(ClientError):
                await self._consumer.network.request(
                    address, RequestCode.UNLOCK_BATCH_MQ, None, self._lock_body(some)
                )
                self._locks.difference_update(some)
