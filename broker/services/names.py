"""Names of topics and groups: which are legal, which are the broker's own
(docs/internals/wire.md#topics-and-names)."""

from __future__ import annotations

import re

from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from pystore.format.names import (
    BENCHMARK_TOPIC,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TOOLS_GROUP,
    TRACE_TOPIC,
    TRANSACTION_GROUP,
    is_system_topic,
)

__all__ = [
    "NOT_FOR_CLIENTS",
    "RESERVED_GROUPS",
    "SYSTEM_TOPICS",
    "check_group",
    "check_offsets_may_change",
    "check_topic",
    "is_legal",
    "is_system_group",
    "is_system_topic",
]

TOPIC_MAX = 127
GROUP_MAX = 255

#: Clients may not send to these; the broker itself writes to some of them.
NOT_FOR_CLIENTS = SYSTEM_TOPICS - {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

#: Groups that are always there.
RESERVED_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)


_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def is_legal(name: str) -> bool:
    """Returns whether a name has upstream's letters only."""
    return _LEGAL.fullmatch(name) is not None


def check_topic(name: str) -> None:
    """Checks the name of a topic. Raises: Refused with INVALID_PARAMETER, as 5.x answers."""
    _check("topic", name, TOPIC_MAX)


def check_group(name: str) -> None:
    """Checks the name of a group. Raises: Refused with INVALID_PARAMETER."""
    _check("group", name, GROUP_MAX)


def is_system_group(name: str) -> bool:
    """Returns whether a group is one that brokers have by themselves."""
    return name in RESERVED_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def check_offsets_may_change(group: str) -> None:
    """Protects the offsets of the broker's own groups (upstream's MixAll.isSysConsumerGroup), which
    say how far the broker itself has come. Raises: Refused with NO_PERMISSION."""
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"The group[{group:.260}] belongs to the broker; its offsets cannot be changed.",
        )


def _check(what: str, name: str, longest: int) -> None:
    if not name.strip():
        problem = f"The specified {what} is blank."
    elif not is_legal(name):
        problem = (
            f"The specified {what} contains illegal characters, allowing only"
            f" ^[%|a-zA-Z0-9_-]+$: {name:.60}"
        )
    elif len(name) > longest:
        problem = f"The specified {what} is longer than {what} max length {longest}."
    else:
        return
    raise Refused(ResponseCode.INVALID_PARAMETER, problem)
