"""Static topics: their mappings (513), and requests whose numbers are those of logical queues,
translated before the broker that has the part of the queue is asked
(docs/internals/static-topics.md; upstream's rewriteRequestForStaticTopic)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, NamedTuple

from broker.loop.reasons import reason_of
from broker.processors.admin_topics import requested_topic
from broker.processors.admission import SendRequest
from broker.processors.bodies import BODY_MAX, check_size
from broker.processors.durable import settled
from broker.services.context import Services
from broker.services.names import check_topic
from broker.services.static_topics.static_topics import StaticTopics
from broker.services.static_topics.table import Unfit, read_body
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result
from broker.wire.static_topics import Parts, QueuePart, TopicMapping, find_part, part_after
from pystore.errors import StoreError

__all__ = ["LogicalPlace", "StaticTopicProcessor", "place_of_send"]

#: Of a pull's sysFlag: it commits an offset; it may wait for messages.
_COMMIT, _SUSPEND = 1, 2
#: What a broker answers a pull whose fields say where to go on.
_PULLED = (
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)  # fmt: skip
#: How long a pull waits at the end of a part whose successor has no offset yet: its client would
#: ask again at once.
_UNDECIDED_S = 1.0
#: A client waits 30 s at most.
_SUSPEND_MAX_MS = 30_000

Translate = Callable[[Command, TopicMapping], Coroutine[Any, Any, Command]]


class LogicalPlace(NamedTuple):
    """Where a send goes. queue: the logical one. part: the queue of this broker."""

    queue: int
    part: QueuePart

    @property
    def answered(self) -> tuple[int, int | None]:
        """What the answer names, as PutDecision.logical has it."""
        return self.queue, self.part.delta if self.part.is_decided else None


def _not_led(topic: str, queue: int, mapping: TopicMapping) -> Refused:
    return Refused(
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        f"the logical queue {queue} of {topic:.260} is not led by the broker {mapping.broker}: ask"
        " a name server for the route again",
    )


def _led(topic: str, queue: int, mapping: TopicMapping) -> Parts:
    """Returns the parts of a queue that is led here. Raises: Refused."""
    if not mapping.leads(queue):
        raise _not_led(topic, queue, mapping)
    return mapping.queues[queue]


def place_of_send(static: StaticTopics | None, request: SendRequest) -> LogicalPlace | None:
    """Returns where a message of a static topic goes; None: the topic is not static. A send to any
    queue goes to one that is led here. Raises: Refused."""
    mapping = static.of(request.command, request.topic) if static is not None else None
    if mapping is None or static is None:
        return None
    queue = request.asked.queue
    if queue < 0:
        led = mapping.led()
        if not led:
            raise _not_led(request.topic, queue, mapping)
        queue = static.next_of(led)
    return LogicalPlace(queue, _led(request.topic, queue, mapping)[-1])


class StaticTopicProcessor:
    """Stands before the handlers of what it translates."""

    def __init__(self, s: Services, physical: Mapping[int, Handler]) -> None:
        """Takes the handlers of every code. physical: they serve the broker's own queues."""
        self.s = s
        self._physical = physical

    def handlers(self) -> dict[int, Handler]:
        translated: dict[int, Translate] = {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max,
            RequestCode.GET_MIN_OFFSET: self.min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }
        made = {
            code: self._translated(self._physical[code], work) for code, work in translated.items()
        }
        made[RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC] = self.update
        return made

    def _translated(self, physical: Handler, work: Translate) -> Handler:
        @wraps(physical)
        def handler(peer: Peer, command: Command) -> Result:
            static, topic = self.s.static, command.ext.get("topic", "")
            mapping = static.of(command, topic) if static is not None else None
            return physical(peer, command) if mapping is None else work(command, mapping)

        return handler

    # ---- mappings ----

    def update(self, peer: Peer, command: Command) -> Awaitable[Command]:
        s, static = self.s, self._static
        name = command.text("topic", "")
        check_topic(name)
        s.topics.check_updatable(name)
        check_size(command, BODY_MAX)
        try:
            mapping = read_body(command.body)
            if mapping.topic != name:
                raise ValueError(f"the mapping is of the topic {mapping.topic:.260}, not {name}")
            mapping = static.table.following(mapping, force=command.flag_of("force"))
        except Unfit as unfit:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(unfit)) from None
        except ValueError as bad:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the mapping: {bad}") from None
        before = static.table.get(name)
        static.table.put(mapping)
        try:
            s.topics.update(requested_topic(command))
        except Refused:
            static.table.restore(name, before)
            raise
        s.topics.mapping_changed(name)
        return self._updated(command)

    @property
    def _static(self) -> StaticTopics:
        assert self.s.static is not None
        return self.s.static

    async def _updated(self, command: Command) -> Command:
        """Answers once it is kept and registered, since the tool looks at the name server next."""
        try:
            await self._static.table.settled()
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"kept in memory, and not on the disk yet: {failed.text}"
            ) from None
        await settled(self.s, self.s.topics)
        await self.s.registration.settled()
        return command.reply()

    # ---- asking for parts ----

    async def _ask(
        self, part: QueuePart, code: int, ext: Mapping[str, object], wait_s: float = 0.0
    ) -> Command:
        """Asks the broker of a part, for its queue. Raises: Refused."""
        try:
            return await self._static.ask(part.broker, code, {**ext, "queueId": part.queue}, wait_s)
        except (OSError, TimeoutError) as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker {part.broker} has a part of this queue, and does not answer:"
                f" {reason_of(failed)}",
            ) from failed

    async def _number(
        self, part: QueuePart, code: int, ext: Mapping[str, object], field: str = "offset"
    ) -> int:
        """Asks for a number. Raises: Refused."""
        answer = await self._ask(part, code, ext)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer.code, answer.remark or "")
        return answer.number(field)

    @staticmethod
    def _parts(command: Command, mapping: TopicMapping) -> Parts:
        """Returns the parts of the queue that a request names. Raises: Refused."""
        return _led(mapping.topic, command.number("queueId"), mapping)

    def _decided(self, command: Command, mapping: TopicMapping) -> Parts:
        """Returns those whose offsets are decided. Raises: Refused."""
        made = tuple(part for part in self._parts(command, mapping) if part.is_decided)
        if not made:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"no offset of this queue of {mapping.topic} is decided yet: let the remapping end",
            )
        return made

    # ---- offsets of consumers ----

    async def query(self, command: Command, mapping: TopicMapping) -> Command:
        """Looks for the committed offset from the newest part to the oldest."""
        parts = self._decided(command, mapping)
        alone = len(parts) == 1 and parts[0].logical == 0
        ext = dict(command.ext) if alone else {**command.ext, "setZeroIfNotFound": "false"}
        for part in reversed(parts):
            answer = await self._ask(part, command.code, ext)
            if answer.code == ResponseCode.SUCCESS:
                return command.reply(ext={"offset": part.logical_of(answer.number("offset"))})
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                return command.reply(answer.code, answer.remark)
        return command.reply(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )

    async def update_offset(self, command: Command, mapping: TopicMapping) -> Command:
        part = find_part(self._decided(command, mapping), command.number("commitOffset", -1))
        assert part is not None  # one is decided
        offset = part.offset_of(command.number("commitOffset", -1))
        answer = await self._ask(
            part, RequestCode.UPDATE_CONSUMER_OFFSET, {**command.ext, "commitOffset": offset}
        )
        return command.reply(answer.code, answer.remark)

    # ---- offsets of queues ----

    async def max(self, command: Command, mapping: TopicMapping) -> Command:
        part = self._decided(command, mapping)[-1]
        found = await self._number(part, command.code, command.ext)
        return command.reply(ext={"offset": part.logical_of(found)})

    async def min(self, command: Command, mapping: TopicMapping) -> Command:
        part = self._decided(command, mapping)[0]
        found = await self._number(part, command.code, command.ext)
        return command.reply(ext={"offset": part.logical_of(found)})

    async def earliest(self, command: Command, mapping: TopicMapping) -> Command:
        """Answers with the oldest part that has a message. Upstream asks the oldest part for the
        queue whose number is that of the logical one."""
        found = -1
        for part in self._decided(command, mapping):
            found = await self._number(part, command.code, command.ext, "timestamp")
            if found >= 0:
                break
        return command.reply(ext={"timestamp": found})

    async def search(self, command: Command, mapping: TopicMapping) -> Command:
        """Searches the first part whose messages are as new, or for UPPER the last one that has
        some as old. Upstream takes the last part that answers at all."""
        parts, at_ms = self._decided(command, mapping), command.number("timestamp")
        upper = command.text("boundaryType", "LOWER").upper() == "UPPER"
        chosen = parts[0] if upper else parts[-1]
        for part in reversed(parts) if upper else parts[:-1]:
            if await self._is_searched(part, at_ms, command, upper=upper):
                chosen = part
                break
        found = await self._number(chosen, command.code, command.ext)
        return command.reply(ext={"offset": chosen.logical_of(found)})

    async def _is_searched(
        self, part: QueuePart, at_ms: int, command: Command, *, upper: bool
    ) -> bool:
        if upper:
            code = RequestCode.GET_EARLIEST_MSG_STORETIME
            first = await self._number(part, code, command.ext, "timestamp")
            return 0 <= first <= at_ms
        found = await self._number(part, command.code, command.ext)
        return found < await self._number(part, RequestCode.GET_MAX_OFFSET, command.ext)

    # ---- pulls ----

    async def pull(self, command: Command, mapping: TopicMapping) -> Command:
        parts = self._parts(command, mapping)
        flags, offset = command.number("sysFlag", 0), command.number("queueOffset")
        part = find_part(self._decided(command, mapping), offset)
        assert part is not None  # one is decided
        if flags & _COMMIT and command.number("commitOffset", -1) >= 0:
            await self.update_offset(command, mapping)
        if offset < part.logical:
            return await self._before_all(command, part, parts)
        leads = part is parts[-1]
        wait_ms = command.number("suspendTimeoutMillis", 0) if flags & _SUSPEND else 0
        wait_ms = min(max(wait_ms, 0), _SUSPEND_MAX_MS)
        asked = part.offset_of(offset)
        ext: dict[str, object] = {
            **command.ext,
            "queueOffset": asked,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms if leads else 0,
            "sysFlag": flags & ~_COMMIT & (~0 if leads else ~_SUSPEND),
        }
        if part.has_end:
            ext["maxMsgNums"] = min(part.end - part.start, command.number("maxMsgNums"))
        answer = await self._ask(part, command.code, ext, wait_ms / 1000 if leads else 0.0)
        if answer.code not in _PULLED:
            return command.reply(answer.code, answer.remark)
        made = _pulled(command, answer, parts, part, asked)
        if made.code == ResponseCode.PULL_NOT_FOUND and not leads:
            await asyncio.sleep(min(wait_ms / 1000, _UNDECIDED_S))
        return made

    async def _before_all(self, command: Command, part: QueuePart, parts: Parts) -> Command:
        """Answers a pull from before the oldest part, which the clean-up has taken away."""
        first = await self._number(part, RequestCode.GET_MIN_OFFSET, command.ext)
        last = await self._number(part, RequestCode.GET_MAX_OFFSET, command.ext)
        said = {"nextBeginOffset": first, "minOffset": first, "maxOffset": last}
        ext = {"suggestWhichBrokerId": 0, "groupSysFlag": 0, **said, "topicSysFlag": 0}
        moved = command.reply(ResponseCode.PULL_OFFSET_MOVED, None, ext)
        return _pulled(command, moved, parts, part, first)


def _pulled(
    command: Command, answer: Command, parts: Parts, part: QueuePart, asked: int
) -> Command:
    """Translates the answer to a pull of a part: at its end the next one begins. asked: an offset
    of the part's queue."""
    code, then = answer.code, answer.number("nextBeginOffset")
    low, high = answer.number("minOffset"), answer.number("maxOffset")
    first = next(each for each in parts if each.is_decided)
    if code == ResponseCode.SUCCESS:
        pass
    elif asked < low:
        then = low
        is_first = part is first
        code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
    elif part is not parts[-1] and asked >= high:
        following = part_after(parts, part)
        code = ResponseCode.PULL_NOT_FOUND
        if following is not None:
            part = following
            then = low = high = part.start
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
    if part.has_end:
        then = min(then, part.end)
    ext: dict[str, object] = {}
    for name, value in answer.ext.items():  # in upstream's order
        ext[name] = value
        if name == "nextBeginOffset":
            ext["offsetDelta"] = part.delta
    ext["nextBeginOffset"] = part.logical_of(then)
    ext["maxOffset"] = max(part.logical_of(high), parts[-1].last_known)
    ext["minOffset"] = part.logical_of(low)
    return command.reply(code, answer.remark, ext, answer.body)
