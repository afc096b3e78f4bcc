"""Whom an administrator asks: name servers, or one broker without them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from broker.client.admin.facts import BrokerPlace
from broker.client.errors import BrokerRefused, Misuse, NoRoute, Unreachable, reading
from broker.client.network import Network
from broker.client.options import ClientOptions, ClientSettings, name_servers
from broker.client.producer import refuse_unknown, settings_of
from broker.client.routes import Route, parse_route
from broker.loop.lifetime import Closing
from broker.remoting.client import parse_address
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command

__all__ = ["AdminBase"]

#: Bytes of a body that is read beside the event loop.
_LARGE = 64 << 10


class AdminBase(Closing):
    """Life, and requests to those who know. It sends no heartbeats: brokers do not count it among
    their clients."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Raises: Misuse."""
        refuse_unknown(type(self).__name__, options, ClientSettings)
        settings = settings_of(ClientSettings, options)
        if broker is not None:
            if namesrv is not None or cluster is not None:
                raise Misuse("name one broker, or name servers with a cluster, not both")
            try:
                parse_address(broker)
            except ValueError as wrong:
                raise Misuse(f"broker: {wrong}; for example 127.0.0.1:10911") from None
        self._broker = broker
        self._cluster = cluster
        self._servers = () if broker is not None else name_servers(namesrv, settings)
        self.network = Network(
            "the administrator", self._servers, settings, {}, lambda: b"", masters_only=True,
            binds=True,
        )  # fmt: skip

    async def start(self) -> Self:
        """Starts, before the first question; ``async with`` does it. Raises: Misuse."""
        self.network.start()
        return self

    async def close(self) -> None:
        """Leaves nothing behind. Harmless when repeated."""
        await self.network.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    # ---- requests ----

    async def _json(
        self, address: str, code: int, fields: Mapping[str, object] | None = None
    ) -> dict[Any, Any]:
        """Returns the body of an answer. Raises: BrokerRefused, BadAnswer, Unreachable,
        RequestTimeout."""
        answer = await self.network.request(address, code, fields)
        if len(answer.body or b"") > _LARGE:
            return await asyncio.to_thread(self._read, answer, code, address)
        return self._read(answer, code, address)

    def _read(self, answer: Command, code: int, address: str) -> dict[Any, Any]:
        with reading(RequestCode(code).name, address):
            value = mqjson.loads(answer.body or b"{}")
            if not isinstance(value, dict):
                raise ValueError("the body is not a JSON object")
            return value

    async def _ask_servers(self, code: int) -> dict[Any, Any]:
        """Asks the name servers. Raises: Misuse without them, ClientError."""
        if not self._servers:
            raise Misuse("one broker is asked, and no name server: pass namesrv=")
        answer = await self.network.ask_servers(code, {})
        if answer.code:
            raise BrokerRefused(
                RequestCode(code).name, answer.code, answer.remark, "the name server"
            )
        return self._read(answer, code, "the name server")

    # ---- who there is ----

    async def servers(self) -> list[str]:
        """Returns the addresses of all that are asked: with broker= that one, else the brokers of
        the cluster and its name servers. Raises: as cluster()."""
        if self._broker is not None:
            return [self._broker]
        return [*(place.address for place in await self.cluster()), *self._servers]

    async def cluster(self) -> list[BrokerPlace]:
        """Returns all brokers of the cluster, or of all clusters: masters before their slaves. With
        broker=, that one alone.

        Raises: Unreachable, RequestTimeout, BrokerRefused, BadAnswer."""
        self.network.check()
        if self._broker is not None:
            given = await self.configuration()
            return [
                BrokerPlace(
                    given.get("brokerClusterName", ""), given.get("brokerName", ""),
                    int(given.get("brokerId", "0")), self._broker,
                )
            ]  # fmt: skip
        body = await self._ask_servers(RequestCode.GET_BROKER_CLUSTER_INFO)
        with reading("GET_BROKER_CLUSTER_INFO", "the name server"):
            table = body.get("brokerAddrTable") or {}
            clusters = body.get("clusterAddrTable") or {}
            return [
                BrokerPlace(cluster, name, int(number), str(address))
                for cluster in sorted(clusters)
                if self._cluster in (None, cluster)
                for name in sorted(clusters[cluster])
                for number, address in sorted(
                    (table.get(name) or {}).get("brokerAddrs", {}).items(), key=lambda b: int(b[0])
                )
            ]

    async def configuration(self, address: str | None = None) -> dict[str, str]:
        """Returns the settings of a broker as texts. address: not needed with broker=. Raises:
        Misuse, ClientError."""
        from pystore.files.javaproperties import parse_java_properties

        self.network.check()
        at = self._one(address)
        answer = await self.network.request(at, RequestCode.GET_BROKER_CONFIG)
        with reading("GET_BROKER_CONFIG", at):
            found = parse_java_properties(bytes(answer.body or b"").decode())
        return {name: value for name, (_, value) in found.items()}

    def _one(self, address: str | None) -> str:
        """Returns the address of the broker that is meant. Raises: Misuse without an address."""
        at = address or self._broker
        if at is None:
            raise Misuse("say which broker: pass its address; cluster() lists them")
        return at

    async def _masters(self) -> list[str]:
        """Returns addresses of the brokers that take changes. Raises: Unreachable when there is
        none, ClientError."""
        if self._broker is not None:
            return [self._broker]
        found = [place.address for place in await self.cluster() if place.id == 0]
        if not found:
            of = f" of the cluster {self._cluster}" if self._cluster else ""
            raise Unreachable(f"the name server knows no master{of}; check that brokers register")
        return found

    async def _route(self, topic: str) -> Route | None:
        """Returns the route of a topic, or None when no name server has one. Raises:
        ClientError."""
        answer = await self.network.ask_servers(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code:
            raise BrokerRefused(f"the route of {topic}", answer.code, answer.remark, "name server")
        with reading(f"the route of {topic}", "the name server"):
            return parse_route(answer.body, topic)

    async def _brokers_of(self, topic: str) -> list[str]:
        """Returns addresses of the masters that serve a topic. Raises: NoRoute, ClientError."""
        if self._broker is not None:
            return [self._broker]
        route = await self._route(topic)
        found = sorted(route.addresses(masters_only=True)) if route is not None else []
        if not found:
            raise NoRoute(f"no broker serves the topic {topic}; see `topics`", topic)
        if self._cluster is not None:
            ours = set(await self._masters())
            found = [each for each in found if each in ours]
        return found

    async def _topic_json(self, address: str, topic: str) -> Any:
        """Returns a topic as its broker has it, in JSON; None: it has none of this name. One
        request of one topic, since a broker may have tens of thousands; 4.9 knows only that of all.
        Raises: ClientError."""
        answer = await self.network.request(
            address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic},
            fine=(0, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )  # fmt: skip
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code:
            body = await self._json(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            return (body.get("topicConfigTable") or {}).get(topic)
        return self._read(answer, RequestCode.GET_TOPIC_CONFIG, address)

    async def group_table(self) -> dict[str, Any]:
        """Returns the same by name, each in JSON as its broker has it: tens of thousands take a
        while to read. Raises: ClientError."""
        self.network.check()
        found: dict[str, Any] = {}
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for address, body in await self._of_all(await self._masters(), code, {}):
            with reading(code.name, address):
                for name, value in (body.get("subscriptionGroupTable") or {}).items():
                    found.setdefault(str(name), value)
        return found

    async def _of_all(
        self, addresses: Sequence[str], code: int, fields: Mapping[str, object]
    ) -> list[tuple[str, dict[Any, Any]]]:
        """Asks several brokers the same at once. Raises: ClientError, the first of them."""
        bodies = await asyncio.gather(*(self._json(each, code, fields) for each in addresses))
        return list(zip(addresses, bodies, strict=True))
