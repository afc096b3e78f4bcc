"""Offsets in the hands of tools: 222, 314, 308, and the tables 43 and 45."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from broker.loop.turns import alone
from broker.processors.offsets import offset_at, span_of
from broker.processors.turns import Turns, reply_with
from broker.services.context import Services
from broker.services.names import check_offsets_may_change
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import ONEWAY, Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import MessageQueue
from pystore.format.offset_blocks import OffsetRow
from pystore.meta.configfiles import TopicConfig, version_to_json

__all__ = ["OffsetAdminProcessor"]


class OffsetAdminProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }

    # ---- reset ----

    def reset(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        topic, group = command.text("topic"), command.text("group")
        config = self.s.topics.found(topic)
        check_offsets_may_change(group)
        if self.s.groups.get(group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group:.260} not exist!"
            )
        only = command.number("queueId", -1)
        if only >= config.read_queue_nums:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{topic} has {config.read_queue_nums} queues, there is no queue {only}",
            )
        queues = [only] if only >= 0 else list(range(config.read_queue_nums))
        return self._reset(command, config, group, queues)

    @alone
    async def _reset(
        self, command: Command, config: TopicConfig, group: str, queues: list[int]
    ) -> Command:
        topic, turns = config.name, Turns()
        if self.s.settings["useServerSideResetOffset"]:
            targets = {}
            for queue in queues:
                await turns.next()
                targets[queue] = await self._target(command, config, queue)
            for queue, target in targets.items():
                await turns.next()
                self.s.offsets.reset(group, topic, queue, target)
        else:
            targets = await self._by_client(command, config, group, queues, turns)
        table = {MessageQueue(topic, self.s.broker_name, q): t for q, t in targets.items()}
        return await reply_with(command, lambda: {"offsetTable": table})

    async def _target(self, command: Command, config: TopicConfig, queue: int) -> int:
        """Returns where the queue is to go: the offset that is given, or the one at the
        timestamp."""
        low, high = span_of(self.s, config.name, queue)
        offset = command.number("offset", -1)
        if offset >= 0:
            if not low <= offset <= high + 1:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {offset} not in consume queue range [{low}-{high}]",
                )
            return offset
        timestamp = command.number("timestamp", -1)
        if timestamp < 0:
            return high
        found = offset_at(self.s, config.name, queue, timestamp)
        return found if isinstance(found, int) else await found

    async def _by_client(
        self, command: Command, config: TopicConfig, group: str, queues: list[int], turns: Turns
    ) -> dict[int, int]:
        """Resets in the older way: the clients are notified, and commit the offsets themselves.
        Raises: Refused."""
        force = command.flag_of("isForce")
        targets = {}
        for queue in queues:
            await turns.next()
            now = self.s.offsets.get(group, config.name, queue)
            if now is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the group {group} has no offset of {config.name}/{queue} yet",
                )
            target = await self._target(command, config, queue)
            targets[queue] = target if force or target < now else now
        online = self.s.clients.online(group)
        if online is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset,"
                f" Group: {group} Topic: {config.name}",
            )
        table = {MessageQueue(config.name, self.s.broker_name, q): t for q, t in targets.items()}
        body = await asyncio.to_thread(mqjson.dumps, {"offsetTable": table})
        ext = {"topic": config.name, "group": group, "isForce": str(force).lower()}
        ext["timestamp"] = str(command.number("timestamp", -1))
        for channel in list(online.channels.values()):
            channel.peer.send(
                Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body, flag=ONEWAY)
            )
        return targets

    # ---- others ----

    def clone(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        source, target = command.text("srcGroup"), command.text("destGroup")
        topic = command.text("topic", "") or None
        check_offsets_may_change(target)
        self.s.groups.found(target)
        if topic is not None:
            self.s.topics.found(topic)
        return self._clone(command, self.s.offsets.all(source, topic), target)

    @alone
    async def _clone(self, command: Command, rows: Iterable[OffsetRow], target: str) -> Command:
        turns = Turns()
        for _, topic, queue, offset in rows:
            await turns.next()
            self.s.offsets.commit(target, topic, queue, offset)
        return command.reply()

    @alone
    async def correction(self, peer: Peer, command: Command) -> Command:
        """Returns the smallest offset of each queue over all groups but these."""
        topic = command.text("topic")
        leave_out = set(filter(None, command.text("filterGroups", "").split(",")))
        compared = command.text("compareGroup", "")
        smallest: dict[int, int] = {}
        turns = Turns()
        for group, _, queue, offset in self.s.offsets.all(topic=topic):
            await turns.next()
            if group not in leave_out:
                smallest[queue] = min(offset, smallest.get(queue, offset))
        if compared:
            for queue in smallest:
                await turns.next()
                offset = self.s.offsets.get(compared, topic, queue) or 0
                smallest[queue] = min(offset, smallest[queue])
        return await reply_with(command, lambda: {"correctionOffsets": smallest})

    def consumer_offsets(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        version = version_to_json(self.s.store.metadata.version("offsets"))
        rows, pop, more = self.s.offsets.all(), self.s.pop, {}
        if command.ext.get("pystore") and pop is not None:  # a slave of ours
            more["order"] = pop.order.text().decode()
        return reply_with(
            command, lambda: {"dataVersion": version, "offsetTable": _table(rows), **more}
        )

    def delay_offsets(self, peer: Peer, command: Command) -> Command:
        metadata = self.s.store.metadata
        body = {
            "dataVersion": version_to_json(metadata.version("delays")),
            "offsetTable": metadata.delay_offsets.all(),
        }
        return command.reply(body=mqjson.dumps(body))


def _table(rows: Iterable[OffsetRow]) -> dict[str, dict[int, int]]:
    """Returns the table of ConsumerOffsetManager: offset by queue, by ``topic@group``."""
    table: dict[str, dict[int, int]] = {}
    for group, topic, queue, offset in rows:
        table.setdefault(f"{topic}@{group}", {})[queue] = offset
    return table
