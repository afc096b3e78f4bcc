"""A message to a request, an answer to a result, and whether another attempt is worth it. No I/O.

The checks are those of upstream's client, made before anything is sent.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.client.errors import InvalidMessage, Misuse
from broker.client.ids import new_unique_key
from broker.client.message import Message, SendResult, SendStatus
from broker.client.records import batched_size, encode_batch
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import BINARY, Command
from broker.remoting.mqjson import MessageQueue

__all__ = [
    "COMPRESSIONS", "PROTOCOL_PROPERTIES", "RETRY_CODES", "Outgoing", "SendRules", "cut_batches",
    "prepare", "prepare_batch", "result_of",
]  # fmt: skip

TOPIC_MAX = 127
PROPERTIES_MAX = 32767
#: Answers after which another broker may do better (DefaultMQProducer.retryResponseCodes).
RETRY_CODES = frozenset((17, 14, 1, 2, 16, 204, 205))
STORED = {status.value: status for status in SendStatus}

_LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_NOT_FOR_CLIENTS = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    )
)  # fmt: skip
#: Properties that the client or the broker sets: a user's value would be lost or do harm.
_RESERVED = frozenset(
    (
        "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID",
        "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MSG_REGION",
        "TRACE_ON", "CLUSTER", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
        "__transactionId__", "POP_CK", "MIN_OFFSET", "MAX_OFFSET",
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
    """

    group: str
    compression: str = "zlib"
    compress_over: int = 4096
    message_max: int = 4 << 20
    create_queues: int = 4
    namespace: str = ""

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            names = ", ".join(COMPRESSIONS)
            raise Misuse(f"there is no compression '{self.compression}'; use one of {names}")


def check_name(what: str, name: str, longest: int) -> None:
    """Raises: InvalidMessage for a topic or group that no broker takes."""
    if not _LEGAL_TOPIC.fullmatch(name):
        raise InvalidMessage(
            f"the {what} {name[:60]!r} is blank or holds other characters than letters, digits and"
            " % | - _; rename it"
        )
    if len(name) > longest:
        raise InvalidMessage(f"the {what} has {len(name)} characters, {longest} are allowed")


class Outgoing:
    """A request that sends one message or a batch, ready but for the queue."""

    __slots__ = ("body", "code", "ext", "keys", "topic")

    def __init__(
        self, code: int, topic: str, ext: dict[str, str], body: bytes, keys: Sequence[str]
    ) -> None:
        self.code = code
        self.topic = topic
        self.ext = ext
        self.body = body
        #: Unique keys of the messages in it.
        self.keys = keys

    def command(self, queue: MessageQueue) -> Command:
        """The request that sends it to a queue."""
        ext = self.ext
        ext["e"] = str(queue.queue)
        ext["n"] = queue.broker
        return Command(self.code, ext, self.body, serialize=BINARY)


def properties_of(message: Message, key: str) -> str:
    """All properties of a message that goes out, encoded. Raises: InvalidMessage."""
    text = f"UNIQ_KEY\x01{key}\x02WAIT\x01{'true' if message.wait_stored else 'false'}\x02"
    count = 2
    if message.tags:
        text += f"TAGS\x01{message.tags}\x02"
        count += 1
    if message.keys:
        keys = message.keys
        text += f"KEYS\x01{keys if isinstance(keys, str) else ' '.join(keys)}\x02"
        count += 1
    if message.delay_level:
        if message.delay_level < 0:
            raise InvalidMessage(f"delay_level {message.delay_level} is negative; 0 means at once")
        text += f"DELAY\x01{message.delay_level}\x02"
        count += 1
    if message.deliver_at_ms is not None:
        text += f"TIMER_DELIVER_MS\x01{message.deliver_at_ms}\x02"
        count += 1
    if message.properties:
        for name, value in message.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidMessage(f"names and values of properties are texts, {name!r} is not")
            if name in _RESERVED:
                raise InvalidMessage(
                    f"the property {name} belongs to the protocol; use the fields of Message, or"
                    " another name"
                )
            text += f"{name}\x01{value}\x02"
        count += len(message.properties)
    return checked_properties(text, count)


def encoded(properties: Mapping[str, str]) -> str:
    """Properties in the form of the wire. Raises: InvalidMessage."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    return checked_properties(text, len(properties))


def checked_properties(text: str, count: int) -> str:
    """count: of the pairs in it. Raises: InvalidMessage."""
    if text.count("\x01") != count or text.count("\x02") != count:
        raise InvalidMessage("a property, tag or key holds one of the characters 0x01 and 0x02")
    if len(text) > PROPERTIES_MAX or (
        len(text) * 3 > PROPERTIES_MAX and len(text.encode("utf-8", "replace")) > PROPERTIES_MAX
    ):
        raise InvalidMessage(f"the properties are larger than {PROPERTIES_MAX} bytes; shorten them")
    return text


#: Topics that were found legal.
_legal_topics: set[str] = set()


def check_message(message: Message, rules: SendRules) -> str:
    """The full topic of a message that may be sent. Raises: InvalidMessage."""
    topic = message.topic
    if rules.namespace:
        topic = with_namespace(topic, rules.namespace)
    if topic not in _legal_topics:
        check_name("topic", topic, TOPIC_MAX)
        if topic in _NOT_FOR_CLIENTS:
            raise InvalidMessage(f"the topic {topic} belongs to the broker; choose another")
        if len(_legal_topics) < 10_000:
            _legal_topics.add(topic)
    body = message.body
    if not body:
        raise InvalidMessage(f"the message to {topic} has an empty body; brokers refuse it")
    if not isinstance(body, bytes):
        raise InvalidMessage(f"the body is {type(body).__name__}; encode it to bytes")
    if len(body) > rules.message_max:
        raise InvalidMessage(
            f"the body has {len(body)} bytes, {rules.message_max} are allowed; raise message_max"
            " here and maxMessageSize of the broker, or store the content elsewhere"
        )
    return topic


def with_namespace(name: str, namespace: str) -> str:
    """``namespace%name``, with the prefix of retry and dead-letter topics outermost."""
    if not namespace:
        return name
    for prefix in ("%RETRY%", "%DLQ%"):
        if name.startswith(prefix):
            return prefix + with_namespace(name[len(prefix) :], namespace)
    return name if name.startswith(f"{namespace}%") else f"{namespace}%{name}"


def without_namespace(name: str, namespace: str) -> str:
    for prefix in ("%RETRY%", "%DLQ%"):
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
) -> Outgoing:
    """Raises: InvalidMessage."""
    topic = check_message(message, rules)
    body = message.body
    key = new_unique_key()
    properties = properties_of(message, key)
    if extra:
        properties += encoded(extra)
    if rules.compress_over and len(body) >= rules.compress_over:
        bits, compress = COMPRESSIONS[rules.compression]
        body = compress(body)
        sys_flag |= _COMPRESSED | bits << 8
    ext = {
        "a": rules.group, "b": topic, "c": "TBW102", "d": str(rules.create_queues), "e": "0",
        "f": str(sys_flag), "g": str(time.time_ns() // 1_000_000), "h": str(message.flag),
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Outgoing(code, topic, ext, body, (key,))


# ---- batches ----


class _Part:
    """What is gathered for one request."""

    __slots__ = ("indexes", "items", "keys", "size")

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.items: list[tuple[int, bytes, bytes]] = []
        self.keys: list[str] = []
        self.size = 0


def cut_batches(
    messages: Sequence[Message], rules: SendRules, batch_max: int
) -> Iterator[tuple[Sequence[int], Outgoing]]:
    """Requests of at most batch_max bytes each, with the indexes of their messages. A batch has one
    topic and one wait_stored; delays are not allowed. Raises: InvalidMessage."""
    parts: dict[tuple[str, bool], _Part] = {}
    full: list[tuple[tuple[str, bool], _Part]] = []
    for index, message in enumerate(messages):
        topic = check_message(message, rules)
        if message.delay_level or message.deliver_at_ms is not None:
            raise InvalidMessage("a message with a delay cannot be in a batch; send it alone")
        if topic.startswith("%RETRY%"):
            raise InvalidMessage("a retry topic takes no batches; send the messages one by one")
        key = new_unique_key()
        properties = properties_of(message, key).encode("utf-8", "replace")
        kind = (topic, message.wait_stored)
        part = parts.get(kind)
        size = batched_size(message.body, properties)
        if part is None or part.size + size > batch_max:
            part = parts[kind] = _Part()
            full.append((kind, part))
        part.indexes.append(index)
        part.items.append((message.flag, message.body, properties))
        part.keys.append(key)
        part.size += size
    for (topic, wait), part in full:
        yield part.indexes, prepare_batch(topic, wait, part, rules)


def prepare_batch(topic: str, wait: bool, part: _Part, rules: SendRules) -> Outgoing:
    ext = {
        "a": rules.group, "b": topic, "c": "TBW102", "d": str(rules.create_queues), "e": "0",
        "f": "0", "g": str(time.time_ns() // 1_000_000), "h": "0",
        "i": f"WAIT\x01{'true' if wait else 'false'}\x02", "j": "0", "k": "false", "m": "true",
    }  # fmt: skip
    body = encode_batch(part.items)
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, topic, ext, body, part.keys)


# ---- answers ----


def result_of(outgoing: Outgoing, queue: MessageQueue, answer: Command) -> SendResult:
    """The result of a single message that the broker stored; its status is in STORED."""
    ext = answer.ext
    number = int(ext.get("queueId", queue.queue))
    return SendResult(
        STORED[answer.code],
        outgoing.keys[0],
        ext.get("msgId", ""),
        queue if number == queue.queue else queue._replace(queue=number),
        int(ext.get("queueOffset", -1)),
        ext.get("transactionId") or None,
    )


def results_of(outgoing: Outgoing, queue: MessageQueue, answer: Command) -> list[SendResult]:
    """The results of a batch, in its order."""
    ext = answer.ext
    status = STORED[answer.code]
    ids = ext.get("msgId", "").split(",")
    first = int(ext.get("queueOffset", -1))
    where = MessageQueue(queue.topic, queue.broker, int(ext.get("queueId", queue.queue)))
    if len(ids) != len(outgoing.keys):
        ids = ids[:1] * len(outgoing.keys)
    return [
        SendResult(status, key, ids[n], where, first + n) for n, key in enumerate(outgoing.keys)
    ]


def is_stored(answer: Command) -> bool:
    return answer.code in STORED


def may_retry(code: int) -> bool:
    """Whether another broker may do better."""
    return code in RETRY_CODES or code == ResponseCode.GO_AWAY
