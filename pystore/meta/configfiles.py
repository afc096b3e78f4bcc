"""The files of upstream's config/ folder: their objects, their JSON, and how they reach the disk.

docs/internals/format.md#config-files. One :class:`Section` a file that is interpreted;
:data:`RAW_FILES` are kept byte by byte. Members that this version does not know are kept in
``extra`` and written back as they came.

On disk a file is only ever replaced (pystore/files), its ``.bak`` (the previous content) likewise.
Upstream 5.3 writes in place and without a sync (rocketmq#7729, #3401, #9705), so a reader
must take a torn file as a matter of course.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pystore.files import javajson
from pystore.format.names import LIGHT_PREFIX

__all__ = [
    "LMQ_OFFSETS",
    "RAW_FILES",
    "SECTIONS",
    "ConsumerOffset",
    "DataVersion",
    "Parts",
    "Section",
    "SubscriptionGroup",
    "TopicConfig",
    "check_json",
]

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
#: Upstream's separator in the keys of consumerOffset.json; no topic or group may hold it.
AT = "@"

Json = dict[str, Any]


# ---- objects ----


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """How often a file changed; ordered as upstream compares two of them.

    timestamp: ms, of the last change. state_version: 0 outside controller mode.
    """

    state_version: int = 0
    counter: int = 0
    timestamp: int = 0

    def bumped(self, changes: int = 1) -> DataVersion:
        """Returns the version after so many more changes, the last of them now."""
        return DataVersion(self.state_version, self.counter + changes, time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as topics.json has it, with upstream's defaults.

    perm: bits 1 inherit, 2 write, 4 read. topic_filter_type: SINGLE_TAG or MULTI_TAG. attributes:
    for example ``{"message.type": "FIFO"}``. extra: members that this version does not know.
    """

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A consumer group as subscriptionGroup.json has it, with upstream's defaults.

    consume_timeout_minute: minutes. group_retry_policy, subscription_data_set: as in the file, not
    interpreted. extra: members that this version does not know.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[Any, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """The next queue offset that a group consumes of one queue."""

    group: str
    topic: str
    queue: int
    offset: int


@dataclass(slots=True)
class Parts:
    """What one file holds. rows: by name of topic or group; ``topic@group`` to queue to offset; or
    delay level to offset. extra: members of the file that this version does not know."""

    rows: Mapping[Any, Any] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
    extra: Json = field(default_factory=dict)

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever put here, so that there is nothing to write."""
        return not self.rows and self.version == DataVersion() and not self.extra


# ---- members of a JSON object, typed ----

_Reader = Callable[[Any], Any]


def _int32(value: Any) -> int:
    return _between(value, *INT32)


def _int64(value: Any) -> int:
    return _between(value, *INT64)


def _between(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r:.60} is not an integer from {low} to {high}")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.60} is not true or false")
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.60} is not a string")
    return value


def _object(value: Any) -> Json:
    if type(value) is not dict:
        raise ValueError(f"{value!r:.60} is not an object")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {key: _str(each) for key, each in _object(value).items()}


def _list(value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise ValueError(f"{value!r:.60} is not a list")
    return tuple(value)


#: Member of the file, field of the dataclass, how it is read.
_TOPIC: tuple[tuple[str, str, _Reader], ...] = (
    ("readQueueNums", "read_queue_nums", _int32),
    ("writeQueueNums", "write_queue_nums", _int32),
    ("perm", "perm", _int32),
    ("topicFilterType", "topic_filter_type", _str),
    ("topicSysFlag", "topic_sys_flag", _int32),
    ("order", "order", _bool),
    ("attributes", "attributes", _texts),
)
_GROUP: tuple[tuple[str, str, _Reader], ...] = (
    ("consumeEnable", "consume_enable", _bool),
    ("consumeFromMinEnable", "consume_from_min_enable", _bool),
    ("consumeBroadcastEnable", "consume_broadcast_enable", _bool),
    ("consumeMessageOrderly", "consume_message_orderly", _bool),
    ("retryQueueNums", "retry_queue_nums", _int32),
    ("retryMaxTimes", "retry_max_times", _int32),
    ("groupRetryPolicy", "group_retry_policy", _object),
    ("brokerId", "broker_id", _int64),
    ("whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", _int64),
    ("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable", _bool),
    ("groupSysFlag", "group_sys_flag", _int32),
    ("consumeTimeoutMinute", "consume_timeout_minute", _int32),
    ("subscriptionDataSet", "subscription_data_set", _list),
    ("attributes", "attributes", _texts),
)


def _from_json(cls: Any, name_member: str, members: Any, name: str, value: Any) -> Any:
    """Makes an object of the dataclass; the key of the map is its name, whatever the member
    says."""
    given = dict(_object(value))
    given.pop(name_member, None)
    fields: Json = {}
    for member, attribute, read in members:
        one = given.pop(member, None)
        if one is not None:  # upstream leaves null members out; its default stands then
            try:
                fields[attribute] = read(one)
            except ValueError as bad:
                raise ValueError(f"'{member}' of '{name}': {bad}") from None
    return cls(name=name, extra=given, **fields)


_SCALARS = (bool, int, str)


def _to_json(name_member: str, members: Any, row: Any) -> Json:
    result: Json = {**row.extra, name_member: row.name}
    for member, attribute, _ in members:
        value = getattr(row, attribute)
        if type(value) in _SCALARS:  # most, and there may be tens of thousands of rows
            pass
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        if value is not None:
            result[member] = value
    return result


def topic_from_json(name: str, value: Any) -> TopicConfig:
    """Makes a topic of its row. Raises: ValueError naming the member."""
    topic: TopicConfig = _from_json(TopicConfig, "topicName", _TOPIC, name, value)
    return topic


def topic_to_json(row: TopicConfig) -> Json:
    return _to_json("topicName", _TOPIC, row)


def group_from_json(name: str, value: Any) -> SubscriptionGroup:
    """Makes a group of its row. Raises: ValueError naming the member."""
    group: SubscriptionGroup = _from_json(SubscriptionGroup, "groupName", _GROUP, name, value)
    return group


def group_to_json(row: SubscriptionGroup) -> Json:
    return _to_json("groupName", _GROUP, row)


def check_row(row: TopicConfig | SubscriptionGroup) -> None:
    """Checks a row. Raises: ValueError naming the member that upstream could not read back."""
    if isinstance(row, TopicConfig):
        topic_from_json(row.name, topic_to_json(row))
    else:
        group_from_json(row.name, group_to_json(row))


def version_from_json(value: Any) -> DataVersion:
    """Makes a version of its JSON; 4.9 has no stateVersion. Raises: ValueError."""
    given = _object(value)
    names = ("stateVersion", "counter", "timestamp")
    return DataVersion(*(_int64(given.get(name, 0)) for name in names))


def version_to_json(version: DataVersion) -> Json:
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp,
    }


# ---- whole files ----


def _integer_keys(value: Any) -> dict[int, int]:
    rows = {}
    for key, each in _object(value).items():
        try:
            rows[_int32(int(key))] = _int64(each)
        except ValueError:
            raise ValueError(f"{key!r:.60}:{each!r:.60} is not a queue and offset") from None
    return rows


def _decode_offsets(value: Any) -> dict[str, dict[int, int]]:
    return {pair: _integer_keys(queues) for pair, queues in _object(value).items()}


def _encode_offsets(rows: Mapping[str, Any]) -> javajson.Members:
    """Returns the members of offsetTable: those of light queues, of which there may be a million,
    as they come, all others by name."""

    def each() -> Iterator[tuple[str, Any]]:
        others = {}
        for pair, queues in rows.items():
            if pair.startswith(LIGHT_PREFIX):
                yield pair, queues
            else:
                others[pair] = queues
        yield from sorted(others.items())

    return javajson.Members(each)


def _groups_of_topics(rows: Iterable[str]) -> dict[str, list[str]]:
    """Returns groupTopicMap: upstream derives it when it writes and ignores it when it reads. Light
    queues, of which there may be a million, are left out."""
    topics: dict[str, list[str]] = {}
    for pair in sorted(pair for pair in rows if not pair.startswith(LIGHT_PREFIX)):
        topic, at, group = pair.partition(AT)
        if at:
            topics.setdefault(group, []).append(topic)
    return topics


@dataclass(frozen=True, slots=True)
class Section:
    """A file that is interpreted.

    file: its name. table: the member that holds the rows. decode: its value to rows, ValueError
    when it cannot be. encode: rows to its value. derived: members worked out from the
    names of the rows.
    """

    file: str
    table: str
    decode: Callable[[Any], dict[Any, Any]]
    encode: Callable[[Mapping[Any, Any]], Json | javajson.Members]
    derived: Callable[[Iterable[Any]], Json] = lambda rows: {}

    def loads(self, data: bytes) -> Parts:
        """Reads a file. Raises: ValueError that says what is wrong with the file."""
        value = dict(_object(javajson.loads(data)))
        version = value.pop("dataVersion", None)
        rows = value.pop(self.table, None)
        for name in self.derived({}):
            value.pop(name, None)
        return Parts(
            {} if rows is None else self.decode(rows),
            DataVersion() if version is None else version_from_json(version),
            value,
        )

    def dumps(self, parts: Parts) -> bytes:
        """Returns the file's content."""
        members = self.members(parts.extra, parts.version, parts.rows)
        return javajson.dumps({**members, self.table: self.encode(parts.rows)})

    def members(self, extra: Json, version: DataVersion, rows: Iterable[Any]) -> Json:
        """Returns the members of a file but its table. rows: their names."""
        return {**extra, "dataVersion": version_to_json(version), **self.derived(rows)}


#: The interpreted files, by the names of their tables in the metadata.
SECTIONS: dict[str, Section] = {
    "topics": Section(
        "topics.json",
        "topicConfigTable",
        lambda value: {name: topic_from_json(name, one) for name, one in _object(value).items()},
        lambda rows: {name: topic_to_json(row) for name, row in rows.items()},
    ),
    "groups": Section(
        "subscriptionGroup.json",
        "subscriptionGroupTable",
        lambda value: {name: group_from_json(name, one) for name, one in _object(value).items()},
        lambda rows: {name: group_to_json(row) for name, row in rows.items()},
    ),
    "offsets": Section(
        "consumerOffset.json",
        "offsetTable",
        _decode_offsets,
        _encode_offsets,
        lambda rows: {"groupTopicMap": _groups_of_topics(rows)},
    ),
    "delays": Section("delayOffset.json", "offsetTable", _integer_keys, dict),
}

#: Where a Java broker with enableLmq has the offsets of all groups, in the form of
#: consumerOffset.json.
LMQ_OFFSETS = "lmqConsumerOffset.json"

#: Files that are kept as they are.
RAW_FILES = (
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "messageRequestMode.json",
    "topicQueueMapping.json",
    LMQ_OFFSETS,
)


def check_json(data: bytes) -> None:
    """Checks a file that is kept as it is. Raises: ValueError that says what is wrong with a file
    that is not interpreted."""
    _object(javajson.loads(data))
