"""Many groups under one name server: its tables are its own (broker/namesrv/routes.py), what goes
to and from it is the world's. Brokers register when they become something and every half minute;
clients send to whom the route names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virtual_time import Events
from virtual_world import Broker, Group

from broker.namesrv.routes import MASTER_ID, BrokerRegistration, BrokerTopic, Routes
from pystore.meta.configfiles import DataVersion

__all__ = ["Fleet"]

REGISTER_S, EXPIRE_S, POLL_S, RETRY_S = 30.0, 5.0, 30.0, 1.0
CLUSTER = "fleet"
TOPICS = {name: BrokerTopic(4, 4, 6, 0) for name in ("orders", "payments")}


class _Connection:
    """Of a broker's life to the name server."""

    def close(self) -> None: ...


class Fleet:
    def __init__(self, events: Events, groups: Sequence[Group], send_s: float) -> None:
        """send_s: between two sends of the client of a group."""
        self.events, self.groups = events, groups
        self.routes = Routes(lambda: int(events.now * 1000))
        #: Of each group: what its client was told to be acknowledged, and refused.
        self.sent, self.refused = 0, 0
        self._connections: dict[tuple[str, int, int], _Connection] = {}
        events.at(EXPIRE_S, self._expire)
        for group in groups:
            group.route = self._register
            for broker in group.brokers.values():
                events.at(events.chance.uniform(0, REGISTER_S), self._again(broker))
            _Client(self, group, send_s).start()

    # ---- the name server ----

    def _expire(self) -> None:
        self.events.at(EXPIRE_S, self._expire)
        self.routes.expire()

    def _again(self, broker: Broker) -> Callable[[], None]:
        def again() -> None:
            self.events.at(REGISTER_S, again)
            if broker.up:
                broker.clock.at(0.0, lambda: self._register(broker))

        return again

    def _register(self, broker: Broker) -> None:
        """Arrives, or does not; its connection ends with this life of the broker."""
        group, life = broker.group, broker.clock.life
        number = MASTER_ID if broker.is_master else broker.number
        key = group.name, broker.number, life
        peer = self._connections.get(key)
        if peer is None:
            peer = self._connections[key] = _Connection()
            self._watch(broker, life, peer)
        address, version = f"{group.name}-{broker.number}", DataVersion(broker.epoch, 1, 1)
        given = BrokerRegistration(CLUSTER, group.name, address, number, version, TOPICS, peer=peer)
        if group.is_lossy():
            return
        late = self.events.chance.uniform(0.001, 0.3)
        self.events.at(late, lambda: self._arrive(key, given))

    def _arrive(self, key: tuple[str, int, int], given: BrokerRegistration) -> None:
        if key in self._connections:
            self.routes.register(given)

    def _watch(self, broker: Broker, life: int, peer: _Connection) -> None:
        """The end of a connection is noticed, or only the silence after it."""

        def look() -> None:
            if broker.up and broker.clock.life == life:
                self.events.at(1.0, look)
                return
            self._connections.pop((broker.group.name, broker.number, life), None)
            if broker.group.is_peaceful or self.events.chance.random() < 0.8:
                self.routes.peer_closed(peer)

        self.events.at(1.0, look)

    # ---- what must hold ----

    def check_healed(self) -> None:
        """Each group has healed, and the name server knows its master."""
        for group in self.groups:
            group.check_healed()
            known = self.routes.member_group(CLUSTER, group.name)["brokerAddrs"]
            master = group.master()
            assert master is not None
            if known.get(MASTER_ID) != f"{group.name}-{master.number}":
                raise self.events.violated(
                    f"the name server knows {known} of {group.name}, not {master}"
                )


class _Client:
    """Sends one after the other to whom the route named last; asks for it again after a failure and
    every half minute."""

    def __init__(self, fleet: Fleet, group: Group, send_s: float) -> None:
        self._fleet, self._group, self._send_s = fleet, group, send_s
        self._target: Broker | None = None
        self._asked_s = -POLL_S

    def start(self) -> None:
        self._fleet.events.at(self._send_s, self._send)

    def _send(self) -> None:
        events = self._fleet.events
        if self._target is None or events.now - self._asked_s > POLL_S:
            self._ask()
        target = self._target
        if target is not None and target.up and target.send():
            self._fleet.sent += 1
            events.at(events.chance.uniform(0.2, 1.8) * self._send_s, self._send)
        else:
            self._fleet.refused += 1
            self._target = None
            events.at(RETRY_S, self._send)

    def _ask(self) -> None:
        self._asked_s = self._fleet.events.now
        known = self._fleet.routes.member_group(CLUSTER, self._group.name)["brokerAddrs"]
        address = known.get(MASTER_ID)
        number = int(address.rpartition("-")[2]) if address else 0
        self._target = self._group.brokers.get(number)
