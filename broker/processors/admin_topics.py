"""Topics for tools: 17, 18, 21, 215, 305, 351, and which groups read them: 300."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.access.proof import HA_ADDRESS
from broker.loop.turns import alone
from broker.processors.bodies import TOPICS, read
from broker.processors.durable import settled
from broker.processors.refusals import ended
from broker.processors.turns import Turns, reply_with
from broker.services.context import Services
from broker.services.lite.lite_topics import is_lite
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import JsonText
from pystore.format.names import RETRY_PREFIX
from pystore.meta.configfiles import DataVersion, TopicConfig, version_to_json
from pystore.store import hosting

__all__ = ["TopicProcessor", "requested_topic"]


class TopicProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_TOPIC_CONFIG: self.one,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
        }

    # ---- changes ----

    def update(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        self.s.topics.update(requested_topic(command), command.text("attributes", ""))
        return self._registered(command)

    async def _registered(self, command: Command) -> Command:
        """Answers once the topics are registered, since the tool looks at the name server next."""
        await settled(self.s, self.s.topics)
        await self.s.registration.settled()
        return command.reply()

    def update_list(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        return self._update_list(command, read(command, TOPICS)["topicConfigList"])

    @alone
    async def _update_list(self, command: Command, wanted: list[object]) -> Command:
        turns, configs = Turns(), []
        for one in wanted:
            await turns.next()
            configs.append(self.s.topics.from_json(one))
            self.s.topics.check_updatable(configs[-1].name)
        for config in configs:
            await turns.next()
            changes = ",".join(f"+{k.lstrip('+')}={v}" for k, v in config.attributes.items())
            self.s.topics.update(config, changes)
        return await self._registered(command)

    def delete(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        name = command.text("topic", "")
        self.s.topics.check_updatable(name)
        names = [name]
        if self.s.settings["clearRetryTopicWhenDeleteTopic"]:
            for group in self.s.offsets.groups_of(name):
                names += [f"{RETRY_PREFIX}{group}{sign}{name}" for sign in "_+"]
        ends = []
        config = self.s.topics.get(name)
        # Who asks again, after an answer that did not come, finds no topic, and its lite topics.
        lites = config is None or is_lite(config.attributes)
        for each in names:
            if self.s.static is not None:
                self.s.static.table.delete(each)
            self.s.topics.delete(each)
            if self.s.cold is not None:
                self.s.cold.handle.hide(each)
            self.s.statistics.forget(topic=each)
            if self.s.pop is not None:
                ends.append(self.s.pop.forget(topic=each))
        work = self._deleted(command, names, ends, lites)
        return self.s.finishing.run(f"deleting the topic {name}", work)

    async def _deleted(
        self, command: Command, names: list[str], ends: list[asyncio.Task[None]], lites: bool
    ) -> Command:
        for end in ends:
            await ended(end)
        if self.s.static is not None:
            await self.s.static.table.settled()
        if lites and self.s.lite is not None and await self.s.lite.delete_below(names[0]):
            await asyncio.to_thread(self.s.store.flush)  # they are gone for good
        for each in names:
            await self.s.offsets.delete(topic=each)
            await asyncio.to_thread(hosting.delete_queues, self.s.store, each)
        return await self._registered(command)

    # ---- questions ----

    def all(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        static = self.s.static
        of_mappings = version_to_json(static.table.version if static else DataVersion())
        mappings = static.table.details() if static else dict
        version, rows = version_to_json(self.s.topics.version), self.s.topics.all()
        ours = bool(command.ext.get("pystore"))  # a slave of ours
        begins = ours and bool(command.ext.get("queueEnds"))
        replication = self.s.replication
        if ours and replication is not None and replication.notices is not None:
            replication.notices.expect(peer)
        return reply_with(
            command,
            lambda: {
                **({"deletedTopics": self.s.store.deletions()} if ours else {}),
                **({"queueEnds": hosting.ended_queues(self.s.store)} if begins else {}),
                "dataVersion": version,
                "mappingDataVersion": of_mappings,
                "topicConfigTable": JsonText.table((r.name, self.s.topics.text(r)) for r in rows),
                "topicQueueMappingDetailMap": mappings(),
                "topicQueueMappingInfoMap": {},
            },
        )

    def one(self, peer: Peer, command: Command) -> Command:
        name = command.text("topic")
        config = self.s.topics.get(name)
        if config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name:.260}"
            )
        said, static = self.s.topics.to_json(config), self.s.static
        mapping = static.table.get(name) if static and command.flag_of("lo") else None
        if mapping is not None:
            said = {**said, "mappingDetail": mapping.as_json()}
        return command.reply(body=mqjson.dumps(said))

    def system(self, peer: Peer, command: Command) -> Command:
        ext = {HA_ADDRESS: ha} if (ha := self.s.ha_address) else {}
        return command.reply(ext=ext, body=mqjson.dumps({"topicList": self.s.topics.system()}))

    async def consumed_by(self, peer: Peer, command: Command) -> Command:
        topic, turns = command.text("topic"), Turns()
        groups = set(self.s.offsets.groups_of(topic))
        for group in list(self.s.clients.consumers.values()):
            await turns.next()
            if topic in group.subscriptions:
                groups.add(group.name)
        return command.reply(body=mqjson.dumps({"groupList": sorted(groups)}))


def requested_topic(command: Command) -> TopicConfig:
    """Reads the topic of a CreateTopicRequestHeader. Raises: Refused."""
    # A blank name is refused with the code of a bad one, not as a missing field.
    return TopicConfig(
        name=command.text("topic", ""),
        read_queue_nums=command.number("readQueueNums"),
        write_queue_nums=command.number("writeQueueNums"),
        perm=command.number("perm"),
        topic_filter_type=command.text("topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=command.number("topicSysFlag", 0),
        order=command.flag_of("order"),
    )
