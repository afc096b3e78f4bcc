"""Which broker serves which topic: the tables of the name server, without sockets or clocks.

Upstream's RouteInfoManager has the same five tables. What is different:

- Nothing of a registration that is refused stays (upstream leaves the broker's name behind).
- A name that goes leaves every cluster it was registered in, and its static topics' mapping.
- The order of brokers in a route is that of their registration; upstream's is that of a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from broker.namesrv.jsontext import compact, fastjson
from pystore.configfiles import DataVersion

__all__ = ["Broker", "MinIdChange", "Registered", "Registration", "Routes", "Switches", "Topic"]

MASTER_ID = 0
PERM_WRITE, PERM_READ_WRITE = 2, 6
UNIT, UNIT_SUB = 1, 2
#: A broker without sign of life for so long is gone.
EXPIRY_MS = 120_000
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at one broker."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    sys_flag: int

    def as_json(self, broker: str) -> dict[str, Any]:
        return {
            "brokerName": broker,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(slots=True)
class Broker:
    """The brokers of one name: a master and its slaves, by id."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None

    def as_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "brokerAddrs": {number: self.addresses[number] for number in sorted(self.addresses)},
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
        }
        if self.zone is not None:
            made["zoneName"] = self.zone
        return made


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class Live:
    """A broker that gave a sign of life."""

    name: str
    broker_id: int
    seen_ms: int
    timeout_ms: int
    version: DataVersion
    peer: Closable | None
    ha_address: str


@dataclass(slots=True)
class Registration:
    """What a broker says of itself. acting_master: None from brokers that do not know of it."""

    cluster: str
    name: str
    address: str
    broker_id: int
    version: DataVersion
    topics: Mapping[str, Topic]
    ha_address: str = ""
    zone: str | None = None
    timeout_ms: int = EXPIRY_MS
    acting_master: bool | None = None
    mapping: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)
    peer: Closable | None = None


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a broker name is another one; `notify` are to be told (905)."""

    notify: tuple[str, ...]
    broker_id: int
    address: str
    offline: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """What a registration is answered: a slave learns its master."""

    master_address: str | None = None
    ha_address: str | None = None
    change: MinIdChange | None = None


@dataclass(slots=True)
class Switches:
    """Settings that the tables look at, under their names (settings.py)."""

    support_acting_master: bool = False
    delete_topics: bool = False


class Routes:
    """All methods are quick and are called on one thread."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.switches = Switches()
        #: Queues of ordered topics, shown in routes; empty unless orderMessageEnable.
        self.order_topics: Mapping[str, str] = {}
        self._topics: dict[str, dict[str, Topic]] = {}
        self._brokers: dict[str, Broker] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[tuple[str, str], Live] = {}
        self._filters: dict[tuple[str, str], list[str]] = {}
        self._mapping: dict[str, dict[str, Any]] = {}
        self._encoded: dict[tuple[str, bool], bytes] = {}

    # ---- brokers come ----

    def register(self, given: Registration) -> Registered | None:
        """None refuses it: an unknown broker must tell all of its topics first."""
        key = (given.cluster, given.address)
        broker = self._brokers.get(given.name)
        known = broker.addresses if broker is not None else {}
        # An address has one id: a slave that becomes a master leaves its old one.
        before = {n: a for n, a in known.items() if a != given.address or n == given.broker_id}
        if self._outdated(given, before.get(given.broker_id)):
            self._live.pop(key, None)
            return Registered()
        if given.broker_id not in before and len(given.topics) == 1:
            return None
        first = broker is None or not before.get(given.broker_id)
        if broker is None:
            broker = self._brokers[given.name] = Broker(given.cluster, given.name)
        self._clusters.setdefault(given.cluster, {})[given.name] = None
        old = replace(broker, addresses=dict(known))
        broker.addresses = before | {given.broker_id: given.address}
        broker.acting_master = bool(given.acting_master)
        broker.zone = given.zone
        self._take_topics(given, broker, first)
        self._live[key] = Live(
            given.name, given.broker_id, self._clock_ms(), given.timeout_ms, given.version,
            given.peer, given.ha_address,
        )  # fmt: skip
        if self._take_filters(key, given.filters) or old != broker:
            self._forget_broker(given.name)
        change = None
        if known and given.broker_id < min(known):
            others = tuple(a for n, a in broker.addresses.items() if n != given.broker_id)
            notify = others or tuple(broker.addresses.values())
            change = MinIdChange(notify, given.broker_id, given.address, None, given.ha_address)
        return self._registered(given, broker, change)

    def _outdated(self, given: Registration, address: str | None) -> bool:
        """Whether another broker with this id was appointed by a later state of the controller."""
        if address is None or address == given.address:
            return False
        other = self._live.get((given.cluster, address))
        return other is not None and other.version.state_version > given.version.state_version

    def _registered(
        self, given: Registration, broker: Broker, change: MinIdChange | None
    ) -> Registered:
        master = broker.addresses.get(MASTER_ID)
        if given.broker_id == MASTER_ID or master is None:
            return Registered(change=change)
        live = self._live.get((given.cluster, master))
        if live is None:
            return Registered(change=change)
        return Registered(master, live.ha_address, change)

    def _take_topics(self, given: Registration, broker: Broker, first: bool) -> None:
        """A master's topics, or those of the slave with the smallest id."""
        is_slave = given.broker_id != MASTER_ID
        if is_slave and (given.acting_master is None or given.broker_id != min(broker.addresses)):
            return
        changed = first or self.is_changed(given.cluster, given.address, given.version)
        name = given.name
        if self.switches.delete_topics and not given.mapping:
            for topic in [t for t, at in self._topics.items() if name in at]:
                if topic not in given.topics:
                    self._drop(topic, name)
        for topic, row in given.topics.items():
            at = self._topics.get(topic)
            if not changed and at is not None and name in at:
                continue
            if is_slave and broker.acting_master:
                row = replace(row, perm=row.perm & ~PERM_WRITE)
            if at is None:
                at = self._topics[topic] = {}
            if at.get(name) != row:
                at[name] = row
                self.forget(topic)
        if changed:
            for topic, info in given.mapping.items():
                self._mapping.setdefault(topic, {})[str(info.get("bname", name))] = info
                self.forget(topic)

    def _take_filters(self, key: tuple[str, str], filters: list[str]) -> bool:
        """Whether they changed."""
        if filters == self._filters.get(key, []):
            return False
        if filters:
            self._filters[key] = filters
        else:
            del self._filters[key]
        return True

    def is_changed(self, cluster: str, address: str, version: DataVersion | None) -> bool:
        """Whether a broker's topics are not those that it registered last."""
        live = self._live.get((cluster, address))
        return live is None or live.version != version

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, address))
        return live.version if live is not None else None

    def sign_of_life(self, cluster: str, address: str) -> None:
        live = self._live.get((cluster, address))
        if live is not None:
            live.seen_ms = self._clock_ms()

    # ---- brokers go ----

    def unregister(self, gone: Iterable[tuple[str, str, str, int]]) -> list[MinIdChange]:
        """gone: cluster, address, name and id of each. Whom to tell of smallest ids that changed.

        The topics are gone through once, however many brokers go.
        """
        removed: set[str] = set()
        reduced: set[str] = set()
        changes = []
        for cluster, address, name, broker_id in gone:
            self._live.pop((cluster, address), None)
            self._filters.pop((cluster, address), None)
            broker = self._brokers.get(name)
            if broker is None:
                continue
            was_min = bool(broker.addresses) and broker_id == min(broker.addresses)
            broker.addresses = {n: a for n, a in broker.addresses.items() if a != address}
            self._forget_broker(name)
            if not broker.addresses:
                removed.add(name)
                reduced.discard(name)
                self._remove_name(name)
                continue
            reduced.add(name)
            if was_min and broker.acting_master:
                least = min(broker.addresses)
                notify = tuple(broker.addresses.values())
                changes.append(MinIdChange(notify, least, broker.addresses[least], address))
        self._clean_topics(removed, reduced)
        return changes

    def _remove_name(self, name: str) -> None:
        del self._brokers[name]
        for cluster in [c for c, names in self._clusters.items() if name in names]:
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in [t for t, at in self._mapping.items() if name in at]:
            del self._mapping[topic][name]
            if not self._mapping[topic]:
                del self._mapping[topic]

    def _clean_topics(self, removed: set[str], reduced: set[str]) -> None:
        without_master = {
            name
            for name in reduced
            if self._brokers[name].acting_master and min(self._brokers[name].addresses) > MASTER_ID
        }
        if not removed and not without_master:
            return
        for topic in list(self._topics):
            at = self._topics[topic]
            for name in removed & at.keys():
                self._drop(topic, name)
            for name in without_master & at.keys():
                at[name] = replace(at[name], perm=at[name].perm & ~PERM_WRITE)
                self.forget(topic)

    def _drop(self, topic: str, name: str) -> None:
        at = self._topics[topic]
        del at[name]
        if not at:
            del self._topics[topic]
        self.forget(topic)

    def peer_closed(self, peer: Closable) -> list[MinIdChange]:
        """A broker whose connection is gone is gone."""
        return self.unregister(self._keys(lambda live: live.peer is peer))

    def expire(self) -> tuple[list[MinIdChange], list[Closable]]:
        """Drops who gave no sign of life; also gives their connections, to be closed."""
        now = self._clock_ms()

        def late(live: Live) -> bool:
            return live.seen_ms + live.timeout_ms < now

        peers = [live.peer for live in self._live.values() if late(live) and live.peer is not None]
        return self.unregister(self._keys(late)), peers

    def _keys(self, chosen: Callable[[Live], bool]) -> list[tuple[str, str, str, int]]:
        return [
            (cluster, address, live.name, live.broker_id)
            for (cluster, address), live in self._live.items()
            if chosen(live)
        ]

    # ---- topics ----

    def register_topic(self, topic: str, rows: Mapping[str, Topic]) -> None:
        """rows: by broker name; nothing happens when one of them is unknown."""
        if not rows or not all(name in self._brokers for name in rows):
            return
        self._topics.setdefault(topic, {}).update(rows)
        self.forget(topic)

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """cluster: empty deletes it everywhere."""
        at = self._topics.get(topic, {})
        names = self._clusters.get(cluster, {}) if cluster else dict.fromkeys(at)
        for name in [name for name in names if name in at]:
            self._drop(topic, name)

    def change_write_perm(self, name: str, may_write: bool, topics: Iterable[str]) -> int:
        """Of those of the topics that a broker serves; how many these are."""
        count = 0
        for topic in topics:
            at = self._topics.get(topic, {})
            row = at.get(name)
            if row is None:
                continue
            perm = PERM_READ_WRITE if may_write else row.perm & ~PERM_WRITE
            at[name] = replace(row, perm=perm)
            self.forget(topic)
            count += 1
        return count

    # ---- questions ----

    def route(self, topic: str) -> dict[str, Any] | None:
        """The route as JSON, or None when nobody serves the topic."""
        at = self._topics.get(topic)
        brokers = [self._brokers[name] for name in at or () if name in self._brokers]
        if not at or not brokers:
            return None
        filters: dict[str, Any] = {}
        for broker in brokers if self._filters else ():
            for address in broker.addresses.values():
                found = self._filters.get((broker.cluster, address))
                if found is not None:
                    filters[address] = found
        made: dict[str, Any] = {
            "brokerDatas": [self._acting(topic, each, at).as_json() for each in brokers],
            "filterServerTable": filters,
        }
        order = self.order_topics.get(topic)
        if order is not None:
            made["orderTopicConf"] = order
        made["queueDatas"] = [row.as_json(name) for name, row in at.items()]
        mapping = self._mapping.get(topic)
        if mapping is not None:
            made["topicQueueMappingByBroker"] = mapping
        return made

    def _acting(self, topic: str, broker: Broker, at: Mapping[str, Topic]) -> Broker:
        """The broker as clients see it: a slave stands in for a master that is gone."""
        if (
            not self.switches.support_acting_master
            or not broker.acting_master
            or MASTER_ID in broker.addresses
            or at[broker.name].perm & PERM_WRITE
            or topic.startswith(SYNC_MEMBER_PREFIX)
        ):
            return broker
        addresses = dict(broker.addresses)
        addresses[MASTER_ID] = addresses.pop(min(addresses))
        return replace(broker, addresses=addresses)

    def encoded_route(self, topic: str, quoted: bool) -> bytes | None:
        """The route in one of the two forms of JSON; made once after each change."""
        key = (topic, quoted)
        found = self._encoded.get(key)
        if found is None:
            route = self.route(topic)
            if route is None:
                return None
            found = self._encoded[key] = compact(route) if quoted else fastjson(route)
        return found

    def forget(self, topic: str) -> None:
        """The topic's route has changed."""
        self._encoded.pop((topic, True), None)
        self._encoded.pop((topic, False), None)

    def forget_all(self) -> None:
        self._encoded.clear()

    def _forget_broker(self, name: str) -> None:
        """Most brokers serve most topics, so that a look at each would find nearly all."""
        self._encoded.clear()

    def cluster_info(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {name: each.as_json() for name, each in self._brokers.items()},
            "clusterAddrTable": {name: list(of) for name, of in self._clusters.items()},
        }

    def member_group(self, cluster: str, name: str) -> dict[str, Any]:
        broker = self._brokers.get(name)
        addresses = broker.addresses if broker is not None else {}
        return {
            "brokerAddrs": {number: addresses[number] for number in sorted(addresses)},
            "brokerName": name,
            "cluster": cluster,
        }

    def topics(self) -> list[str]:
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, at in self._topics.items() if not names.isdisjoint(at)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers, each of which is a topic, and the address of a broker."""
        names = dict.fromkeys(name for c, of in self._clusters.items() for name in (c, *of))
        addresses = (each.addresses[min(each.addresses)] for each in self._brokers.values())
        return list(names), next(addresses, None)

    def unit_topics(self, wanted: Callable[[int], bool]) -> list[str]:
        """wanted: says of a topicSysFlag whether the topic belongs to the list."""
        return list(self._where_flag(wanted))

    def _where_flag(self, wanted: Callable[[int], bool]) -> Iterator[str]:
        for topic, at in self._topics.items():
            if wanted(next(iter(at.values())).sys_flag):
                yield topic
