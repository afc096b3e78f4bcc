"""Static topics of a cluster: made, enlarged and remapped, as mqadmin's updateStaticTopic and
remappingStaticTopic do it, at brokers of ours and of Apache's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from broker.client.admin.base import AdminBase
from broker.client.admin.facts import queue_ends
from broker.client.admin.static_plan import StaticTopicFacts, decided, enlarged, remapped
from broker.client.checks import check_count
from broker.client.errors import Misuse, NoRoute, reading
from broker.client.sending import TOPIC_MAX, check_name
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.static_topics import TopicMapping, parse_mapping
from pystore.files import javajson
from pystore.format.names import TEMPLATE_TOPIC
from pystore.meta.configfiles import TopicConfig, topic_from_json

__all__ = ["StaticTopicAdmin"]

_QUEUES_MAX = 65_535


class StaticTopicAdmin(AdminBase):
    """Topics whose logical queues may move from broker to broker."""

    async def static_topic(self, name: str) -> StaticTopicFacts:
        """Describes a static topic: what each broker leads and has led. Raises: NoRoute for a
        topic that does not exist, Misuse for one that is not static, ClientError."""
        self.network.check()
        found = await self._static(name, await self._masters_by_name())
        if not found.mappings:
            raise NoRoute(f"no broker has a static topic {name}", name)
        return found

    async def create_static_topic(
        self, name: str, *, queues: int, brokers: Sequence[str] = (), dry_run: bool = False
    ) -> StaticTopicFacts:
        """Makes a static topic of so many logical queues, or gives one more. brokers: names of
        those that lead the new ones; empty: all of the cluster. dry_run: checks and plans. Returns
        the topic as it is then.

        Raises: InvalidMessage for a name that no broker takes, Misuse, ClientError."""
        self.network.check()
        check_name("topic", name, TOPIC_MAX)
        check_count("queues", queues, 1, _QUEUES_MAX)
        masters = await self._masters_by_name()
        targets = _chosen(brokers, masters)
        facts = await self._static(name, masters)
        plan = enlarged(facts, queues, targets, sorted(masters), _now_ms())
        if not dry_run:
            for broker in plan.mappings:
                await self._put(masters[broker], plan, plan.mappings[broker])
        return plan

    async def remap_static_topic(
        self, name: str, *, brokers: Sequence[str] = (), dry_run: bool = False
    ) -> StaticTopicFacts:
        """Gives logical queues to other brokers, so that those named lead all of them, each as many
        as the others; empty: all of the cluster. What was sent stays where it is, and is read
        before what comes. A remapping that ended half way is brought to its end first. dry_run:
        checks and plans. Returns the topic as it is then.

        Raises: NoRoute, Misuse, ClientError."""
        self.network.check()
        masters = await self._masters_by_name()
        targets = _chosen(brokers, masters)
        facts = await self._static(name, masters)
        if not facts.mappings:
            raise NoRoute(f"no broker has a static topic {name}", name)
        if not dry_run and facts.followed():
            facts.check()
            facts = await self._decide(facts, masters)
        plan = remapped(facts, targets, sorted(masters), _now_ms())
        if dry_run:
            return plan
        into = sorted(set(plan.moved.values()))
        out = sorted({facts.queues[queue][-1].broker for queue in plan.moved})
        # The new leaders take messages before the old ones refuse them.
        for broker in (*into, *(each for each in out if each not in into)):
            await self._put(masters[broker], plan, plan.mappings[broker])
        made = await self._decide(plan, masters)
        for broker in sorted(set(plan.mappings) - {*into, *out}):
            await self._put(masters[broker], made, made.mappings[broker])
        return made

    # ---- parts ----

    async def _masters_by_name(self) -> dict[str, str]:
        """Returns the addresses of all masters of the cluster. Raises: ClientError."""
        return {place.name: place.address for place in await self.cluster() if place.id == 0}

    async def _static(self, name: str, masters: dict[str, str]) -> StaticTopicFacts:
        """Asks every master. Raises: Misuse for a topic that is not static, ClientError."""
        configs: dict[str, TopicConfig] = {}
        mappings: dict[str, TopicMapping] = {}
        for broker, address in sorted(masters.items()):
            answer = await self.network.request(
                address, RequestCode.GET_TOPIC_CONFIG, {"topic": name, "lo": True},
                fine=(0, ResponseCode.TOPIC_NOT_EXIST),
            )  # fmt: skip
            if answer.code:
                continue
            with reading("GET_TOPIC_CONFIG", address):
                value = javajson.loads(bytes(answer.body))
                if not value.get("mappingDetail"):
                    raise Misuse(f"{broker} has a topic {name} that is not static")
                configs[broker] = topic_from_json(name, value)
                mappings[broker] = mapping = parse_mapping(value["mappingDetail"])
                if mapping.broker != broker:
                    raise ValueError(f"the mapping is of the broker {mapping.broker:.260}")
        return StaticTopicFacts(name, configs, mappings)

    async def _put(self, address: str, facts: StaticTopicFacts, mapping: TopicMapping) -> None:
        """Gives a broker its mapping. Raises: ClientError."""
        config = facts.configs[mapping.broker]
        fields = {
            "topic": facts.name, "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": config.read_queue_nums, "writeQueueNums": config.write_queue_nums,
            "perm": config.perm, "topicFilterType": config.topic_filter_type,
            "topicSysFlag": config.topic_sys_flag, "order": config.order, "force": False,
        }  # fmt: skip
        body = mqjson.dumps(mapping.as_json())
        code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
        await self.network.request(address, code, fields, body)

    async def _decide(self, facts: StaticTopicFacts, masters: dict[str, str]) -> StaticTopicFacts:
        """Gives the newest parts their offsets. Raises: Misuse, ClientError."""
        asked = {part.broker for part in facts.followed().values()}
        ends: dict[tuple[str, int], int] = {}
        for broker in sorted(asked):
            if broker not in masters:
                raise Misuse(f"the broker {broker}, which has parts of {facts.name}, is down")
            address = masters[broker]
            body = await self._json(
                address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": facts.name}
            )
            with reading("GET_TOPIC_STATS_INFO", address):
                for each in queue_ends(body):
                    ends[each.queue.broker, each.queue.queue] = each.max_offset
        made = decided(facts, ends)
        for broker, mapping in sorted(made.items()):
            await self._put(masters[broker], facts, mapping)
        return replace(facts, mappings={**facts.mappings, **made})


def _chosen(brokers: Sequence[str], masters: dict[str, str]) -> list[str]:
    """Returns the brokers that are meant. Raises: Misuse."""
    unknown = [name for name in brokers if name not in masters]
    if unknown:
        raise Misuse(f"there is no master of {unknown[0]}; there are {', '.join(sorted(masters))}")
    if not masters:
        raise Misuse("the name server knows no master; check that brokers register")
    return sorted(set(brokers)) or sorted(masters)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
