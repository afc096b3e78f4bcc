"""Which broker serves which topic: the tables of the name server, without sockets or clocks.

Upstream's RouteInfoManager has the same five tables. What is different:

- Nothing of a registration that is refused stays (upstream leaves the broker's name behind).
- A broker is known by cluster, name and address, upstream's by cluster and address: whoever
  registers an address under another name takes nothing from the first, which goes with its own
  connection or silence. Nobody leaves under another name.
- A name that goes leaves every cluster it was registered in, and its static topics' mapping.
- The order of brokers in a route is that of their registration; upstream's is that of a hash.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from broker.namesrv.jsontext import compact, fastjson
from pystore.format.names import SYNC_MEMBER_PREFIX
from pystore.meta.configfiles import DataVersion

__all__ = [
    "BrokerRegistration",
    "BrokerSet",
    "BrokerTopic",
    "MinIdChange",
    "RegistrationAnswer",
    "Routes",
    "Switches",
]

MASTER_ID = 0
PERM_WRITE, PERM_READ_WRITE = 2, 6
UNIT, UNIT_SUB = 1, 2
#: A broker without sign of life for so long is gone.
EXPIRY_MS = 120_000
#: Topics of a broker that comes or goes that are looked at in one call.
A_PIECE = 2000
#: Bytes, roughly: of a topic beside its name; of it at one more broker; of a broker; of JSON that
#: is kept as it came, for each of its characters. No more than so many in all are taken: a hundred
#: brokers may have ten thousand topics each, all of them different.
TOPIC, ROW, BROKER, KEPT_JSON = 400, 170, 2000, 10
SIZE_MAX = 640 << 20
#: Bytes of routes that are kept as they are sent. Of a hundred brokers a route is ten thousand.
ENCODED_MAX = 256 << 20
#: Addresses of brokers.
BROKERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """The queues and rights of a topic at one broker."""

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
class BrokerSet:
    """The brokers of one name: a master and its slaves, by id."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    #: Every cluster that the name was registered in, `cluster` among them.
    clusters: dict[str, None] = field(default_factory=dict)
    #: Of Routes.size.
    size: int = 0

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


#: Cluster, name and address of a broker.
LiveKey = tuple[str, str, str]


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class Live:
    """A broker that has given a sign of life."""

    broker_id: int
    #: The first and the last sign of life.
    since_ms: int
    seen_ms: int
    timeout_ms: int
    version: DataVersion
    peer: Closable | None
    ha_address: str


@dataclass(slots=True)
class BrokerRegistration:
    """What a broker tells about itself. acting_master: None from brokers that do not know of it."""

    cluster: str
    name: str
    address: str
    broker_id: int
    version: DataVersion
    topics: Mapping[str, BrokerTopic]
    ha_address: str = ""
    zone: str | None = None
    timeout_ms: int = EXPIRY_MS
    acting_master: bool | None = None
    mapping: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)
    peer: Closable | None = None
    #: Bytes.
    body_size: int = 0
    #: Those of its topics that are not taken yet: Routes.take_more().
    rest: Iterator[None] = field(default_factory=lambda: iter(()))


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a broker name has changed; `notify` are to be told (905)."""

    notify: tuple[str, ...]
    broker_id: int
    address: str
    offline: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The answer to a registration: a slave learns its master."""

    master_address: str | None = None
    ha_address: str | None = None
    change: MinIdChange | None = None


@dataclass(slots=True)
class Switches:
    """Settings that the tables look at, under their names (settings.py)."""

    support_acting_master: bool = False
    delete_topics: bool = False


class Routes:
    """All methods are called on one thread. Whoever comes or goes costs the time of its own topics,
    however many others there are, and of A_PIECE of them in one call: take_more() and drop_more()
    go on."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.switches = Switches()
        #: Queues of ordered topics, shown in routes; empty unless orderMessageEnable.
        self.order_topics: Mapping[str, str] = {}
        self._topics: dict[str, dict[str, BrokerTopic]] = {}
        self._brokers: dict[str, BrokerSet] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        #: By cluster, name and address: whoever names an address takes nothing from another name.
        self._live: dict[LiveKey, Live] = {}
        #: Keys of _live by connection; topics of _topics by broker name, and those of _mapping by
        #: the name that registered them, with the name that they stand under.
        self._by_peer: dict[Closable, dict[LiveKey, None]] = {}
        self._served: dict[str, dict[str, None]] = {}
        self._mapped: dict[str, dict[str, str]] = {}
        #: Topics of brokers that are gone.
        self._stale: deque[Iterator[None]] = deque()
        #: Bytes that registrations take, roughly.
        self.size = 0
        self._filters: dict[LiveKey, list[str]] = {}
        self._mapping: dict[str, dict[str, Any]] = {}
        #: Routes by topic: in plain and in quoted JSON.
        self._encoded: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
        #: Bytes that were added to them since they were empty.
        self._encoded_size = 0

    def counts(self) -> tuple[dict[str, int], int]:
        """Returns how many brokers are registered, by cluster, and how many topics have a route."""
        brokers: Counter[str] = Counter()
        for cluster, _, _ in self._live:
            brokers[cluster] += 1
        return dict(brokers), len(self._topics)

    # ---- brokers come ----

    def register(self, given: BrokerRegistration) -> RegistrationAnswer | None:
        """Registers a broker. None refuses it: an unknown broker must tell all of its topics first.
        take_more() takes what is left of very many."""
        key = (given.cluster, given.name, given.address)
        broker = self._brokers.get(given.name)
        known = broker.addresses if broker is not None else {}
        # An address has one id: a slave that becomes a master leaves its old one.
        before = {n: a for n, a in known.items() if a != given.address or n == given.broker_id}
        if self._outdated(given, before.get(given.broker_id)):
            return RegistrationAnswer()
        if given.broker_id not in before and len(given.topics) == 1:
            return None
        first = broker is None or not before.get(given.broker_id)
        if (broker is None and self.is_full) or (
            key not in self._live and len(self._live) >= BROKERS_MAX
        ):
            return None
        if broker is None:
            broker = self._brokers[given.name] = BrokerSet(given.cluster, given.name)
        self._clusters.setdefault(given.cluster, {})[given.name] = None
        broker.clusters[given.cluster] = None
        old = replace(broker, addresses=dict(known))
        broker.addresses = before | {given.broker_id: given.address}
        broker.acting_master = bool(given.acting_master)
        broker.zone = given.zone
        self._charge(broker, given)
        self._take_topics(given, broker, first)
        now, was = self._clock_ms(), self._live.get(key)
        self._forget_live(key)
        self._live[key] = Live(
            given.broker_id, was.since_ms if was is not None else now, now, given.timeout_ms,
            given.version, given.peer, given.ha_address,
        )  # fmt: skip
        if given.peer is not None:
            self._by_peer.setdefault(given.peer, {})[key] = None
        if self._take_filters(key, given.filters) or old != broker:
            self.forget_all()
        change = None
        if known and given.broker_id < min(known):
            others = tuple(a for n, a in broker.addresses.items() if n != given.broker_id)
            notify = others or tuple(broker.addresses.values())
            change = MinIdChange(notify, given.broker_id, given.address, None, given.ha_address)
        return self._registered(given, broker, change)

    @property
    def is_full(self) -> bool:
        """Whether topics and brokers that are not known are refused."""
        return self.size >= SIZE_MAX

    def _charge(self, broker: BrokerSet, given: BrokerRegistration) -> None:
        kept = KEPT_JSON * given.body_size if given.mapping or given.filters else 0
        names = (given.name, given.address, given.cluster, given.ha_address, given.zone or "")
        size = max(broker.size, BROKER + kept + sum(map(len, names)))
        self.size += size - broker.size
        broker.size = size

    def _forget_live(self, key: LiveKey) -> None:
        live = self._live.pop(key, None)
        keys = self._by_peer.get(live.peer) if live is not None and live.peer is not None else None
        if live is None or live.peer is None or keys is None:
            return
        keys.pop(key, None)
        if not keys:
            del self._by_peer[live.peer]

    def _outdated(self, given: BrokerRegistration, address: str | None) -> bool:
        """Says whether another broker with this id was appointed by a later state of the
        controller."""
        if address is None or address == given.address:
            return False
        other = self._live.get((given.cluster, given.name, address))
        return other is not None and other.version.state_version > given.version.state_version

    def _registered(
        self, given: BrokerRegistration, broker: BrokerSet, change: MinIdChange | None
    ) -> RegistrationAnswer:
        master = broker.addresses.get(MASTER_ID)
        if given.broker_id == MASTER_ID or master is None:
            return RegistrationAnswer(change=change)
        live = self._live.get((given.cluster, given.name, master))
        if live is None:
            return RegistrationAnswer(change=change)
        return RegistrationAnswer(master, live.ha_address, change)

    def _take_topics(self, given: BrokerRegistration, broker: BrokerSet, first: bool) -> None:
        """Takes a master's topics, or those of the slave with the smallest id."""
        is_slave = given.broker_id != MASTER_ID
        if is_slave and (given.acting_master is None or given.broker_id != min(broker.addresses)):
            return
        changed = first or self.is_changed(given.cluster, given.name, given.address, given.version)
        name = given.name
        if self.switches.delete_topics and not given.mapping:
            for topic in [t for t in self._served.get(name, ()) if t not in given.topics]:
                self._drop(topic, name)
        given.rest = self._rows(given, broker, is_slave, changed)
        self.take_more(given)

    @staticmethod
    def take_more(given: BrokerRegistration) -> bool:
        """Takes the next of a registration's topics, and says whether there may be more."""
        return _go_on(given.rest)

    def _rows(
        self, given: BrokerRegistration, broker: BrokerSet, is_slave: bool, changed: bool
    ) -> Iterator[None]:
        name, reads = given.name, is_slave and broker.acting_master
        for topic, row in given.topics.items():
            if self._brokers.get(name) is not broker:
                return
            if changed if topic in self._served.get(name, ()) else not self.is_full:
                taken = replace(row, perm=row.perm & ~PERM_WRITE) if reads else row
                self._serve(topic, name, taken)
            yield
        for topic, info in given.mapping.items() if changed else ():
            if self._brokers.get(name) is not broker:
                return
            owner = str(info.get("bname", name))
            self._mapping.setdefault(topic, {})[owner] = info
            self._mapped.setdefault(name, {})[topic] = owner
            self.forget(topic)
            yield

    def _serve(self, topic: str, name: str, row: BrokerTopic) -> None:
        at = self._topics.get(topic)
        if at is None:
            at = self._topics[topic] = {}
            self.size += TOPIC + len(topic)
        served = self._served.get(name)
        if served is None:
            served = self._served[name] = {}
        if topic not in served:
            served[topic] = None
            self.size += ROW
        if at.get(name) != row:
            at[name] = row
            self.forget(topic)

    def _take_filters(self, key: LiveKey, filters: list[str]) -> bool:
        """Takes the filter servers, and says whether they changed."""
        if filters == self._filters.get(key, []):
            return False
        if filters:
            self._filters[key] = filters
        else:
            del self._filters[key]
        return True

    def is_changed(
        self, cluster: str, name: str, address: str, version: DataVersion | None
    ) -> bool:
        """Says whether a broker's topics are not those that it registered last."""
        live = self._live.get((cluster, name, address))
        return live is None or live.version != version

    def version_of(self, cluster: str, name: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, name, address))
        return live.version if live is not None else None

    def sign_of_life(self, cluster: str, name: str, address: str) -> None:
        live = self._live.get((cluster, name, address))
        if live is not None:
            live.seen_ms = self._clock_ms()

    # ---- brokers go ----

    def unregister(self, gone: Iterable[tuple[str, str, str, int]]) -> list[MinIdChange]:
        """Removes brokers. gone: cluster, address, name and id of each. Whom to tell of smallest
        ids that changed. drop_more() drops what is left of very many topics; routes do not show
        them any more."""
        removed: set[str] = set()
        reduced: set[str] = set()
        changes = []
        for cluster, address, name, broker_id in gone:
            self._forget_live((cluster, name, address))
            self._filters.pop((cluster, name, address), None)
            broker = self._brokers.get(name)
            if broker is None or any((c, name, address) in self._live for c in broker.clusters):
                continue
            was_min = bool(broker.addresses) and broker_id == min(broker.addresses)
            broker.addresses = {n: a for n, a in broker.addresses.items() if a != address}
            self.forget_all()
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
        broker = self._brokers.pop(name)
        self.size -= broker.size
        for cluster in broker.clusters:
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]

    def _clean_topics(self, removed: set[str], reduced: set[str]) -> None:
        without_master = {
            name
            for name in reduced
            if self._brokers[name].acting_master and min(self._brokers[name].addresses) > MASTER_ID
        }
        self._stale.extend(
            self._stale_rows(name, self._served.pop(name, {}), self._mapped.pop(name, {}))
            for name in removed
        )
        self.drop_more()
        for name in without_master:
            for topic in self._served.get(name, ()):
                at = self._topics[topic]
                at[name] = replace(at[name], perm=at[name].perm & ~PERM_WRITE)
                self.forget(topic)

    def drop_more(self) -> bool:
        """Drops the next topics of brokers that are gone, and says whether there may be more."""
        while self._stale:
            if _go_on(self._stale[0]):
                return True
            self._stale.popleft()
        return False

    def _stale_rows(
        self, name: str, served: dict[str, None], mapped: dict[str, str]
    ) -> Iterator[None]:
        """Removes rows of a broker; what it serves again by now stays."""
        for topic in served:
            self.size -= ROW
            if topic not in self._served.get(name, ()):
                self._take_out(self._topics, topic, name)
            yield
        for topic, owner in mapped.items():
            if topic not in self._mapped.get(name, ()):
                self._take_out(self._mapping, topic, owner)
            yield

    def _take_out(self, table: dict[str, dict[str, Any]], topic: str, name: str) -> None:
        at = table.get(topic, {})
        at.pop(name, None)
        if not at and table.pop(topic, None) is not None and table is self._topics:
            self.size -= TOPIC + len(topic)
        self.forget(topic)

    def _drop(self, topic: str, name: str) -> None:
        served = self._served[name]
        del served[topic]
        if not served:
            del self._served[name]
        self.size -= ROW
        self._take_out(self._topics, topic, name)

    def peer_closed(self, peer: Closable) -> list[MinIdChange]:
        """Drops the brokers of a connection that was closed."""
        return self.unregister(self._keys(self._by_peer.get(peer, ())))

    def expire(self) -> tuple[list[MinIdChange], list[Closable]]:
        """Drops brokers that gave no sign of life, and returns their connections, to be closed."""
        now = self._clock_ms()

        late = {k: v for k, v in self._live.items() if v.seen_ms + v.timeout_ms < now}
        peers = [live.peer for live in late.values() if live.peer is not None]
        return self.unregister(self._keys(late)), peers

    def _keys(self, keys: Iterable[LiveKey]) -> list[tuple[str, str, str, int]]:
        return [
            (cluster, address, name, self._live[cluster, name, address].broker_id)
            for cluster, name, address in keys
        ]

    # ---- topics ----

    def register_topic(self, topic: str, rows: Mapping[str, BrokerTopic]) -> None:
        """Adds a topic. rows: by broker name; nothing happens when one of them is unknown."""
        if not rows or self.is_full or not all(name in self._brokers for name in rows):
            return
        for name, row in rows.items():
            self._serve(topic, name, row)

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Deletes a topic. cluster: empty deletes it everywhere."""
        at = self._topics.get(topic, {})
        names = self._clusters.get(cluster, {}) if cluster else dict.fromkeys(at)
        for name in [name for name in names if name in at]:
            self._drop(topic, name)

    def change_write_perm(self, name: str, may_write: bool, topics: Iterable[str]) -> int:
        """Changes the rights of those of the topics that a broker serves, and returns their
        number."""
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
        """Returns the route as JSON, or None when nobody serves the topic."""
        at = self._topics.get(topic)
        brokers = [self._brokers[name] for name in at or () if name in self._brokers]
        if not at or not brokers:
            return None
        filters: dict[str, Any] = {}
        for broker in brokers if self._filters else ():
            for address in broker.addresses.values():
                found = self._filters.get((broker.cluster, broker.name, address))
                if found is not None:
                    filters[address] = found
        made: dict[str, Any] = {
            "brokerDatas": [self._acting(topic, each, at).as_json() for each in brokers],
            "filterServerTable": filters,
        }
        order = self.order_topics.get(topic)
        if order is not None:
            made["orderTopicConf"] = order
        made["queueDatas"] = [r.as_json(name) for name, r in at.items() if name in self._brokers]
        mapping = self._mapping.get(topic)
        if mapping is not None:
            made["topicQueueMappingByBroker"] = mapping
        return made

    def _acting(self, topic: str, broker: BrokerSet, at: Mapping[str, BrokerTopic]) -> BrokerSet:
        """Returns the broker as clients see it: a slave stands in for a master that is gone."""
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
        """Returns the route in one of the two forms of JSON; it is made once after each change."""
        known = self._encoded[quoted]
        found = known.get(topic)
        if found is None:
            route = self.route(topic)
            if route is None:
                return None
            found = compact(route) if quoted else fastjson(route)
            self._encoded_size += len(found)
            if self._encoded_size > ENCODED_MAX:
                self.forget_all()
            known[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Drops the encoded routes of a topic whose route has changed."""
        for known in self._encoded:
            known.pop(topic, None)

    def forget_all(self) -> None:
        """Drops all of them, also for a broker that comes or goes: most brokers serve most topics,
        so that a look at each would find nearly all."""
        for known in self._encoded:
            known.clear()
        self._encoded_size = 0

    def cluster_info(self) -> dict[str, Any]:
        """Returns upstream's two tables; ``brokerRivalTable`` beside them, which is ours, when two
        brokers take one name and id from each other."""
        made: dict[str, Any] = {
            "brokerAddrTable": {name: each.as_json() for name, each in self._brokers.items()},
            "clusterAddrTable": {name: list(of) for name, of in self._clusters.items()},
        }
        rivals = self._rivals()
        return made | {"brokerRivalTable": rivals} if rivals else made

    def _rivals(self) -> dict[str, dict[int, list[str]]]:
        """Returns, by name and id, who registered again after another broker took both. One that
        moved to another address was silent from then on."""
        found: dict[str, dict[int, list[str]]] = {}
        for (cluster, name, address), live in self._live.items():
            holder = self._brokers[name].addresses.get(live.broker_id)
            has = self._live.get((cluster, name, holder)) if holder not in (None, address) else None
            if has is not None and live.seen_ms > has.since_ms:
                found.setdefault(name, {}).setdefault(live.broker_id, []).append(address)
        return found

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

    def topics_of(self, name: str) -> list[str]:
        """Returns the topics that a broker serves."""
        return list(self._served.get(name, ()))

    def of_cluster(self, cluster: str, topics: Iterable[str]) -> list[str]:
        """Returns those of the topics that a broker of the cluster serves."""
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic in topics if not names.isdisjoint(self._topics.get(topic, ()))]

    def flagged(self, wanted: Callable[[int], bool], topics: Iterable[str]) -> list[str]:
        """Returns the topics of a list. wanted: says of a topicSysFlag whether the topic belongs to
        it."""
        known = (topic for topic in topics if topic in self._topics)
        return [t for t in known if wanted(next(iter(self._topics[t].values())).sys_flag)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Returns the names of clusters and brokers, each of which is a topic, and the address of a
        broker."""
        names = dict.fromkeys(name for c, of in self._clusters.items() for name in (c, *of))
        addresses = (each.addresses[min(each.addresses)] for each in self._brokers.values())
        return list(names), next(addresses, None)


def _go_on(rows: Iterator[None]) -> bool:
    """Makes A_PIECE of the steps, if there are so many."""
    return sum(1 for _ in islice(rows, A_PIECE)) == A_PIECE
