"""Offsets of groups: how far they are, and moving them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from broker.client.admin.base import AdminBase
from broker.client.admin.facts import BrokerFacts, OffsetMove, QueueLag, broker_facts, queue_lags
from broker.client.checks import check_offset
from broker.client.errors import BrokerRefused, NoRoute, reading
from broker.client.network import number_in
from broker.client.routes import route_of_queues
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.mqjson import MessageQueue
from pystore.meta.configfiles import topic_from_json

__all__ = ["BrokerAdmin", "OffsetAdmin", "Target"]

#: Where a reset goes: the beginning, the end, or a time in ms since 1970.
Target = Literal["first", "last"] | int


def _lags_of(bodies: Iterable[tuple[str, dict[Any, Any]]]) -> list[QueueLag]:
    """Reads the answers to GET_BROKER_CONSUME_STATS, by address; tens of thousands of queues in a
    large cluster. Raises: BadAnswer."""
    found: list[QueueLag] = []
    for address, body in bodies:
        with reading(RequestCode.GET_BROKER_CONSUME_STATS.name, address):
            for of_group in body.get("consumeStatsList") or ():
                for group, stats in of_group.items():
                    for one in stats or ():
                        found += queue_lags(str(group), one)
    return sorted(found, key=lambda each: (each.group, each.queue))


class BrokerAdmin(AdminBase):
    """Single brokers."""

    async def broker(self, address: str | None = None) -> BrokerFacts:
        """Returns what a broker says of itself. address: not needed with broker=. Raises: Misuse,
        ClientError."""
        self.network.check()
        at = self._one(address)
        body = await self._json(at, RequestCode.GET_BROKER_RUNTIME_INFO)
        with reading("GET_BROKER_RUNTIME_INFO", at):
            return broker_facts(at, body["table"])

    async def configure(self, changes: dict[str, str], address: str | None = None) -> None:
        """Changes settings of a running broker. address: not needed with broker=. Raises: Misuse,
        BrokerRefused for a setting that it does not take, ClientError."""
        self.network.check()
        from pystore.files.javaproperties import edit_java_properties

        body = edit_java_properties("", changes).encode()
        await self.network.request(self._one(address), RequestCode.UPDATE_BROKER_CONFIG, None, body)

    async def renew_certificate(self, address: str | None = None) -> None:
        """Has a broker, a name server or a proxy of this project read the files of its certificate
        again; new connections get the new one. address: of a proxy, its remoting port; not needed
        with broker=. Raises: Misuse, BrokerRefused for one without a certificate, and for files
        that cannot be used, ClientError."""
        self.network.check()
        at, body = self._one(address), b"tls.server.certPath=\n"
        try:
            await self.network.request(at, RequestCode.UPDATE_BROKER_CONFIG, None, body)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            await self.network.request(at, RequestCode.UPDATE_NAMESRV_CONFIG, None, body)


class OffsetAdmin(AdminBase):
    """Offsets: lag, reset, skip."""

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Returns how far a group is with each queue of the topics that it consumes, or of one; its
        retry topic is among them. Raises: ClientError."""
        self.network.check()
        fields = {"consumerGroup": group, "topic": topic}
        found: list[QueueLag] = []
        code = RequestCode.GET_CONSUME_STATS
        for address, body in await self._of_all(await self._masters(), code, fields):
            with reading(code.name, address):
                found += queue_lags(group, body)
        return sorted(found, key=lambda each: each.queue)

    async def all_lags(self, address: str | None = None) -> list[QueueLag]:
        """Returns the lag of every group, with one request a broker. address: at this broker alone.
        Raises: ClientError."""
        self.network.check()
        code = RequestCode.GET_BROKER_CONSUME_STATS
        asked = await self._masters() if address is None else [address]
        bodies = await self._of_all(asked, code, {"isOrder": False})
        return await asyncio.to_thread(_lags_of, bodies)

    async def reset_offsets(
        self, group: str, topic: str, to: Target, *, queue: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetMove]:  # fmt: skip
        """Moves a group to another place of a topic: ``"first"``, ``"last"`` (all that waits is
        skipped), or the first message stored at a time, ms since 1970. queue: only this one, on
        each broker. dry_run: says what would be done. Brokers of 4.x have connected consumers go
        there themselves, and only for the whole topic.

        Raises: NoRoute, BrokerRefused, before anything is moved, for a group that a broker does not
        know, ClientError."""
        self.network.check()
        if not isinstance(to, str):
            check_offset("to", to)
        plan: list[tuple[str, bool, list[OffsetMove]]] = []
        for address, queues in await self._queues(topic):
            itself = await self._resets_itself(address, group)
            chosen = [each for each in queues if queue in (None, each.queue)]
            moves = [await self._move(address, group, each, to) for each in chosen]
            plan.append((address, itself, moves))
        for address, itself, moves in () if dry_run else plan:
            if itself:
                await self._set_each(address, group, moves)
            else:
                await self._have_reset(address, group, topic, to, moves)
        return [move for _, _, moves in plan for move in moves]

    async def seek(
        self, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
    ) -> OffsetMove:
        """Moves a group to an offset of one queue. dry_run: says what would be done. Raises:
        NoRoute, BrokerRefused, for a group that the broker does not know, too, ClientError."""
        self.network.check()
        check_offset("offset", offset)
        for address, queues in await self._queues(queue.topic):
            if queue in queues:
                await self._resets_itself(address, group)
                before = await self._committed(address, group, queue)
                move = OffsetMove(queue, before, offset)
                if not dry_run:
                    await self._set_each(address, group, [move])
                return move
        raise NoRoute(f"no broker has the queue {queue}", queue.topic)

    # ---- parts ----

    async def _queues(self, topic: str) -> list[tuple[str, list[MessageQueue]]]:
        """Returns the queues of a topic that can be read, by the address of their master. Raises:
        NoRoute, ClientError."""
        if self._broker is None:
            route = await self._route(topic)
            if route is None or not route.brokers:
                raise NoRoute(f"no broker serves the topic {topic}; see topics()", topic)
        else:
            place = (await self.cluster())[0]
            value = await self._topic_json(self._broker, topic)
            if value is None:
                raise NoRoute(f"the broker {self._broker} has no topic {topic}", topic)
            with reading("GET_TOPIC_CONFIG", self._broker):
                config = topic_from_json(topic, value)
            route = route_of_queues(
                topic, place.name, self._broker, place.cluster, config.perm,
                config.read_queue_nums, config.write_queue_nums,
            )  # fmt: skip
        found: dict[str, list[MessageQueue]] = {}
        for queue in route.read:
            address = route.master(route.broker(queue))
            if address is not None:
                found.setdefault(address, []).append(queue)
        return sorted(found.items())

    async def _committed(self, address: str, group: str, queue: MessageQueue) -> int | None:
        fields = {
            "consumerGroup": group, "topic": queue.topic, "queueId": queue.queue,
            "setZeroIfNotFound": False,
        }  # fmt: skip
        answer = await self.network.request(
            address, RequestCode.QUERY_CONSUMER_OFFSET, fields,
            fine=(0, ResponseCode.QUERY_NOT_FOUND),
        )  # fmt: skip
        if answer.code:
            return None
        with reading("QUERY_CONSUMER_OFFSET", address):
            return number_in(answer, "offset")

    async def offset_of(self, address: str, queue: MessageQueue, to: Target) -> int:
        """Returns the offset of a queue at a place. Raises: ClientError."""
        code, fields = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": to}
        if to in ("first", "last"):
            code = RequestCode.GET_MIN_OFFSET if to == "first" else RequestCode.GET_MAX_OFFSET
            fields = {}
        place = {"topic": queue.topic, "queueId": queue.queue}
        answer = await self.network.request(address, code, {**place, **fields})
        with reading(code.name, address):
            return number_in(answer, "offset")

    async def _move(self, address: str, group: str, queue: MessageQueue, to: Target) -> OffsetMove:
        before = await self._committed(address, group, queue)
        return OffsetMove(queue, before, await self.offset_of(address, queue, to))

    async def _resets_itself(self, address: str, group: str) -> bool:
        """Returns whether a broker resets offsets itself, as those of 5.x do. Raises:
        BrokerRefused, as it will, for a group that it does not know; ClientError."""
        settings = await self.configuration(address)
        if settings.get("useServerSideResetOffset") != "true":
            return False
        # Of all: who asks for one makes it, where groups are made by themselves.
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = await self._json(address, code)
        with reading(code.name, address):
            known = group in (body.get("subscriptionGroupTable") or {})
        if not known:
            raise BrokerRefused(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET.name,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!", address,
            )  # fmt: skip
        return True

    async def _have_reset(
        self, address: str, group: str, topic: str, to: Target, moves: Sequence[OffsetMove]
    ) -> None:
        """Asks a broker of 4.x, which asks the consumers that are connected; without these the
        offsets are committed in the place of the group."""
        stamp = {"first": 0, "last": -1}.get(to, to) if isinstance(to, str) else to
        fields = {"topic": topic, "group": group, "timestamp": stamp, "isForce": True}
        try:
            await self.network.request(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        except BrokerRefused as refused:
            offline = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
            if refused.code not in offline:
                raise
            for move in moves:
                await self._commit(address, group, move)

    async def _set_each(self, address: str, group: str, moves: Sequence[OffsetMove]) -> None:
        for move in moves:
            fields = {
                "topic": move.queue.topic, "group": group, "queueId": move.queue.queue,
                "offset": move.after, "timestamp": 0, "isForce": True,
            }  # fmt: skip
            await self.network.request(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)

    async def _commit(self, address: str, group: str, move: OffsetMove) -> None:
        fields = {
            "consumerGroup": group, "topic": move.queue.topic, "queueId": move.queue.queue,
            "commitOffset": move.after,
        }  # fmt: skip
        await self.network.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
