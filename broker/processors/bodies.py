"""Bodies of requests, read with care: each mistake of a client gets a remark that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.remoting import mqjson
from broker.remoting.codes import ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.mqjson import MessageQueue, queue_of

__all__ = ["integer", "items", "json_object", "message_queues", "text"]


def bad(what: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, what)


def json_object(command: Command) -> dict[str, Any]:
    """The body as an object. Raises: Refused."""
    try:
        found = mqjson.loads(command.body)
    except ValueError as problem:
        raise bad(f"the body of request {command.code} is not valid JSON: {problem}") from None
    if not isinstance(found, dict):
        raise bad(f"the body of request {command.code} is not a JSON object")
    return found


def text(value: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A member that is text; absent, null or empty: `default`. Raises: Refused."""
    found = value.get(name)
    if found is None or found == "":
        if default is None:
            raise bad(f"the body lacks {name}")
        return default
    if not isinstance(found, str):
        raise bad(f"{name} in the body is not a string")
    return found


def integer(value: Mapping[str, Any], name: str, default: int) -> int:
    """A member that is a number, or a number in quotes as Go sends them. Raises: Refused."""
    found = value.get(name)
    if found is None or found == "":
        return default
    try:
        number = int(found) if isinstance(found, str | int) else None
    except ValueError:
        number = None
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise bad(f"{name} in the body is not a number")
    return number


def items(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A member that is a list of objects; absent or null: empty. Raises: Refused."""
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise bad(f"{name} in the body is not a list of objects")
    return found


def message_queues(value: Mapping[str, Any], name: str) -> list[MessageQueue]:
    """A member that is a list of message queues. Raises: Refused."""
    queues = [queue_of(each) for each in items(value, name)]
    if None in queues:
        raise bad(f"{name} in the body contains an invalid message queue")
    return [queue for queue in queues if queue is not None]
