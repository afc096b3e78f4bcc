"""What tools make on the master, and how far its consumers are, taken over by a slave: upstream's
SlaveSynchronize, asked at once and then every few seconds."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple

from broker.access.policies import User, parse_acl, parse_user
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.services.groups import Groups
from broker.services.lite.kept import KeptClient, clients_of
from broker.services.lite.lite_topics import LiteTopics, is_lite
from broker.services.names import is_system_topic
from broker.services.offsets import ConsumerOffsets
from broker.services.policy_access import PolicyAccess
from broker.services.pop.modes import RequestModes
from broker.services.pop.order import OrderTable
from broker.services.static_topics.table import MappingTable
from broker.services.topics import Topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from pystore import Store
from pystore.errors import StoreError
from pystore.files import FILE_MAX_BYTES
from pystore.format.names import RETRY_PREFIX, SCHEDULE_TOPIC
from pystore.meta.configfiles import version_from_json
from pystore.store import hosting

__all__ = ["Ask", "OffsetChange", "Synchronizer", "subscribed"]

quiet = RateLimitedLogger(SafeLogger(__name__))

#: Tables of how far consumers and deliveries are, whose dataVersion decides which of master and
#: slave knows more (TakingBack of Java's).
_VERSIONS = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: "offsets", RequestCode.GET_ALL_DELAY_OFFSET: "delays",
}  # fmt: skip

#: What a master of ours tells beside what Java's tells.
_MORE = {
    RequestCode.GET_ALL_TOPIC_CONFIG: {"pystore": "1"},
    RequestCode.GET_ALL_CONSUMER_OFFSET: {"pystore": "1"},
}

#: Bytes of an answer that are read on the loop.
_AT_ONCE = 16 << 10

#: Rounds after which passwords are compared, too.
_USERS_AGAIN = 20

#: Asks the master. Raises: OSError, TimeoutError.
Ask = Callable[[Command], Awaitable[Command]]


class OffsetChange(NamedTuple):
    """What goes on at another offset than before."""

    what: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.what:.200} from {self.before} to {self.after}"


async def subscribed(ask: Ask, known: str = "") -> tuple[str, Iterator[KeptClient] | None]:
    """Asks a broker of ours for the clients of its lite topics, by the piece. Returns a mark to ask
    with the next time; with it None as long as they are those of then, or where there are none:
    Java's brokers tell of none. Who reads the clients meets ValueError where what came is
    malformed. Raises: OSError, TimeoutError, ValueError."""
    told, mark, begin = BytesIO(), "", "0"
    while True:
        ext = {"pystore": "1", "known": known, "mark": mark, "begin": begin}
        answer = await ask(Command(RequestCode.GET_BROKER_LITE_INFO, ext))
        now, begin = answer.ext.get("mark") or "", answer.ext.get("next") or "0"
        if answer.code != ResponseCode.SUCCESS or now in ("", known):
            return known, None
        if now != mark:  # another file has replaced it, and comes from its begin
            told, mark = BytesIO(), now
        told.write(answer.body)
        if told.tell() > FILE_MAX_BYTES:
            raise ValueError(f"there are more than {FILE_MAX_BYTES} bytes of subscriptions")
        if begin == "0":
            told.seek(0)
            return mark, clients_of(told)


class Synchronizer:
    """Takes over the metadata of one slave's master."""

    def __init__(
        self, ask: Ask, store: Store, topics: Topics, groups: Groups, offsets: ConsumerOffsets
    ) -> None:
        self._ask, self._store = ask, store
        self._topics, self._groups, self._offsets = topics, groups, offsets
        #: Where modes, users and batches of ordered groups go; None: those are not taken over.
        self.modes: RequestModes | None = None
        self.policies: PolicyAccess | None = None
        self.order: OrderTable | None = None
        #: Of a slave, for the mappings of static topics.
        self.mappings: MappingTable | None = None
        #: Of who subscribes to which lite topics; None: that is not taken over.
        self.lite: LiteTopics | None = None
        self._subscribed = ""
        #: Rounds until users are looked at again whose names and kinds have not changed.
        self._users_in = 0
        #: Digests of what was taken over last, by request.
        self._taken: dict[int, bytes] = {}
        #: Of the round that runs: what an earlier one was answered is never taken after a later
        #: one's answer.
        self._round = asyncio.Lock()

    async def once(self, *, made_only: bool = False) -> list[str]:
        """Takes all of it, after a round that runs; what fails is logged and returned, and the rest
        goes on. made_only: what tools make, and not how far consumers and deliveries are."""
        async with self._round:
            return await self._take_all(made_only)

    async def _take_all(self, made_only: bool) -> list[str]:
        problems = []
        for code, take in (
            (RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
            (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self._take_modes),
        ):
            if made_only and code in _VERSIONS:
                continue
            try:
                end = self._store.info().log_max  # records of the log move offsets, too
                answer = await self._ask(Command(code, _MORE.get(code, {})))
                if answer.code != ResponseCode.SUCCESS:
                    raise OSError(f"{answer.code} {answer.remark}")
                body = bytes(answer.body)
                same = hashlib.blake2b(body, digest_size=16).digest()
                if self._taken.get(code) == same:
                    continue
                parsed = await _parsed(body)
                is_topics = code == RequestCode.GET_ALL_TOPIC_CONFIG
                if is_topics and not await self._follow_deletions(parsed):
                    same = b""  # our log has not come so far yet
                await take(parsed)
                if code in _VERSIONS and "dataVersion" in parsed:
                    version = version_from_json(parsed["dataVersion"])
                    self._store.metadata.raise_version(_VERSIONS[code], version)
                # Offsets are taken as far as the messages are here: there may be more by now.
                if code != RequestCode.GET_ALL_CONSUMER_OFFSET:
                    self._taken[code] = same
                else:
                    self._offsets.known_to = end
            except (OSError, TimeoutError, ValueError, StoreError, Refused) as failed:
                problems.append(f"request {code}: {reason_of(failed)}")
                quiet.warning(code, "To the master, %s", problems[-1])
        looks = [("Users", self._look_at_users), ("Subscriptions", self._subscriptions)]
        for what, look in looks[:1] if made_only else looks:
            try:
                await look()
            except (OSError, TimeoutError, ValueError, StoreError) as failed:
                problems.append(f"{what.lower()}: {reason_of(failed)}")
                quiet.warning(what, "%s are not taken over from the master: %s", what, failed)
        return problems

    async def take_changed(self, body: bytes, may: Callable[[], bool]) -> bool:
        """Takes topics and groups that have changed, after a round that runs, and keeps them.
        Returns whether it may do so then. Raises: ValueError, StoreError, Refused."""
        parsed = await _parsed(body)
        async with self._round:
            if not may():
                return False
            # What this round replaces may be newer: the next one looks at all of it.
            for code in (
                RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            ):  # fmt: skip
                self._taken.pop(code, None)
            await self._have_topics(parsed)
            await self._take_groups(parsed)
        await self._topics.settled()
        await self._groups.settled()
        return True

    # ---- lite topics ----

    async def _subscriptions(self) -> None:
        """Has the clients of the master's lite topics, which has changed the file of them since.
        Raises: OSError, TimeoutError, ValueError, StoreError."""
        lite = self.lite
        if lite is None or not lite.is_on:
            return
        mark, clients = await subscribed(self._ask, self._subscribed)
        if clients is not None:
            await lite.take_over(clients, all_there_are=True)
        elif mark:
            lite.confirm()
        self._subscribed = mark

    # ---- users ----

    async def _look_at_users(self) -> None:
        """Passwords do not show in the list of users, so each is asked for now and then. Raises:
        OSError, TimeoutError, ValueError, StoreError."""
        if self.policies is None:
            return
        listed = await self._ask(Command(RequestCode.AUTH_LIST_USERS))
        if listed.code != ResponseCode.SUCCESS:
            raise OSError(f"{listed.code} {listed.remark}")
        rules = await self._ask(Command(RequestCode.AUTH_LIST_ACL))
        if rules.code != ResponseCode.SUCCESS:
            raise OSError(f"{rules.code} {rules.remark}")
        same = hashlib.blake2b(bytes(listed.body) + bytes(rules.body), digest_size=16).digest()
        self._users_in -= 1
        if self._taken.get(RequestCode.AUTH_LIST_USERS) == same and self._users_in > 0:
            return
        users = {}
        for row in _rows(bytes(listed.body)):
            user = await self._user(str(row.get("username")))
            users[user.name] = user
        acls = {
            _subject(row): parse_acl({"policies": row.get("policies")})
            for row in _rows(bytes(rules.body))
        }
        await self.policies.take_over(users, {n: acl for n, acl in acls.items() if n in users})
        self._taken[RequestCode.AUTH_LIST_USERS], self._users_in = same, _USERS_AGAIN

    async def _user(self, name: str) -> User:
        """Asks for a user. Raises: OSError, TimeoutError, ValueError."""
        answer = await self._ask(Command(RequestCode.AUTH_GET_USER, {"username": name}))
        row = mqjson.loads(bytes(answer.body) or b"{}")
        if answer.code != ResponseCode.SUCCESS or not isinstance(row, dict):
            raise OSError(f"{answer.code} {answer.remark}")
        if not row.get("password"):
            raise OSError("it tells no passwords: innerClientAuthenticationCredentials must be set,"
                          " and be of a Super user there; its log says more")  # fmt: skip
        return parse_user(row, name)

    async def take_back(self) -> list[OffsetChange]:
        """Takes back, of a slave that acted as this master, what its consumers have committed, and
        how far its delays are, where that is further than here. Returns what that moved. Raises:
        OSError, TimeoutError, ValueError, StoreError."""
        moved: list[OffsetChange] = []
        for code, take in (
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
        ):
            answer = await self._ask(Command(code))
            if answer.code != ResponseCode.SUCCESS:
                raise OSError(f"{answer.code} {answer.remark}")
            await take(await _parsed(bytes(answer.body)), moved)
        return moved

    async def _follow_deletions(self, body: Mapping[str, Any]) -> bool:
        """Deletes queues as the master did; one of Java's does not tell. Returns whether all that
        is done. Raises: ValueError, StoreError, OSError."""
        deleted = {name: _number(at) for name, at in _member(body, "deletedTopics").items()}
        if not deleted:
            return True
        return await asyncio.to_thread(hosting.follow_deletions, self._store, deleted)

    async def _take_topics(self, body: Mapping[str, Any]) -> None:
        """Replaces our topics by the master's."""
        await self._take_mappings(body)
        await self._have_topics(body)
        pieces, found = Pieces(), _member(body, "topicConfigTable")
        for row in self._topics.all():
            # A retry topic may be newer here: its group's heartbeat came to this broker.
            if (
                row.name not in found
                and not is_system_topic(row.name)
                and not row.name.startswith(RETRY_PREFIX)
            ):
                await pieces.next()
                # First: a topic that has gone is not looked for again, after a crash say.
                lite = self.lite if is_lite(row.attributes) else None
                if lite is not None and await lite.delete_below(row.name):
                    await asyncio.to_thread(self._store.flush)
                self._topics.delete(row.name)

    async def _have_topics(self, body: Mapping[str, Any]) -> None:
        pieces = Pieces()
        for value in _member(body, "topicConfigTable").values():
            await pieces.next()
            wanted = self._topics.from_json(value)
            have = self._topics.get(wanted.name)
            if have is None or self._topics.to_json(have) != self._topics.to_json(wanted):
                self._topics.take(wanted)

    async def _take_mappings(self, body: Mapping[str, Any]) -> None:
        """Replaces our mappings of static topics. Upstream's slaves take none, and serve a logical
        queue as if it were their own of this number."""
        if self.mappings is None:
            return
        changed = self.mappings.take_over(_member(body, "topicQueueMappingDetailMap"))
        for name in changed:
            self._topics.mapping_changed(name)
        await self.mappings.settled()

    async def _take_groups(self, body: Mapping[str, Any]) -> None:
        pieces = Pieces()
        for value in _member(body, "subscriptionGroupTable").values():
            await pieces.next()
            wanted = self._groups.from_json(value)
            have = self._groups.get(wanted.name)
            if have is None or self._groups.to_json(have) != self._groups.to_json(wanted):
                self._groups.take(wanted)

    async def _take_offsets(
        self, body: Mapping[str, Any], moved: list[OffsetChange] | None = None
    ) -> None:
        """Takes committed offsets. moved: takes only what rises, and is told of it; None: takes
        all. Nothing beyond the messages that are here: a consumer would lose those that come
        next."""
        pieces = Pieces()
        if self.order is not None:  # a master of Java's does not tell
            self.order.take_over(str(body.get("order") or "").encode())
        for pair, queues in _member(body, "offsetTable").items():
            await pieces.next()
            topic, _, group = pair.partition("@")
            for queue, offset in queues.items() if isinstance(queues, dict) else ():
                number, at = _number(queue), _number(offset)
                if not group or not 0 <= number < 65536:
                    raise ValueError(f"an offset of {pair:.200} is {queue}: {offset}")
                if at < 0:
                    continue  # upstream stores it, and takes it for none
                at = min(at, self._store.range(topic, number)[1])
                if moved is not None:
                    before = self._offsets.get(group, topic, number) or 0
                    if at <= before:
                        continue
                    moved.append(OffsetChange(f"{group} at {topic}/{number}", before, at))
                self._offsets.commit(group, topic, number, at)

    async def _take_modes(self, body: Mapping[str, Any]) -> None:
        if self.modes is not None:
            await self.modes.take_over(body)

    async def _take_delays(
        self, body: Mapping[str, Any], moved: list[OffsetChange] | None = None
    ) -> None:
        """Takes how far each level has been delivered: what this broker would begin with as a
        master. moved: as above; nothing beyond the messages that are here is passed over then."""
        metadata = self._store.metadata
        with metadata.batch():
            for name, offset in _member(body, "offsetTable").items():
                level, at = _number(name), _number(offset)
                if not 0 < level <= 64 or at < 0:
                    raise ValueError(f"the progress of level {name} is {offset}")
                if moved is not None:
                    at = min(at, self._store.range(SCHEDULE_TOPIC, level - 1)[1])
                    before = metadata.delay_offsets.get(level) or 0
                    if at <= before:
                        continue
                    moved.append(OffsetChange(f"delay level {level}", before, at))
                metadata.delay_offsets.commit(level, at, reset=True)


def _number(value: object) -> int:
    """Reads a number. Raises: ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r:.80} is not a number")
    found = int(value)
    if abs(found) >= 1 << 63:
        raise ValueError(f"{value!r:.80} is beyond 64 bits")
    return found


async def _parsed(body: bytes) -> Mapping[str, Any]:
    """Returns the table of an answer; a long one is read beside the loop. Raises: ValueError."""
    return _object(body) if len(body) < _AT_ONCE else await asyncio.to_thread(_object, body)


def _rows(body: bytes) -> list[Mapping[str, Any]]:
    """Reads a list of objects. Raises: ValueError."""
    found = mqjson.loads(body or b"[]")
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError("the answer is not a list of objects")
    return found


def _subject(row: Mapping[str, Any]) -> str:
    """Returns the user that an ACL is of."""
    return str(row.get("subject") or "").partition(":")[2]


def _object(body: bytes) -> Mapping[str, Any]:
    """Reads an object. Raises: ValueError."""
    found = mqjson.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"the answer is not an object: {json.dumps(found)[:100]}")
    return found


def _member(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Reads a member of an object. Raises: ValueError."""
    found = body.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} of the answer is not an object")
    return found
