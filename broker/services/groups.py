"""Subscription groups: who may consume, and how often a message is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker.hot.core import Core
from broker.services.attributes import Rule, altered, one_of, whole_number
from broker.services.config import Config
from broker.services.names import GROUP_MAX, RESERVED_GROUPS, is_legal
from broker.services.write_behind import KeptTexts, WriteBehindTable
from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from broker.wire.mqjson import JsonText
from pystore.errors import BadArgument
from pystore.meta.configfiles import SubscriptionGroup, group_from_json, group_to_json
from pystore.metadata import Metadata

__all__ = ["BIND_TOPIC", "Groups"]

#: Attribute of a group: the topic whose lite topics it reads.
BIND_TOPIC = "lite.bind.topic"
_READ = 1
_PRIORITY_FACTOR = "priority.factor"
_ATTRIBUTES: Mapping[str, Rule] = {
    _PRIORITY_FACTOR: whole_number(0, 100),
    BIND_TOPIC: one_of(),
    "lite.sub.model": one_of("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": one_of("true", "false"),
    "lite.sub.reset.offset.unsubscribe": one_of("true", "false"),
    "lite.sub.client.quota": whole_number(-1, (1 << 31) - 1),
    "lite.sub.client.max.event.cnt": whole_number(10, 1 << 20),
    "lite.sub.wildcard": one_of(),
}
#: All of it is written at each change.
_FORBIDDEN_MAX = 65_536


class Groups(WriteBehindTable[SubscriptionGroup]):
    """The table of groups. `changed` is called with the name of each group that was altered or
    deleted."""

    def __init__(self, settings: Config, metadata: Metadata, core: Core) -> None:
        """Makes the table. core: told what pops need to know of the groups."""
        super().__init__(metadata, metadata.groups, "groups")
        self._settings = settings
        self._core = core
        self._texts = KeptTexts(self, self.to_json)
        #: By group and topic; bit 0: it may not read.
        self.forbidden: dict[str, dict[str, int]] = metadata.forbidden()
        self._forbidden_count = sum(map(len, self.forbidden.values()))
        #: Whether the disk does not have it yet.
        self._forbidden_changed = False
        self._writing = asyncio.Lock()
        self.changed: Callable[[str], None] = lambda name: None

    def start(self) -> None:
        """Makes the reserved groups that are missing, and tells the core of those there are."""
        for name in RESERVED_GROUPS:
            if self.get(name) is None:
                self._put_row(SubscriptionGroup(name))
        for group in self.all():
            if group.attributes:
                self._publish(group.name)

    def _publish(self, name: str) -> None:
        """Tells the core how often the group goes by priority, and whose lite topics it reads; a
        file of another broker may say what no tool could."""
        group = self.get(name)
        said = group.attributes.get(_PRIORITY_FACTOR, "") if group is not None else ""
        percent = int(said) if said and not _ATTRIBUTES[_PRIORITY_FACTOR](said) else 100
        self._core.set_priority_factor(name, percent)
        self._core.bind_lite_group(name, group.attributes.get(BIND_TOPIC, "") if group else "")

    # ---- asking ----

    def find(self, name: str) -> SubscriptionGroup | None:
        """Returns the group; it is made when it is missing, autoCreateSubscriptionGroup allows it
        and maxGroupsPerBroker leaves room."""
        found = self.get(name)
        if found is not None or not self._settings["autoCreateSubscriptionGroup"]:
            return found
        if not is_legal(name) or len(name) > GROUP_MAX or self._is_full:
            return None
        made = SubscriptionGroup(name)
        self._put_row(made)
        return made

    def found(self, name: str) -> SubscriptionGroup:
        """Returns the group. Raises: Refused with SUBSCRIPTION_GROUP_NOT_EXIST, or because there
        are too many."""
        group = self.find(name)
        if group is None:
            if self._settings["autoCreateSubscriptionGroup"] and is_legal(name):
                self._check_room()
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name:.260}] does not exist. Make it with mqadmin"
                " updateSubGroup.",
            )
        return group

    @property
    def _is_full(self) -> bool:
        return self.count >= int(self._settings["maxGroupsPerBroker"])

    def _check_room(self) -> None:
        """Checks that another group fits. Raises: Refused when there may be no other group."""
        if self._is_full:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker has {self.count} groups, one more is too many: maxGroupsPerBroker is"
                f" {self._settings['maxGroupsPerBroker']}",
            )

    # ---- tools ----

    def update(self, group: SubscriptionGroup) -> None:
        """Makes or replaces a group; members of its file that we do not know stay, and its
        attributes are changes of those that are there: ``+name`` or ``-name``. Raises: Refused."""
        old = self.get(group.name)
        if old is None:
            self._check_room()
        asked = [
            (name, value if name.startswith("+") else None)
            for name, value in group.attributes.items()
        ]
        attributes = altered(_ATTRIBUTES, asked, old.attributes if old is not None else None)
        self.take(replace(group, attributes=attributes))

    def take(self, group: SubscriptionGroup) -> None:
        """Does the same, however many there are: a slave has what its master has."""
        old = self.get(group.name)
        try:
            self._put_row(replace(group, extra=old.extra if old is not None else {}))
        except BadArgument as bad:
            raise Refused(ResponseCode.INVALID_PARAMETER, bad.text) from None
        self._publish(group.name)
        self.changed(group.name)

    def delete(self, name: str) -> bool:
        """Deletes a group and returns whether there was one."""
        gone = self._delete_row(name)
        self._texts.forget(name)
        if gone_topics := self.forbidden.pop(name, None):
            self._forbidden_count -= len(gone_topics)
            self._forbidden_changed = True
        self._publish(name)
        self.changed(name)
        return gone

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Returns whether a tool has forbidden the group to read this topic."""
        return bool(self.forbidden.get(group, {}).get(topic, 0) & _READ)

    def forbid(self, group: str, topic: str, forbidden: bool) -> None:
        """Serves code 353; keep_forbidden() brings the change to the disk. Raises: Refused when
        there is too much to keep."""
        before = self.forbidden.get(group, {}).get(topic, 0)
        after = before & ~_READ | (_READ if forbidden else 0)
        if after == before:
            return
        if not before and self._forbidden_count >= _FORBIDDEN_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{_FORBIDDEN_MAX} topics are forbidden to groups: allow others again first",
            )
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = after
        if not after:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self._forbidden_count += bool(after) - bool(before)
        self._forbidden_changed = True
        self.changed(group)

    async def keep_forbidden(self) -> None:
        """Keeps what groups may not do. Raises: StoreError."""
        async with self._writing:
            if not self._forbidden_changed:
                return
            self._forbidden_changed = False
            table = {group: dict(topics) for group, topics in self.forbidden.items()}
            try:
                await asyncio.to_thread(self._metadata.set_forbidden, table)
            except BaseException:
                self._forbidden_changed = True
                raise

    # ---- as JSON ----

    @staticmethod
    def to_json(group: SubscriptionGroup) -> dict[str, Any]:
        return group_to_json(replace(group, extra={}) if group.extra else group)

    def text(self, group: SubscriptionGroup) -> JsonText:
        """Returns the same as text, on any thread."""
        return self._texts.of(group)

    @staticmethod
    def from_json(value: object) -> SubscriptionGroup:
        """Reads a group. Raises: Refused with INVALID_PARAMETER."""
        try:
            if not isinstance(value, dict) or not isinstance(value.get("groupName"), str):
                raise ValueError("the SubscriptionGroupConfig has no groupName")
            return group_from_json(value["groupName"], value)
        except ValueError as bad:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(bad)) from None
