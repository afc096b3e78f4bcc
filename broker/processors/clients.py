"""Clients that show themselves and leave: 34, 35, 38, 46 (docs/internals/wire.md#heartbeats)."""

from __future__ import annotations

from typing import Any

from broker.processors.bodies import bad, integer, items, json_object, text
from broker.processors.subscriptions import check_expression
from broker.remoting import mqjson
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.handlers import Handler, Peer
from broker.services.clients import Beat, Channel, Subscription
from broker.services.context import Services

__all__ = ["ClientProcessor"]


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

    def heartbeat(self, peer: Peer, command: Command) -> Command:
        body = json_object(command)
        client = text(body, "clientID")
        channel = Channel(peer, client, command.language, command.version)
        fingerprint = integer(body, "heartbeatFingerprint", 0)
        changed = fingerprint == 0
        for item in items(body, "consumerDataSet"):
            if fingerprint:
                changed = self._consumer_sign(channel, item, body, fingerprint) or changed
            else:
                self._consumer(channel, item)
        for item in items(body, "producerDataSet"):
            self.s.clients.producer_beat(channel, text(item, "groupName"))
        return command.reply(ext={"IS_SUPPORT_HEART_BEAT_V2": True, "IS_SUB_CHANGE": changed})

    def _consumer(self, channel: Channel, item: dict[str, Any]) -> None:
        beat = _beat(item)
        group = self.s.groups.find(beat.group)
        if group is None:
            return  # as upstream: it goes on without, and its pulls are told
        self.s.topics.retry_topic(beat.group, max(1, group.retry_queue_nums), unit=beat.unit_mode)
        self.s.clients.consumer_beat(channel, beat)

    def _consumer_sign(
        self, channel: Channel, item: dict[str, Any], body: dict[str, Any], fingerprint: int
    ) -> bool:
        """A beat of the newer kind; whether the client has to send its subscriptions."""
        name = text(item, "groupName")
        if body.get("withoutSub") is True:
            known = self.s.clients.consumers.get(name)
            stands = known is not None and known.fingerprint == fingerprint
            return not (self.s.clients.consumer_sign(channel, name) and stands)
        self._consumer(channel, item)
        group = self.s.clients.consumers.get(name)
        if group is None:
            return True
        changed = group.fingerprint != fingerprint
        group.fingerprint = fingerprint
        return changed

    def unregister(self, peer: Peer, command: Command) -> Command:
        self.s.clients.leave(
            peer,
            command.text("clientID"),
            command.text("producerGroup", ""),
            command.text("consumerGroup", ""),
        )
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
        """Asked at the start by consumers that filter by more than tags."""
        wanted = json_object(command).get("subscriptionData")
        if isinstance(wanted, dict):
            kind = text(wanted, "expressionType", "TAG")
            check_expression(self.s, kind, text(wanted, "subString", ""))
        return command.reply()


def _beat(item: dict[str, Any]) -> Beat:
    """ConsumerData. Raises: Refused."""
    return Beat(
        group=text(item, "groupName"),
        consume_type=text(item, "consumeType", "CONSUME_PASSIVELY"),
        message_model=text(item, "messageModel", "CLUSTERING"),
        consume_from_where=text(item, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
        subscriptions=tuple(_subscription(one) for one in items(item, "subscriptionDataSet")),
        unit_mode=item.get("unitMode") is True,
    )


def _subscription(item: dict[str, Any]) -> Subscription:
    """SubscriptionData. Go sends codes as texts, and may leave the sets out."""
    tags, codes = item.get("tagsSet") or [], item.get("codeSet") or []
    if not isinstance(tags, list) or not isinstance(codes, list):
        raise bad("tagsSet or codeSet in the body is not a list")
    try:
        numbers = tuple(int(code) for code in codes)
    except (TypeError, ValueError):
        raise bad("codeSet in the body contains a non-number") from None
    return Subscription(
        topic=text(item, "topic"),
        expression=text(item, "subString", "*"),
        tags=tuple(map(str, tags)),
        codes=numbers,
        version=integer(item, "subVersion", 0),
        kind=text(item, "expressionType", "TAG"),
        class_filter=item.get("classFilterMode") is True,
    )
