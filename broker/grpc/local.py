"""The broker of the same process, as the service asks it: requests of the remoting protocol over a
connection in memory, so that what is let in, stored and answered is decided where it is for every
other client.

Each gRPC client has such a connection of its own, with the client's address: records name it, rules
of access control look at it, and what the broker asks its clients (checks of transactions,
questions of tools) goes there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker.access.needs import AccessAction
from broker.grpc.access import (
    accept,
    is_known_to,
    prove,
    verdict_on_name,
    verdict_on_topic,
)
from broker.grpc.brokers import (
    BROKER,
    LINK,
    REQUEST_S,
    BrokerLink,
    Key,
    Links,
    TopicPlace,
    refused,
)
from broker.grpc.calls import Call
from broker.grpc.receipts import Receipt
from broker.grpc.status import Code, Problem
from broker.loop.safe_log import SafeLogger
from broker.processors.poprules import PopRules
from broker.remoting.connection import Connection, Endpoint, Limits
from broker.remoting.links import popped_of_event
from broker.remoting.loopback import join
from broker.services.clients import UNDIVIDED
from broker.services.context import Services
from broker.services.lite.names import queue_of
from broker.services.offsets import place_of
from broker.services.pop.batches import PopOutcome
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused, header_format
from broker.wire.framer import FramerFactory
from broker.wire.handlers import Handlers
from pystore.errors import StoreError
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

__all__ = ["LocalBroker", "LocalLink"]

log = SafeLogger("broker.grpc")

#: What a topic of other brokers takes: a name server does not say.
_UNKNOWN = {"message.type": "UNSPECIFIED"}
#: Address of the service itself.
_NOBODY = "127.0.0.1"


class LocalLink:
    """One client's connection to the broker. near: our end. far: the broker's, a Peer there."""

    def __init__(self, near: Connection, far: Connection, key: Key) -> None:
        self.key = key
        self.client: object = None
        self.near = near
        self.far = far

    @property
    def open(self) -> bool:
        return self.near.open

    def close(self) -> None:
        self.near.close()


class LocalBroker:
    """The Brokers that consists of one. The `handlers` of its requests have no access control
    before them, which is asked here; `asked` serves what the broker asks its clients, and `framer`
    makes framers for the broker's ends."""

    def __init__(
        self,
        services: Services,
        handlers: Handlers,
        asked: Handlers,
        *,
        framer: FramerFactory,
        limits: Limits,
        closed: Callable[[Connection], None],
    ) -> None:
        self.services = services
        self._far = Endpoint(handlers, limits, framer, on_close=closed, watchdog=services.watchdog)
        self._near = Endpoint(asked, Limits(idle_s=0), None, on_close=self._ended)
        self.links = Links(self._join)
        self.host, self.name = services.host, services.broker_name
        self._own: LocalLink | None = None
        self._pop_rules = PopRules(services)

    # ---- connections ----

    def link(self, call: Call) -> LocalLink:
        return self.links.of(call)

    def _ended(self, near: Connection) -> None:
        """Forgets one that is closed, because it was idle or its client is gone."""
        self.links.ended(near.state[LINK])

    def _join(self, address: tuple[str, int], client_id: str = "") -> LocalLink:
        near, far = Connection(self._near), Connection(self._far)
        host = self.services.settings["brokerIP1"].strip("[]")
        join(near, far, (host, int(self.services.settings["listenPort"])), address)
        far.state[UNDIVIDED] = True
        made = near.state[LINK] = LocalLink(near, far, (address, client_id))
        near.state[BROKER] = self.services.broker_name
        return made

    def gone(self, address: tuple[str, int]) -> list[str]:
        return self.links.gone(address)

    def now_ms(self) -> int:
        pop = self.services.pop
        return pop.now_ms() if pop is not None else time.time_ns() // 1_000_000

    def close(self) -> None:
        self.links.close()
        if self._own is not None:
            self._own.close()
        self._far.wheel.close()
        self._near.wheel.close()

    # ---- what the broker knows ----

    async def places(self, topic: str) -> Sequence[TopicPlace]:
        services = self.services
        config = services.topics.get(topic)
        if config is None:
            return ()
        static = services.static
        mapping = static.table.get(topic) if static is not None else None
        led = tuple(mapping.led()) if mapping is not None else None
        number = int(services.settings["brokerId"])
        return (TopicPlace(services.broker_name, config, (number,), led=led),)

    async def writable(self, topic: str, wait_s: float) -> Sequence[TopicPlace]:
        return await self.places(topic)

    async def everywhere(self, topic: str) -> Sequence[TopicPlace]:
        """Returns where a topic is: others as the name server has them, at their own hosts, as
        Apache's local mode."""
        own, services = await self.places(topic), self.services
        route = await services.registration.route(topic)
        if route is None:
            return own
        attributes = own[0].config.attributes if own else _UNKNOWN
        mine = services.broker_name, str(services.settings["brokerId"])
        hosts = {each["brokerName"]: each["brokerAddrs"] or {} for each in route["brokerDatas"]}
        made = list(own)
        for row in route["queueDatas"]:
            name = row["brokerName"]
            config = TopicConfig(
                topic, row["readQueueNums"], row["writeQueueNums"], row["perm"],
                attributes=attributes,
            )  # fmt: skip
            for number, address in hosts.get(name, {}).items():
                if (name, str(number)) != mine and str(number).isdecimal():
                    host = str(address).rpartition(":")[0]
                    made.append(TopicPlace(name, config, (int(number),), host))
        return sorted(made, key=lambda place: (place.broker, place.ids))

    async def group(self, name: str, topics: Sequence[str]) -> SubscriptionGroup | None:
        return self.services.groups.get(name)

    async def reader(self, topic: str, wanted: str) -> str:
        return self.services.broker_name

    def is_available(self, broker: str) -> bool:
        return True

    async def holds(self, topic: str, receipt: Receipt) -> bool:
        if receipt.lite:
            return self._holds_lite(topic, receipt)
        handle = receipt.handle
        cold = self.services.cold
        if cold is not None and cold.reads.holds(topic, handle.queue, handle.offset):
            return cold.reads.may_be_at(topic, handle.queue, receipt.physical)
        place = place_of(self.services.store, topic, handle.queue, handle.offset)
        return place == receipt.physical

    def _holds_lite(self, topic: str, receipt: Receipt) -> bool:
        lite, offset = self.services.lite, receipt.handle.offset
        if lite is None or not lite.is_on:
            return False
        with contextlib.suppress(StoreError):
            found = lite.lights.read(queue_of(topic, receipt.lite), offset, 1)
            place = receipt.physical, offset
            return bool(found) and (found[0].physical_offset, found[0].offset) == place
        return False

    # ---- requests; each goes to the one broker, whatever name a client has for it ----

    async def request(
        self, call: Call, command: Command, broker: str, *, timeout_s: float = REQUEST_S
    ) -> Command:
        return await self._ask(call, self.link(call), command, timeout_s)

    async def request_own(self, command: Command, broker: str) -> Command:
        if self._own is None or not self._own.open:
            self._own = self._join((_NOBODY, 0))
        return await self._answer(self._own, command, REQUEST_S)

    async def tell(
        self, call: Call, link: BrokerLink, command: Command, topics: Sequence[str]
    ) -> None:
        assert isinstance(link, LocalLink)
        answer = await self._ask(call, link, command, REQUEST_S)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer)

    async def _ask(
        self, call: Call, link: LocalLink, command: Command, timeout_s: float
    ) -> Command:
        self._let_in(call, link, command)
        return await self._answer(link, command, timeout_s)

    @staticmethod
    async def _answer(link: LocalLink, command: Command, timeout_s: float) -> Command:
        command.serialize = header_format(command.code)
        try:
            return await link.near.request(command, timeout_s)
        except TimeoutError:
            raise Problem(
                Code.PROXY_TIMEOUT, f"the broker did not answer within {timeout_s:g} s"
            ) from None
        except ConnectionError as failed:
            raise Problem(Code.INTERNAL_SERVER_ERROR, f"the broker is gone: {failed}") from None

    # ---- what network threads serve ----

    def takes(self, topic: str, kinds: Iterable[int]) -> None:
        self.services.core.take_kinds(topic, kinds)

    def forget_taken(self) -> None:
        self.services.topics.publish_all()

    def expect(self, due_ms: int) -> None:
        if self.services.pop is not None:
            self.services.pop.revive.expect(due_ms)

    def popped(self, event: Any) -> None:
        self.services.core.tell_popped(*popped_of_event(event))

    def give_back(self, group: str, topic: str, found: PopOutcome) -> None:
        if self.services.pop is not None:
            self.services.pop.give_back(group, topic, found)

    def pop_rules(self, call: Call, code: int, topic: str, group: str) -> PopRules:
        link = self.link(call)
        self._let_in(call, link, Command(code, {"topic": topic, "consumerGroup": group}))
        link.far.touch()
        return self._pop_rules

    # ---- access control ----

    async def check(self, call: Call, command: Command) -> None:
        self._let_in(call, self.link(call), command)

    def _let_in(self, call: Call, link: LocalLink, command: Command) -> None:
        """Asks the rules. Raises: Problem with UNAUTHORIZED for what the rules refuse."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return
        access = self.services.access
        if access is not None:
            prove(call, command, access.rules)
        try:
            authorizer.check(link.far, command)
        except Refused as refused:
            raise Problem(Code.UNAUTHORIZED, refused.remark) from None

    async def check_topic(self, call: Call, topic: str, *actions: AccessAction) -> None:
        access = self.services.access
        if access is None or not access.is_on:
            return
        accept(verdict_on_topic(call, access.rules, topic, actions))

    async def check_name(self, call: Call) -> None:
        access = self.services.access
        if access is not None and access.is_on:
            accept(verdict_on_name(call, access.rules))

    def is_known(self, call: Call) -> bool:
        access = self.services.access
        return access is not None and access.is_on and is_known_to(call, access.rules)
