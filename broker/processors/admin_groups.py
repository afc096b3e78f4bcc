"""Groups for tools: 200, 201, 207, 225, 352, 353; who is online: 203, 204, 328, 343, 345."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.loop.turns import alone
from broker.processors.bodies import GROUP, GROUPS, read
from broker.processors.durable import settled
from broker.processors.refusals import ended
from broker.processors.turns import Turns, reply_with
from broker.services.context import Services
from broker.services.groups import BIND_TOPIC
from broker.services.names import check_offsets_may_change
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import JsonText
from pystore.meta.configfiles import version_to_json

__all__ = ["GroupProcessor"]


class GroupProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of,
        }

    # ---- groups ----

    def update(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        self.s.groups.update(self.s.groups.from_json(read(command, GROUP)))
        return self._settled(command)

    async def _settled(self, command: Command) -> Command:
        await settled(self.s, self.s.groups)
        return command.reply()

    def update_list(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        return self._update_list(command, read(command, GROUPS)["groupConfigList"])

    @alone
    async def _update_list(self, command: Command, wanted: list[object]) -> Command:
        turns, groups = Turns(), []
        for one in wanted:
            await turns.next()
            groups.append(self.s.groups.from_json(one))
        for group in groups:
            await turns.next()
            self.s.groups.update(group)
        return await self._settled(command)

    def delete(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        name = command.text("groupName")
        check_offsets_may_change(name)
        group = self.s.groups.get(name)
        reads_lite = group is not None and BIND_TOPIC in group.attributes
        self.s.groups.delete(name)
        self.s.statistics.forget(group=name)
        end = self.s.pop.forget(group=name) if self.s.pop is not None else None
        work = self._deleted(command, name, end, reads_lite=reads_lite)
        return self.s.finishing.run(f"deleting the group {name}", work)

    async def _deleted(
        self, command: Command, name: str, end: asyncio.Task[None] | None, *, reads_lite: bool
    ) -> Command:
        if end is not None:
            await ended(end)
        if self.s.lite is not None:
            await self.s.lite.leave_group(name)
        # Upstream means to, but looks whether the group reads lite topics once it is gone.
        if reads_lite or command.flag_of("cleanOffset"):
            await self.s.offsets.delete(group=name)
        return await self._kept(command.reply())

    async def _kept(self, answer: Command) -> Command:
        await self.s.groups.keep_forbidden()
        await settled(self.s, self.s.groups)
        return answer

    def all(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        version, rows = version_to_json(self.s.groups.version), self.s.groups.all()
        forbidden = {group: dict(topics) for group, topics in self.s.groups.forbidden.items()}
        return reply_with(
            command,
            lambda: {
                "dataVersion": version,
                "forbiddenTable": forbidden,
                "subscriptionGroupTable": JsonText.table(
                    (g.name, self.s.groups.text(g)) for g in rows
                ),
            },
        )

    def one(self, peer: Peer, command: Command) -> Command:
        name = command.text("group")
        group = self.s.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {name:.260}",
            )
        return command.reply(body=mqjson.dumps(self.s.groups.to_json(group)))

    def forbidden(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        group, topic = command.text("group"), command.text("topic")
        self.s.groups.found(group)
        self.s.topics.found(topic)
        if command.ext.get("readable"):
            self.s.groups.forbid(group, topic, not command.flag_of("readable"))
        readable = not self.s.groups.is_forbidden(group, topic)
        body = {"group": group, "topic": topic, "readable": readable}
        return self._kept(command.reply(body=mqjson.dumps(body)))

    # ---- who is online ----

    def consumers(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        name = command.text("consumerGroup")
        group = self.s.clients.online(name)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name:.260}] not online"
            )
        body = {
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
        }
        members, topics = list(group.channels.values()), sorted(group.subscriptions.items())
        return reply_with(
            command,
            lambda: {
                "connectionSet": [c.as_connection() for c in members],
                **body,
                "subscriptionTable": {topic: sub.as_json() for topic, sub in topics},
            },
        )

    def producers(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        name = command.text("producerGroup")
        channels = self.s.clients.producers.get(name)
        if not channels:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name:.260}] not exist")
        members = list(channels.values())
        return reply_with(command, lambda: {"connectionSet": [c.as_connection() for c in members]})

    @alone
    async def all_producers(self, peer: Peer, command: Command) -> Command:
        turns = Turns()
        found: dict[str, list[dict[str, object]]] = {}
        producers = self.s.clients.producers
        for group in list(producers):
            found[group] = []
            for c in list(producers.get(group, {}).values()):
                await turns.next()
                # When it was heard is its connection's, which is the loop's.
                found[group].append(
                    {
                        "clientId": c.client_id,
                        "language": c.language_name,
                        "lastUpdateTimestamp": c.heard_ms,
                        "remoteIP": f"/{c.address}",
                        "version": c.version,
                    }
                )
        return await reply_with(command, lambda: {"data": found})

    def topics_of(self, peer: Peer, command: Command) -> Command:
        topics = self.s.offsets.topics_of(command.text("group"))
        body = {"brokerAddr": self.s.address, "topicList": sorted(topics)}
        return command.reply(body=mqjson.dumps(body))

    def subscription_of(self, peer: Peer, command: Command) -> Command:
        name, topic = command.text("group"), command.text("topic")
        group = self.s.clients.consumers.get(name)
        found = group.subscriptions.get(topic) if group is not None else None
        body = {
            "group": name,
            "subscriptionData": found.as_json() if found is not None else None,
            "topic": topic,
        }
        return command.reply(body=mqjson.dumps(body))
