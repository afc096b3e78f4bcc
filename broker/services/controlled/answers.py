"""What etcd answers, read before it is believed: whoever listens at its address may answer
anything. Every error is an OSError, after which another member is asked."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from broker.wire import mqjson
from broker.wire.jsonbody import LONG, TEXT, JsonMember, Shape, listed, mapping, required

__all__ = ["MalformedAnswer", "object_of", "ranges_of", "text_in", "value_of"]

_KV = Shape(
    key=required(TEXT), value=JsonMember(TEXT, ""), mod_revision=JsonMember(LONG, 0)
)  # fmt: skip
_RANGE = Shape(response_range=JsonMember(Shape(kvs=listed(_KV)), {"kvs": []}))
_GROUP: dict[str, JsonMember] = {
    "master": JsonMember(LONG, None),
    "epoch": JsonMember(LONG, 0),
    "in_sync": listed(LONG),
    "set_number": JsonMember(LONG, 0),
    "brokers": JsonMember(mapping(mapping(TEXT)), {}),
}
_VALUE = Shape(**_GROUP)


class MalformedAnswer(OSError):
    """etcd, or somebody in its place, answers what etcd does not."""


def object_of(text: bytes, where: str) -> dict[str, Any]:
    """Returns the answer of one member. Raises: MalformedAnswer."""
    try:
        found = mqjson.loads(text, 0)
    except ValueError as bad:
        raise MalformedAnswer(f"{where} answers no JSON: {bad}") from None
    if not isinstance(found, dict):
        raise MalformedAnswer(f"{where} answers no object")
    return found


def text_in(answer: Mapping[str, Any], name: str) -> str:
    """Returns a member that has to be there. Raises: MalformedAnswer."""
    found = answer.get(name)
    if not isinstance(found, str) or not found:
        raise MalformedAnswer(f"an answer of etcd has no {name}")
    return found


def ranges_of(answer: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns keys and values that the last two ranges of a transaction have found: `key` and
    `value` are decoded. Raises: MalformedAnswer."""
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) < 2:
        raise MalformedAnswer("an answer of etcd has no responses of two ranges")
    try:
        first, second = ([_decoded(row) for row in _rows(each)] for each in responses[-2:])
    except ValueError as bad:
        raise MalformedAnswer(f"an answer of etcd cannot be read: {bad}") from None
    return first, second


def _rows(response: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _RANGE(response)["response_range"]["kvs"]
    return found


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: base64.b64decode(row[name], validate=True).decode() for name in ("key", "value")}
    return {**row, **texts}


def value_of(text: str) -> dict[str, Any]:
    """Returns the members of a group's key. Raises: MalformedAnswer."""
    try:
        found = mqjson.loads(text.encode(), 0)
        unknown = found.keys() - _GROUP.keys() if isinstance(found, dict) else set()
        if unknown:  # a later version's would be lost with the next change
            raise ValueError(f"it has {', '.join(sorted(map(str, unknown)))[:200]}, which nobody"
                             " here knows")  # fmt: skip
        made = _VALUE(found)
        made["brokers"] = {name: dict(known or {}) for name, known in made["brokers"].items()}
        made["in_sync"] = list(made["in_sync"])
        if any(not name.isdecimal() or len(name) > 18 for name in made["brokers"]):
            raise ValueError("a broker has no number")
        if None in made["in_sync"]:
            raise ValueError("a member of in_sync has no number")
    except ValueError as bad:
        raise MalformedAnswer(f"the key of this broker's name cannot be read: {bad}") from None
    return made
