"""JSON bodies as RocketMQ writes them: maps keyed by a message queue
(docs/internals/wire.md#json-bodies).

The Java side writes such a map with the object itself as key, which no JSON parser takes, and
demands it of others. Go splits some of these texts by hand, so nothing here ever holds a blank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["JsonText", "MessageQueue", "dumps", "loads"]

#: Deeper than any body of the protocol; what is deeper is hostile.
_DEPTH_MAX = 64
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_SCALAR = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
#: A message queue as a key, as fastjson writes it.
_QUEUE_KEY = re.compile(
    r'\{"brokerName":"([^"\\]*)","queueId":(0|[1-9][0-9]{0,8}),"topic":"([^"\\]*)"\}:'
)
#: The text that stands for such a key meanwhile; no body that has its sign is read so.
_NUL, _STAND_IN = r"\u0000", r'"\\u0000\1\\u0000\2\\u0000\3":'
_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
_quoted: Callable[[str], str] = json.encoder.encode_basestring
_plain: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_string: Any = json.decoder.scanstring  # type: ignore[attr-defined]


class MessageQueue(NamedTuple):
    """One queue of one broker: a key in the maps of tools and clients.

    >>> from broker import MessageQueue
    >>> queue = MessageQueue("orders", "broker-a", 3)
    >>> queue.topic, queue.broker, queue.queue
    ('orders', 'broker-a', 3)
    """

    topic: str
    broker: str
    queue: int

    def as_json(self) -> dict[str, object]:
        """Returns it as JSON. Upstream leaves a null out; a queue without a broker is such a
        case."""
        named = {"brokerName": self.broker} if self.broker else {}
        return {**named, "queueId": self.queue, "topic": self.topic}


class JsonText(str):
    """A value that is JSON already."""

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> JsonText:
        return cls(_text(value))

    @classmethod
    def of_plain(cls, value: object) -> JsonText:
        """Returns the same for a value without message queues, in a third of the time."""
        text = _plain(value)
        return cls(_text(value) if "null" in text else text)  # members that are None are left out

    @classmethod
    def table(cls, members: Iterable[tuple[str, JsonText]]) -> JsonText:
        return cls("{" + ",".join([f"{_quoted(key)}:{text}" for key, text in members]) + "}")


def dumps(value: object) -> bytes:
    """Returns compact JSON. Keys may be texts, numbers (quoted) and message queues (as objects);
    members that are None are left out, as fastjson does; a message queue becomes its object."""
    return _text(value).encode("utf-8", "surrogatepass")


def _text(value: object) -> str:
    if type(value) is str:
        return _quoted(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, MessageQueue):
        value = value.as_json()
    if isinstance(value, Mapping):
        members = [f"{_key(k)}:{_text(v)}" for k, v in value.items() if v is not None]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ",".join(map(_text, value)) + "]"
    if type(value) is JsonText:
        return value
    return json.dumps(value, ensure_ascii=False)


def _key(key: object) -> str:
    return _text(key) if isinstance(key, MessageQueue) else _quoted(str(key))


def loads(data: bytes | bytearray | memoryview, lax_max: int | None = None) -> Any:
    """Returns the value of a body: strict JSON, or what fastjson accepts besides: objects, bare
    numbers and words as keys, single quotes, comments, a comma before the closing bracket. lax_max:
    the longest body that is read so, since that is slow; None sets no limit.

    A key that is a message queue comes as MessageQueue, any other as text. Raises: ValueError that
    says what is wrong."""
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as bad:
        raise ValueError(f"byte {bad.start} of the body is not valid UTF-8") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    except ValueError as strict:
        found = _with_queues(text)
        if found is not None:
            return found
        if lax_max is not None and len(text) > lax_max:
            raise ValueError(
                f"a body over {lax_max} bytes has to be strict JSON: {strict}"
            ) from None
        value, end = _value(text, _skip(text, 0), 0)
        if _skip(text, end) != len(text):
            raise ValueError(
                f"unexpected bytes after the JSON value, at byte {end} of the body"
            ) from None
        return value


def _with_queues(text: str) -> Any:
    """Returns the value of a body that is strict but for keys that are message queues, or None.
    Lags of a large broker are megabytes of that, which the reader below takes seconds for."""
    if _NUL in text:
        return None
    strict, count = _QUEUE_KEY.subn(_STAND_IN, text)
    if not count:
        return None
    try:
        return json.loads(strict, object_pairs_hook=_members)
    except (ValueError, RecursionError):
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if key[:1] == "\0":
            _, broker, queue, topic = key.split("\0")
            made[MessageQueue(topic, broker, int(queue))] = value
        else:
            made[key] = value
    return made


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int, *, key: bool = False) -> tuple[Any, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("the body is nested too deeply")
    first = text[at : at + 1]
    if first == "{":
        return _object(text, at + 1, depth)
    if first == "[":
        return _array(text, at + 1, depth)
    if first == '"':
        made: tuple[str, int] = _string(text, at + 1)
        return made
    if first == "'" and (quoted := _SINGLE.match(text, at)):
        return json.loads('"' + _ESCAPE.sub(_requoted, quoted[1]) + '"'), quoted.end()
    found = _SCALAR.match(text, at)
    if found is not None:
        return json.loads(found[0]), found.end()
    if key and (word := _WORD.match(text, at)):
        return word[0], word.end()
    raise ValueError(f"the body is not valid JSON at byte {at}")


def _requoted(part: re.Match[str]) -> str:
    """Returns an escape, or a double quote, of a text in single quotes, as one in double quotes has
    it."""
    return {"\\'": "'", '"': '\\"'}.get(part[0], part[0])


def _object(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    made: dict[Any, Any] = {}
    at = _skip(text, at)
    while text[at : at + 1] != "}":
        key, at = _value(text, at, depth + 1, key=True)
        at = _expect(text, at, ":")
        made[_as_key(key)], at = _value(text, at, depth + 1)
        at = _skip(text, at)
        if text[at : at + 1] != "}":
            at = _expect(text, at, ",")
    return made, at + 1


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    at = _skip(text, at)
    while text[at : at + 1] != "]":
        item, at = _value(text, at, depth + 1)
        made.append(item)
        at = _skip(text, at)
        if text[at : at + 1] != "]":
            at = _expect(text, at, ",")
    return made, at + 1


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"expected '{sign}' at byte {at} of the body")
    return _skip(text, at + 1)


def _as_key(key: object) -> MessageQueue | str:
    if isinstance(key, dict):
        queue = queue_of(key)
        return _text(key) if queue is None else queue
    return key if isinstance(key, str) else json.dumps(key)


def queue_of(value: object) -> MessageQueue | None:
    """Returns the message queue that a JSON object stands for, or None when it is malformed."""
    if not isinstance(value, Mapping):
        return None
    topic, broker, queue = (value.get(name) for name in ("topic", "brokerName", "queueId"))
    if isinstance(topic, str) and isinstance(broker, str) and type(queue) is int:
        return MessageQueue(topic, broker, queue)
    return None
