"""The settings of a store: one table under upstream's names, its reader, and its way into C.

Entry points: :func:`load` (a broker.conf and keywords to :class:`Settings`), :func:`fill`
(:class:`Settings` to a ``ps_conf`` of csrc/pystore.h) and :data:`TABLE` (what docs/settings.md is
made from). Names, types and defaults come from upstream's own classes
(pystore/configuration/upstream.py); what the store does with a setting stands in :data:`_USED`.

Upstream silently ignores an unknown name and a value that it cannot read: a setting that silently
does nothing has cost people their messages. Here a mistyped name and an unreadable value are
refused, all of a file at once, and a name that is far from every setting is passed over with a
warning (pystore/configuration/problems.py). Keywords are written for this store: an
unknown one is refused.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pystore import files
from pystore.configuration.problems import (
    SettingProblem,
    about_unknown,
    mistyped,
    nearest,
    refuse,
)
from pystore.configuration.rows import (
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    Setting,
    Value,
    convert,
    convert_of_file,
    read_conf,
    shown,
)
from pystore.configuration.upstream import (
    IN_GUIDES,
    NAMESRV,
    OTHER_VERSIONS,
    PROXY,
    RENAMED,
    UPSTREAM,
    UPSTREAM_VERSION,
)
from pystore.errors import BadArgument
from pystore.files.javaproperties import edit_java_properties, parse_java_properties

__all__ = [
    "NOT_SERVED",
    "PLACES",
    "RETENTION",
    "SECRETS",
    "TABLE",
    "Setting",
    "Settings",
    "Value",
    "fill",
    "host_bytes",
    "load",
    "log_levels",
    "parse_java_properties",
    "read_settings",
    "refuse_unserved",
    "unserved",
    "without_password",
]

#: ps_conf.level_delay_ms has room for so many.
_LEVELS_MAX = 64


# ---- meanings of the texts that have a grammar ----


def _delay_levels_ms(text: str) -> list[int]:
    """Returns ``"1s 5s 2h"`` as milliseconds: the grammar of upstream's messageDelayLevel.

    Raises ValueError.
    """
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels = []
    for word in text.split():
        match = re.fullmatch(r"([0-9]{1,9})([smhd])", word)
        if match is None:
            raise ValueError(
                f"'{word}' is not a delay: use a number and s, m, h or d, as in 10s or 2h"
            )
        levels.append(int(match[1]) * units[match[2]])
    if len(levels) > _LEVELS_MAX:
        raise ValueError(f"{len(levels)} levels given, at most {_LEVELS_MAX} allowed")
    return levels


def log_levels(text: str) -> dict[str, int]:
    """Returns the levels of ``broker=INFO,broker.remoting=ERROR``, by logger. Raises: ValueError,
    for a logger that is not one of ours as well."""
    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, level = (each.strip() for each in part.partition("="))
        number = logging.getLevelNamesMapping().get(level.upper(), 0)
        if not number:
            raise ValueError(f"'{part}' is not a level: write LOGGER=LEVEL, as in broker=INFO")
        if name.split(".")[0] not in ("broker", "pystore"):
            raise ValueError(f"'{name}' is not a logger: they begin with broker or pystore")
        found[name] = number
    return found


def _hours_mask(text: str) -> int:
    """Returns ``"04;16"`` as a mask, bit h for local hour h. Raises ValueError."""
    mask = 0
    for word in filter(None, (part.strip() for part in text.split(";"))):
        if not re.fullmatch(r"[0-9]{1,2}", word) or int(word) > 23:
            raise ValueError(f"'{word}' is not an hour: use hours from 00 to 23, separated by ';'")
        mask |= 1 << int(word)
    return mask


def _file_mode(text: str) -> int:
    """Returns ``"0640"`` as a number. Raises ValueError."""
    if not re.fullmatch(r"[0-7]{3,4}", text):
        raise ValueError("it is not a file mode: use octal digits, as in 0640")
    mode = int(text, 8)
    if mode & 0o7000:
        raise ValueError("it has special bits (setuid, setgid, sticky), which no file needs")
    if mode & 0o111:
        raise ValueError("it lets somebody execute the files; folders get x wherever it has r")
    if mode & 0o600 != 0o600:
        raise ValueError("the owner must be able to read and write")
    return mode


def _not_empty(text: str) -> None:
    if not text:
        raise ValueError("it is empty")


def _must_be(*allowed: object, why: str) -> Callable[[object], None]:
    """Returns a check that refuses what would make another layout on disk than this store reads."""

    def check(value: object) -> None:
        if value not in allowed:
            raise ValueError(why)

    return check


# ---- the table ----

_CLAMP_WARNING = (35, 90)
_CLAMP_FORCIBLY = (30, 85)
_CLAMP_USED = (10, 95)


def _row(
    used_by: str, unit: str, meaning: str, field: str | None = None, **more: Any
) -> dict[str, Any]:
    row = {"used_by": used_by, "unit": unit, "meaning": meaning, "field": field}
    return row | {"at_start": used_by == "store"} | more


def _must_be_false(why: str) -> dict[str, Any]:
    """Returns the row of a switch that this store cannot honour, and must not pretend to."""
    return _row("store", "", f"must be false: {why}", check=_must_be(False, why=why))


# A row takes a line or two: it is read as a table.
# fmt: off
_USED: dict[str, dict[str, Any]] = {
    # where
    "storePathRootDir": _row("store", "path", "directory of the store", "root"),
    "storePathCommitLog": _row(
        "store", "paths",
        "directories of the commit log, separated by commas; default: commitlog/ in the store",
        "commitlog_dirs", form="directories"),
    "brokerIP1": _row(
        "store", "address",
        "address of this host: stored in each record, announced to clients; IPv4 or IPv6",
        "store_host", default="127.0.0.1", check=_not_empty, form="host"),
    "listenPort": _row(
        "store", "port", "port stored in each record; the broker listens on it; 0: any free port",
        "store_host", low=0, high=65535),
    # sizes
    "mappedFileSizeCommitLog": _row(
        "store", "bytes", "size of a commit log segment", "commitlog_file_size", low=4096,
        for_readers=True),
    "mappedFileSizeConsumeQueue": _row(
        "store", "bytes", "size of a consume queue file, rounded up to a multiple of 20",
        "consumequeue_file_size", low=20, high=INT_MAX - 20, for_readers=True),
    "maxHashSlotNum": _row("store", "slots", "hash slots per index file", "index_slots", low=1,
        for_readers=True),
    "maxIndexNum": _row("store", "entries", "entries per index file", "index_entries", low=2,
        for_readers=True),
    "maxMessageSize": _row(
        "store", "bytes", "maximum body size; a record may be 65536 bytes larger",
        "max_message_size", low=1, high=INT_MAX - 65536),
    # flushing
    "flushDiskType": _row(
        "store", "",
        "SYNC_FLUSH: acknowledge a message after it is synced to disk; ASYNC_FLUSH: before",
        "sync_flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
        encode=lambda value: int(value == "SYNC_FLUSH")),
    "flushIntervalCommitLog": _row(
        "store", "ms", "interval between flushes of the commit log", "flush_interval_ms", low=1),
    "flushCommitLogLeastPages": _row(
        "store", "pages", "minimum dirty pages (4096 bytes) for a flush", "flush_least_pages", low=0
    ),
    "flushCommitLogThoroughInterval": _row(
        "store", "ms", "flush anything dirty after this time", "flush_thorough_ms", low=0),
    "flushIntervalConsumeQueue": _row(
        "store", "ms", "interval between flushes of the queues", "queue_flush_interval_ms", low=1),
    "flushConsumeQueueLeastPages": _row(
        "store", "pages", "minimum dirty pages for a flush of a queue", "queue_flush_least_pages",
        low=0),
    "flushConsumeQueueThoroughInterval": _row(
        "store", "ms", "flush anything dirty in a queue after this time", "queue_flush_thorough_ms",
        low=0),
    "syncFlushTimeout": _row(
        "store", "ms", "how long a put waits for the sync under SYNC_FLUSH",
        "sync_flush_timeout_ms", low=1),
    # checks
    "enabledAppendPropCRC": _row(
        "store", "", "add a CRC of the whole record to its properties", "append_prop_crc"),
    "forceVerifyPropCRC": _row(
        "store", "", "recovery verifies the property CRC instead of the body CRC",
        "force_verify_prop_crc", for_readers=True),
    "checkCRCOnRecover": _row("store", "", "recovery verifies body CRCs", "check_crc_on_recover",
        for_readers=True),
    # form
    "messageIndexEnable": _row("store", "", "maintain the key index", "message_index_enable"),
    "autoMessageVersionOnTopicLen": _row(
        "store", "", "use record version 2 for topics longer than 127 bytes", "long_topic_v2"),
    "messageDelayLevel": _row(
        "store", "levels", "delay of each level: a number and s, m, h or d", "level_delay_ms",
        check=_delay_levels_ms),
    # cleaning
    "cleanResourceInterval": _row(
        "store", "ms", "interval between retention runs; 0: no automatic retention",
        "clean_interval_ms", low=0),
    "fileReservedTime": _row(
        "store", "hours", "age at which a segment expires", "file_reserved_hours", low=0,
        at_start=False, by_request="own host"),
    "deleteWhen": _row(
        "store", "hours",
        "hours (local time) at which expired segments are deleted, separated by ';'",
        "delete_when_hours", check=_hours_mask, encode=_hours_mask, at_start=False,
        by_request="own host"),
    "diskMaxUsedSpaceRatio": _row(
        "store", "percent", "disk use above which expired segments are deleted at any hour",
        "disk_max_used_ratio", clamp=_CLAMP_USED, at_start=False, by_request="own host"),
    "diskSpaceCleanForciblyRatio": _row(
        "store", "percent", "disk use above which unexpired segments are deleted, too",
        "disk_clean_ratio", clamp=_CLAMP_FORCIBLY, at_start=False, by_request="own host"),
    "diskSpaceWarningLevelRatio": _row(
        "store", "percent", "disk use above which puts are rejected", "disk_warning_ratio",
        clamp=_CLAMP_WARNING, at_start=False, by_request="own host"),
    "cleanFileForciblyEnable": _row(
        "store", "", "allow deletion of unexpired segments", "clean_forcibly", at_start=False,
        by_request="own host"),
    "deleteFileBatchMax": _row(
        "store", "files", "maximum files deleted per run", "delete_batch_max", low=1,
        at_start=False, by_request="own host"),
    # reading
    "maxTransferCountOnMessageInMemory": _row(
        "store", "messages", "maximum messages per read from memory", "max_messages_in_memory",
        low=0),
    "maxTransferBytesOnMessageInMemory": _row(
        "store", "bytes", "maximum bytes per read from memory", "max_bytes_in_memory", low=0),
    "maxTransferCountOnMessageInDisk": _row(
        "store", "messages", "maximum messages per read from disk", "max_messages_in_disk", low=0),
    "maxTransferBytesOnMessageInDisk": _row(
        "store", "bytes", "maximum bytes per read from disk", "max_bytes_in_disk", low=0),
    "accessMessageInMemoryMaxRatio": _row(
        "store", "percent", "share of physical memory assumed to cache the newest messages",
        "memory_ratio", low=0, high=100),
    # metadata
    "brokerClusterName": _row(
        "metadata", "", "cluster name; names the built-in cluster topics", check=_not_empty,
        at_start=True, form="name"),
    "brokerName": _row(
        "metadata",
        "",
        "broker name; names the built-in broker topics; upstream defaults to the host name",
        default="DEFAULT_BROKER",  # upstream's own when the host has no name; the same everywhere
        check=_not_empty,
        at_start=True,
        form="name",
    ),
    "defaultTopicQueueNums": _row(
        "metadata", "queues", "queues of an automatically created topic", low=1, high=65536),
    "autoCreateTopicEnable": _row(
        "metadata", "", "create TBW102 in a new store: unknown topics are created on first send",
        by_request="own host"),
    "clusterTopicEnable": _row("metadata", "", "the cluster topic is readable and writable"),
    "brokerTopicEnable": _row("metadata", "", "the broker topic is readable and writable"),
    "traceTopicEnable": _row("metadata", "", "create the trace topic in a new store"),
    "msgTraceTopicName": _row("metadata", "", "name of the trace topic", check=_not_empty,
        form="topic"),
    "timerWheelEnable": _row(
        "store", "", "serve timers; create rmq_sys_wheel_timer in a new store", "timer_enable"),
    "timerMaxDelaySec": _row(
        "store", "s", "how far ahead a timer may be", "timer_max_delay_s", low=1, high=INT_MAX),
    "timerPrecisionMs": _row(
        "store", "ms",
        "what TIMER_OUT_MS is rounded down to, for other readers; delivery is to the millisecond",
        "timer_precision_ms", low=1, high=60_000, for_readers=True),
    "mappedFileSizeTimerLog": _row(
        "store", "bytes", "size of a file of the timer log that is written for Apache's broker",
        low=52),
    "timerFlushIntervalMs": _row(
        "broker", "ms", "interval between saves of the set of timers that wait", low=100),
    "forwardTimeout": _row(
        "broker", "ms",
        "how long another broker may take to answer for its part of a static topic's queue", low=1),
    "recallMessageEnable": _row("broker", "", "clients may recall timers"),
    "allowRecallWhenBrokerNotWriteable": _row(
        "broker", "", "clients may recall timers while the broker is not writable"),
    "reviveQueueNum": _row(
        "metadata", "queues", "queues of the revive topic", low=1, high=998, at_start=True),
    "reviveInterval": _row(
        "broker", "ms", "interval between commits of how far the revive topic is done with", low=1),
    "popFromRetryProbability": _row(
        "broker", "percent", "share of pops that look at the retry topic before the topic itself",
        low=0, high=100),
    "popFromRetryProbabilityForPriority": _row(
        "broker", "percent", "the same share, of pops that go by priority", default=0, low=0,
        high=100),
    "priorityOrderAsc": _row(
        "broker", "", "a larger priority is the more urgent one; false: a smaller", default=True),
    "minLiteTTl": _row(
        "broker", "ms", "a lite topic does not expire sooner after its last message",
        default=900_000, low=0, high=INT_MAX),
    "liteTtlCheckInterval": _row(
        "broker", "ms", "interval between looks for lite topics that have expired",
        default=120_000, low=100, high=INT_MAX),
    "liteLagLatencyMetricsEnable": _row(
        "broker", "", "rocketmq_consumer_lag_latency_milliseconds also of groups of lite topics:"
        " the oldest message they have not read", default=False),
    "enableLmqQuota": _row(
        "broker", "", "bound the lite topics of a broker by maxLmqConsumeQueueNum", default=False),
    "maxLmqConsumeQueueNum": _row(
        "broker", "lite topics", "that bound: a send to a further one is refused with 2017", low=0,
        high=INT_MAX),
    "maxLiteSubscriptionCount": _row(
        "broker", "pairs", "clients and lite topics that they subscribe to", default=100_000,
        low=0, high=INT_MAX),
    "maxClientEventCount": _row(
        "broker", "lite topics", "of these, as many wait at once for a client to pop them",
        default=100, low=1, high=INT_MAX),
    "popPollingSize": _row(
        "broker", "requests", "pops that wait at once for one topic, group and queue", low=0),
    "popPollingMapSize": _row(
        "broker", "places", "topics, groups and queues that pops wait for at once", low=0),
    "maxPopPollingSize": _row("broker", "requests", "pops that wait at once", low=0),
    "enablePopMessageThreshold": _row(
        "broker", "", "bound the messages of a queue that a group has popped and not acknowledged"),
    "popInflightMessageThreshold": _row("broker", "messages", "that bound", low=0),
    "initPopOffsetByCheckMsgInMem": _row(
        "broker", "", "a new group gets all of a young queue, even if it begins at the end"),
    "enableRetryTopicV2": _row(
        "broker", "", "name POP retry topics %RETRY%group+topic instead of %RETRY%group_topic"),
    "retrieveMessageFromPopRetryTopicV1": _row(
        "broker", "", "with enableRetryTopicV2, look at the topics of the older name, too"),
    "popResponseReturnActualRetryTopic": _row(
        "broker", "", "messages that come back name the retry topic and bring no handle"),
    "defaultMessageRequestMode": _row(
        "broker", "", "whether groups without a mode of their own pull or pop (QUERY_ASSIGNMENT)",
        choices=("PULL", "POP")),
    "defaultPopShareQueueNum": _row(
        "broker", "clients", "of how many other clients each pops the queues, too; 0 or less: all"),
    "flushConsumerOffsetInterval": _row(
        "metadata", "ms", "least time between exports of consumerOffset.json", low=0),
    "flushDelayOffsetInterval": _row(
        "metadata", "ms", "interval between exports of delayOffset.json", low=0),
    "consumerOffsetUpdateVersionStep": _row(
        "metadata", "commits", "commits between two versions of consumerOffset.json", low=1),
    "delayOffsetUpdateVersionStep": _row(
        "metadata", "updates", "updates between two versions of delayOffset.json", low=1),
    # what this store cannot honour, and must not pretend to
    "enableDLegerCommitLog": _must_be_false("the DLedger commit log layout is not supported"),
    "storeType": _row(
        "store", "", "must be default: queues in RocksDB are not supported",
        check=_must_be(
            "default", why="queues in RocksDB are not supported; leave it at 'default'")),
    "readOnlyCommitLogStorePaths": _row(
        "store", "paths", "must be empty: list all directories in storePathCommitLog",
        check=_must_be("", why="list these directories in storePathCommitLog instead")),
    "enablePopBufferMerge": _must_be_false(
        "check points are in the log before messages are handed out"),
    "enablePopBatchAck": _must_be_false("each acknowledgement is a record of its own"),
    "appendAckAsync": _must_be_false("an acknowledgement is answered when it is in the log"),
    "appendCkAsync": _must_be_false("messages are handed out when their check point is in the log"),
    "enableSkipLongAwaitingAck": _must_be_false(
        "acknowledgements need not wait for their check point"),
    "popConsumerKVServiceEnable": _must_be_false("the state of POP in RocksDB is not supported"),
    "popConsumerKVServiceInit": _must_be_false("the state of POP in RocksDB is not supported"),
    "rejectTransactionMessage": _row("broker", "", "refuse half messages (code 16)",
        by_request="own host"),
    "transactionTimeOut": _row(
        "broker", "ms", "age of a half message before its first check", low=0),
    "transactionCheckInterval": _row("broker", "ms", "interval between transaction checks", low=1),
    "transactionCheckMax": _row(
        "broker", "checks", "checks after which a half message is discarded", low=0),
    "transactionOpMsgMaxSize": _row("broker", "bytes", "maximum size of one op message", low=1),
    "transactionOpBatchInterval": _row(
        "broker", "ms", "how long decisions are collected into one op message", low=0),
    # what this broker cannot do, and must not pretend to
    "brokerRole": _row(
        "broker", "", "given, slaves may follow this broker, or it follows its master",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"), at_start=True, only="ASYNC_MASTER",
        because="replication is a broker's; this is a store without one", by_broker=True),
    "inSyncReplicas": _row(
        "broker", "brokers",
        "SYNC_MASTER: so many must have a record before its answer, the master counted", low=1,
        high=1 + 64, only=1, by_broker=True,
        because="replication is a broker's; this is a store without one",
        with_controller=False, of_sync_master=True),
    "haListenPort": _row(
        "broker", "port",
        "given, slaves may connect to it; 0, or brokerRole given alone: listenPort + 1", low=0,
        high=65535, at_start=True),
    "haMasterAddress": _row(
        "broker", "address", "host:port that a slave follows; default: as the name server says",
        at_start=True, with_controller=False, form="server"),
    "haSendHeartbeatInterval": _row(
        "broker", "ms", "a master or a slave that is silent for so long sends a heartbeat", low=1,
        at_start=True),
    "haHousekeepingInterval": _row(
        "broker", "ms", "a peer that is silent for so long is gone", low=1, at_start=True),
    "haTransferBatchSize": _row(
        "broker", "bytes", "of the log that a frame to a slave has at most", low=1, high=4 << 20,
        at_start=True),
    "haMaxGapNotInSync": _row(
        "broker", "bytes", "a slave that is behind by less is in sync", low=0,
        with_controller=False),
    "haFlowControlEnable": _row(
        "broker", "", "what a slave is sent is bounded by maxHaTransferByteInSecond",
        at_start=True),
    "maxHaTransferByteInSecond": _row(
        "broker", "bytes", "of the log that a slave is sent in a second, with haFlowControlEnable",
        low=1000, at_start=True),
    "slaveTimeout": _row(
        "broker", "ms", "an answer waits for slaves for so long, then it has code 12", low=1),
    "slaveReadEnable": _row(
        "broker", "",
        "a slave answers pulls, else they get code 2; a master sends readers that are far behind to"
        " a slave", at_start=True),
    "minInSyncReplicas": _row(
        "broker", "brokers",
        "SYNC_MASTER: with fewer in sync, the master counted, sends are refused", low=1,
        high=1 + 64, only=1, by_broker=True,
        because="replication is a broker's; this is a store without one", of_sync_master=True),
    "allAckInSyncStateSet": _row(
        "broker", "", "true with enableControllerMode: answers wait for all of the in-sync set",
        only=False, at_start=True, by_broker=True,
        because="replication is a broker's; this is a store without one", with_controller=True),
    "enableAutoInSyncReplicas": _row(
        "broker", "",
        "SYNC_MASTER: answers wait for those in sync alone, between minInSyncReplicas and"
        " inSyncReplicas", only=False, by_broker=True,
        because="replication is a broker's; this is a store without one",
        with_controller=False, of_sync_master=True),
    "enableControllerMode": _row(
        "broker", "", "a controller says which broker of a name is the master", at_start=True,
        only=False, by_broker=True,
        because="a controller is a broker's; this is a store without one"),
    "controllerAddr": _row(
        "broker", "addresses",
        "of the controller: host:port;host:port, or etcd://host:port,host:port, etcds:// for TLS;"
        " user:password@ before the hosts",
        at_start=True, with_controller=True, form="controllers"),
    "controllerHeartBeatTimeoutMills": _row(
        "broker", "ms", "a broker that the controller does not hear for so long is dead",
        low=1000, at_start=True, with_controller=True),
    "haMaxTimeSlaveNotCatchup": _row(
        "broker", "ms", "under a controller: a slave that has not caught up for so long is no"
        " longer in sync", low=100, with_controller=True),
    "duplicationEnable": _row(
        "store", "", "must be false; consumeAfterReplication has readers wait for slaves",
        only=False, because="consumeAfterReplication has readers wait for slaves"),
    "enableConsumeQueueExt": _row(
        "store", "", "must be false; such units of Java's are read", only=False,
        because="units hold their tags code; units of Java's are read"),
    # access control
    "aclEnable": _row(
        "broker", "", "the plain access list: plain_acl.yml and acl/*.yml", at_start=True),
    "authenticationEnabled": _row("broker", "", "requests must be signed by a user", at_start=True),
    "authorizationEnabled": _row(
        "broker", "", "users may do what their policies allow", at_start=True),
    "authenticationWhitelist": _row(
        "broker", "codes", "requests that need no signature, separated by ','", at_start=True),
    "authorizationWhitelist": _row(
        "broker", "codes", "requests that need no policy, separated by ','", at_start=True),
    "authenticationProvider": _row(
        "broker", "class", "upstream's class, or nothing", at_start=True),
    "authorizationProvider": _row("broker", "class", "as authenticationProvider", at_start=True),
    "authenticationMetadataProvider": _row(
        "broker", "class",
        "upstream's class; with both switches off it has the broker keep users for proxies",
        at_start=True),
    "authorizationMetadataProvider": _row(
        "broker", "class", "as authenticationProvider", at_start=True),
    "authenticationStrategy": _row(
        "broker", "class", "as authenticationProvider; a change holds at once with either class",
        at_start=True),
    "authorizationStrategy": _row("broker", "class", "as authenticationStrategy", at_start=True),
    "initAuthenticationUser": _row(
        "broker", "JSON", "Super user made at the start: username and password", at_start=True,
        is_secret=True),
    "innerClientAuthenticationCredentials": _row(
        "broker", "JSON", "accessKey and secretKey that the broker itself signs with",
        at_start=True, is_secret=True),
    "migrateAuthFromV1Enabled": _row(
        "broker", "", "make users and policies of the plain access list at the start", at_start=True
    ),
    "rocketmqHome": _row(
        "broker", "path", "its conf/ holds the access list; default: $ROCKETMQ_HOME", at_start=True
    ),
    # metrics
    "metricsExporterType": _row(
        "broker", "",
        "PROM: by HTTP, with /health and /ready; OTLP_GRPC: to a collector; LOG: to the log",
        choices=("DISABLE", "PROM", "OTLP_GRPC", "LOG"), at_start=True),
    "metricsPromExporterPort": _row(
        "broker", "port", "port of the metrics; 0: any free port", low=0, high=65535,
        at_start=True),
    "metricsPromExporterHost": _row(
        "broker", "address", "address that it listens on; empty: brokerIP1", at_start=True,
        form="host"),
    "metricsLabel": _row(
        "broker", "", "labels of every sample: name:value, with , between", at_start=True,
        form="labels"),
    "metricsOtelCardinalityLimit": _row(
        "broker", "", "series of a metric; those beyond are one, otel_metric_overflow", low=1,
        at_start=True),
    "metricsGrpcExporterTarget": _row(
        "broker", "address", "OTLP_GRPC: the collector, http://HOST:PORT; empty: nothing is sent",
        at_start=True),
    "metricsGrpcExporterHeader": _row(
        "broker", "", "OTLP_GRPC: headers of each export: name:value, with , between",
        at_start=True),
    "metricGrpcExporterTimeOutInMills": _row(
        "broker", "ms", "OTLP_GRPC: how long an export may take", low=1, at_start=True),
    "metricGrpcExporterIntervalInMills": _row(
        "broker", "ms", "OTLP_GRPC: between two exports", low=100, at_start=True),
    "metricLoggingExporterIntervalInMills": _row(
        "broker", "ms", "LOG: between two exports", low=100, at_start=True),
    "metricsInDelta": _row(
        "broker", "", "must be false: counters are sums since the start", only=False,
        because="Prometheus and collectors make deltas of sums; the reverse loses restarts"),
    # the broker
    "namesrvAddr": _row("broker", "addresses", "name servers to register with, separated by ';'",
        by_request="own host", form="servers"),
    "bindAddress": _row(
        "broker", "address",
        "address to listen on; default: brokerIP1 if it is a loopback address, else 0.0.0.0",
        at_start=True, form="host"),
    "brokerIP2": _row("broker", "address", "host of the HA address announced to name servers",
        form="host"),
    "brokerId": _row(
        "broker", "", "broker id announced to name servers; 0: master; -1: as the controller says",
        low=-1, at_start=True),
    "serverChannelMaxIdleTimeSeconds": _row(
        "broker", "s", "idle connections are closed after this time; 0: never", low=0, at_start=True
    ),
    "serverSelectorThreads": _row(
        "broker",
        "threads",
        "network threads of connections; unless it is given: 1 up to 4 cores, and in"
        " a process that embeds the broker",
        low=1,
        high=15,  # as many callers of the core as there are, without the one of gRPC's port
        at_start=True,
    ),
    "channelExpiredTimeout": _row(
        "broker", "ms", "a client without heartbeat for this long is removed", low=1, at_start=True
    ),
    "brokerPermission": _row("broker", "bits", "4: readable, 2: writable, 6: both", low=0, high=7,
        by_request="own host"),
    "startAcceptSendRequestTimeStamp": _row("broker", "ms", "refuse sends until this time",
        by_request="own host"),
    "regionId": _row("broker", "", "MSG_REGION of messages and responses", at_start=True),
    "traceOn": _row("broker", "", "TRACE_ON of messages and responses", at_start=True),
    "autoCreateSubscriptionGroup": _row(
        "broker", "", "create unknown consumer groups on first use", by_request="own host"),
    "enableMixedMessageType": _row("broker", "", "allow topics of type MIXED"),
    "enablePropertyFilter": _row("broker", "", "allow SQL92 filters", by_request="own host"),
    "longPollingEnable": _row(
        "broker", "", "hold a pull without messages for as long as the client asks", at_start=True),
    "shortPollingTimeMills": _row(
        "broker", "ms", "how long such a pull is held if longPollingEnable is false", low=0,
        high=INT_MAX, at_start=True),
    "useTLS": _row(
        "broker", "", "use TLS to name servers; default: the value of tls.enable", at_start=True),
    "litePullMessageEnable": _row("broker", "", "serve LITE_PULL_MESSAGE (361)"),
    "notifyConsumerIdsChangedEnable": _row(
        "broker", "", "notify consumers when their group changes"),
    "useServerSideResetOffset": _row(
        "broker", "", "reset offsets at the broker instead of at the clients"),
    "storeReplyMessageEnable": _row("broker", "", "store request-reply replies"),
    "defaultQueryMaxNum": _row("broker", "messages", "maximum results of a query by unique key"),
    "clearRetryTopicWhenDeleteTopic": _row(
        "broker", "", "delete POP retry topics together with their topic"),
    "configBlackList": _row("broker", "names", "settings that admin tools may not change",
        by_request="nobody"),
    "forceRegister": _row(
        "broker", "", "always send the full registration; false: only after topics changed"),
    "registerNameServerPeriod": _row(
        "broker", "ms", "interval between registrations", clamp=(10_000, 60_000)),
    "registerBrokerTimeoutMills": _row("broker", "ms", "timeout of a registration", low=1),
    "enableSlaveActingMaster": _row(
        "broker", "", "a slave does a master's duties while there is none; all brokers of a name"
        " need it", at_start=True, with_controller=False),
    "enableRemoteEscape": _row(
        "broker", "",
        "what is due at a slave that acts as master goes to other brokers, else it waits",
        at_start=True),
    "totalReplicas": _row(
        "broker", "brokers",
        "a master waits at its start for so many of its name, itself among them", low=1,
        at_start=True),
    "skipPreOnline": _row(
        "broker", "", "a master starts without what its slaves did in its place", at_start=True),
    "brokerNotActiveTimeoutMillis": _row(
        "broker", "ms",
        "with enableSlaveActingMaster: without a heartbeat for so long, a name server forgets the"
        " broker", low=1000, at_start=True),
    "brokerHeartbeatInterval": _row("broker", "ms", "interval between those heartbeats", low=1),
    # the cold tier
    "tieredStoreFilePath": _row(
        "broker", "address",
        "folder of the cold tier, or its address, as s3://bucket/cold; empty: there is none",
        default="", at_start=True, by_request="nobody", form="tier"),
    "tieredStorageLevel": _row(
        "broker", "",
        "which reads the tier serves",
        default="NOT_IN_DISK",
        choices=("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE", "0", "1", "2", "3")),
    "tieredStoreFileReservedTime": _row(
        "broker", "h",
        "messages stay in the tier for so long, unless their topic's reserve.time says otherwise;"
        " -1: for ever", default=72, low=-1, by_request="own host"),
    "tieredStoreDeleteFileEnable": _row(
        "broker", "", "delete from the tier what is older than that", default=True,
        by_request="own host"),
    "tieredStoreDeleteFileInterval": _row(
        "broker", "ms", "interval between looks for what is older", default=3_600_000, low=1000),
}
# fmt: on

#: Settings that upstream does not have. They are named in its manner, and it passes over them.
# fmt: off
_OURS: dict[str, dict[str, Any]] = {
    "mappedFilesMax": _row(
        "store", "files",
        "segments, queue files and index files that are mapped at once; the kernel allows a "
        "process 65530", "mapped_files_max", type="int", default=16384, low=16, high=1 << 24),
    "storeFileMode": _row(
        "store", "octal",
        "mode of the store's files, less the umask; its folders have x as well wherever this "
        "has r; files with secrets are 0600 nevertheless", "file_mode", type="String",
        default="0640", check=_file_mode, encode=_file_mode),
    "maxConnections": _row(
        "broker", "connections", "more are answered that the broker is busy, and closed",
        type="int", default=65536, low=1, at_start=True),
    "maxFirstFrameBytes": _row(
        "broker", "bytes",
        "with access control: a larger frame closes a connection of which no request was let in; "
        "0: maxMessageSize + 1 MiB", type="int", default=0, low=0, at_start=True),
    "maxHeldPulls": _row(
        "broker", "pulls", "pulls that wait at once; more are answered without waiting", type="int",
        default=100_000, low=0, at_start=True),
    "logLevels": _row(
        "broker", "", "levels by logger, over --log-level: broker.remoting=ERROR,pystore=INFO",
        type="String", default="", check=log_levels),
    "loopHeldWarnMillis": _row(
        "broker", "ms", "a request that holds the event loop longer is logged and counted",
        type="int", default=50, low=1, at_start=True),
    "maxUnfinishedBytes": _row(
        "broker", "bytes",
        "memory for unfinished requests and unread answers of all ports; strangers go first",
        type="int", default=256 << 20, low=32 << 20, at_start=True),
    "trustedProxies": _row(
        "broker", "addresses",
        "proxies whose PROXY header says where a client is, separated by ';'; *: all",
        type="String", default="127.0.0.1;::1", at_start=True, form="patterns"),
    "ownAddresses": _row(
        "broker", "addresses",
        "host:port of port mappings that clients reach this broker at, separated by ';': requests"
        " signed for them are served",
        type="String", default="", at_start=True, form="servers"),
    "passwordsFor": _row(
        "broker", "addresses",
        "request 3004 answers passwords in clear to a Super from these, separated by ';': Apache's"
        " proxies",
        type="String", default="", at_start=True, form="patterns"),
    "trustedBrokers": _row(
        "broker", "addresses",
        "brokers that are believed without proof, separated by ';'; default: *, with"
        " innerClientAuthenticationCredentials nobody",
        type="String", default="", at_start=True, form="patterns"),
    "trustedSlaves": _row(
        "broker", "addresses",
        "slaves may follow from these, separated by ';'; default: *, with access control this host",
        type="String", default="", at_start=True, form="patterns"),
    "consumeAfterReplication": _row(
        "broker", "",
        "SYNC_MASTER: readers see a message once inSyncReplicas brokers have it", type="boolean",
        default=False, at_start=True, with_controller=False, of_sync_master=True),
    "haTruncateDiverged": _row(
        "broker", "",
        "a slave cuts its log back to where it is the master's, and keeps the rest in aside/",
        type="boolean", default=False, at_start=True, with_controller=False),
    "maxQueuesPerTopic": _row(
        "broker", "queues", "a topic with more queues is refused", type="int", default=4096, low=1,
        high=65535, by_request="own host"),
    "maxQueuesPerBroker": _row(
        "broker", "queues",
        "a topic that would bring the broker over this many queues is refused; one without "
        "queues counts as one", type="int", default=131072, low=1, high=1 << 24,
        by_request="own host"),
    "maxGroupsPerBroker": _row(
        "broker", "groups",
        "a group that would be one more is refused, and not made by what its clients ask",
        type="int", default=131072, low=16, high=1 << 24,
        by_request="own host"),
    "maxOffsetsPerBroker": _row(
        "broker", "offsets",
        "one more consumer offset of a client, or pair of group and topic, is refused",
        type="int", default=1 << 20, low=1024, high=1 << 26, at_start=True),
    "maxOpenCheckPoints": _row(
        "broker", "batches",
        "POP batches that are not acknowledged altogether; more are not handed out", type="int",
        default=1_000_000, low=1),
    "priorityAgeingMs": _row(
        "broker", "ms",
        "in a topic with priorities, a message gains a level each time it has waited so long; 0: "
        "never", type="int", default=0, low=0),
    "priorityRetriesInTurn": _row(
        "broker", "",
        "pops that go by priority hand out what comes back at its own level, and not after all "
        "that waits", type="boolean", default=False),
    "indexTagsEnable": _row(
        "store", "",
        "put the tags of messages into the key index, too, as RocketMQ 5.5.0 does; an index that "
        "has them keeps having them", "index_tags", type="boolean", default=False),
    "checkCRCOnRead": _row(
        "store", "",
        "reads of queues pass over a message whose body does not fit its CRC, and count it",
        "check_crc_on_read", type="boolean", default=False),
    "paranoidRecovery": _row(
        "store", "",
        "an open compares queues, index and metadata with the whole log, and mends what differs",
        type="boolean", default=False),
    "lightFilesAtStop": _row(
        "broker", "", "leave light queues as a Java broker has them at a clean stop, and take them"
        " away at the start", type="boolean", default=False, at_start=True),
    "deliveryMaxTps": _row(
        "broker", "messages/s",
        "most messages of delay levels and timers that are delivered in a second; 0: any",
        type="int", default=100_000, low=0),
    "tieredUploadWaitMillis": _row(
        "broker", "ms",
        "a queue with less than 16 MiB to write out waits until its oldest message is so old",
        type="int", default=600_000, low=0),
    "tieredPutsPerHour": _row(
        "broker", "PUTs/h",
        "most requests that write objects of less than 16 MiB: quiet queues wait for their turn",
        type="int", default=1000, low=2, by_request="own host"),
    "tieredUploadRateMax": _row(
        "broker", "MB/s", "most that is written out; 0: any", type="int", default=100, low=0,
        by_request="own host"),
    "tieredCacheBytes": _row(
        "broker", "B",
        "blocks of the tier that are kept in the store's folder tiered_cache; 0: none",
        type="long", default=1 << 30, low=0, at_start=True, by_request="own host"),
    "tieredWhenFull": _row(
        "broker", "",
        "a full disk keeps what is not written out, until sends are refused, or deletes it",
        type="String", default="REFUSE", choices=("REFUSE", "LET_GO"),
        by_request="own host"),
    "tieredWhenDamaged": _row(
        "broker", "",
        "who reads what comes wrong from the tier waits until it comes right, or goes on after it",
        type="String", default="WAIT", choices=("WAIT", "PASS_OVER"),
        by_request="own host"),
    "idempotentProduceWindow": _row(
        "broker", "messages", "messages remembered for deduplication; 0: off", type="int",
        default=0, low=0, high=1 << 24, at_start=True),
    "idempotentProduceKey": _row(
        "broker", "", "property that identifies a message, together with its topic", type="String",
        default="UNIQ_KEY", choices=("UNIQ_KEY", "KEYS"), at_start=True),
    "idempotentProduceTopics": _row(
        "broker", "topics",
        "topics, separated by commas; *: all but system, retry and dead letter topics",
        type="String", default="*", check=_not_empty, at_start=True),
}
# fmt: on

#: Read by BrokerStartup itself, so that no class has them.
_STARTUP = ("rmqAddressServerDomain", "rmqAddressServerSubGroup")


def unserved(settings: Settings, *, by_broker: bool = False) -> Iterator[SettingProblem]:
    """Yields settings that ask for what nobody here does. by_broker: a broker asks."""
    for name in sorted(settings.explicit & NOT_SERVED):
        row, given = TABLE[name], settings[name]
        if given != row.only and not (by_broker and row.by_broker):
            text = f"{name} = {shown(given)} is not supported: {row.because}"
            yield SettingProblem(name, settings.source(name), text)


def refuse_unserved(settings: Settings) -> None:
    """Refuses what only a broker serves. Raises: BadArgument for a setting that asks for what a
    store without a broker does not."""
    refuse(unserved(settings))


def _make_table() -> dict[str, Setting]:
    table: dict[str, Setting] = {}

    def add(name: str, kind: str, default: Value, origin: str, used_by: str) -> None:
        row: dict[str, Any] = {"default": default, "used_by": used_by}
        if kind == "long":
            row |= {"low": LONG_MIN, "high": LONG_MAX}
        table[name] = Setting(name=name, type=kind, origin=origin, **row | _USED.get(name, {}))

    for origin, settings in UPSTREAM.items():
        for name, (kind, default) in settings.items():
            add(name, kind, default, origin, "none")
    for name in _STARTUP:
        add(name, "String", None, "BrokerStartup", "none")
    for name, (kind, version) in OTHER_VERSIONS.items():
        add(name, kind, None, version, "none")
        if name.endswith(("AccessKey", "SecretKey")):
            table[name] = replace(table[name], is_secret=True)
    for name, row in _OURS.items():
        table[name] = Setting(name=name, origin="ours", **row)
    return table


#: Every setting that is accepted, by name.
TABLE: dict[str, Setting] = _make_table()


def without_password(value: Value) -> Value:
    """Returns a value as it may be shown: an address that has a password in it loses it."""
    return re.sub(r"(://[^/:,]*):.*@", r"\1:***@", value) if isinstance(value, str) else value


#: Columns of the table as sets of names. PLACES: folders. RETENTION: what an open store takes over
#: (hosting.retain).
SECRETS = frozenset(row.name for row in TABLE.values() if row.is_secret)
NOT_SERVED = frozenset(row.name for row in TABLE.values() if row.because)
PLACES = frozenset(row.name for row in TABLE.values() if row.unit in ("path", "paths"))
RETENTION = frozenset(
    row.name for row in TABLE.values() if row.used_by == "store" and not row.at_start
)


def edit_conf(path: Path, changes: Mapping[str, str]) -> None:
    """Writes other values into a broker.conf; its comments, its order and its rights stay.

    The file holds its old content or all of the new one, whenever the power fails; its previous
    content becomes its ``.bak``, as upstream's MixAll.string2File leaves it.

    Raises: Forbidden, DiskFull, StoreIOError, BadArgument for a file that is not a properties file.
    """
    path = path.resolve()  # a link stays one
    # By bytes: entries that are not changed need not be understood.
    text = (files.read_file(path) or b"").decode("latin-1")
    try:
        made = edit_java_properties(text, changes).encode("latin-1")
    except ValueError as bad:
        raise BadArgument(str(bad), where=str(path)) from None
    with files.named_errors(path):
        files.replace_file(path, made, keep_old=True)
        files.sync_folder(path.parent)


def _nearest(name: str) -> str:
    near = nearest(name, TABLE)
    return f"; the nearest name is '{near}'" if near else ""


class Settings:
    """All settings by upstream's names: ``s.maxMessageSize`` or ``s["maxMessageSize"]``.

    Immutable; made by :func:`load`. A value has the type of its row in :data:`TABLE`; ratios are
    kept as given and clamped when used.
    """

    __slots__ = ("_sources", "_values")

    def __init__(self, values: Mapping[str, Value], sources: Mapping[str, str]) -> None:
        """Keeps values. values: converted values of the names given. sources: where each was
        given."""
        self._values = dict(values)
        self._sources = dict(sources)

    def __getitem__(self, name: str) -> Any:
        """Raises KeyError for a name that upstream does not have."""
        if name in self._values:
            return self._values[name]
        return TABLE[name].default

    def __getattr__(self, name: str) -> Any:
        # Slots that are not set yet (copying, unpickling) come here too.
        if name.startswith("_") or name not in TABLE:
            raise AttributeError(f"unknown setting '{name}'{_nearest(name)}")
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in TABLE

    def __repr__(self) -> str:
        given = ", ".join(
            f"{name}={'***' if name in SECRETS else repr(without_password(self._values[name]))}"
            for name in sorted(self._values)
        )
        return f"Settings({given})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def explicit(self) -> frozenset[str]:
        """Names that the file or the keywords gave."""
        return frozenset(self._values)

    def source(self, name: str) -> str:
        """Returns ``keyword``, ``path:line`` or ``default``. Raises KeyError for an unknown
        name."""
        return self._sources.get(name) or ("default" if TABLE[name] else "")

    def as_dict(self) -> dict[str, Value]:
        """Returns every setting with its value."""
        return {name: self[name] for name in TABLE}

    def replaced(self, **overrides: object) -> Settings:
        """Returns a copy with some settings changed. Raises BadArgument as :func:`load` does."""
        changed = load(None, overrides)
        return Settings(self._values | changed._values, self._sources | changed._sources)

    def clamped(self, name: str) -> int:
        """Returns a ratio in percent, moved into the range that upstream allows it
        (docs/internals/format.md#retention)."""
        row = TABLE[name]
        low, high = row.clamp if row.clamp is not None else (row.low, row.high)
        return max(low, min(high, int(self[name])))

    @property
    def root(self) -> Path | None:
        """storePathRootDir, absolute, or None when it was not given."""
        text = self["storePathRootDir"]
        return Path(os.path.abspath(text)) if text else None  # noqa: PTH100 - keeps symbolic links

    def commitlog_dirs(self, root: str | os.PathLike[str]) -> list[Path]:
        """Returns the folders of the commit log, absolute, for a store that lies in ``root``.

        A folder that the settings file puts inside its own storePathRootDir is taken inside
        ``root`` instead: a copy of a store, opened with the original's broker.conf, must not reach
        into the original. Raises: BadArgument when storePathCommitLog holds nothing but commas.
        """
        here = Path(os.path.abspath(root))  # noqa: PTH100 - keeps symbolic links
        text = self["storePathCommitLog"]
        if not text:
            return [here / "commitlog"]
        dirs = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            path = Path(os.path.abspath(part))  # noqa: PTH100
            from_file = self.source("storePathCommitLog") != "keyword"
            if from_file and self.root is not None and path.is_relative_to(self.root):
                path = here / path.relative_to(self.root)
            dirs.append(path)
        if not dirs:
            raise BadArgument(f"storePathCommitLog = '{text}' names no directory")
        return dirs

    @property
    def store_host(self) -> bytes:
        """brokerIP1 and listenPort as they stand in a record: 4 or 16 address bytes, i32 port.

        A host name is looked up (IPv4 preferred), as upstream does. Raises: BadArgument when that
        fails.
        """
        return _address(self["brokerIP1"]) + int(self["listenPort"]).to_bytes(4, "big")

    @property
    def delay_levels_ms(self) -> list[int]:
        """messageDelayLevel in milliseconds; level n is item n-1."""
        return _delay_levels_ms(self["messageDelayLevel"])

    @property
    def file_mode(self) -> int:
        """storeFileMode as a number; :func:`pystore.files.folder_mode` makes that of folders."""
        return _file_mode(self["storeFileMode"])

    @property
    def delete_hours(self) -> int:
        """deleteWhen as a mask: bit h for local hour h."""
        return _hours_mask(self["deleteWhen"])


def _literal(text: str) -> bytes:
    """Returns 4 or 16 bytes of an address; an IPv4 one within IPv6 becomes 4, as Java's InetAddress
    has it.

    Raises ValueError.
    """
    address = ipaddress.ip_address(text[1:-1] if text[:1] + text[-1:] == "[]" else text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def host_bytes(host: str) -> bytes:
    """Returns ``"10.0.0.1:40000"`` or ``"[::1]:40000"`` as it stands in a record: address bytes,
    i32 port.

    Without a port it is 0. Names are not looked up. Raises: BadArgument.
    """
    address, colon, port = host.rpartition(":")
    if not colon or (":" in address and not address.endswith("]")):
        address, port = host, "0"  # no port, or an IPv6 address without brackets
    try:
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError(f"'{port}' is not a port")
        return _literal(address) + int(port).to_bytes(4, "big")
    except ValueError as bad:
        raise BadArgument(f"'{host}' is not address:port ({bad})") from None


def _address(text: str) -> bytes:
    """Returns 4 or 16 bytes of an address or of a host name, which is looked up. Raises
    BadArgument."""
    try:
        return _literal(text)
    except ValueError:
        try:
            found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as failed:
            raise BadArgument(
                f"brokerIP1 = '{text}' is neither an address nor a resolvable host name"
            ) from failed
        texts = sorted({str(each[4][0]) for each in found}, key=lambda each: (":" in each, each))
        return _literal(texts[0])


def load(
    conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Returns the settings of a broker.conf with keywords over them.

    conf: path of a properties file, or a mapping of names to values, or None. overrides: keywords;
    they win; a value of None counts as not given. Values are of the setting's type, or text as a
    file would hold it ("4194304", "true").

    Raises: BadArgument for a keyword or a name in a mapping that no upstream version has (with the
    nearest one that exists), a mistyped name in a file, a value of the wrong type or out of its
    range, all of them with their places; and for a file that cannot be read.
    """
    made, problems = read_settings(conf, overrides)
    refuse(problems)
    return made


def read_settings(
    conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[Settings, list[SettingProblem]]:
    """Reads settings as :func:`load` does, but returns what is wrong with all of them, what is only
    passed over as well; a setting that is refused has its default. Raises: BadArgument for a file
    that cannot be read."""
    given: list[tuple[str, object, str]] = []
    problems: list[SettingProblem] = []
    if isinstance(conf, Mapping):
        given += [(name, value, "conf") for name, value in conf.items() if value is not None]
    elif conf is not None:
        path = Path(conf)
        entries, problems = read_conf(path)
        for name, (line, text) in entries.items():
            given.append((name, text, f"{path}:{line}"))
    if overrides is not None:
        given += [
            (name, value, "keyword") for name, value in overrides.items() if value is not None
        ]

    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for name, value, source in given:
        of_file = source not in ("conf", "keyword")
        row = TABLE.get(name) if isinstance(name, str) else None
        if row is None:
            problems.append(_unknown(str(name), source, value if of_file else None))
            continue
        try:
            values[name] = convert_of_file(row, value) if of_file else convert(row, value)
        except ValueError as bad:
            shown = value if isinstance(value, int | float | str) else str(value)
            shown = "***" if row.is_secret else repr(without_password(shown))
            problems.append(SettingProblem(name, source, f"{name} = {shown}: {bad}"))
            continue
        sources[name] = source
        if row.used_by == "none" and values[name] != row.default and not row.because:
            problems.append(_without_effect(row, source))
    return Settings(values, sources), problems


def _unknown(name: str, source: str, value: object) -> SettingProblem:
    """Returns the problem of an unknown name. value: of a line of a file; None: it is a keyword."""
    if value is None:
        return SettingProblem(name, source, f"'{name}' is not a setting{_nearest(name)}")
    others = {"name server": NAMESRV, "proxy": PROXY}
    found = about_unknown(name, source, TABLE, IN_GUIDES, others)
    if found.is_error:
        meant = TABLE.get(mistyped(name, TABLE))
        try:  # a second run would show what is wrong with the value under the right name
            if meant is not None:
                convert_of_file(meant, value)
        except ValueError as bad:
            return replace(found, text=f"{found.text}; its value: {bad}")
        return found
    if name.startswith("tls."):
        text = f"{name}: TLS is not set by this file, nor is it by upstream; it has no effect here"
        return replace(found, text=text, mend="pass a file with tls.* lines: --tls FILE")
    return found


def _without_effect(row: Setting, source: str) -> SettingProblem:
    name, mend = row.name, "delete the line"
    text = f"{name} has no effect here"
    if name in OTHER_VERSIONS:
        text = f"{name} has no effect here, nor in RocketMQ {UPSTREAM_VERSION}"
        text += f": {OTHER_VERSIONS[name][1]} knows it"
    if name in RENAMED:
        mend = f"write {RENAMED[name]}"
        text += ", today's name is " + RENAMED[name]
    return SettingProblem(name, source, text, False, "no-effect", mend)


# ---- into C ----


def fill(
    ffi: Any,
    settings: Settings,
    root: str | os.PathLike[str],
) -> tuple[Any, list[Any]]:
    """Returns a ``ps_conf *`` filled from the table, and the objects that must live as long as it
    is used.

    ffi: that of pystore.native. root: folder of the store, which wins over storePathRootDir. File
    sizes are for a new store: an existing one tells its own (adopt_sizes), whatever was asked for.

    Raises: BadArgument when brokerIP1 cannot be resolved or storePathCommitLog names nothing.
    """
    from pystore.native import lib

    conf = ffi.new("ps_conf *")
    lib.ps_conf_init(conf)

    root_text = ffi.new("char[]", os.fsencode(os.path.abspath(root)))  # noqa: PTH100
    conf.root = root_text
    keepalive = [root_text]
    if settings["storePathCommitLog"]:  # else NULL: a comma in the root must not split it
        dirs = [os.fsencode(each) for each in settings.commitlog_dirs(root)]
        if any(b"," in each for each in dirs):
            raise BadArgument(
                "a commit log directory has a comma in its path; the comma separates directories"
            )
        keepalive.append(ffi.new("char[]", b",".join(dirs)))
        conf.commitlog_dirs = keepalive[-1]

    host = settings.store_host
    ffi.memmove(conf.store_host, host, len(host))
    conf.store_host_len = len(host)

    levels = settings.delay_levels_ms
    conf.level_count = len(levels)
    for at, delay in enumerate(levels):
        conf.level_delay_ms[at] = delay

    for row in TABLE.values():
        if row.field is None or row.field in _COMPOSED:
            continue
        if row.clamp is not None:
            number = settings.clamped(row.name)
        elif row.encode is not None:
            number = row.encode(settings[row.name])
        else:
            number = int(settings[row.name])
        setattr(conf, row.field, number)
    return conf, keepalive


#: Fields that fill() makes from more than one number.
_COMPOSED = frozenset({"root", "commitlog_dirs", "store_host", "level_delay_ms"})
