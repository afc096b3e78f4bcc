"""Requests of lite topics (200070, 200071, 200074 to 200079), and acknowledgements and invisible
times of their messages (200051 and 200053 with liteTopic): the checks in upstream's order, then
broker/services/lite."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from broker.hot.ordered import UNKNOWN
from broker.loop.turns import Pieces, alone
from broker.processors.bodies import LITE_SUBSCRIPTIONS, read
from broker.processors.durable import once_durable
from broker.processors.refusals import always, check_hands_out, illegal_queue, put_refusal
from broker.services.context import Services
from broker.services.lite.lite_topics import EXPIRATION, LiteTopics, is_lite
from broker.services.lite.names import parts_of, queue_of, queues_below, subscription_problem
from broker.services.topics import READ
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result, host_text
from broker.wire.receipts import ORDER_QUEUE, Handle
from pystore.errors import StoreError
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig
from pystore.store.light_queues import names_in

__all__ = ["LISTED_MAX", "LiteProcessor"]

#: Messages of one pop.
_POP_MAX = 32
#: A pop that is so late, ms, is not served: its client has given up.
_LATE_MS = 500
_NO_REMARK = "not set any response code"
_NOTHING = {"popTime": 0, "invisibleTime": 0, "reviveQid": 0}
#: Lite topics that an answer names at most.
LISTED_MAX = 10_000
#: Names that are checked at once.
_TOGETHER = 512


class LiteProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s
        #: Of the one list of lite topics that is made at a time: it has up to LISTED_MAX rows.
        self._listing = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_LITE_MESSAGE: always(_NOTHING, self.pop),
            RequestCode.LITE_SUBSCRIPTION_CTL: self.subscribe,
            RequestCode.GET_BROKER_LITE_INFO: self.broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.parent_info,
            RequestCode.GET_LITE_TOPIC_INFO: self.topic_info,
            RequestCode.GET_LITE_CLIENT_INFO: self.client_info,
            RequestCode.GET_LITE_GROUP_INFO: self.group_info,
            RequestCode.TRIGGER_LITE_DISPATCH: self.dispatch,
        }

    @property
    def _lite(self) -> LiteTopics:
        """The lite topics of this broker. Raises: Refused where there are none."""
        lite = self.s.lite
        if lite is None or not lite.is_on:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker has no topic with lite topics: make one with message.type=LITE",
            )
        return lite

    # ---- subscriptions ----

    def subscribe(self, peer: Peer, command: Command) -> Result:
        """Serves 200071: what clients subscribe to."""
        if not len(command.body):
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        rows = read(command, LITE_SUBSCRIPTIONS)["subscriptionSet"]
        if not rows:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty."
            )
        return self._subscribe(peer, command, rows)

    @alone
    async def _subscribe(self, peer: Peer, command: Command, rows: list[dict[str, Any]]) -> Command:
        turns = Pieces()
        for row in rows:
            await turns.next()
            client, group, topic = row["clientId"], row["group"], row["topic"]
            if client.strip() and group.strip() and topic.strip():
                await self._subscribe_one(peer, row, client, group, topic)
        return command.reply()

    async def _subscribe_one(
        self, peer: Peer, row: dict[str, Any], client: str, group: str, topic: str
    ) -> None:
        lite, action, names = self._lite, row["action"], row["liteTopicSet"]
        turns = Pieces()
        for at in range(0, len(names) or 1, _TOGETHER):
            await turns.next()
            if problem := subscription_problem(topic, names[at : at + _TOGETHER]):
                raise Refused(ResponseCode.SYSTEM_ERROR, problem)
        while lite.is_on and lite.registry.totals().leaving > self._subscriptions_max:
            await asyncio.sleep(0)  # who comes and goes takes the room of the limit twice at most
        known = lite.registry.get(group, client)
        if known is not None and 0 < row["version"] < known.version:
            return  # a newer one has overtaken it
        if action == "PARTIAL_ADD":
            self._check_consumer(group)
            self._check_request(lite, len(names))
            if lite.is_wild(group):
                raise Refused(
                    ResponseCode.ILLEGAL_OPERATION,
                    "java.lang.IllegalStateException: subscribe lite operation is not supported for"
                    " this group",
                )
            await lite.add(group, client, topic, names, row["offsetOption"], peer)
        elif action == "COMPLETE_ADD":
            self._check_consumer(group)
            self._check_room(lite, len(names) - (known.queues if known is not None else 0))
            await lite.replace(group, client, topic, names, peer)
        elif action == "PARTIAL_REMOVE":
            await lite.remove(group, client, topic, names)
        elif action == "COMPLETE_REMOVE":
            if known is not None:
                lite.leave(known)
        else:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "java.lang.NullPointerException: Cannot invoke"
                ' "org.apache.rocketmq.common.lite.LiteSubscriptionAction.ordinal()" because the'
                " return value of"
                ' "org.apache.rocketmq.common.lite.LiteSubscriptionDTO.getAction()" is null',
            )
        lite.registry.set_version(group, client, row["version"])

    def _check_consumer(self, group: str) -> None:
        found = self.s.groups.find(group)
        if found is None or not found.consume_enable:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "java.lang.IllegalStateException: Consumer group is not allowed to consume.",
            )

    def _check_request(self, lite: LiteTopics, names: int) -> None:
        """Checks that there is room for another pair: one request may go beyond the limit, as at
        Apache's, but not by more than the limit again."""
        self._check_room(lite, names if names > self._subscriptions_max else 1)

    @property
    def _subscriptions_max(self) -> int:
        return int(self.s.settings["maxLiteSubscriptionCount"])

    def _check_room(self, lite: LiteTopics, more: int) -> None:
        most = self._subscriptions_max
        if more > 0 and lite.registry.totals().pairs + more > most:
            raise Refused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                "org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota"
                f" exceeded {most}",
            )

    # ---- popping ----

    def pop(self, peer: Peer, command: Command) -> Result:
        """Checks a request for messages of a client's lite topics (200070), and has the core serve
        it, and those of its group that follow."""
        s, client_id, group = self.s, command.text("clientId"), command.text("consumerGroup")
        topic, most = command.text("topic"), command.number("maxMsgNum")
        invisible_ms, poll_ms = command.number("invisibleTime"), command.number("pollTime")
        now_ms = time.time_ns() // 1_000_000
        born_ms = command.number("bornTime", 0) or now_ms
        if now_ms - born_ms - poll_ms > _LATE_MS:
            raise Refused(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{s.host}] pop message is timeout too much",
            )
        if not s.settings["brokerPermission"] & READ:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{s.host}] pop message is forbidden"
            )
        if not 1 <= most <= _POP_MAX:
            problem = "greater than 32" if most > _POP_MAX else "less than 1"
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{s.host}] pop message's num is {problem}",
            )
        config = s.topics.found(topic)
        if not config.perm & READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic [{topic}] pop is forbidden")
        if not is_lite(config.attributes):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"the topic [{topic}] message type not match"
            )
        found = s.groups.found(group)
        if not found.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        lite = self._lite
        if lite.bound_to(found) != topic:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {group}"
            )
        if invisible_ms < 1:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"invisibleTime {invisible_ms} is less than 1"
            )
        check_hands_out(s)
        if command.is_oneway:
            return None
        lite.join(group, client_id, topic)
        try:
            served = peer.serve_raw(command)
        except StoreError as failed:
            raise put_refusal(failed, s) from failed
        if not served:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the pop request has an invalid field")
        return None

    # ---- acknowledgements ----

    def named(self, command: Command) -> str:
        """Returns the lite topic that an acknowledgement or another invisible time is of; empty:
        of none. Clients of schema 2.1.1 and Apache's proxy, when it renews, leave it out; the
        record then says it."""
        name = command.ext.get("liteTopic") or ""
        if name or self.s.lite is None or not self.s.lite.is_on:
            return name
        parts = (command.ext.get("extraInfo") or "").split(" ")
        if len(parts) != 9 or parts[3] != str(ORDER_QUEUE) or not parts[8].isdigit():
            return ""
        group = self.s.groups.get(command.text("consumerGroup", ""))
        if not self.s.lite.bound_to(group):
            return ""
        with contextlib.suppress(StoreError):
            for record in self.s.store.log(int(parts[8]), max_messages=1):
                return record.properties.get("__LITE_TOPIC", "")
        return ""

    def _place(
        self, peer: Peer, command: Command, name: str, *, bound: bool
    ) -> tuple[str, str, Handle, int, int]:
        """Returns group, light queue, handle, offset and the queue's end. Raises: Refused."""
        topic, group = command.text("topic"), command.text("consumerGroup")
        queue, offset = command.number("queueId"), command.number("offset")
        config = self.s.topics.found(topic)
        if queue >= config.read_queue_nums or queue < 0:
            raise illegal_queue(ResponseCode.MESSAGE_ILLEGAL, config, queue, f"/{host_text(peer)}")
        lite = self._lite
        check_hands_out(self.s)
        if bound and lite.bound_to(self.s.groups.get(group)) != topic:
            raise Refused(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        light = queue_of(topic, name)
        high = (lite.lights.range(light) or (0, 0))[1]
        try:
            handle = Handle.parse(command.text("extraInfo"))
        except ValueError as bad:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(bad)) from None
        return group, light, handle, offset, high

    def ack(self, peer: Peer, command: Command, name: str) -> Result:
        """Acknowledges a message of a lite topic. Raises: Refused."""
        group, queue, handle, offset, high = self._place(peer, command, name, bound=True)
        # Upstream lets the end itself through, and skips the next message then.
        if offset >= high:
            raise Refused(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        if command.number("queueId") != 0 or not handle.is_order:
            raise Refused(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        if self._lite.ack(group, queue, handle.pop_ms, offset) == UNKNOWN:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.")
        return once_durable(self.s, self._lite.noted_to, command.reply())

    def change(self, peer: Peer, command: Command, name: str) -> Result:
        """Makes a message of a lite topic, or its batch, visible again at another time. Raises:
        Refused."""
        invisible_ms = command.number("invisibleTime")
        group, queue, handle, offset, high = self._place(peer, command, name, bound=False)
        if offset >= high:
            raise Refused(ResponseCode.NO_MESSAGE, _NO_REMARK)
        if offset < (self.s.offsets.get(group, queue, 0) or 0):
            return command.reply(0, _NO_REMARK, _NOTHING)
        made = self._lite.change(
            group, queue, handle.pop_ms, offset, max(invisible_ms, 0), command.flag_of("suspend")
        )
        ext = {
            "popTime": handle.pop_ms, "invisibleTime": made.invisible_ms, "reviveQid": ORDER_QUEUE,
        }  # fmt: skip
        return once_durable(self.s, self._lite.noted_to, command.reply(0, _NO_REMARK, ext))

    # ---- questions of tools ----

    def _parent(self, name: str) -> TopicConfig:
        config = self.s.topics.get(name)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name:.260}] not exist.")
        if not is_lite(config.attributes):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return config

    def _group(self, name: str) -> SubscriptionGroup:
        group = self.s.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name:.260}] not exist."
            )
        return group

    def _lite_group(self, name: str) -> str:
        """Returns the topic that a group is bound to. Raises: Refused."""
        bound = self._lite.bound_to(self._group(name))
        if not bound:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return bound

    async def _kept(self, command: Command) -> Command:
        """Tells a slave of ours who subscribes to what, when that has changed since it asked last:
        `known` is what `mark` of that answer was. With `begin` the answer has a piece of the file
        alone, of the file with this `mark`, or the first one of another; `next` says where it goes
        on. Slaves of older versions are told all of it at once."""
        lite = self.s.lite
        mark = lite.kept_mark if lite is not None and lite.is_on else ""
        if lite is None or mark in ("", command.ext.get("known")):
            return command.reply(ext={"mark": mark})
        begin = command.number("begin") if "begin" in command.ext else None
        try:
            mark, text, following = await lite.kept_piece(command.text("mark", ""), begin)
        except OSError as failed:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"cannot read the file: {failed}") from failed
        return command.reply(ext={"mark": mark, "next": following}, body=text)

    def broker_info(self, peer: Peer, command: Command) -> Result:
        if command.ext.get("pystore"):
            return self._kept(command)
        lite, topics = self._lite, [t for t in self.s.topics.all() if is_lite(t.attributes)]
        groups = {each.name: lite.groups_of(each.name) for each in topics}
        settings = self.s.settings
        body = {
            "storeType": "pystore",
            "maxLmqNum": int(settings["maxLmqConsumeQueueNum"]),
            "currentLmqNum": lite.lights.count,
            "liteSubscriptionCount": lite.registry.totals().pairs,
            "orderInfoCount": lite.batches,
            "cqTableSize": self.s.topics.count,
            "offsetTableSize": self.s.core.pairs,
            "eventMapSize": lite.registry.totals().eventful,
            "topicMeta": {t.name: int(t.attributes.get(EXPIRATION, "-1")) for t in topics},
            "groupMeta": {name: found for name, found in groups.items() if found},
            # Ours; Apache's tools pass over them.
            "enableLmqQuota": bool(settings["enableLmqQuota"]),
            "maxLiteSubscriptionCount": self._subscriptions_max,
            "plainSends": lite.plain_sends(),
            "groupLag": {
                each.group: {
                    "parentTopic": each.parent,
                    "messages": each.messages,
                    "liteTopics": each.queues,
                    "read": each.read,
                }
                for each in lite.registry.lags()
            },
        }
        return command.reply(body=mqjson.dumps(body))

    def parent_info(self, peer: Peer, command: Command) -> Command:
        config, lite = self._parent(command.text("topic", "")), self._lite
        body = {
            "topic": config.name,
            "ttl": int(config.attributes.get(EXPIRATION, "-1")),
            "groups": lite.groups_of(config.name),
            "lmqNum": lite.lights.count,
            "liteTopicCount": lite.lights.below(queues_below(config.name)),
        }
        return command.reply(body=mqjson.dumps(body))

    def topic_info(self, peer: Peer, command: Command) -> Command:
        config, name = self._parent(command.text("parentTopic", "")), command.text("liteTopic")
        lite, queue = self._lite, queue_of(config.name, command.text("liteTopic"))
        low, high = lite.lights.range(queue) or (0, 0)
        subscribers = [
            {"clientId": client.client_id, "group": client.group}
            for client in lite.registry.subscribers(queue)
        ]
        subscribers += [
            {"clientId": "*", "group": group}
            for group in sorted(lite.groups_of(config.name))
            if lite.registry.has_wild(group)
        ]
        body = {
            "parentTopic": config.name,
            "liteTopic": name,
            "subscriber": subscribers,
            "topicOffset": {
                "minOffset": low, "maxOffset": high,
                "lastUpdateTimestamp": lite.lights.last_ms(queue),
            },
            "shardingToBroker": True,
        }  # fmt: skip
        return command.reply(body=mqjson.dumps(body))

    async def client_info(self, peer: Peer, command: Command) -> Command:
        most = command.number("maxCount", 1000)
        if most <= 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, "[maxCount] field invalid")
        config = self._parent(command.text("parentTopic", ""))
        name, client_id = command.text("group", ""), command.text("clientId", "")
        group, lite = self._group(name), self._lite
        if lite.bound_to(group) != config.name:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"Subscription [{name}]-[{config.name}] not match.",
            )
        body: dict[str, Any] = {
            "parentTopic": config.name, "group": name, "clientId": client_id,
            "liteTopicCount": -1, "lastAccessTime": -1, "lastConsumeTime": 0,
        }  # fmt: skip
        client = lite.registry.get(name, client_id)
        if client is not None:
            told = b"".join([each async for each in lite.registry.queues(name, client_id)])
            queues = await asyncio.to_thread(lambda: sorted(set(names_in(told))))
            if client.wild and client.parent == config.name:
                queues = [f"{config.name}@{name}"]
            body |= {
                "liteTopicCount": len(queues), "lastAccessTime": client.accessed_ms,
                "liteTopicSet": queues[: min(most, LISTED_MAX)],
            }  # fmt: skip
        return command.reply(body=mqjson.dumps(body))

    def group_info(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        return self._group_info(
            command, command.text("group"), command.text("liteTopic", ""),
            command.number("topK", 0),
        )  # fmt: skip

    @alone
    async def _group_info(self, command: Command, group: str, name: str, most: int) -> Command:
        parent, lite = self._lite_group(group), self._lite
        body: dict[str, Any] = {
            "group": group, "parentTopic": parent, "earliestUnconsumedTimestamp": -1,
        }  # fmt: skip
        if name:
            body |= self._lag_of(lite, group, queue_of(parent, name)) | {"liteTopic": name}
            return command.reply(0, _NO_REMARK, body=mqjson.dumps(body))
        if most < 1:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "java.lang.IllegalArgumentException: topK is less than 1"
            )
        turns, registry = Pieces(), lite.registry
        async with self._listing:
            while not registry.look():  # what was put before the question counts
                await turns.next()
            lag = registry.lag(group)
            named = min(most, LISTED_MAX, lag.queues if lag is not None else 0)
            top = [  # as text already: that of all rows at once would hold the loop
                mqjson.JsonText.of_plain(
                    {
                        "liteTopic": (parts_of(queue) or ("", queue))[1],
                        "lagCount": messages,
                        "earliestUnconsumedTimestamp": self._waits_since(lite, group, queue),
                    }
                )
                async for queue, messages in registry.furthest(group, named)
            ]
            rows = mqjson.JsonText(f"[{','.join(top)}]")
            total = lag.messages if lag is not None else 0
            body |= {"totalLagCount": total, "lagCountTopK": rows, "lagTimestampTopK": []}
            return command.reply(0, _NO_REMARK, body=mqjson.dumps(body))

    def _waits_since(self, lite: LiteTopics, group: str, queue: str) -> int:
        return lite.lights.ms_from(queue, self.s.offsets.get(group, queue, 0) or 0) or -1

    def _lag_of(self, lite: LiteTopics, group: str, queue: str) -> dict[str, Any]:
        ends, offset = lite.lights.range(queue), self.s.offsets.get(group, queue, 0)
        if ends is None:
            return {"totalLagCount": -1}
        if offset is None:
            return {"totalLagCount": 0}
        before = lite.lights.read(queue, offset - 1, 1) if offset > 0 else []
        return {
            "totalLagCount": max(0, ends[1] - offset),
            "earliestUnconsumedTimestamp": self._waits_since(lite, group, queue),
            "liteTopicOffsetWrapper": {
                "brokerOffset": ends[1], "consumerOffset": offset, "pullOffset": 0,
                "lastTimestamp": before[0].store_timestamp if before else 0,
            },
        }  # fmt: skip

    async def dispatch(self, peer: Peer, command: Command) -> Command:
        """Serves 200079: looks at all lite topics of a client, or of a group, at once."""
        group, client_id = command.text("group"), command.text("clientId", "")
        self._lite_group(group)
        lite = self._lite
        client = lite.registry.get(group, client_id) if client_id else None
        if client is not None and not lite.is_wild(group):
            lite.dispatch(client)
        elif not client_id or lite.is_wild(group):
            await lite.dispatch_group(group)
        return command.reply(0, _NO_REMARK)
