"""The topics of a broker: made at start, by the first send, by tools; told to the core and to the
name servers (docs/internals/wire.md#topics-and-names)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.hot.core import Core
from broker.loop.safe_log import SafeLogger
from broker.services.attributes import Rule, altered, one_of, whole_number
from broker.services.config import Config
from broker.services.names import NOT_FOR_CLIENTS, check_topic, is_legal, is_system_topic
from broker.services.write_behind import KeptTexts, WriteBehindTable
from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from broker.wire.mqjson import JsonText
from pystore.errors import BadArgument
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, TEMPLATE_TOPIC
from pystore.meta.configfiles import TopicConfig, topic_from_json, topic_to_json
from pystore.metadata import Metadata, system_topics

__all__ = ["INHERIT", "READ", "WRITE", "Topics"]

log = SafeLogger(__name__)

#: Bits of a topic's perm.
INHERIT, WRITE, READ = 1, 2, 4
#: Bits of topicSysFlag: the topic is of a unit; units subscribe to it.
UNIT, UNIT_SUB = 1, 2
_ATTRIBUTES: Mapping[str, Rule] = {
    "queue.type": one_of("SimpleCQ", "BatchCQ"),
    "cleanup.policy": one_of("DELETE", "COMPACTION"),
    "message.type": one_of(
        "UNSPECIFIED",
        "NORMAL",
        "FIFO",
        "DELAY",
        "TRANSACTION",
        "PRIORITY",
        "LITE",
        "MIXED",
    ),
    "reserve.time": whole_number(-1, (1 << 63) - 1),
    "lite.topic.expiration": whole_number(-1, 43_200),
}
#: These are of the store's layout: fixed once the topic is there.
_FIXED = ("queue.type", "cleanup.policy")


def _unsupported(attributes: Mapping[str, str]) -> str:
    """Returns what of a topic of Apache's broker this store does not do, or ""."""
    if attributes.get("queue.type") == "BatchCQ":
        return "this store keeps one record a message: queue.type BatchCQ is not supported"
    if attributes.get("cleanup.policy") == "COMPACTION":
        return "cleanup.policy COMPACTION is not supported"
    return ""


def _queues(config: TopicConfig) -> int:
    """Returns what a topic counts against maxQueuesPerBroker; one without queues takes memory,
    too."""
    return max(config.read_queue_nums, config.write_queue_nums, 1)


def _is_storable(name: str) -> bool:
    """Returns whether the store can have the name: POP's retry topics may have a plus sign between
    their parts."""
    return is_legal(name.replace("+", "") if name.startswith(RETRY_PREFIX) else name)


class Topics(WriteBehindTable[TopicConfig]):
    """The table of topics. It lives on the event loop.

    `changed` is called with the topics that were made or altered, and with an empty list after a
    deletion; it registers them at the name servers."""

    def __init__(self, settings: Config, metadata: Metadata, core: Core) -> None:
        super().__init__(metadata, metadata.topics, "topics")
        self._settings = settings
        self._core = core
        self._queue_count = 0
        self._texts = KeptTexts(self, self.to_json)
        self.changed: Callable[[Sequence[TopicConfig]], None] = lambda configs: None
        #: Says of a name whether its queues are mapped.
        self.is_static: Callable[[str], bool] = lambda name: False
        #: Called before a topic is made or altered, which may need something. Raises: StoreError.
        self.before: Callable[[TopicConfig], None] = lambda config: None

    def start(self) -> None:
        """Makes the built-in topics that are missing, and tells the core all there are."""
        for row in system_topics(self._settings.current):
            if row.name not in self:
                self._put_row(row)
        self.publish_all()
        self._queue_count = sum(map(_queues, self.all()))

    # ---- asking ----

    def found(self, name: str) -> TopicConfig:
        """Returns the topic. Raises: Refused with TOPIC_NOT_EXIST."""
        config = self.get(name)
        if config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name:.260}] not exist, apply first please! Make it with mqadmin"
                " updateTopic.",
            )
        return config

    def system(self) -> list[str]:
        """Returns the names that belong to the broker itself."""
        return sorted(
            {each.name for each in self.all() if is_system_topic(each.name)}
            | {each.name for each in system_topics(self._settings.current)}
        )

    # ---- telling the core ----

    def is_hot(self, config: TopicConfig) -> bool:
        """Returns whether the core's tables decide sends to it."""
        return (
            config.name not in NOT_FOR_CLIENTS
            and not self.is_static(config.name)
            and not config.name.startswith((RETRY_PREFIX, SYSTEM_PREFIX))
            and (not config.order or bool(self._settings["brokerPermission"] & WRITE))
            and not (config.attributes.get("message.type") == "LITE" and self._has_lite_quota)
        )

    @property
    def _has_lite_quota(self) -> bool:
        """Says whether each send to a lite topic has to be looked at: it may be one too many."""
        return bool(self._settings["enableLmqQuota"])

    def is_once(self, name: str) -> bool:
        """Returns whether repeats of its messages are left out. They are stored wherever the broker
        itself sends a message again, as to retry topics."""
        settings = self._settings
        if (
            not settings["idempotentProduceWindow"]
            or is_system_topic(name)
            or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ):
            return False
        wanted = {part.strip() for part in settings["idempotentProduceTopics"].split(",")}
        return "*" in wanted or name in wanted

    def _publish(self, config: TopicConfig) -> None:
        perm = config.perm
        if not self._settings["brokerPermission"] & READ:
            perm &= ~READ
        if not _is_storable(config.name):  # a file of another broker may have one
            log.warning("The topic %.300r is not served: no topic can have that name", config.name)
            return
        if problem := _unsupported(config.attributes):  # a master of Java's has it so, or a file
            log.warning("The topic %.300r is served as an ordinary one: %s", config.name, problem)
        self._core.publish_topic(
            config.name, config.read_queue_nums, config.write_queue_nums, perm,
            hot=self.is_hot(config), once=self.is_once(config.name),
            priority=config.attributes.get("message.type") == "PRIORITY",
            mapped=self.is_static(config.name),
            lite=config.attributes.get("message.type") == "LITE"
            and not config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)),
        )  # fmt: skip

    def publish_all(self) -> None:
        """Publishes all topics, at the start and after a change of what all of them depend on."""
        for row in self.all():
            try:
                self._publish(row)
            except BadArgument as bad:  # somebody has edited the file
                log.warning("The topic %.300r is not served: %s", row.name, bad.text)

    def mapping_changed(self, name: str) -> None:
        """Publishes a topic again, and registers it under a new version: name servers take nothing
        of one that they know."""
        config = self.get(name)
        if config is not None:
            self._publish(config)
            self._bump_version()
            self.changed([config])

    def rights_changed(self) -> None:
        """Registers all topics again, after the broker's own permissions have changed."""
        self.publish_all()
        self._bump_version()
        self.changed([])

    # ---- making ----

    def _put(self, config: TopicConfig) -> TopicConfig:
        """Puts a topic. Raises: Refused, also for a name that no topic of the store can have: that
        of a group or of another store may be stranger."""
        if not _is_storable(config.name):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{config.name[:260]!r} cannot be a topic: use letters, digits and % | _ - in the"
                " names of topics and groups",
            )
        old = self.get(config.name)
        more = _queues(config) - (_queues(old) if old is not None else 0)
        most = self._settings["maxQueuesPerBroker"]
        if more > 0 and self._queue_count + more > most:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker has {self._queue_count} queues, {more} more are too many:"
                f" maxQueuesPerBroker is {most}",
            )
        try:
            self.before(config)
            self._put_row(config)
        except BadArgument as bad:
            raise Refused(ResponseCode.INVALID_PARAMETER, bad.text) from None
        self._queue_count += more
        self._publish(config)
        self.changed([config])
        return config

    def take(self, config: TopicConfig) -> None:
        """Takes a topic as the master of a slave has it. Raises: Refused."""
        self._put(config)

    def for_send(
        self, name: str, template: str, queues: int, *, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Returns a missing topic, which a send makes from its template, or None where it may not
        be made."""
        found = self.get(name)
        if found is not None:
            return found
        made = self._from_template(name, template, queues, sys_flag)
        if made is None and name.startswith(RETRY_PREFIX):
            made = TopicConfig(name, 1, 1, READ | WRITE, topic_sys_flag=sys_flag)
        return None if made is None else self._put(made)

    def _from_template(
        self, name: str, template: str, queues: int, sys_flag: int
    ) -> TopicConfig | None:
        row = self.get(template)
        if row is None or not row.perm & INHERIT:
            return None
        if template == TEMPLATE_TOPIC and not self._settings["autoCreateTopicEnable"]:
            return None
        count = max(1, min(queues, row.write_queue_nums))
        return TopicConfig(
            name, count, count, row.perm & ~INHERIT,
            topic_filter_type=row.topic_filter_type, topic_sys_flag=sys_flag,
        )  # fmt: skip

    def retry_topic(self, group: str, queues: int, *, unit: bool = False) -> TopicConfig:
        """Returns ``%RETRY%group``, made when missing. Raises: Refused when the name cannot be a
        topic."""
        name = RETRY_PREFIX + group
        found = self.get(name)
        if found is not None:
            return found
        return self._put(TopicConfig(name, queues, queues, topic_sys_flag=UNIT_SUB if unit else 0))

    def built_in(self, name: str) -> TopicConfig:
        """Returns a topic of one queue that the broker itself writes to, made when missing."""
        found = self.get(name)
        return found if found is not None else self._put(TopicConfig(name, 1, 1, READ | WRITE))

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """Returns ``%DLQ%group``, made when missing; consumers subscribe to it by hand."""
        found = self.get(DLQ_PREFIX + group)
        return found if found is not None else self._put(TopicConfig(DLQ_PREFIX + group, 1, 1))

    # ---- tools ----

    def update(self, wanted: TopicConfig, changes: str = "") -> bool:
        """Makes or alters a topic (code 17), and returns whether anything changed.

        `changes` are those of the attributes: ``+name=value,-name``. Raises: Refused."""
        self.check_updatable(wanted.name)
        old = self.get(wanted.name)
        attributes = self._attributes(changes, old)
        self._check(wanted, attributes)
        extra = old.extra if old is not None else {}
        made = replace(wanted, attributes=attributes, extra=extra)
        if made == old:
            return False
        self._put(made)
        return True

    def check_updatable(self, name: str) -> None:
        """Checks whether a tool may alter the topic. Raises: Refused with INVALID_PARAMETER for a
        bad name or the broker's own topic."""
        check_topic(name)
        if is_system_topic(name):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
            )

    def _check(self, config: TopicConfig, attributes: Mapping[str, str]) -> None:
        problem = _unsupported(attributes)
        for queues in (config.read_queue_nums, config.write_queue_nums):
            most = self._settings["maxQueuesPerTopic"]
            if not 0 <= queues <= most:
                problem = f"a topic has from 0 to {most} queues (maxQueuesPerTopic), not {queues}"
        if not 0 <= config.perm < 16:
            problem = f"perm {config.perm} is invalid: 2 write, 4 read, 6 both"
        if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            problem = f"topicFilterType = [{config.topic_filter_type:.60}] value invalid"
        mixed = attributes.get("message.type") == "MIXED"
        if mixed and not self._settings["enableMixedMessageType"]:
            problem = "MIXED message type is not supported while enableMixedMessageType is false"
        if problem:
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)

    @staticmethod
    def _attributes(changes: str, old: TopicConfig | None) -> dict[str, str]:
        """Returns the attributes after these changes. Raises: Refused."""
        parts = (part.strip().partition("=") for part in changes.split(",") if part.strip())
        asked = [(name, value if equals else None) for name, equals, value in parts]
        return altered(
            _ATTRIBUTES, asked, old.attributes if old is not None else None, fixed=_FIXED
        )

    def set_order(self, names: frozenset[str]) -> None:
        """Takes over which topics are ordered, as the name servers say; they are not notified of
        it."""
        for row in self.all():
            if row.order != (row.name in names):
                made = replace(row, order=not row.order)
                self._put_row(made)
                self._publish(made)

    def delete(self, name: str) -> bool:
        """Deletes a topic and returns whether there was one."""
        self._core.withdraw_topic(name)
        old = self.get(name)
        self._queue_count -= _queues(old) if old is not None else 0
        gone = self._delete_row(name)
        self._texts.forget(name)
        if gone:
            self.changed([])
        return gone

    # ---- as JSON ----

    @staticmethod
    def to_json(config: TopicConfig) -> dict[str, Any]:
        """Returns TopicConfig as the wire has it; members that we do not know are left out."""
        return topic_to_json(replace(config, extra={}) if config.extra else config)

    @staticmethod
    def from_json(value: object) -> TopicConfig:
        """Reads a topic. Raises: Refused with INVALID_PARAMETER."""
        try:
            if not isinstance(value, dict) or not isinstance(value.get("topicName"), str):
                raise ValueError("the TopicConfig has no topicName")
            return topic_from_json(value["topicName"], value)
        except ValueError as bad:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(bad)) from None

    def text(self, config: TopicConfig) -> JsonText:
        """Returns the same as text, on any thread."""
        return self._texts.of(config)
