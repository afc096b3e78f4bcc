"""Topics, groups and clients of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.client.admin.base import AdminBase
from broker.client.admin.facts import (
    ConnectedClient,
    GroupMembers,
    QueueEnds,
    TopicFacts,
    connected,
    perm_of,
    producer_in,
    queue_ends,
)
from broker.client.checks import check_count
from broker.client.errors import NoRoute, reading
from broker.client.options import GROUP_MAX
from broker.client.sending import TOPIC_MAX, check_name
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from pystore.format.names import TEMPLATE_TOPIC
from pystore.meta.configfiles import (
    SubscriptionGroup,
    TopicConfig,
    group_from_json,
    group_to_json,
    topic_from_json,
)

__all__ = ["GroupAdmin", "TopicAdmin"]

_QUEUES_MAX = 65536


def _topics_of(tables: Mapping[str, Mapping[str, Any]]) -> list[TopicConfig]:
    """Reads the answers to GET_ALL_TOPIC_CONFIG, by address. Raises: BadAnswer."""
    found: dict[str, TopicConfig] = {}
    for address, table in tables.items():
        with reading("GET_ALL_TOPIC_CONFIG", address):
            for name, value in table.items():
                config = topic_from_json(name, value)
                other = found.get(name)
                if other is not None:
                    config = replace(
                        config,
                        read_queue_nums=config.read_queue_nums + other.read_queue_nums,
                        write_queue_nums=config.write_queue_nums + other.write_queue_nums,
                    )
                found[name] = config
    return [found[name] for name in sorted(found)]


def _groups_of(table: Mapping[str, Any]) -> list[SubscriptionGroup]:
    """Reads the table of GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Raises: BadAnswer."""
    with reading("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "a broker"):
        return [group_from_json(name, table[name]) for name in sorted(table)]


class TopicAdmin(AdminBase):
    """Topics: list, describe, create, delete."""

    async def _topic_tables(self, addresses: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the topics of each broker, as it has them in JSON. Raises: ClientError."""
        found = await self._of_all(addresses, RequestCode.GET_ALL_TOPIC_CONFIG, {})
        return {address: body.get("topicConfigTable") or {} for address, body in found}

    async def topics(self) -> list[TopicConfig]:
        """Returns all topics, by name; of a topic on several brokers, the sum of its queues. Those
        of the system, of retries and of dead letters are among them.

        Raises: ClientError."""
        self.network.check()
        tables = await self._topic_tables(await self._masters())
        return await asyncio.to_thread(_topics_of, tables)  # there may be tens of thousands

    async def topic_names(self) -> list[str]:
        """Returns the names of all topics, without asking brokers where there is a name server.
        Raises: ClientError."""
        self.network.check()
        if self._broker is not None:
            return [each.name for each in await self.topics()]
        body = await self._ask_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        with reading("GET_ALL_TOPIC_LIST_FROM_NAMESERVER", "the name server"):
            return sorted(map(str, body.get("topicList") or ()))

    async def topic(self, name: str) -> TopicFacts:
        """Describes a topic: how each broker has it, and what its queues hold. Raises: NoRoute for
        one that is not there, ClientError."""
        self.network.check()
        configs: dict[str, TopicConfig] = {}
        queues: list[QueueEnds] = []
        addresses = await self._brokers_of(name)
        for address in addresses:
            value = await self._topic_json(address, name)
            if value is None:
                continue
            body = await self._json(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": name})
            with reading("GET_TOPIC_STATS_INFO", address):
                ends = queue_ends(body)
                broker = ends[0].queue.broker if ends else address
                configs[broker] = topic_from_json(name, value)
                queues += ends
        if not configs:
            raise NoRoute(f"no broker has the topic {name}; see topics()", name)
        return TopicFacts(name, configs, tuple(queues))

    async def create_topic(
        self, name: str, *, queues: int = 8, perm: str = "rw", order: bool = False,
        attributes: Mapping[str, str] | None = None, dry_run: bool = False,
    ) -> list[str]:  # fmt: skip
        """Makes a topic on every master, or changes the one that is there. queues: on each broker,
        to read and to write. perm: ``rw``, ``r`` or ``w``. attributes: such as ``{"message.type":
        "FIFO"}``, for brokers of 5.x. dry_run: checks and says where. Returns the addresses of the
        brokers.

        Raises: InvalidMessage for a name that no broker takes, Misuse, ClientError."""
        self.network.check()
        check_name("topic", name, TOPIC_MAX)
        check_count("queues", queues, 1, _QUEUES_MAX)
        changes = ",".join(f"+{key}={value}" for key, value in (attributes or {}).items())
        fields = {
            "topic": name, "defaultTopic": TEMPLATE_TOPIC, "readQueueNums": queues,
            "writeQueueNums": queues, "perm": perm_of(perm), "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0, "order": order, "attributes": changes or None,
        }  # fmt: skip
        masters = await self._masters()
        for address in () if dry_run else masters:
            await self.network.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        return masters

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> list[str]:
        """Deletes a topic, with its messages, from every broker and from the name servers. dry_run:
        checks and says where. Returns the addresses of the brokers. Raises: NoRoute, ClientError.
        """
        self.network.check()
        fields = {"topic": name}
        addresses = await self._brokers_of(name)
        if dry_run:
            return addresses
        for address in addresses:
            await self.network.request(address, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        for server in self._servers:
            await self.network.request(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        return addresses


class GroupAdmin(AdminBase):
    """Consumer groups and the clients that are connected."""

    async def groups(self) -> list[SubscriptionGroup]:
        """Returns all consumer groups, by name. Raises: ClientError."""
        return await asyncio.to_thread(_groups_of, await self.group_table())

    async def create_group(
        self, name: str, *, retries: int = 16, retry_queues: int = 1, enabled: bool = True,
        broadcast: bool = True, ordered: bool = False,
        attributes: Mapping[str, str] | None = None, dry_run: bool = False,
    ) -> list[str]:  # fmt: skip
        """Makes a consumer group on every master, or changes the one that is there. retries: until
        a message is a dead letter. enabled: whether it may consume. broadcast: whether its
        consumers may broadcast. ordered: for consumers of RocketMQ 5 that want messages in order.
        attributes: such as ``{"lite.bind.topic": "sessions"}``, for brokers of 5.5. dry_run: checks
        and says where. Returns the addresses of the brokers.

        Raises: InvalidMessage for a name that no broker takes, Misuse, ClientError."""
        self.network.check()
        check_name("group", name, GROUP_MAX)
        check_count("retries", retries, -1, 1 << 20)
        check_count("retry_queues", retry_queues, 0, _QUEUES_MAX)
        group = SubscriptionGroup(
            name, consume_enable=enabled, consume_broadcast_enable=broadcast,
            consume_message_orderly=ordered, retry_queue_nums=retry_queues,
            retry_max_times=retries,
            attributes={f"+{key}": value for key, value in (attributes or {}).items()},
        )  # fmt: skip
        body, masters = mqjson.dumps(group_to_json(group)), await self._masters()
        for address in () if dry_run else masters:
            await self.network.request(
                address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body
            )
        return masters

    async def delete_group(
        self, name: str, *, offsets: bool = True, dry_run: bool = False
    ) -> list[str]:
        """Deletes a consumer group from every master. offsets: also where it was. dry_run: checks
        and says where. Returns the addresses of the brokers. Raises: ClientError."""
        self.network.check()
        masters = await self._masters()
        fields = {"groupName": name, "cleanOffset": offsets}
        for address in () if dry_run else masters:
            await self.network.request(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        return masters

    async def members(self, group: str) -> GroupMembers | None:
        """Returns who consumes for a group now; None for nobody. Several that one broker knows by
        one client id are all there. Raises: ClientError."""
        self.network.check()
        code, fields = RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        clients: dict[str, list[ConnectedClient]] = {}
        first: dict[Any, Any] | None = None
        subscriptions: dict[str, str] = {}
        for address in await self._masters():
            answer = await self.network.request(
                address, code, fields, fine=(0, ResponseCode.CONSUMER_NOT_ONLINE)
            )
            if answer.code:
                continue
            body = self._read(answer, code, address)
            with reading(code.name, address):
                here: dict[str, list[ConnectedClient]] = {}
                for each in connected(body):
                    here.setdefault(each.id, []).append(each)
                for id_, found in here.items():
                    clients[id_] = max(clients.get(id_, []), found, key=len)
                table = body.get("subscriptionTable") or {}
                subscriptions |= {str(t): str(s.get("subString", "*")) for t, s in table.items()}
            first = first or body
        if first is None:
            return None
        return GroupMembers(
            group, str(first.get("consumeType", "")), str(first.get("messageModel", "")),
            str(first.get("consumeFromWhere", "")),
            tuple(each for id_ in sorted(clients) for each in clients[id_]),
            dict(sorted(subscriptions.items())),
        )  # fmt: skip

    async def producers(self, group: str) -> list[ConnectedClient]:
        """Returns the producers of a group that are connected. Raises: ClientError."""
        self.network.check()
        code, clients = RequestCode.GET_PRODUCER_CONNECTION_LIST, dict[str, ConnectedClient]()
        for address in await self._masters():
            answer = await self.network.request(
                address, code, {"producerGroup": group}, fine=(0, ResponseCode.SYSTEM_ERROR)
            )
            if answer.code == 0:
                body = self._read(answer, code, address)
                with reading(code.name, address):
                    clients |= {each.id: each for each in connected(body)}
        return [clients[each] for each in sorted(clients)]

    async def all_producers(self) -> dict[str, list[ConnectedClient]]:
        """Returns the producers that are connected, by group; several brokers know the same ones.
        Brokers before 4.9 do not tell them. Raises: BrokerRefused, ClientError."""
        self.network.check()
        code, found = RequestCode.GET_ALL_PRODUCER_INFO, dict[str, dict[str, ConnectedClient]]()
        for address, body in await self._of_all(await self._masters(), code, {}):
            with reading(code.name, address):
                for group, clients in (body.get("data") or {}).items():
                    found.setdefault(str(group), {}).update(
                        (each.id, each) for each in map(producer_in, clients)
                    )
        return {
            group: [found[group][id_] for id_ in sorted(found[group])] for group in sorted(found)
        }

    async def groups_of(self, topic: str) -> list[str]:
        """Returns the groups that consume a topic, or did. Raises: NoRoute, ClientError."""
        self.network.check()
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        addresses = await self._brokers_of(topic)
        bodies = await asyncio.gather(
            *(self._json(each, code, {"topic": topic}) for each in addresses)
        )
        return sorted({str(group) for body in bodies for group in body.get("groupList") or ()})
