"""Topics of a running cluster: lists, the newest messages of one, and the forms that send a message
to it, or make and change topics and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from broker.client.admin.facts import TopicFacts, letters_of
from broker.client.admin.lite_facts import LiteTopicFacts
from broker.client.errors import BrokerRefused, Misuse
from broker.client.message import Message
from broker.client.producer import AsyncProducer
from broker.web.cluster_actions import ClusterActions
from broker.web.page_server import Handler
from broker.web.rows import SOON_S, of_kind, paged
from broker.web.topic_search import MessageFilter, Newest, newest, queue_of
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

__all__ = ["ClusterTopics"]

#: Messages of one page, and how often a page that follows comes again, seconds.
_MESSAGES, _LIVE_S = 20, "2"
#: Of a test message: letters of its body, and of its other fields.
_BODY_MAX, _FIELD_MAX = 32_000, 1000
_PRODUCER_GROUP = "pystore-web"
_QUEUES_MAX, _RETRIES_MAX = 65536, 1 << 20
_TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")


@dataclass(slots=True)
class LiteSection:
    """Lite topics of a topic: the one that was asked for (``wanted``) at each broker; how many
    minutes they last; of each group how many messages wait, and in how many lite topics."""

    wanted: str
    minutes: set[int] = field(default_factory=set)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)
    found: list[LiteTopicFacts] = field(default_factory=list)
    trouble: str = ""

    @property
    def lasts(self) -> str:
        """How long they last, in words."""
        said = (
            f"{each:,} minutes after the last message" for each in sorted(self.minutes) if each > 0
        )
        return ", ".join(said) or "until they are deleted"


class ClusterTopics(ClusterActions):
    """The pages of topics."""

    def routes(self) -> Mapping[str, Handler]:
        return {
            **super().routes(), "/topics": self._topics, "/topic": self._topic,
            "/send": self._send_form, "/topic-form": self._topic_form,
            "/group-form": self._group_form,
        }  # fmt: skip

    def changes(self) -> Mapping[str, Handler]:
        return {
            **super().changes(), "/send": self._send, "/topic-form": self._make_topic,
            "/group-form": self._make_group,
        }  # fmt: skip

    # ---- lists and messages ----

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        rows = of_kind(await self.facts.topics.get(), query.get("kind", ""))
        found = paged(
            rows, self._page_of(request), wanted=query.get("q", ""), text=lambda topic: topic.name
        )
        shown, counting = await self.facts.with_counts(found.rows, SOON_S)
        found = replace(found, rows=shown)
        return self._again(counting, self._page("topics.html", found=found, query=query))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        """Returns the newest messages of all queues, or those of one; queues and groups. How far
        groups are may come later, as on the page of all groups."""
        query = dict(request.query)
        name, wanted = query.get("name", ""), MessageFilter.of(query)
        facts = await self.facts.admin.topic(name)
        queues = facts.queues
        at, chosen = 0, queue_of(queues, query.get("broker", ""), self._number(request, "queue"))
        shown, trouble = Newest(), ""
        try:
            if chosen is None:
                async with self._searching:
                    shown = await newest(queues, self.facts.read, wanted, _MESSAGES)
            else:
                at = self._number(request, "offset", max(0, chosen.max_offset - _MESSAGES)) or 0
                at = max(chosen.min_offset, min(at, chosen.max_offset))
                found = await self.facts.read(chosen.queue, at, _MESSAGES)
                shown.rows = [(chosen.queue.broker, view) for view in found]
        except BrokerRefused as refused:  # such as dead letters of 4.9, which nobody may read
            trouble = str(refused)
        known, groups = await self.facts.groups_of_soon(name, SOON_S)
        answer = self._again(not known, self._page(
            "topic.html", name=name, facts=_shown(facts, len(groups)), chosen=chosen, at=at,
            shown=shown, trouble=trouble, step=_MESSAGES, groups=groups, counting=not known,
            found=paged(queues, self._page_of(request)), query=query, wanted=wanted,
            lite=await self._lite_of(facts, query.get("lite", "")),
        ))  # fmt: skip
        if query.get("live"):
            answer.headers["Refresh"] = _LIVE_S
        return answer

    async def _lite_of(self, facts: TopicFacts, name: str) -> LiteSection | None:
        """Returns what brokers say of the lite topics of a topic, and of one of these; None: it has
        none."""
        if all(each.attributes.get("message.type") != "LITE" for each in facts.configs.values()):
            return None
        admin, shown = self.facts.admin, LiteSection(name)
        try:
            for broker in await admin.lite_brokers():
                shown.minutes |= {broker.ttl_minutes.get(facts.name, -1)}
                for group in broker.groups.get(facts.name, ()):
                    lag = broker.lags.get(group)
                    behind, topics = shown.groups.get(group, (0, 0))
                    shown.groups[group] = (
                        behind + (lag.messages if lag else 0),
                        topics + (lag.lite_topics if lag else 0),
                    )
            shown.found = await admin.lite_topic(facts.name, name) if name else []
        except BrokerRefused as refused:
            shown.trouble = str(refused)
        return shown

    # ---- a test message ----

    async def _send_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("send messages")
        name = request.query.get("topic", "")
        await self.facts.admin.topic(name)
        return self._page("send.html", name=name, tags="", keys="", body="", asks=False, sent=None)

    async def _send(self, request: web.Request) -> web.StreamResponse:
        """Sends one message, after it was asked."""
        name, tags, keys, do = await self._fields(request, "topic", "tags", "keys", "do")
        body = str((await request.post()).get("body", ""))
        if len(body) > _BODY_MAX or max(len(tags), len(keys)) > _FIELD_MAX:
            raise Misuse(f"a body may have {_BODY_MAX:,} characters, other fields {_FIELD_MAX:,}")
        await self.facts.admin.topic(name)
        if self.facts.of_broker:
            raise Misuse("producers ask a name server: start `pystore web` with its address")
        sent = None
        if do == "send":
            message = Message(name, body.encode(), tags=tags or None, keys=keys)
            async with (
                self._changing,
                AsyncProducer(_PRODUCER_GROUP, self.target, **self._options) as producer,
            ):
                sent = await producer.send(message)
        return self._page(
            "send.html", name=name, tags=tags, keys=keys, body=body, sent=sent, asks=do != "send"
        )

    # ---- topics and groups ----

    async def _topic_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("create and change topics")
        name = request.query.get("name", "")
        given = {"name": name, "queues": "8", "perm": "rw", "order": "", "type": ""}
        if name:
            known = next(iter((await self.facts.admin.topic(name)).configs.values()))
            given |= {
                "queues": str(known.write_queue_nums), "perm": letters_of(known.perm),
                "order": "yes" if known.order else "",
                "type": str(known.attributes.get("message.type", "")),
            }  # fmt: skip
        return self._page("topic_form.html", given=given, there=bool(name), where=None, asks=False)

    async def _make_topic(self, request: web.Request) -> web.StreamResponse:
        names = ("name", "queues", "perm", "order", "type", "there", "do")
        given = dict(zip(names, await self._fields(request, *names), strict=True))
        if given["type"] not in _TYPES:
            raise Misuse(f"the type of messages is one of {', '.join(_TYPES[1:])}")
        asks = given["do"] != "make"
        async with self._changing:
            where = await self.facts.admin.create_topic(
                given["name"], queues=self._whole_number(given["queues"], "queues", 1, _QUEUES_MAX),
                perm=given["perm"], order=bool(given["order"]), dry_run=asks,
                attributes={"message.type": given["type"]} if given["type"] else {},
            )  # fmt: skip
        self.facts.topics.forget()
        return self._page(
            "topic_form.html", given=given, there=bool(given["there"]), where=where, asks=asks
        )

    async def _group_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("create and change groups")
        name = request.query.get("name", "")
        known = await self.facts.group(name) if name else None
        group = known or SubscriptionGroup(name)
        given = {
            "name": name, "retries": str(group.retry_max_times),
            "enabled": "yes" if group.consume_enable else "",
            "broadcast": "yes" if group.consume_broadcast_enable else "",
            "ordered": "yes" if group.consume_message_orderly else "",
            "retry_queues": str(group.retry_queue_nums),
        }  # fmt: skip
        return self._page("group_form.html", given=given, there=bool(known), where=None, asks=False)

    async def _make_group(self, request: web.Request) -> web.StreamResponse:
        names = (
            "name", "retries", "retry_queues", "enabled", "broadcast", "ordered", "there", "do",
        )  # fmt: skip
        given = dict(zip(names, await self._fields(request, *names), strict=True))
        asks = given["do"] != "make"
        async with self._changing:
            where = await self.facts.admin.create_group(
                given["name"], enabled=bool(given["enabled"]), broadcast=bool(given["broadcast"]),
                retries=self._whole_number(given["retries"], "retries", -1, _RETRIES_MAX),
                retry_queues=self._whole_number(given["retry_queues"], "queues", 0, _QUEUES_MAX),
                ordered=bool(given["ordered"]), dry_run=asks,
            )  # fmt: skip
        self.facts.configs.forget()
        self.facts.forget_lags()
        return self._page(
            "group_form.html", given=given, there=bool(given["there"]), where=where, asks=asks
        )


def _shown(facts: TopicFacts, groups: int) -> dict[str, str]:
    """Returns what a topic is, as brokers have it: where they disagree, all of it."""
    configs = list(facts.configs.values())

    def of(read: Any) -> str:
        return ", ".join(dict.fromkeys(str(read(each)) for each in configs))

    def kind(config: TopicConfig) -> str:
        return str(config.attributes.get("message.type", "-"))

    return {
        "Messages": f"{facts.messages:,}", "Queues": f"{len(facts.queues):,}",
        "Groups": f"{groups:,}", "Permission": of(lambda each: letters_of(each.perm)),
        "Type of messages": of(kind), "Brokers": f"{len(configs):,}",
    }  # fmt: skip
