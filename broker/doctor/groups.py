"""Consumer groups and transactions of a running broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from broker.client.admin import AsyncAdmin, GroupMembers, QueueLag
from broker.client.errors import ClientError
from broker.doctor.findings import Diagnosis, diagnosed
from broker.services.names import is_system_group
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.mqjson import MessageQueue
from pystore.format.names import DLQ_PREFIX, HALF_TOPIC, TRANSACTION_GROUP

__all__ = ["check_groups"]

#: Halves that are looked at, of a broker with a hundred thousand open ones.
_HALVES_MAX = 1000
#: Queues of a group whose first messages are looked at, those with most to consume.
_QUEUES_MAX = 32
#: Of fileReservedTime: older messages go soon.
_SOON_RATIO = 0.8


async def check_groups(
    admin: AsyncAdmin, where: str, late_s: float, pause_s: float
) -> AsyncIterator[Diagnosis]:
    """Examines the groups of a broker. admin: asks this broker alone. late_s: how long a message
    may wait. pause_s: between two looks at what consumers have done. Raises: ClientError."""
    reserved_s = float((await admin.configuration()).get("fileReservedTime") or 72) * 3600
    before = _by_group(await admin.all_lags())
    await asyncio.sleep(pause_s)
    now = _by_group(await admin.all_lags())
    for group in (each.name for each in await admin.groups()):
        if is_system_group(group):
            continue
        members = await admin.members(group)
        if members is not None and len(members.clients) > 1:
            for client, count in Counter(each.id for each in members.clients).items():
                if count > 1:
                    text = f"{count} members of {group} have the client id {client}"
                    yield diagnosed("client-id-twice", where, text, group=group)
            async for found in _subscriptions(admin, where, members):
                yield found
        async for found in _waiting(
            admin, where, group, before.get(group, {}), now.get(group, {}), members, late_s
        ):
            yield found
        async for found in _overtaken(admin, where, group, now.get(group, {}), reserved_s):
            yield found
    async for found in _dead_letters(admin, where):
        yield found
    async for found in _transactions(admin, where, late_s):
        yield found


def _by_group(lags: list[QueueLag]) -> dict[str, dict[MessageQueue, QueueLag]]:
    found: dict[str, dict[MessageQueue, QueueLag]] = {}
    for each in lags:
        found.setdefault(each.group, {})[each.queue] = each
    return found


async def _subscriptions(
    admin: AsyncAdmin, where: str, members: GroupMembers
) -> AsyncIterator[Diagnosis]:
    """Asks each member what it subscribes to. One that does not answer has no say."""
    said: dict[str, frozenset[tuple[str, str]]] = {}
    for client in members.clients:
        fields = {"consumerGroup": members.group, "clientId": client.id, "jstackEnable": False}
        try:
            answer = await admin.network.request(
                where, RequestCode.GET_CONSUMER_RUNNING_INFO, fields
            )
            found = mqjson.loads(answer.body or b"{}").get("subscriptionSet") or ()
            said[client.id] = frozenset(
                (str(each["topic"]), str(each.get("subString", "*")))
                for each in found
                if not str(each["topic"]).startswith("%")
            )
        except (ClientError, ValueError, LookupError, TypeError):
            continue
    if len(set(said.values())) < 2:
        return
    shown = "; ".join(
        f"{client}: {', '.join(f'{topic} {expression}' for topic, expression in sorted(wanted))}"
        for client, wanted in sorted(said.items())
    )
    text = f"members of {members.group} subscribe differently: {shown}"
    yield diagnosed("subscriptions-disagree", where, text, group=members.group)


async def _waiting(
    admin: AsyncAdmin, where: str, group: str, before: Mapping[MessageQueue, QueueLag],
    now: Mapping[MessageQueue, QueueLag], members: GroupMembers | None, late_s: float,
) -> AsyncIterator[Diagnosis]:  # fmt: skip
    """Reports queues that do not move although something waits, and has waited for long."""
    still = [
        each
        for queue, each in now.items()
        if each.behind and queue in before and before[queue].committed == each.committed
    ]
    oldest = 0.0
    for each in still:
        oldest = max(oldest, await _age_s(admin, where, each))
    if not still or oldest < late_s:
        return
    count = sum(each.behind for each in still)
    check = "nobody-consumes" if members is None else "consumer-stands-still"
    text = f"{count} messages wait for {group}, the oldest for {oldest:.0f} s"
    yield diagnosed(check, where, text, group=group)


async def _overtaken(
    admin: AsyncAdmin, where: str, group: str, now: Mapping[MessageQueue, QueueLag],
    reserved_s: float,
) -> AsyncIterator[Diagnosis]:  # fmt: skip
    """Reports messages that retention deletes before the group has consumed them, or has
    deleted."""
    behind = sorted((lag for lag in now.values() if lag.behind), key=lambda each: -each.behind)
    first: dict[MessageQueue, int] = {}
    oldest, lost = 0.0, 0
    for each in behind[:_QUEUES_MAX]:
        if each.queue not in first:
            facts = await admin.topic(each.queue.topic)
            first |= {ends.queue: ends.min_offset for ends in facts.queues}
        at = max(each.committed, first.get(each.queue, 0))
        lost += at - each.committed
        oldest = max(oldest, await _age_s(admin, where, replace(each, committed=at)))
    hours = f"fileReservedTime is {reserved_s / 3600:g} h"
    if lost:
        text = f"{lost} messages were deleted before {group} consumed them; {hours}"
        yield diagnosed("lag-deleted", where, text, group=group)
    if oldest > reserved_s * _SOON_RATIO > 0:
        text = f"{group} has not consumed what is {oldest / 3600:.0f} h old; {hours}"
        yield diagnosed("lag-over-retention", where, text, group=group)


async def _age_s(admin: AsyncAdmin, where: str, lag: QueueLag) -> float:
    """Returns how long the first message that waits lies there; 0 when it cannot be read."""
    try:
        async for message in admin.read(where, lag.queue, lag.committed, lag.committed + 1):
            return max(0.0, time.time() - message.store_timestamp / 1000)
    except ClientError:
        pass
    return 0.0


async def _dead_letters(admin: AsyncAdmin, where: str) -> AsyncIterator[Diagnosis]:
    for name in await admin.topic_names():
        if not name.startswith(DLQ_PREFIX):
            continue
        count = (await admin.topic(name)).messages
        if count:
            group = name.removeprefix(DLQ_PREFIX)
            text = f"{count} dead letter{'s' if count > 1 else ''}"
            yield diagnosed("dead-letters", where, f"{group} has {text}", group=group)


async def _transactions(admin: AsyncAdmin, where: str, late_s: float) -> AsyncIterator[Diagnosis]:
    """Reports halves that were put long ago, of groups without a producer that is connected. Those
    that are decided and not yet passed over are among what a broker has not consumed; a minute is
    enough for it."""
    open_of: Counter[str] = Counter()
    now = time.time()
    for lag in await admin.lag(TRANSACTION_GROUP, HALF_TOPIC):
        end = min(lag.end, lag.committed + _HALVES_MAX)
        async for half in admin.read(where, lag.queue, lag.committed, end):
            if now - half.store_timestamp / 1000 >= late_s:
                open_of[half.properties.get("PGROUP", "")] += 1
    for group, count in sorted(open_of.items()):
        if not await admin.producers(group):
            text = f"{count} transactions of {group} are open, and no producer of it is connected"
            yield diagnosed("transactions-unanswered", where, text, group=group)
