"""Clients that show themselves and leave: 34, 35, 38, 46 (docs/internals/wire.md#heartbeats)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.loop.turns import alone
from broker.processors.bodies import CLIENT_CONFIG, heartbeat, read
from broker.processors.subscriptions import check_expression
from broker.services.clients import Beat, Channel, Subscription
from broker.services.context import Services
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer

__all__ = ["ClientProcessor"]


#: Groups and subscriptions of a heartbeat that are taken in one turn of the event loop.
_A_TURN = 32


class ClientProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumers,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    # ---- heartbeats ----

    def heartbeat(
        self, peer: Peer, command: Command
    ) -> Command | Coroutine[Any, Any, Command | None]:
        body = heartbeat(command)
        access = self.s.access
        user = access.user_of(command) if access is not None and access.is_on else ""
        channel = Channel(peer, body["clientID"], command.language, command.version, user)
        changes = self.s.clients.changes
        self.s.clients.check_owner(channel)
        changed = body["heartbeatFingerprint"] == 0
        for item in body["producerDataSet"]:
            self.s.clients.producer_beat(channel, item["groupName"])
        items = body["consumerDataSet"]
        if sum(1 + len(item["subscriptionDataSet"]) for item in items) > _A_TURN:
            return self._long_heartbeat(channel, command, body, items, changes)
        for item in items:
            changed = self._consumer_sign(channel, item, body) or changed
        return self._beaten(peer, command, items, changed, changes)

    @alone
    async def _long_heartbeat(
        self,
        channel: Channel,
        command: Command,
        body: dict[str, Any],
        items: list[dict[str, Any]],
        changes: int,
    ) -> Command | None:
        """Handles a heartbeat group by group; other work has its turn in between, and the client
        may leave meanwhile."""
        changed, work = body["heartbeatFingerprint"] == 0, 0
        for item in items:
            work += 1 + len(item["subscriptionDataSet"])
            if work > _A_TURN:
                await asyncio.sleep(0)
                work = 0
            if channel.peer.closed:
                return None
            changed = self._consumer_sign(channel, item, body) or changed
        return self._beaten(channel.peer, command, items, changed, changes)

    def _beaten(
        self, peer: Peer, command: Command, items: list[dict[str, Any]], changed: bool, changes: int
    ) -> Command:
        """Ends a heartbeat. changes: what Clients.changes was when it began. What producers alone
        have said once changes nothing when they say it again: it rests on no subscription."""
        clients = self.s.clients
        if clients.changes == changes or not items:
            clients.settle(peer, (each["groupName"] for each in items), command.opaque, changed)
        else:
            peer.forget_heartbeat()
        return command.reply(ext={"IS_SUPPORT_HEART_BEAT_V2": True, "IS_SUB_CHANGE": changed})

    def _consumer(self, channel: Channel, item: dict[str, Any]) -> None:
        beat = _beat(item)
        group = self.s.groups.find(beat.group)
        if group is None:  # as upstream, which refuses its pulls instead
            self.s.clients.unsettled()
            return
        self.s.topics.retry_topic(beat.group, max(1, group.retry_queue_nums), unit=beat.unit_mode)
        self.s.clients.consumer_beat(channel, beat)

    def _consumer_sign(self, channel: Channel, item: dict[str, Any], body: dict[str, Any]) -> bool:
        """Handles one group of a heartbeat. For the newer kind it returns whether the client has to
        send its subscriptions."""
        fingerprint: int = body["heartbeatFingerprint"]
        if not fingerprint:
            self._consumer(channel, item)
            return False
        name = item["groupName"]
        if body["withoutSub"]:
            known = self.s.clients.consumers.get(name)
            stands = known is not None and known.fingerprint == fingerprint
            if self.s.clients.consumer_sign(channel, name) and stands:
                return False
            self.s.clients.unsettled()
            return True
        self._consumer(channel, item)
        return self.s.clients.signed(name, fingerprint)

    def unregister(self, peer: Peer, command: Command) -> Command:
        client_id, producer = command.text("clientID"), command.text("producerGroup", "")
        access = self.s.access
        if access is not None and access.is_on:
            user = access.user_of(command)
            self.s.clients.check_owner(
                Channel(peer, client_id, command.language, command.version, user)
            )
            self.s.clients.check_producer(peer, producer, user)
        self.s.clients.leave(peer, client_id, producer, command.text("consumerGroup", ""))
        return command.reply()

    # ---- questions ----

    def consumers(self, peer: Peer, command: Command) -> Command:
        name = command.text("consumerGroup")
        group = self.s.clients.consumers.get(name)
        ids = group.client_ids() if group is not None else []
        if not ids:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return command.reply(body=mqjson.dumps({"consumerIdList": ids}))

    def check_config(self, peer: Peer, command: Command) -> Command:
        """Checks a subscription; consumers that filter by more than tags ask for it at their
        start."""
        wanted = read(command, CLIENT_CONFIG)["subscriptionData"]
        if wanted is not None:
            check_expression(self.s, wanted["expressionType"], wanted["subString"])
        return command.reply()


def _beat(item: dict[str, Any]) -> Beat:
    return Beat(
        group=item["groupName"],
        consume_type=item["consumeType"],
        message_model=item["messageModel"],
        consume_from_where=item["consumeFromWhere"],
        subscriptions=tuple(_subscription(one) for one in item["subscriptionDataSet"]),
        unit_mode=item["unitMode"],
    )


def _subscription(item: dict[str, Any]) -> Subscription:
    return Subscription(
        topic=item["topic"],
        expression=item["subString"] or "*",
        tags=tuple(tag for tag in item["tagsSet"] if tag is not None),
        codes=tuple(code for code in item["codeSet"] if code is not None),
        version=item["subVersion"],
        kind=item["expressionType"] or "TAG",
        class_filter=item["classFilterMode"],
    )
