"""What a request needs, in words that both kinds of access control understand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from broker.wire.command import Command
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX

__all__ = [
    "AccessAction",
    "AccessRequest",
    "Ask",
    "Need",
    "ResourceKind",
    "Verdict",
    "bare_group",
    "topic_need",
]


class ResourceKind(StrEnum):
    """The kind of a resource that rights are about."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class AccessAction(StrEnum):
    """An action on a resource. ANY cannot be given to anybody."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


@dataclass(frozen=True, slots=True)
class Need:
    """An action, one of `actions`, on one resource that a request asks for. shown: what a refusal
    says in place of the name, where the name is not for the asker."""

    kind: ResourceKind
    name: str
    actions: tuple[AccessAction, ...]
    shown: str = ""

    def __str__(self) -> str:
        return f"{'|'.join(self.actions)} on {self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """A request as the rules see it. All needs must be met. admin: for administrators alone."""

    code: int
    needs: Sequence[Need] = ()
    admin: bool = False


#: What a request needs. Raises: Refused for a body that cannot be read.
Ask = Callable[[Command], AccessRequest]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules decided. allowed: else code and remark are the answer's. rule: what decided,
    for people. proven: of a refusal, the user or account whose signature was right; empty when
    nobody's was."""

    allowed: bool
    rule: str
    code: int = 0
    remark: str = ""
    proven: str = ""


#: What consumers and producers do to a topic, beside those who change it.
_USES = frozenset((AccessAction.PUB, AccessAction.SUB, AccessAction.GET))


def bare_group(name: str) -> str:
    """Returns a group without the prefix of its retry or dead letter topic."""
    return name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)


def topic_need(topic: str, *actions: AccessAction) -> Need:
    """Makes the need for a topic. A retry topic is its group's: whoever may consume as the group
    may use it, and whoever may change the group may change it."""
    if topic.startswith(RETRY_PREFIX):
        of_group = actions if _USES.isdisjoint(actions) else (AccessAction.SUB,)
        return Need(ResourceKind.GROUP, bare_group(topic), of_group)
    return Need(ResourceKind.TOPIC, topic, actions)
