"""Queues divided by the broker: QUERY_ASSIGNMENT (400) and the request modes (401, 402).

Only clients with clientRebalance=false ask (docs/internals/wire.md#rebalance,
docs/internals/pop.md#modes).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from broker.loop.turns import alone
from broker.processors.bodies import QUERY_ASSIGNMENT, SET_MODE, read
from broker.processors.turns import reply_with
from broker.services.clients import BROADCASTING
from broker.services.context import Services
from broker.services.pop.modes import POP, PULL, Mode, as_json
from broker.services.topics import READ
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import MessageQueue
from pystore.errors import BadArgument, StoreError
from pystore.format.names import RETRY_PREFIX

__all__ = ["AssignmentProcessor", "divide", "shared"]


class AssignmentProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    def query(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        body = read(command, QUERY_ASSIGNMENT)
        return self._query(
            command,
            body["topic"],
            body["consumerGroup"],
            body["clientId"],
            body["strategyName"] or "AVG",
            body["messageModel"],
        )

    @alone
    async def _query(
        self, command: Command, topic: str, group: str, client: str, strategy: str, model: str
    ) -> Command:
        queues = await self._queues(topic)
        mode = self._mode(topic, group)
        if model != BROADCASTING and queues is not None:
            found = self.s.clients.consumers.get(group)
            clients = sorted(found.client_ids()) if found is not None else []
            if not clients:
                queues = None
            elif mode.mode == POP:
                queues = shared(queues, clients, client, strategy, mode.share)
            else:
                queues = divide(queues, clients, client, strategy)
        return await reply_with(
            command, lambda: {"messageQueueAssignments": _listed(queues, mode.mode)}
        )

    def _mode(self, topic: str, group: str) -> Mode:
        said = self.s.pop.modes.get(topic, group) if self.s.pop is not None else None
        if said is not None:
            return said
        if topic.startswith(RETRY_PREFIX):
            return Mode(PULL)
        settings = self.s.settings
        return Mode(settings["defaultMessageRequestMode"], settings["defaultPopShareQueueNum"])

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """Returns the queues of all brokers as the name server has them, else ours; None when there
        is no such topic."""
        route = await self.s.registration.route(topic)
        if route is not None:
            return sorted(
                MessageQueue(topic, row["brokerName"], i)
                for row in route["queueDatas"]
                if row["perm"] & READ
                for i in range(row["readQueueNums"])
            )
        config = self.s.topics.get(topic)
        if config is None:
            return None
        return [MessageQueue(topic, self.s.broker_name, i) for i in range(config.read_queue_nums)]

    def set_mode(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        body = read(command, SET_MODE)
        topic, group = body["topic"], body["consumerGroup"]
        if topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self.s.topics.found(topic)
        self.s.groups.found(group)
        pop = self.s.pop
        if body["mode"] == POP and (pop is None or not pop.is_on):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "POP needs timers, and timerWheelEnable is false"
            )
        return self._set_mode(command, topic, group, Mode(body["mode"], body["popShareQueueNum"]))

    async def _set_mode(self, command: Command, topic: str, group: str, mode: Mode) -> Command:
        if self.s.pop is not None:
            try:
                await self.s.pop.modes.put(topic, group, mode)
            except BadArgument as bad:
                raise Refused(ResponseCode.SYSTEM_ERROR, bad.text) from None
            except StoreError as failed:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"kept in memory, and not on the disk yet: {failed.text}",
                ) from failed
        return command.reply()

    def modes(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        table = self.s.pop.modes.table() if self.s.pop is not None else {}
        return reply_with(command, lambda: as_json(table))


def shared(
    queues: Sequence[MessageQueue], clients: Sequence[str], client: str, strategy: str, share: int
) -> list[MessageQueue]:
    """Returns what one client of a group that pops asks for; queue -1 stands for all queues of a
    broker.

    `share` says of how many clients after it, in a ring, it takes the queues, too."""
    if client not in clients:
        return []
    if share <= 0 or share >= len(clients) - 1:
        return sorted({each._replace(queue=-1) for each in queues})
    at = clients.index(client)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]] if queues else []
    found: list[MessageQueue] = []
    for i in range(share + 1):
        found += divide(queues, clients, clients[(at + i) % len(clients)], strategy)
    return found


def _listed(queues: Sequence[MessageQueue] | None, mode: str) -> list[dict[str, Any]] | None:
    if queues is None:
        return None
    return [{"attachments": None, "messageQueue": q, "mode": mode} for q in queues]


def divide(
    queues: Sequence[MessageQueue], clients: Sequence[str], client: str, strategy: str
) -> list[MessageQueue]:
    """Returns the queues of one client: AVG gives runs, AVG_BY_CIRCLE deals them out.

    Both lists are sorted by whoever divides, so that all come to the same result."""
    if client not in clients:
        return []
    i, n = clients.index(client), len(clients)
    if strategy == "AVG_BY_CIRCLE":
        return list(queues[i::n])
    if strategy != "AVG":
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"unknown strategy {strategy:.60}: use AVG or AVG_BY_CIRCLE"
        )
    share, more = divmod(len(queues), n)
    start = i * share + min(i, more)
    return list(queues[start : start + share + (i < more)])
