"""A message to a request, an answer to a result, and whether another attempt is worth it. No I/O.

The checks are those of upstream's client, made before anything is sent.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from broker.client._messages import encode, results
from broker.client.errors import BrokerRefused, ClientError, InvalidMessage, Misuse, reading
from broker.client.ids import key_source, new_unique_key, new_unique_keys
from broker.client.lite import check_lite_topic
from broker.client.message import Message, SendResult, SendStatus
from broker.client.records import BATCH_ITEM, encode_batch
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import BINARY, Command
from broker.wire.mqjson import MessageQueue
from pystore.format.names import (
    DISCARD_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TEMPLATE_TOPIC,
)
from pystore.format.properties import (
    LITE_TOPIC,
    MULTI_DISPATCH,
    MULTI_OFFSET,
    PRIORITY,
    is_joined,
    joined,
    pair,
)

__all__ = [
    "COMPRESSIONS", "PROTOCOL_PROPERTIES", "RETRY_CODES", "Answer", "PreparedSend", "SendRules",
    "answer_of", "cut_batches", "fixed_fields", "prepare", "result_of", "results_of",
]  # fmt: skip

TOPIC_MAX = 127
#: Of a group's: the longest name that a topic of the broker's can have.
RETRY_TOPIC_MAX = 255 + len(RETRY_PREFIX)
PROPERTIES_MAX = 32767
#: Answers after which another broker may do better (DefaultMQProducer.retryResponseCodes).
RETRY_CODES = frozenset((17, 14, 1, 2, 16, 204, 205))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STORED = {status.value: status for status in SendStatus}

_LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_NOT_FOR_CLIENTS = frozenset(
    (
        SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC,
        DISCARD_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
    )
)  # fmt: skip
#: Properties that the client or the broker sets: a user's value would be lost or do harm.
_RESERVED = frozenset(
    (
        "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID",
        "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MSG_REGION",
        "TRACE_ON", "CLUSTER", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
        "__transactionId__", "POP_CK", "MIN_OFFSET", "MAX_OFFSET", PRIORITY,
        LITE_TOPIC, MULTI_DISPATCH, MULTI_OFFSET,
    )
)  # fmt: skip
#: The others that brokers and clients put beside the user's.
PROTOCOL_PROPERTIES = _RESERVED | frozenset(
    (
        "BUYER_ID", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME",
        "PUSH_REPLY_TIME", "MSG_TYPE", "CONSUME_START_TIME", "INNER_NUM", "INNER_BASE",
        "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "1ST_POP_TIME", "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY",
        "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#",
    )
)  # fmt: skip
_COMPRESSED = 1
#: Of Java's int, as which brokers read it.
_PRIORITY_MAX = 2**31 - 1
HALF = 4


def _lz4(body: bytes) -> bytes:
    import lz4.frame

    made: bytes = lz4.frame.compress(body)
    return made


def _zstd(body: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


#: By name: bits 8 to 10 of sysFlag, and how.
COMPRESSIONS: Mapping[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib": (3, lambda body: zlib.compress(body, 5)),
    "lz4": (1, _lz4),
    "zstd": (2, _zstd),
}


@dataclass(frozen=True, slots=True)
class SendRules:
    """group: of the producer. compress_over: bytes of a body from which on it is compressed; 0:
    never. message_max: bytes of a body that brokers take. namespace: put before topics and groups.
    delay_levels: how many levels brokers have.
    """

    group: str
    compression: str = "zlib"
    compress_over: int = 4096
    message_max: int = 4 << 20
    create_queues: int = 4
    namespace: str = ""
    delay_levels: int = 18

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            names = ", ".join(COMPRESSIONS)
            raise Misuse(f"there is no compression '{self.compression}'; use one of {names}")


def check_name(what: str, name: str, longest: int) -> None:
    """Checks the name of a topic or a group. Raises: InvalidMessage for a topic or group that no
    broker takes."""
    if not isinstance(name, str):
        raise InvalidMessage(f"the {what} is {type(name).__name__}; pass its name as text")
    if not _LEGAL_TOPIC.fullmatch(name):
        raise InvalidMessage(
            f"the {what} {name[:60]!r} is blank or holds other characters than letters, digits and"
            " % | - _; rename it"
        )
    if len(name) > longest:
        raise InvalidMessage(f"the {what} has {len(name)} characters, {longest} are allowed")


class PreparedSend:
    """A request that sends one message or a batch, ready but for the queue.

    keys: unique keys of the messages in it. properties: encoded. batch: the body is one of a batch.
    timed: its answer may have a recall handle. lite_topic: whose queue it goes to.
    """

    __slots__ = (
        "batch", "body", "born_ms", "code", "flag", "keys", "lite_topic", "properties", "rules",
        "sys_flag", "timed", "topic",
    )  # fmt: skip

    def __init__(
        self,
        rules: SendRules,
        topic: str,
        properties: str,
        body: bytes,
        keys: Sequence[str],
        sys_flag: int = 0,
        flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        batch: bool = False,
    ) -> None:
        self.rules = rules
        self.code = code
        self.topic = topic
        self.properties = properties
        self.body = body
        self.keys = keys
        self.sys_flag = sys_flag
        self.flag = flag
        self.batch = batch
        self.timed = False
        self.lite_topic: str | None = None
        self.born_ms = time.time_ns() // 1_000_000

    @property
    def goes_anywhere(self) -> bool:
        """Whether any queue takes it, and a short answer."""
        return not self.timed and self.lite_topic is None

    def command(self, queue: MessageQueue) -> Command:
        """Makes the request that sends it to a queue."""
        ext = fixed_fields(self.rules, self.topic, queue, self.batch)
        ext |= {
            "f": str(self.sys_flag), "g": str(self.born_ms), "h": str(self.flag),
            "i": self.properties,
        }  # fmt: skip
        return Command(self.code, ext, self.body, serialize=BINARY)


def fixed_fields(rules: SendRules, topic: str, queue: MessageQueue, batch: bool) -> dict[str, str]:
    """Makes the fields that are the same for all messages to a queue."""
    return {
        "a": rules.group, "b": topic, "c": TEMPLATE_TOPIC, "d": str(rules.create_queues),
        "e": str(queue.queue), "j": "0", "k": "false", "m": "true" if batch else "false",
        "n": queue.broker,
    }  # fmt: skip


#: What follows UNIQ_KEY in the properties of a message that has nothing of its own.
_PLAIN = pair("WAIT", "true")


def properties_of(message: Message, key: str) -> str:
    """Returns all properties of a message that goes out, encoded. Raises: InvalidMessage."""
    if not (message.tags or message.keys or message.properties or message.delay_level) and (
        message.wait_stored is True and not message.waits
        and message.priority is None and message.lite_topic is None
    ):  # fmt: skip
        return pair("UNIQ_KEY", key) + _PLAIN
    _check_types(message)
    text = pair("UNIQ_KEY", key) + pair("WAIT", "true" if message.wait_stored else "false")
    count = 2
    if message.tags:
        text += pair("TAGS", message.tags)
        count += 1
    if message.keys:
        keys = message.keys
        text += pair("KEYS", keys if isinstance(keys, str) else " ".join(keys))
        count += 1
    if message.delay_level:
        if message.delay_level < 0:
            raise InvalidMessage(f"delay_level {message.delay_level} is negative; 0 means at once")
        text += pair("DELAY", message.delay_level)
        count += 1
    if message.deliver_at_ms is not None or message.delay is not None:
        text += _time_of(message)
        count += 1
    if message.priority is not None:
        text += _priority_of(message)
        count += 1
    if message.lite_topic is not None:
        text += _lite_topic_of(message)
        count += 1
    if message.properties:
        for name, value in message.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidMessage(f"names and values of properties are texts, {name!r} is not")
            if not name:
                raise InvalidMessage("a property has an empty name, which brokers refuse")
            if name in _RESERVED:
                raise InvalidMessage(
                    f"the property {name} belongs to the protocol; use the fields of Message, or"
                    " another name"
                )
            text += pair(name, value)
        count += len(message.properties)
    return checked_properties(text, count)


def _priority_of(message: Message) -> str:
    """Makes the property that asks for the message's priority. Raises: InvalidMessage."""
    priority = message.priority
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _wrong("priority", priority, "a whole number")
    if not 0 <= priority <= _PRIORITY_MAX:
        raise InvalidMessage(f"priority {priority} is not from 0 to {_PRIORITY_MAX}")
    if message.waits:
        raise InvalidMessage(
            "a message that waits for a time has no priority: brokers would drop it"
        )
    return pair(PRIORITY, priority)


def _lite_topic_of(message: Message) -> str:
    """Makes the property that names the message's lite topic. Raises: InvalidMessage."""
    check_lite_topic(message.lite_topic)
    if message.waits or message.priority is not None:
        raise InvalidMessage(
            "a message to a lite topic has neither a time nor a priority: it would not be of the"
            " type LITE"
        )
    return pair(LITE_TOPIC, message.lite_topic)


def _time_of(message: Message) -> str:
    """Makes the property that asks for the message's time. Raises: InvalidMessage."""
    delay = message.delay
    if delay is None:
        return pair("TIMER_DELIVER_MS", message.deliver_at_ms)
    if message.deliver_at_ms is not None or message.delay_level:
        raise InvalidMessage("give one of delay, deliver_at_ms and delay_level: each names a time")
    if isinstance(delay, timedelta):
        return pair("TIMER_DELAY_MS", delay // timedelta(milliseconds=1))
    if not isinstance(delay, datetime):
        raise InvalidMessage(
            f"delay of the message is {type(delay).__name__}, not timedelta or datetime"
        )
    if delay.tzinfo is None:
        raise InvalidMessage("delay is a datetime without a time zone: give it one, as UTC")
    return pair("TIMER_DELIVER_MS", (delay - _EPOCH) // timedelta(milliseconds=1))


def _check_types(message: Message) -> None:
    """Checks what would else be sent as whatever text Python makes of it. Raises:
    InvalidMessage."""
    tags, keys, properties = message.tags, message.keys, message.properties
    if tags and not isinstance(tags, str):
        raise _wrong("tags", tags, "a text")
    if keys and not isinstance(keys, str):
        if not isinstance(keys, Iterable):
            raise _wrong("keys", keys, "a text or several")
        for key in keys:
            if not isinstance(key, str):
                raise _wrong("keys", key, "texts")
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise _wrong("properties", properties, "a mapping")
    if not isinstance(message.delay_level, int):
        raise _wrong("delay_level", message.delay_level, "a whole number")
    if not isinstance(message.wait_stored, bool):
        raise _wrong("wait_stored", message.wait_stored, "True or False")
    if message.deliver_at_ms is not None and not isinstance(message.deliver_at_ms, int):
        raise _wrong("deliver_at_ms", message.deliver_at_ms, "a whole number")


def _wrong(name: str, value: object, wanted: str) -> InvalidMessage:
    return InvalidMessage(f"{name} of the message: {type(value).__name__} given, {wanted} wanted")


def encoded(properties: Mapping[str, str]) -> str:
    """Encodes properties in the form of the wire. Raises: InvalidMessage."""
    return checked_properties(joined(properties), len(properties))


def checked_properties(text: str, count: int) -> str:
    """Returns encoded properties that fit into a record. count: of the pairs in it. Raises:
    InvalidMessage."""
    if not is_joined(text, count):
        raise InvalidMessage("a property, tag or key holds one of the characters 0x01 and 0x02")
    if len(text) > PROPERTIES_MAX or (
        len(text) * 3 > PROPERTIES_MAX and len(text.encode("utf-8", "replace")) > PROPERTIES_MAX
    ):
        raise InvalidMessage(f"the properties are larger than {PROPERTIES_MAX} bytes; shorten them")
    return text


#: Topics that were found legal.
_legal_topics: set[str] = set()


def check_message(message: Message, rules: SendRules) -> str:
    """Returns the full topic of a message that may be sent. Raises: InvalidMessage."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"{type(message).__name__} is sent; send Message(topic, body)")
    topic = message.topic
    if rules.namespace and isinstance(topic, str):
        topic = with_namespace(topic, rules.namespace)
    if not isinstance(topic, str) or topic not in _legal_topics:
        check_name("topic", topic, TOPIC_MAX)
        if topic in _NOT_FOR_CLIENTS:
            raise InvalidMessage(f"the topic {topic} belongs to the broker; choose another")
        if len(_legal_topics) < 10_000:
            _legal_topics.add(topic)
    flag = message.flag
    if not (isinstance(flag, int) and -(1 << 31) <= flag < 1 << 31):
        raise InvalidMessage(f"the flag {flag!r} is not a number of 32 bits")
    level = message.delay_level
    if level and isinstance(level, int) and level > rules.delay_levels:
        raise InvalidMessage(
            f"delay_level {level}: brokers have levels 1 to {rules.delay_levels} and take any other"
            " for the last; ask for a time with delay=, or set delay_levels of the producer"
        )
    body = message.body
    if not isinstance(body, bytes):
        raise InvalidMessage(f"the body is {type(body).__name__}; encode it to bytes")
    if not body:
        raise InvalidMessage(f"the message to {topic} has an empty body; brokers refuse it")
    if len(body) > rules.message_max:
        raise InvalidMessage(
            f"the body has {len(body)} bytes, {rules.message_max} are allowed; raise message_max"
            " here and maxMessageSize of the broker, or store the content elsewhere"
        )
    return topic


def with_namespace(name: str, namespace: str) -> str:
    """Returns ``namespace%name``, with the prefix of retry and dead-letter topics outermost.
    Raises: InvalidMessage."""
    if not isinstance(name, str):
        raise InvalidMessage(f"a topic or group is {type(name).__name__}; pass its name as text")
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + with_namespace(name[len(prefix) :], namespace)
    return name if name.startswith(f"{namespace}%") else f"{namespace}%{name}"


def without_namespace(name: str, namespace: str) -> str:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + without_namespace(name[len(prefix) :], namespace)
    return name.removeprefix(f"{namespace}%") if namespace else name


def prepare(
    message: Message,
    rules: SendRules,
    *,
    extra: Mapping[str, str] | None = None,
    sys_flag: int = 0,
    code: int = RequestCode.SEND_MESSAGE_V2,
    key: str | None = None,
) -> PreparedSend:
    """Makes the request of a message. key: its unique key, by default a new one. Raises:
    InvalidMessage."""
    topic = check_message(message, rules)
    body = message.body
    if key is None:
        key = new_unique_key()
    properties = properties_of(message, key)
    if message.priority is not None and sys_flag & HALF:
        raise InvalidMessage("a message in a transaction has no priority: brokers would drop it")
    if message.lite_topic is not None and sys_flag & HALF:
        raise InvalidMessage(
            "a message in a transaction has no lite topic: it would not be of the type LITE"
        )
    if extra:
        properties += encoded(extra)
    if rules.compress_over and len(body) >= rules.compress_over:
        bits, compress = COMPRESSIONS[rules.compression]
        body = compress(body)
        sys_flag |= _COMPRESSED | bits << 8
    made = PreparedSend(rules, topic, properties, body, (key,), sys_flag, message.flag, code)
    made.timed = message.deliver_at_ms is not None or message.delay is not None
    made.lite_topic = message.lite_topic
    return made


# ---- batches ----


class _Part:
    """The messages that are gathered for one request."""

    __slots__ = ("bodies", "flags", "indexes", "keys", "properties", "size")

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.flags: list[int] = []
        self.bodies: list[bytes] = []
        self.properties: list[bytes] = []
        self.keys: list[str] = []
        self.size = 0


def cut_batches(
    messages: Sequence[Message], rules: SendRules, batch_max: int
) -> Iterator[tuple[Sequence[int], PreparedSend]]:
    """Makes requests of at most batch_max bytes each, with the indexes of their messages. A batch
    has one topic and one wait_stored; delays are not allowed. Raises: InvalidMessage."""
    listed, at = messages if type(messages) is list else list(messages), 0
    while at < len(listed) and (batches := _plain_batches(listed, at, rules, batch_max)):
        for outgoing in batches:
            yield range(at, at + len(outgoing.keys)), outgoing
            at += len(outgoing.keys)
    for indexes, outgoing in _cut_any(listed[at:] if at else listed, rules, batch_max):
        yield [at + index for index in indexes] if at else indexes, outgoing


def _plain_batches(
    messages: list[Message], at: int, rules: SendRules, batch_max: int
) -> list[PreparedSend]:
    """Makes requests of the messages from number `at` on, as far as they are plain and of one
    topic."""
    first = messages[at]
    if type(first) is not Message or str(first.topic).startswith(RETRY_PREFIX):
        return []
    start, numbers = key_source()
    made = encode(messages, at, rules.message_max, batch_max, start, numbers)
    if made is None:
        return []
    topic = check_message(first, rules)
    return [_batch_of(topic, True, body, keys, rules) for body, keys in made]


def _cut_any(
    messages: Sequence[Message], rules: SendRules, batch_max: int
) -> Iterator[tuple[Sequence[int], PreparedSend]]:
    """Makes requests of messages that need a look each. Raises: InvalidMessage."""
    parts: dict[tuple[str, bool], _Part] = {}
    full: list[tuple[tuple[str, bool], _Part]] = []
    keys = new_unique_keys(len(messages))
    for index, message in enumerate(messages):
        topic = check_message(message, rules)
        if message.waits:
            raise InvalidMessage("a message with a delay cannot be in a batch; send it alone")
        if message.priority is not None:
            raise InvalidMessage("a message with a priority cannot be in a batch; send it alone")
        if message.lite_topic is not None:
            raise InvalidMessage("a message to a lite topic cannot be in a batch; send it alone")
        if topic.startswith(RETRY_PREFIX):
            raise InvalidMessage("a retry topic takes no batches; send the messages one by one")
        key = keys[index]
        properties = properties_of(message, key).encode("utf-8", "replace")
        kind = (topic, message.wait_stored)
        part = parts.get(kind)
        body = message.body
        size = BATCH_ITEM + len(body) + len(properties)
        if part is None or part.size + size > batch_max:
            part = parts[kind] = _Part()
            full.append((kind, part))
        part.indexes.append(index)
        part.flags.append(message.flag)
        part.bodies.append(body)
        part.properties.append(properties)
        part.keys.append(key)
        part.size += size
    for (topic, wait), part in full:
        body = encode_batch(part.flags, part.bodies, part.properties)
        yield part.indexes, _batch_of(topic, wait, body, part.keys, rules)


def _batch_of(
    topic: str, wait: bool, body: bytes, keys: list[str], rules: SendRules
) -> PreparedSend:
    properties = pair("WAIT", "true" if wait else "false")
    code = RequestCode.SEND_BATCH_MESSAGE
    return PreparedSend(rules, topic, properties, body, keys, code=code, batch=True)


# ---- answers ----


class Answer(NamedTuple):
    """What the answer to a send says. ids: offset message ids, with commas between them."""

    code: int
    queue: int
    offset: int
    ids: str
    transaction: str
    handle: str = ""


def answer_of(command: Command, queue: MessageQueue, address: str) -> Answer:
    """Reads the answer to a send. queue: the one that it was sent to, where the answer names none.
    address: who answered. Raises: BadAnswer."""
    with reading(f"a send to {queue.topic}", address):
        return _answer_of(command, queue)


def _answer_of(command: Command, queue: MessageQueue) -> Answer:
    ext = command.ext
    return Answer(
        command.code,
        int(ext.get("queueId", queue.queue)),
        int(ext.get("queueOffset", -1)),
        ext.get("msgId", ""),
        ext.get("transactionId", ""),
        ext.get("recallHandle", ""),
    )


def result_of(outgoing: PreparedSend, queue: MessageQueue, answer: Answer) -> SendResult:
    """Makes the result of a single message that the broker stored; its status is in STORED."""
    code, number, offset, ids, transaction, handle = answer
    return SendResult(
        STORED[code],
        outgoing.keys[0],
        ids,
        queue if number == queue.queue else queue._replace(queue=number),
        offset,
        transaction or None,
        handle or None,
    )


def results_of(outgoing: PreparedSend, queue: MessageQueue, answer: Answer) -> list[SendResult]:
    """Makes the results of a batch, in its order."""
    status, where = STORED[answer.code], queue
    keys = outgoing.keys
    assert isinstance(keys, list)
    if answer.queue != queue.queue:
        where = queue._replace(queue=answer.queue)
    return results(status, keys, answer.ids, where, answer.offset)


def has_moved(error: ClientError) -> bool:
    """Says whether another broker leads the logical queue now. Nothing was stored."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE


def may_retry(code: int) -> bool:
    """Says whether another broker may do better."""
    return code in RETRY_CODES or code in (ResponseCode.GO_AWAY, ResponseCode.NOT_LEADER_FOR_QUEUE)
