"""Who is connected: producers and consumers by group, and what each group subscribes to.

docs/internals/wire.md#heartbeats. A client shows itself by heartbeats on each of its connections;
it is gone when the connection closes, when it says so, or when no beat came for 120 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from broker.hot.core import Core
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.groups import Groups
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import ONEWAY, Command, Refused
from broker.wire.handlers import Peer
from pystore.errors import StoreError

__all__ = [
    "UNDIVIDED", "Beat", "Channel", "Clients", "ConsumerGroup", "Subscription", "language_name",
]  # fmt: skip

quiet = RateLimitedLogger(SafeLogger(__name__))

BROADCASTING = "BROADCASTING"
#: LanguageCode by number.
_LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)  # fmt: skip


def language_name(number: int) -> str:
    """Returns the name of a LanguageCode."""
    return _LANGUAGES[number] if 0 <= number < len(_LANGUAGES) else "OTHER"


@dataclass(slots=True)
class Channel:
    """One connection of one client, as its last heartbeat showed it; `seen` is in monotonic
    seconds."""

    peer: Peer
    client_id: str
    language: int
    version: int
    #: Whose beat it was; empty without access control.
    user: str = ""
    seen: float = field(default_factory=time.monotonic)

    @property
    def heard(self) -> float:
        """Returns when it was heard last, in monotonic seconds; heartbeats that the core answered
        by itself count."""
        return max(self.seen, self.peer.heartbeat_at)

    @property
    def heard_ms(self) -> int:
        """Returns the same by the wall clock, in ms."""
        return time.time_ns() // 1_000_000 - int((time.monotonic() - self.heard) * 1000)

    @property
    def address(self) -> str:
        return f"{self.peer.address[0]}:{self.peer.address[1]}"

    @property
    def language_name(self) -> str:
        return language_name(self.language)

    def as_connection(self) -> dict[str, object]:
        """Returns it as Connection of GET_CONSUMER_CONNECTION_LIST and its like."""
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language_name,
            "version": self.version,
        }


#: Bytes, roughly: of a client in a group, and of a subscription, beside their names. What all
#: clients of a broker say of themselves may take so many.
MEMBER, SUBSCRIPTION = 300, 800
SIZE_MAX = 128 << 20
#: Members of a group that are notified at once, and in one turn of the event loop.
FEW, A_TURN = 16, 256
#: Seconds that members may take to show themselves after the broker has changed its role: clients
#: send a heartbeat every 30 s, many of them also when they are connected again.
BACK_S = 35.0
#: In the state of a peer that takes no part when queues are divided: thousands of such in a group
#: would be told of each other.
UNDIVIDED = "undivided"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic that a group takes, as the client sent it (docs/internals/wire.md#heartbeats);
    `version` is subVersion, in ms."""

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    kind: str = "TAG"
    class_filter: bool = False

    @property
    def is_tag(self) -> bool:
        return self.kind in ("TAG", "")

    def wanted(self) -> frozenset[str] | None:
        """Returns the tags, or None for every message. They are read from the expression, which is
        what the user wrote."""
        if self.class_filter:
            return None
        parts = (part.strip() for part in self.expression.split("||"))
        tags = frozenset(part for part in parts if part)
        return None if not tags or "*" in tags else tags

    @property
    def size(self) -> int:
        """Returns how many bytes it takes, roughly."""
        tags = sum(60 + len(tag) for tag in self.tags)
        return SUBSCRIPTION + len(self.topic) + len(self.expression) + tags + 32 * len(self.codes)

    def as_json(self) -> dict[str, object]:
        """Returns it as SubscriptionData."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": list(self.codes),
            "expressionType": self.kind or "TAG",
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class Beat:
    """What one heartbeat says of one consumer group."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: tuple[Subscription, ...]
    unit_mode: bool = False


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has members. `channels` are by connection; `fingerprint` is that of the
    last full heartbeat of the newer kind (HeartbeatV2)."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    channels: dict[Peer, Channel] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    fingerprint: int = 0
    #: Whose next beat changes nothing, if it is the same as the last.
    settled: set[Peer] = field(default_factory=set)
    #: Client ids of members that were here in another role of this broker, and have not shown
    #: themselves since.
    awaited: set[str] = field(default_factory=set)

    def client_ids(self) -> list[str]:
        ids = (c.client_id for c in self.channels.values())
        return list(dict.fromkeys((*ids, *sorted(self.awaited))))

    def channel_of(self, client_id: str) -> Channel | None:
        return next((c for c in self.channels.values() if c.client_id == client_id), None)


@dataclass(slots=True)
class ConnectionGroups:
    """What one connection has said of itself: its groups with the rough number of bytes of each and
    of all together, and the client of its last heartbeat."""

    last: Channel
    producers: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Clients:
    """All clients. It tells the core which subscriptions its pulls may be served for."""

    def __init__(self, groups: Groups, core: Core, *, expire_s: float = 120.0) -> None:
        self._groups = groups
        self._core = core
        self._expire_s = expire_s
        self.consumers: dict[str, ConsumerGroup] = {}
        #: Groups of which the core serves requests that bring their own filter, without heartbeats.
        self._bring_own: set[str] = set()
        self.producers: dict[str, dict[Peer, Channel]] = {}
        #: By client id: the user that came with it first, and the connections that have it.
        self._owners: dict[str, tuple[str, set[Peer]]] = {}
        self._joined: dict[Peer, ConnectionGroups] = {}
        #: Producers by client id, each by its group and connection.
        self._makers: dict[str, dict[tuple[str, Peer], Channel]] = {}
        #: Counts what beats have changed, and what they rest on.
        self.changes = 0
        #: Bytes, roughly, of what all have said.
        self.size = 0
        #: Connections that are closed and not out of all their groups; how many groups were left in
        #: this turn of the event loop.
        self._leaving: deque[tuple[Peer, ConnectionGroups]] = deque()
        self._left_now = 0
        #: Groups whose members are to be notified, and who is left of one.
        self._changed: dict[str, None] = {}
        self._left: tuple[str, Iterator[Channel]] | None = None
        #: Until when members of another role are awaited, in monotonic seconds; 0: none are.
        self._awaits_until = 0.0
        #: Whether all members of a group are notified when it changes.
        self.may_notify: Callable[[str], bool] = lambda group: True
        #: Whether filters on properties are served (enablePropertyFilter).
        self.filters: Callable[[], bool] = lambda: False

    # ---- consumers ----

    def consumer_beat(self, channel: Channel, beat: Beat) -> bool:
        """Registers a consumer and returns whether its group changed: by a new member, or by other
        topics. Raises: Refused."""
        said = MEMBER + len(beat.group) + sum(each.size for each in beat.subscriptions)
        joined = self._of(channel)
        self._grow(channel.peer, joined, joined.consumers, beat.group, said)
        group = self.consumers.get(beat.group)
        if group is None:
            group = self.consumers[beat.group] = ConsumerGroup(beat.group)
        model_changed = group.message_model != beat.message_model
        said_before = group.consume_type, group.message_model, group.consume_from_where
        if said_before != (beat.consume_type, beat.message_model, beat.consume_from_where):
            self._unsettle(group)
        group.consume_type = beat.consume_type
        group.message_model = beat.message_model
        group.consume_from_where = beat.consume_from_where
        changed = self._join(group, channel)
        changed = self._subscribe(group, beat.subscriptions) or changed
        if model_changed:
            self.republish(beat.group)
        if changed:
            self.notify(group)
        return changed

    def members(self) -> list[ConsumerGroup]:
        """Returns all groups with the ids of their members, for expect() in the next role."""
        return [
            ConsumerGroup(
                each.name,
                each.consume_type,
                each.message_model,
                each.consume_from_where,
                subscriptions=dict(each.subscriptions),
                awaited=set(each.client_ids()),
            )
            for each in self.consumers.values()
        ]

    def expect(self, groups: Iterable[ConsumerGroup]) -> None:
        """Takes over the members of another role, whose connections have ended with it. Until they
        show themselves again the queues stay divided among all of them, since who comes first would
        take those of the others, who go on with them; and their pulls are served."""
        for group in groups:
            self.consumers[group.name] = group
            self._awaits_until = time.monotonic() + BACK_S
            for sub in group.subscriptions.values():
                self._publish(group, sub)

    def online(self, name: str) -> ConsumerGroup | None:
        """Returns a group that has a member connected."""
        group = self.consumers.get(name)
        return group if group is not None and group.channels else None

    def consumer_sign(self, channel: Channel, name: str) -> bool:
        """Handles a heartbeat without subscriptions and returns whether the group is known, so that
        its subscriptions still stand."""
        group = self.consumers.get(name)
        if group is None or not group.subscriptions:
            return False
        joined = self._of(channel)
        if name not in joined.consumers:
            self._grow(channel.peer, joined, joined.consumers, name, MEMBER + len(name))
        if self._join(group, channel):
            self.notify(group)
        return True

    def _of(self, channel: Channel) -> ConnectionGroups:
        joined = self._joined.setdefault(channel.peer, ConnectionGroups(channel))
        joined.last = channel
        return joined

    def _grow(
        self, peer: Peer, joined: ConnectionGroups, groups: dict[str, int], name: str, size: int
    ) -> None:
        """Counts what a connection says more. When all together say too much, the connection that
        says most is closed. Raises: Refused."""
        more = size - groups.get(name, 0)
        if more or name not in groups:
            self.changes += 1
        groups[name] = size
        joined.size += more
        self.size += more
        if more <= 0 or self.size <= SIZE_MAX:
            return
        most = max(self._joined, key=lambda each: self._joined[each].size)
        quiet.warning(
            "too many groups",
            "Closed %s: heartbeats of all clients take more than %d MB, its own %d MB",
            most.address,
            SIZE_MAX >> 20,
            self._joined[most].size >> 20,
        )
        most.close()
        self.departed(most)
        if most is peer:
            raise Refused(ResponseCode.SYSTEM_BUSY, "heartbeats of this client name too much")

    def _join(self, group: ConsumerGroup, channel: Channel) -> bool:
        old = group.channels.get(channel.peer)
        group.channels[channel.peer] = channel
        self._remember(channel)
        if old is not None and old.client_id == channel.client_id:
            return False
        self.changes += 1
        if channel.client_id in group.awaited:
            group.awaited.remove(channel.client_id)
            return False
        return True

    def _subscribe(self, group: ConsumerGroup, given: Iterable[Subscription]) -> bool:
        changed, named = False, set()
        for new in given:
            named.add(new.topic)
            old = group.subscriptions.get(new.topic)
            if old is None or new.version > old.version:
                changed = changed or old is None
                group.subscriptions[new.topic] = new
                self._unsettle(group)
                self._publish(group, new)
        for topic in [topic for topic in group.subscriptions if topic not in named]:
            del group.subscriptions[topic]
            self._core.withdraw_subscription(group.name, topic)
            self._unsettle(group)
            changed = True
        return changed

    def may_read(self, group: ConsumerGroup, topic: str) -> bool:
        """Returns whether the subscription of this group answers all that has to be asked about its
        pulls."""
        config = self._groups.find(group.name)
        return (
            config is not None
            and config.consume_enable
            and (config.consume_broadcast_enable or group.message_model != BROADCASTING)
            and not self._groups.is_forbidden(group.name, topic)
        )

    def _publish(self, group: ConsumerGroup, sub: Subscription) -> None:
        """Publishes a subscription. Pulls by a filter that is off or malformed stay with Python,
        which says so at each; whoever pops brings a filter, and it is never off."""
        filters = self.filters()
        is_served = sub.is_tag or filters
        with contextlib.suppress(StoreError):
            if self.may_read(group, sub.topic):
                self._core.publish_subscription(
                    group.name, sub.topic, tags=sub.wanted() if sub.is_tag else None,
                    sql=sub.expression if is_served and not sub.is_tag else None,
                    sub_version=sub.version, own=True, own_sql=filters, shared=is_served,
                )  # fmt: skip
                return
        self._core.withdraw_subscription(group.name, sub.topic)

    def publish(self, group: str, topic: str) -> None:
        """Tells the core of one subscription again."""
        found = self.consumers.get(group)
        sub = found.subscriptions.get(topic) if found is not None else None
        if found is not None and sub is not None:
            self._publish(found, sub)

    def publish_own(self, group: str, topic: str) -> None:
        """Tells the core that a request of the group which brings its own filter was found right.
        Whoever sends no heartbeats, such as a proxy for its clients, is served there, too."""
        known = self.consumers.get(group)
        if known is not None and topic in known.subscriptions:
            self.publish(group, topic)
            return
        self._bring_own.add(group)
        self._core.publish_subscription(
            group, topic, tags=None, sub_version=0, own=True, own_sql=self.filters(), shared=False
        )

    def republish(self, name: str) -> None:
        """Makes the pulls of a group ask again, after its rights have changed."""
        self._bring_own.discard(name)
        self._core.withdraw_subscription(name)
        group = self.consumers.get(name)
        if group is not None:
            self._unsettle(group)
            for sub in group.subscriptions.values():
                self._publish(group, sub)

    def republish_all(self) -> None:
        """Makes the pulls of all groups ask again, after what filters may be has changed."""
        for name in {*self.consumers, *self._bring_own}:
            self.republish(name)

    def notify(self, group: ConsumerGroup) -> None:
        """Tells every member that it is time to divide the queues again."""
        config = self._groups.get(group.name)
        if group.message_model == BROADCASTING or not self.may_notify(group.name):
            return
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        if len(group.channels) <= FEW:
            self._notify_each(group.name, list(group.channels.values()))
            return
        idle = not self._changed and self._left is None
        self._changed[group.name] = None
        if idle:
            asyncio.get_running_loop().call_soon(self._notify_more)

    def _notify_more(self) -> None:
        """Notifies the other members. Other work has its turn after every two hundred members, and
        a group that changes again before it was begun is notified once."""
        if self._left is None:
            name = next(iter(self._changed))
            del self._changed[name]
            group = self.consumers.get(name)
            self._left = name, iter(list(group.channels.values()) if group is not None else ())
        name, channels = self._left
        some = list(islice(channels, A_TURN))
        self._notify_each(name, some)
        if len(some) < A_TURN:
            self._left = None
        if self._left is not None or self._changed:
            asyncio.get_running_loop().call_soon(self._notify_more)

    def _notify_each(self, group: str, channels: Iterable[Channel]) -> None:
        for channel in channels:
            if not channel.peer.state.get(UNDIVIDED):
                self.notify_one(channel, group)

    def notify_one(self, channel: Channel, group: str) -> None:
        channel.peer.send(
            Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=ONEWAY)
        )

    # ---- beats that change nothing ----

    def settle(self, peer: Peer, groups: Iterable[str], opaque: int, says_changed: bool) -> None:
        """Lets the core answer repeats of a heartbeat that has changed nothing, with
        `says_changed`, until something changes that the answer rests on. groups: those of its
        consumers."""
        for name in groups:
            self.consumers[name].settled.add(peer)
        peer.keep_heartbeat(opaque, says_changed)

    def signed(self, name: str, fingerprint: int) -> bool:
        """Keeps what a heartbeat of the newer kind says the group subscribes to, and returns
        whether its fingerprint is another one than before."""
        group = self.consumers.get(name)
        if group is None:
            return True
        if group.fingerprint == fingerprint:
            return False
        group.fingerprint = fingerprint
        self._unsettle(group)
        return True

    def unsettled(self) -> None:
        """Notes that the heartbeat under way rests on what may come to be without a heartbeat."""
        self.changes += 1

    def _unsettle(self, group: ConsumerGroup) -> None:
        """Makes the next heartbeats of its members come up, since they may change something though
        they say nothing new."""
        self.changes += 1
        while group.settled:
            group.settled.pop().forget_heartbeat()

    # ---- producers ----

    def producer_beat(self, channel: Channel, group: str) -> None:
        """Takes the groups that a producer's heartbeat names. Raises: Refused."""
        joined, peer = self._of(channel), channel.peer
        self._grow(peer, joined, joined.producers, group, MEMBER + len(group))
        channels = self.producers.setdefault(group, {})
        old = channels.get(peer)
        if old is not None and old.client_id != channel.client_id:
            self.changes += 1
            self._forget_maker(group, old)
        channels[peer] = channel
        self._makers.setdefault(channel.client_id, {})[group, peer] = channel
        self._remember(channel)

    def _forget_maker(self, group: str, channel: Channel) -> None:
        made = self._makers[channel.client_id]
        del made[group, channel.peer]
        if not made:
            del self._makers[channel.client_id]

    def producer_channel(self, client_id: str) -> Channel | None:
        """Returns the connection on which this client was heard last."""
        found = (c for c in self._makers.get(client_id, {}).values() if not c.peer.closed)
        return max(found, key=lambda channel: channel.heard, default=None)

    # ---- going ----

    def check_owner(self, channel: Channel) -> None:
        """Checks who uses a client id. It belongs to its first user for as long as a connection has
        it, since what is meant for one client must not go to another one's. Raises: Refused."""
        owner = self._owners.get(channel.client_id)
        if owner is not None and owner[0] != channel.user and owner[1] - {channel.peer}:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the client id {channel.client_id[:100]} is another user's: use one of your own",
            )

    def check_producer(self, peer: Peer, group: str, user: str) -> None:
        """Checks who leaves a producer group: nothing else protects those, as any topic may have
        any. Raises: Refused for one in which only others are."""
        channels = self.producers.get(group, {})
        if peer in channels or not channels or any(c.user == user for c in channels.values()):
            return
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the producer group {group[:100]} is another user's: leave those that are your own",
        )

    def _remember(self, channel: Channel) -> None:
        peer, client_id = channel.peer, channel.client_id
        if peer.state.get("client_id") != client_id:
            self._forget(peer)
        peer.state["client_id"] = client_id
        owner = self._owners.setdefault(client_id, (channel.user, set()))
        owner[1].add(peer)

    def _forget(self, peer: Peer) -> None:
        client_id = peer.state.pop("client_id", None)
        owner = self._owners.get(client_id) if client_id else None
        if owner is not None:
            owner[1].discard(peer)
            if not owner[1]:
                del self._owners[client_id]

    def leave(self, peer: Peer, client_id: str, producer: str | None, consumer: str | None) -> None:
        """Serves UNREGISTER_CLIENT: takes the client out of these two groups, by whichever
        connection it is known."""
        if producer:
            channels = self.producers.get(producer, {})
            for each in self._of_client(channels, peer, client_id):
                self._shrink(each, lambda joined: joined.producers, producer)
                self._drop_producer(producer, each)
        if consumer and consumer in self.consumers:
            group = self.consumers[consumer]
            if client_id in group.awaited:
                group.awaited.remove(client_id)
                self._went(group)
            for each in self._of_client(group.channels, peer, client_id):
                self._shrink(each, lambda joined: joined.consumers, consumer)
                if self._pop_channel(group, each) is not None:
                    self._went(group)

    @staticmethod
    def _of_client(channels: dict[Peer, Channel], peer: Peer, client_id: str) -> list[Peer]:
        known = channels.get(peer)
        return [peer] if known is not None and known.client_id == client_id else []

    def departed(self, peer: Peer) -> None:
        """Takes a closed connection out of all its groups; when these are very many, out of some in
        each turn of the event loop."""
        self._forget(peer)
        joined = self._joined.pop(peer, None)
        if joined is None:
            return
        self.size -= joined.size
        self._leaving.append((peer, joined))
        if self._left_now < A_TURN:
            self._leave_more()

    def _leave_more(self) -> None:
        while self._leaving and self._left_now < A_TURN:
            peer, joined = self._leaving[0]
            if joined.producers:
                self._drop_producer(joined.producers.popitem()[0], peer)
            elif joined.consumers:
                self._drop_consumer(joined.consumers.popitem()[0], peer)
            else:
                self._leaving.popleft()
            self._left_now += 1
        if self._left_now >= A_TURN:
            asyncio.get_running_loop().call_soon(self._next_leave)

    def _next_leave(self) -> None:
        self._left_now = 0
        self._leave_more()

    def _drop_producer(self, name: str, peer: Peer) -> None:
        channels = self.producers.get(name, {})
        channel = channels.pop(peer, None)
        if channel is not None:
            self._forget_maker(name, channel)
        if not channels:
            self.producers.pop(name, None)

    def _drop_consumer(self, name: str, peer: Peer) -> None:
        group = self.consumers.get(name)
        channel = self._pop_channel(group, peer) if group is not None else None
        if group is None or channel is None:
            return
        if time.monotonic() < self._awaits_until and group.channel_of(channel.client_id) is None:
            # Clients give up connections on which a role that begins does not answer yet.
            group.awaited.add(channel.client_id)
            return
        self._went(group)

    @staticmethod
    def _pop_channel(group: ConsumerGroup, peer: Peer) -> Channel | None:
        group.settled.discard(peer)
        return group.channels.pop(peer, None)

    def _went(self, group: ConsumerGroup) -> None:
        """Tells those who are left that a member has gone."""
        if group.channels or group.awaited:
            self.notify(group)
        else:
            del self.consumers[group.name]
            self._core.withdraw_subscription(group.name)

    def _shrink(
        self, peer: Peer, groups: Callable[[ConnectionGroups], dict[str, int]], name: str
    ) -> None:
        joined = self._joined.get(peer)
        peer.forget_heartbeat()
        self.changes += 1
        if joined is not None:
            size = groups(joined).pop(name, 0)
            joined.size -= size
            self.size -= size

    def scan(self) -> None:
        """Closes connections whose client has not been heard of for too long, and awaits members of
        another role no longer than that they would have come."""
        if 0 < self._awaits_until < time.monotonic():
            self._awaits_until = 0.0
            for group in [each for each in self.consumers.values() if each.awaited]:
                group.awaited.clear()
                self._went(group)
        oldest = time.monotonic() - self._expire_s
        for peer, joined in list(self._joined.items()):
            if joined.last.heard < oldest or peer.closed:
                quiet.info(
                    "no heartbeat",
                    "No heartbeat from %s for %d s: client removed",
                    peer.address,
                    self._expire_s,
                )
                peer.close()
                self.departed(peer)
