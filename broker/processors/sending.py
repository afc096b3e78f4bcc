"""What sends, replies and send-backs share: the request's header, the checks, the put, the answer.

Spec remoting.md sections 2.1, 3 and 8. The core answers plain sends itself; what is here serves the
others: first sends to a topic, retries, delays, and every refusal.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Body, Command, Refused
from broker.remoting.dedup import First
from broker.remoting.handlers import Peer
from broker.services.context import Services
from broker.services.names import NOT_FOR_CLIENTS, RETRY, check_topic
from broker.services.topics import UNIT, UNIT_SUB, WRITE
from pystore import PutResult, PutStatus
from pystore.configfiles import TopicConfig
from pystore.errors import (
    CreateMappedFileFailed,
    DiskFull,
    FlushFailed,
    MessageIllegal,
    NotWriteable,
    StoreError,
)
from pystore.properties import parse_properties

__all__ = [
    "SendRequest",
    "Sender",
    "UniqIds",
    "delay_level",
    "host_text",
    "put_code",
    "refused_put",
]

#: Field of version 2 and of version 1 of the header.
_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
#: Head of a batch's item: total size, magic, CRC, flag, length of the body.
_ITEM = struct.Struct(">5i")
_LONG_NAMES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
_STORED: Mapping[PutStatus, ResponseCode] = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
}


@dataclass(slots=True)
class SendRequest:
    """The header of a send, whichever version. queue: as asked for; negative: the broker's choice.
    max_reconsume: -1 when the client did not say."""

    group: str
    topic: str
    template: str
    template_queues: int
    queue: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: dict[str, str]
    reconsume_times: int
    unit: bool
    max_reconsume: int
    batch: bool
    body: Body

    @classmethod
    def of(cls, command: Command) -> SendRequest:
        """Raises: Refused."""
        long_names = command.code in _LONG_NAMES

        def name(of: str) -> str:
            return of if long_names else _NAMES[of]

        return cls(
            group=command.text(name("producerGroup"), ""),
            # A blank topic is refused later, with the code of a bad topic.
            topic=command.text(name("topic"), ""),
            template=command.text(name("defaultTopic"), ""),
            template_queues=command.number(name("defaultTopicQueueNums"), 0),
            queue=_int32(command, name("queueId")),
            sys_flag=_int32(command, name("sysFlag"), 0),
            born_timestamp=command.number(name("bornTimestamp"), 0),
            flag=_int32(command, name("flag"), 0),
            properties=parse_properties(command.ext.get(name("properties"), "").encode()),
            reconsume_times=_int32(command, name("reconsumeTimes"), 0),
            unit=command.flag_of(name("unitMode")),
            max_reconsume=_int32(command, name("maxReconsumeTimes"), -1),
            batch=command.flag_of(name("batch")),
            body=command.body,
        )


def _int32(command: Command, name: str, default: int | None = None) -> int:
    value = command.number(name, default)
    if not -(1 << 31) <= value < 1 << 31:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the field {name} of request {command.code} is beyond 32 bits: {value}",
        )
    return value


def host_text(peer: Peer) -> str:
    """The address of a connection, as a record's born host."""
    host, port = peer.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def put_code(status: PutStatus) -> int:
    """What a message that was stored is answered with."""
    return _STORED.get(status, ResponseCode.SYSTEM_ERROR)


def refused_put(error: StoreError, s: Services) -> Refused:
    """What a message that was not stored is answered with."""
    if isinstance(error, MessageIllegal):
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {s.settings['maxMessageSize']}B: {error.text}",
        )
    if isinstance(error, DiskFull | NotWriteable | FlushFailed):
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: the"
            f" broker's disk is full, the store has been shut down: {error.text}",
        )
    if isinstance(error, CreateMappedFileFailed):
        return Refused(
            ResponseCode.SYSTEM_ERROR,
            f"create mapped file failed, server is busy or broken: {error.text}",
        )
    return Refused(ResponseCode.SYSTEM_ERROR, f"the message could not be stored: {error}")


class Sender:
    """The checks and the put; of one broker."""

    def __init__(self, s: Services) -> None:
        self.s = s
        self._sync = s.settings["flushDiskType"] == "SYNC_FLUSH"
        self._ids = UniqIds(s.settings.store_host[:-4])

    # ---- checks, in upstream's order ----

    def check(self, request: SendRequest) -> tuple[TopicConfig, bool]:
        """The topic that the message goes to, and whether this made it. Raises: Refused."""
        s = self.s
        starts = s.settings["startAcceptSendRequestTimeStamp"]
        if time.time() * 1000 < starts:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {starts} (ms)"
            )
        config = s.topics.get(request.topic)
        writable = s.settings["brokerPermission"] & WRITE
        if not writable and config is not None and config.order:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{s.host}] sending message is forbidden"
            )
        check_topic(request.topic)
        if request.topic in NOT_FOR_CLIENTS:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{request.topic}] is forbidden.",
            )
        made = config is None
        if config is None:
            config = self._make(request)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if request.queue >= queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{request.queue}] is illegal, topic[{config.name}] has {queues}"
                " queues",
            )
        # Upstream lets it pass, and relies on clients to obey the route.
        if not config.perm & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{config.name}] sending message is forbidden"
            )
        return config, made

    def _make(self, request: SendRequest) -> TopicConfig:
        sys_flag = 0
        if request.unit:
            sys_flag = UNIT_SUB if request.topic.startswith(RETRY) else UNIT
        topics = self.s.topics
        made = topics.for_send(
            request.topic, request.template, request.template_queues, sys_flag=sys_flag
        )
        return made if made is not None else topics.found(request.topic)

    @staticmethod
    def choose_queue(request: SendRequest, config: TopicConfig) -> int:
        if request.queue >= 0:
            return request.queue
        return random.randrange(max(1, config.write_queue_nums))

    # ---- properties ----

    def stamp(self, properties: dict[str, str]) -> None:
        """Adds what the broker adds to every message, and takes out what clients may not set."""
        settings = self.s.settings
        properties["MSG_REGION"] = settings["regionId"]
        properties["TRACE_ON"] = str(settings["traceOn"]).lower()
        properties["CLUSTER"] = self.s.cluster
        if "UNIQ_KEY" not in properties:
            properties["UNIQ_KEY"] = self._ids.make()
        properties.pop("POP_CK", None)

    def answer_fields(self) -> dict[str, object]:
        """In every answer to a send, errors too: clients read them unasked."""
        settings = self.s.settings
        return {"MSG_REGION": settings["regionId"], "TRACE_ON": settings["traceOn"]}

    # ---- the put ----

    async def put(
        self,
        request: SendRequest,
        topic: str,
        queue: int,
        properties: dict[str, str],
        born_host: str,
        key: str = "",
    ) -> PutResult:
        """Stores one message. key: what a repeat of it is known by. Raises: Refused."""
        began = time.monotonic()
        properties = dict(properties)
        level = delay_level(properties)
        if level > 0:
            for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
                properties.pop(name, None)
        # The store writes WAIT=false itself.
        wait = properties.get("WAIT") != "false"
        if not wait:
            del properties["WAIT"]
        body = request.body if isinstance(request.body, bytes) else bytes(request.body)
        try:
            result = self.s.store.put_message(
                topic, body, properties=properties, queue=queue, flag=request.flag, wait=wait,
                delay_level=level, sys_flag=request.sys_flag,
                reconsume_times=request.reconsume_times,
                born_timestamp=request.born_timestamp, born_host=born_host, block=False,
            )  # fmt: skip
            self.remember(request.topic, key, result.physical_offset)
            safe = await self.durable(result, wait=wait)
        except StoreError as failed:
            raise refused_put(failed, self.s) from failed
        self.s.statistics.put_times.took(time.monotonic() - began)
        return safe

    async def durable(self, result: PutResult, *, wait: bool) -> PutResult:
        """What was put, once it is as safe as flushDiskType asks. Raises: Refused."""
        status = await self.safe(result.physical_offset + result.size, wait=wait)
        return result if status is result.status else result.with_status(status)

    async def safe(self, end: int, *, wait: bool) -> PutStatus:
        """The status of what ends there in the log, once it is as safe as flushDiskType asks.

        Raises: Refused.
        """
        if not self._sync or not wait:
            return PutStatus.PUT_OK
        try:
            return await self.s.store.durable(end)
        except StoreError as failed:
            raise refused_put(failed, self.s) from failed

    # ---- repeats ----

    def key_of(self, topic: str, properties: Mapping[str, str]) -> str:
        """What a repeat of the message is known by; empty when it would be stored."""
        once = self.s.once
        if once is None or not self.s.topics.is_once(topic):
            return ""
        return properties.get(once.key, "")

    def first_of(self, topic: str, key: str) -> First | None:
        """The message that one with this key repeats."""
        return self.s.once.find(topic, key) if self.s.once is not None and key else None

    def remember(self, topic: str, key: str, physical_offset: int) -> None:
        if self.s.once is not None and key:
            self.s.once.add(topic, key, physical_offset)

    def message_id(self, physical_offset: int) -> str:
        host = self.s.settings.store_host
        return (host + physical_offset.to_bytes(8, "big")).hex().upper()

    # ---- batches ----

    async def put_batch(
        self,
        request: SendRequest,
        queue: int,
        properties: Mapping[str, str],
        born_host: str,
    ) -> tuple[PutStatus, int, int, list[str], int]:
        """Stores a batch: status, queue, first queue offset, offset message ids, bytes; 0 bytes
        for one that is there already. Raises: Refused."""
        began = time.monotonic()
        wait = properties.get("WAIT") != "false"
        body = request.body if isinstance(request.body, bytes) else bytes(request.body)
        once = self.s.once if self.s.topics.is_once(request.topic) else None
        firsts = once.find_batch(request.topic, body) if once is not None else []
        if firsts:
            status = await self.safe(max(first.end for first in firsts), wait=wait)
            ids = [self.message_id(first.physical_offset) for first in firsts]
            return status, firsts[0].queue, firsts[0].queue_offset, ids, 0
        drop = set() if wait else {"WAIT"}
        if _each_has_id(body):
            drop.add("UNIQ_KEY")  # of the batch: behind an item's own it would win
        shared = {k: v for k, v in properties.items() if k not in drop}
        try:
            many = self.s.store.put_batch(
                request.topic, body, queue=queue, properties=shared, wait=wait,
                sys_flag=request.sys_flag, reconsume_times=request.reconsume_times,
                born_timestamp=request.born_timestamp, born_host=born_host, block=False,
            )  # fmt: skip
        except StoreError as failed:
            raise refused_put(failed, self.s) from failed
        if once is not None:
            once.add_batch(request.topic, body, many.physical_offsets)
        status = await self.safe(many.last_physical_end, wait=wait)
        ids = [self.message_id(at) for at in many.physical_offsets]
        self.s.statistics.put_times.took(time.monotonic() - began, len(ids))
        return status, queue, many.queue_offsets[0], ids, len(body)


def _each_has_id(body: bytes) -> bool:
    """Whether every item of a batch brings an UNIQ_KEY of its own."""
    at = 0
    while at + 20 <= len(body):
        size, _, _, _, length = _ITEM.unpack_from(body, at)
        start = at + 20 + length + 2
        if size <= 0 or length < 0 or not parse_properties(body[start : at + size]).get("UNIQ_KEY"):
            return False
        at += size
    return True


class UniqIds:
    """Ids as official clients make them, for messages that come without (section 11.4)."""

    def __init__(self, address: bytes) -> None:
        self._prefix = address + os.getpid().to_bytes(4, "big")[-2:] + os.urandom(4)
        self._count = 0

    def make(self) -> str:
        now = time.time()
        day = time.localtime(now)
        month = time.mktime((day.tm_year, day.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        self._count = (self._count + 1) & 0xFFFF
        since = int((now - month) * 1000) & 0xFFFFFFFF
        raw = self._prefix + since.to_bytes(4, "big") + self._count.to_bytes(2, "big")
        return raw.hex().upper()


def delay_level(properties: Mapping[str, str]) -> int:
    """DELAY as a number; what is none delays nothing."""
    try:
        return max(0, min(int(properties.get("DELAY", "0")), 1 << 30))
    except ValueError:
        return 0
