"""Offsets of consumers and of queues: 14, 15, 29 to 32, 13 (docs/internals/wire.md#offsets,
docs/internals/wire.md#first-offset)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from broker.loop.turns import alone
from broker.services.context import Services
from broker.services.lite.names import queue_of
from broker.services.lite.start import offset_at_time
from broker.services.names import check_offsets_may_change
from broker.services.offsets import is_young, place_of
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore import Batch
from pystore.errors import NotFound, StoreError
from pystore.format.names import LIGHT_PREFIX
from pystore.native import lib

if TYPE_CHECKING:
    # A broker without a cold tier starts without it.
    from pystore.cold.lending import Lender
    from pystore.cold.reader import ColdReader

__all__ = ["OffsetProcessor"]

T = TypeVar("T")
Work = Coroutine[Any, Any, Command]

_INT32_MAX = (1 << 31) - 1


class OffsetProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max,
            RequestCode.GET_MIN_OFFSET: self.min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    # ---- of consumers ----

    def query(self, peer: Peer, command: Command) -> Command:
        group, topic = command.text("consumerGroup"), command.text("topic")
        queue = queue_id(command)
        offset = self.s.offsets.get(group, topic, queue)
        if offset is None and command.flag_of("setZeroIfNotFound", True):
            offset = self._first_offset(topic, queue)
        if offset is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return command.reply(ext={"offset": offset})

    def _first_offset(self, topic: str, queue: int) -> int | None:
        """Returns where a new group begins. On a young queue that is its beginning: 0 while the
        first message still lies in the hot part of the log, and before there is one. Clients that
        are told of no offset ask where the queue ends: what is put between the two questions would
        be passed over."""
        config = self.s.topics.get(topic)
        there = config is not None and 0 <= queue < config.read_queue_nums
        if there and self.s.store.range(topic, queue) == (0, 0):
            return 0
        return 0 if is_young(self.s.store, topic, queue) else None

    def update(self, peer: Peer, command: Command) -> Command:
        group, topic = command.ext.get("consumerGroup"), command.ext.get("topic")
        if not group or not topic or not command.ext.get("queueId"):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, "consumerGroup, topic and queueId are needed"
            )
        check_offsets_may_change(group)
        if self.s.groups.get(group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group:.260} not exist!"
            )
        if (config := self.s.topics.get(topic)) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic:.260} not exist!")
        queue, offset = queue_id(command), command.number("commitOffset", -1)
        # Upstream keeps an offset for any number: a client could fill memory and disk with them.
        if not 0 <= queue < max(config.read_queue_nums, config.write_queue_nums):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{queue}] is illegal, topic:[{topic:.260}]"
            )
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is invalid")
        if not self.s.core.may_commit(group, topic, queue):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "the broker has as many consumer offsets as it may, maxOffsetsPerBroker"
                f" {self.s.settings['maxOffsetsPerBroker']}: delete groups that nobody uses",
            )
        self.s.offsets.commit(group, topic, queue, offset)
        return command.reply()

    # ---- of queues ----

    def search(self, peer: Peer, command: Command) -> Command | Work:
        topic, queue = command.text("topic"), queue_id(command)
        upper = command.text("boundaryType", "LOWER").upper() == "UPPER"
        name = command.ext.get("liteTopic") or ""
        light = queue_of(topic, name) if name else topic
        if light.startswith(LIGHT_PREFIX) and self.s.store.lights.is_on:
            at_ms = command.number("timestamp")
            found = offset_at_time(self.s.store.lights, light, at_ms) if queue == 0 else 0
            return command.reply(ext={"offset": found})
        at = offset_at(self.s, topic, queue, command.number("timestamp"), upper=upper)
        if isinstance(at, int):
            return command.reply(ext={"offset": at})
        return self._later(command, "offset", at)

    @alone
    async def _later(self, command: Command, name: str, found: Awaitable[int]) -> Command:
        return command.reply(ext={name: await found})

    def max(self, peer: Peer, command: Command) -> Command:
        return command.reply(ext={"offset": self._range(command)[1]})

    def _range(self, command: Command) -> tuple[int, int]:
        return span_of(self.s, command.text("topic"), queue_id(command))

    def min(self, peer: Peer, command: Command) -> Command:
        return command.reply(ext={"offset": self._range(command)[0]})

    def earliest(self, peer: Peer, command: Command) -> Command | Work:
        topic, queue = command.text("topic"), queue_id(command)
        low, high = span_of(self.s, topic, queue)
        if high > low and is_cold(self.s, topic, queue, low):
            return self._later(command, "timestamp", stored_at(self.s, topic, queue, low))
        timestamp = store_time(self.s, topic, queue, low) if high > low else -1
        return command.reply(ext={"timestamp": timestamp})


def queue_id(command: Command) -> int:
    """Returns the field queueId; -1 for every negative one, which no topic has. Raises: Refused."""
    queue = command.number("queueId")
    if not -_INT32_MAX - 1 <= queue <= _INT32_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId {queue} is not a 32-bit number")
    return max(-1, queue)


# ---- one log, of which the older part may be in the cold tier ----


def span_of(s: Services, topic: str, queue: int) -> tuple[int, int]:
    """Returns where a queue begins, be it in the cold tier, and where it ends. Raises: Refused as
    long as it is not known what the tier has."""
    if s.cold is not None and not s.cold.reads.is_known:
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            "the cold tier was not looked at yet, so nobody knows where queues begin: ask again",
        )
    return s.store.span(topic, queue)


def is_cold(s: Services, topic: str, queue: int, offset: int) -> bool:
    """Says whether a message is in the cold tier alone."""
    return s.cold is not None and offset < s.store.range(topic, queue)[0]


async def messages_at(s: Services, topic: str, queue: int, offset: int, most: int) -> Batch:
    """Returns messages from a queue offset on, within the bounds of an answer. Raises: Refused
    where the cold tier does not answer."""
    if is_cold(s, topic, queue, offset):
        return await ask_tier(s, lambda lender, _: lender.read(topic, queue, offset, most))
    return s.store.read(topic, queue, offset, max_messages=most, transfer_limits=True)


async def ask_tier(s: Services, question: Callable[[Lender, ColdReader], T]) -> T:
    """Returns what the cold tier answers, which there is. Raises: Refused, so that the client asks
    again."""
    assert s.cold is not None
    try:
        return await s.cold.reads.ask(question)
    except NotFound:
        raise
    except StoreError as failed:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"the cold tier: {failed}") from failed


def is_place(s: Services, offset: int) -> bool:
    """Says whether a physical offset is a place in the cold tier."""
    return s.cold is not None and offset >= lib.PS_TIER_PLACE


async def bring(s: Services, place: int) -> None:
    """Has the store find the message at a place of the cold tier, if there is one. Raises:
    Refused where the tier does not answer."""
    with contextlib.suppress(NotFound):
        await ask_tier(s, lambda lender, _: lender.bring(place))


def offset_at(
    s: Services, topic: str, queue: int, timestamp: int, *, upper: bool = False
) -> int | Awaitable[int]:
    """Returns the queue offset at a store time in ms, or where it comes from: 0 for a queue that is
    not there. The store is not asked for that one: its error looks for the nearest name among all
    topics."""
    low, high = span_of(s, topic, queue)
    if high == 0:
        return 0
    first = s.store.range(topic, queue)[0]
    if low < first:
        oldest = store_time(s, topic, queue, first) if first < high else timestamp + 1
        if timestamp < oldest + (not upper):
            return _cold_offset(s, (topic, queue), first, timestamp, upper=upper)
    return s.store.offset_at(topic, queue, timestamp, upper=upper)


async def _cold_offset(
    s: Services, place: tuple[str, int], first: int, timestamp: int, *, upper: bool
) -> int:
    """Returns it where it may be below the first local offset."""
    found = await ask_tier(s, lambda _, tier: tier.offset_at(*place, timestamp, upper=upper))
    return found if found < first else s.store.offset_at(*place, timestamp, upper=upper)


def store_time(s: Services, topic: str, queue: int, offset: int) -> int:
    """Returns the store time in ms of the message at a queue offset, or -1 when it cannot be
    read. Of one in the cold tier it is about that time, without a request: no later, and as early
    as the oldest of the same object."""
    if is_cold(s, topic, queue, offset):
        assert s.cold is not None
        return s.cold.reads.time_about(topic, queue, offset)
    place = place_of(s.store, topic, queue, offset)
    try:
        return s.store.message(place).store_timestamp if place is not None else -1
    except StoreError:
        return -1


async def stored_at(s: Services, topic: str, queue: int, offset: int) -> int:
    """Returns the same, exactly. Raises: Refused where the cold tier does not answer."""
    if not is_cold(s, topic, queue, offset):
        return store_time(s, topic, queue, offset)
    found = await ask_tier(s, lambda lender, _: lender.message(topic, queue, offset))
    return -1 if found is None else found.store_timestamp
