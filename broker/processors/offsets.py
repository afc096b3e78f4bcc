"""Offsets of consumers and of queues: 14, 15, 29 to 32, 13 (docs/internals/wire.md#offsets,
docs/internals/wire.md#first-offset)."""

from __future__ import annotations

from broker.services.context import Services
from broker.services.lite.names import queue_of
from broker.services.lite.start import offset_at_time
from broker.services.names import check_offsets_may_change
from broker.services.offsets import is_young, place_of
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import StoreError
from pystore.format.names import LIGHT_PREFIX

__all__ = ["OffsetProcessor"]

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
        first message still lies in the hot part of the log."""
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

    def search(self, peer: Peer, command: Command) -> Command:
        topic, queue = command.text("topic"), queue_id(command)
        upper = command.text("boundaryType", "LOWER").upper() == "UPPER"
        name = command.ext.get("liteTopic") or ""
        light = queue_of(topic, name) if name else topic
        if light.startswith(LIGHT_PREFIX) and self.s.store.lights.is_on:
            at_ms = command.number("timestamp")
            found = offset_at_time(self.s.store.lights, light, at_ms) if queue == 0 else 0
            return command.reply(ext={"offset": found})
        offset = offset_at(self.s, topic, queue, command.number("timestamp"), upper=upper)
        return command.reply(ext={"offset": offset})

    def max(self, peer: Peer, command: Command) -> Command:
        return command.reply(ext={"offset": self._range(command)[1]})

    def _range(self, command: Command) -> tuple[int, int]:
        return self.s.store.range(command.text("topic"), queue_id(command))

    def min(self, peer: Peer, command: Command) -> Command:
        return command.reply(ext={"offset": self._range(command)[0]})

    def earliest(self, peer: Peer, command: Command) -> Command:
        topic, queue = command.text("topic"), queue_id(command)
        low, high = self.s.store.range(topic, queue)
        timestamp = store_time(self.s, topic, queue, low) if high > low else -1
        return command.reply(ext={"timestamp": timestamp})


def queue_id(command: Command) -> int:
    """Returns the field queueId; -1 for every negative one, which no topic has. Raises: Refused."""
    queue = command.number("queueId")
    if not -_INT32_MAX - 1 <= queue <= _INT32_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId {queue} is not a 32-bit number")
    return max(-1, queue)


def offset_at(s: Services, topic: str, queue: int, timestamp: int, *, upper: bool = False) -> int:
    """Returns the queue offset at a store time in ms; 0 for a queue that is not there. The store is
    not asked for that one: its error looks for the nearest name among all topics."""
    if s.store.range(topic, queue)[1] == 0:
        return 0
    return s.store.offset_at(topic, queue, timestamp, upper=upper)


def store_time(s: Services, topic: str, queue: int, offset: int) -> int:
    """Returns the store time in ms of the message at a queue offset, or -1 when it cannot be
    read."""
    place = place_of(s.store, topic, queue, offset)
    try:
        return s.store.message(place).store_timestamp if place is not None else -1
    except StoreError:
        return -1
