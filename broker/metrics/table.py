"""Every metric: name, kind, unit, labels, meaning and where it is read.

docs/metrics.md is made from it (tools/gen_metrics.py), and so are the HELP and TYPE lines of a
scrape. Names that begin with ``rocketmq_`` are upstream's 5.x, with upstream's labels and types
(org.apache.rocketmq.broker.metrics); ours begin with ``pystore_``, and cannot clash.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BY_NAME", "TABLE", "Metric", "MetricKind"]


class MetricKind(enum.StrEnum):
    """What a metric is, as a TYPE line says it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. name: that of its samples; a histogram's have _bucket, _sum or _count after it.
    labels: those that only this metric has (every sample of a broker has cluster, node_id and
    node_type as well). unit: of the values; empty: a number of things. where: the part of the
    program that counts it. of: broker, namesrv, proxy or client. bounds: of a histogram's
    buckets. entry: the name under which request 28 (GET_BROKER_RUNTIME_INFO) has the value."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    where: str
    of: str = "broker"
    bounds: tuple[float, ...] = ()
    entry: str = ""

    @property
    def is_upstream(self) -> bool:
        return self.name.startswith("rocketmq_")


G, C, H = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

_DISK = ("storage_medium", "storage_type")
_LAG = ("consumer_group", "is_retry", "is_system", "topic")
_IN = ("is_system", "message_type", "topic")
_OUT = ("consumer_group", "is_system", "topic", "is_retry")
_SIZES = (1024, 4096, 524288, 1048576, 2097152, 4194304)
_RPC = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_CREATE = (10, 100, 1000, 3000, 5000)
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

#: Name, kind, unit, labels, meaning, where it is read, and the bounds of a histogram.
_UPSTREAM = (
    ("processor_watermark", G, "", ("processor",),
     "0: nothing waits in a pool, all runs on one loop; upstream: length of the pool's queue",
     "figures/broker"),
    ("broker_permission", G, "", (),
     "brokerPermission: 2 write, 4 read, 6 both", "services/config"),
    ("topic_number", G, "", (),
     "topics, those of the broker's own among them", "services/topics"),
    ("consumer_group_number", G, "", (),
     "groups, those of the broker's own among them", "services/groups"),
    ("messages_in_total", C, "", _IN,
     "messages stored by sends, by the topic they are stored in (a delayed one:"
     " SCHEDULE_TOPIC_XXXX), and again when a delay level delivers them; not those of retry"
     " and dead letter topics", "csrc/core/metrics.c"),
    ("throughput_in_total", C, "bytes", _IN,
     "bytes of their records", "csrc/core/metrics.c"),
    ("message_size", H, "bytes", _IN,
     "bytes of a record, one observation for each send: of a batch the mean",
     "csrc/core/metrics.c", _SIZES),
    ("messages_out_total", C, "", _OUT,
     "messages that pulls and pops were given; a pop has is_retry, with true for what came"
     " through a retry topic. Of lite topics, by the topic they are below",
     "csrc/remoting/pull.c, csrc/pop/popwalk.c, csrc/lite/litepop.c"),
    ("throughput_out_total", C, "bytes", _OUT,
     "bytes of these", "csrc/remoting/pull.c, csrc/pop/popwalk.c, csrc/lite/litepop.c"),
    ("producer_connections", G, "", ("language", "protocol_type", "version"),
     "connections of producers", "figures/connections"),
    ("consumer_connections", G, "",
     ("consume_mode", "consumer_group", "is_system", "language", "protocol_type", "version"),
     "connections of consumers; consume_mode is push, pull or pop", "figures/connections"),
    ("consumer_lag_messages", G, "", _LAG,
     "messages after the committed offset; of a group that pops: not popped yet, or in"
     " flight. Of groups that are connected, and, unlike upstream, of those that have committed"
     " offsets and are gone. Of a group of lite topics: the sum over those in which it has an"
     " offset", "figures/lag, csrc/tables/lags.c"),
    ("consumer_lag_latency_milliseconds", G, "ms", _LAG,
     "age of the first of these; 0: there is none", "figures/lag"),
    ("consumer_inflight_messages", G, "", _LAG,
     "pulled and not committed; popped and not acknowledged", "figures/lag"),
    ("consumer_queueing_latency_milliseconds", G, "ms", _LAG,
     "age of the first message that was not pulled or popped yet; 0: there is none", "figures/lag"),
    ("consumer_ready_messages", G, "", _LAG,
     "messages that were not pulled or popped yet; of a group of lite topics the same as the"
     " lag, as upstream has it", "figures/lag, csrc/tables/lags.c"),
    ("send_to_dlq_messages_total", C, "", ("consumer_group", "is_system", "topic"),
     "messages that became dead letters, by their own topic", "processors/retry"),
    ("commit_messages_total", C, "", ("topic",),
     "transactions that were committed", "csrc/transactions/transaction.c"),
    ("rollback_messages_total", C, "", ("topic",),
     "transactions that were rolled back", "csrc/transactions/transaction.c"),
    ("finish_message_latency_milliseconds", H, "s", ("topic",),
     "from half message to commit, in seconds in spite of the name",
     "csrc/transactions/transaction.c", (5, 60, 600, 3600, 43200, 86400)),
    ("half_messages", G, "", ("topic",),
     "open transactions", "services/transaction"),
    ("topic_create_execution_time_milliseconds", H, "ms", ("invocation_status", "is_system"),
     "how long it took to create or change a topic on request", "remoting/connection", _CREATE),
    ("consumer_group_create_execution_time_milliseconds", H, "ms", ("invocation_status",),
     "the same of a group", "remoting/connection", _CREATE),
    ("rpc_latency_milliseconds", H, "ms",
     ("is_long_polling", "protocol_type", "request_code", "response_code", "result"),
     "from the request's arrival to its answer; what waited for messages has is_long_polling"
     " true", "csrc/core/metrics.c, metrics/rpc", _RPC),
    ("storage_size_bytes", G, "bytes", _DISK,
     "used bytes of the whole partition", "services/broker_metrics"),
    ("storage_flush_behind_bytes", G, "bytes", _DISK,
     "log that is not on the disk yet", "services/broker_metrics"),
    ("storage_dispatch_behind_bytes", G, "bytes", _DISK,
     "log that is not in the queues and the index yet", "services/broker_metrics"),
    ("storage_message_reserve_time_milliseconds", G, "ms", _DISK,
     "age of the oldest message; no sample while the log is empty", "services/broker_metrics"),
    ("timer_enqueue_lag", G, "", _DISK,
     "records of rmq_sys_wheel_timer that were not read yet", "services/timer_metrics"),
    ("timer_enqueue_latency_milliseconds", G, "ms", _DISK,
     "always 0: a record is read in the round after its put", "services/timer_metrics"),
    ("timer_dequeue_lag", G, "", _DISK,
     "timers that are due and not delivered", "services/timer_metrics"),
    ("timer_dequeue_latency_milliseconds", G, "ms", _DISK,
     "by how much the first of them is late", "services/timer_metrics"),
    ("timing_messages", G, "", (*_DISK, "topic"),
     "timers that wait; after a start with millions of them the count takes a minute to be"
     " whole", "services/timer_metrics"),
    ("timer_message_snapshot", G, "", (*_DISK, "timer_bound_s"),
     "timers due between the bound before (5, 60, 300, 900, 3600, 14400, 28800, 86400 s from"
     " now) and this one", "services/timer_metrics"),
    ("timer_enqueue_total", C, "", (*_DISK, "topic"),
     "timers that were read", "services/timer_metrics"),
    ("timer_dequeue_total", C, "", (*_DISK, "topic"),
     "timers that were delivered", "services/timer_metrics"),
    ("delay_message_latency_seconds", H, "s", (*_DISK, "topic"),
     "how far ahead the times are that were asked for",
     "services/timer_metrics", (60, 600, 3600, 43200, 86400, 259200)),
    ("pop_checkpoint_buffer_size", G, "", (),
     "open check points", "services/pop"),
    ("pop_offset_buffer_size", G, "", (),
     "always 0: offsets of pops are not buffered", "services/pop"),
    ("pop_buffer_scan_time_consume_milliseconds", H, "ms", (),
     "always 0: no buffer is scanned", "services/pop", (1, 10, 100, 1000, 2000, 3000)),
    ("pop_revive_in_message_total", C, "",
     ("consumer_group", "put_status", "revive_message_type", "topic"),
     "check points that were opened", "csrc/pop/popcheckpoint.c"),
    ("pop_revive_out_message_total", C, "",
     ("consumer_group", "queue_id", "revive_message_type", "topic"),
     "check points whose time was over with messages that nobody acknowledged; queue_id is"
     " -1, since they are kept in a table", "services/pop"),
    ("pop_revive_retry_messages_total", C, "", ("consumer_group", "put_status", "topic"),
     "messages that came back", "services/pop"),
    ("pop_revive_lag_milliseconds", G, "", ("queue_id",),
     "records of the revive topic that are not done with: a number, in spite of the name",
     "services/pop"),
    ("pop_revive_latency_milliseconds", G, "ms", ("queue_id",),
     "by how much the first message that should be back is late; the same for every queue",
     "services/pop"),
)  # fmt: skip

#: Ours under upstream's prefix, from before there was a scrape.
_OLD = (
    ("timer_pending", G, "", _DISK,
     "timers that wait, in all", "services/timer_metrics"),
    ("timer_enqueue_tps", G, "", _DISK,
     "timers read a second, over the last ten seconds", "services/timer_metrics"),
    ("timer_dequeue_tps", G, "", _DISK,
     "timers delivered a second, over the last ten seconds", "services/timer_metrics"),
    ("timer_lateness_max_milliseconds", G, "ms", _DISK,
     "lateness of the delivery that came latest after its time", "services/timer_metrics"),
    ("timer_recalled_total", C, "", _DISK,
     "timers that were recalled", "services/timer_metrics"),
    ("timer_skipped_total", C, "", _DISK,
     "records without readable message or destination", "services/timer_metrics"),
    ("timer_errors_total", C, "", _DISK,
     "rounds of delivery that failed, and are tried again", "services/timer_metrics"),
)  # fmt: skip

_OURS = (
    ("build_info", MetricKind.INFO, "", ("version", "speaks"),
     "1; version of this broker, and the version of upstream's protocol", "figures/broker"),
    ("uptime_seconds", G, "s", (),
     "since it was ready", "figures/broker"),
    ("role", G, "", ("role",),
     "1 for the role it has now: master or slave", "services/duties"),
    ("ready", G, "", (),
     "1: /ready answers 200", "figures/health"),
    ("healthy", G, "", (),
     "1: /health answers 200", "figures/health"),
    # store
    ("store_put_seconds", H, "s", (),
     "how long puts take, until the disk or the slaves have them where that is asked for",
     "csrc/core/times.c", _SECONDS),
    ("store_put_failures_total", C, "", (),
     "puts that failed", "csrc/sends/send.c"),
    ("store_syncs_total", C, "", (),
     "syncs of the commit log", "csrc/log/flusher.c"),
    ("store_sync_seconds_total", C, "s", (),
     "time that these took", "csrc/log/flusher.c"),
    ("store_sync_max_seconds", G, "s", (),
     "the longest of them", "csrc/log/flusher.c"),
    ("store_sync_failed", G, "", (),
     "errno of the sync that failed, after which nothing is written; 0: none did",
     "csrc/log/flusher.c"),
    ("store_log_min_offset_bytes", G, "bytes", (),
     "first byte of the log", "csrc/store/info.c"),
    ("store_log_max_offset_bytes", G, "bytes", (),
     "end of the log", "csrc/store/info.c"),
    ("store_segments", G, "", ("file",),
     "files of the commit log and of the index", "csrc/store/info.c"),
    ("store_queues", G, "", (),
     "queues that have a file", "csrc/store/info.c"),
    ("store_dispatch_behind_seconds", G, "s", (),
     "age of the first record that is not in its queue yet; 0: there is none",
     "services/broker_metrics"),
    ("store_damaged_reads_total", C, "", (),
     "damaged messages that reads passed over", "csrc/store/read.c"),
    ("store_disk_full", G, "", (),
     "1: puts are refused for lack of disk space", "csrc/store/retention.c"),
    ("store_disk_bytes", G, "bytes", ("folder", "of"),
     "size of the partition, and what is free, by folder of the commit log",
     "services/broker_metrics"),
    ("store_page_bytes", G, "bytes", ("state",),
     "commit log that is mapped, and what of it is in memory (resident): the rest comes from the"
     " disk when it is read; estimated from 64 MiB of it at most", "csrc/files/segments.c"),
    ("store_recovery_seconds", G, "s", (),
     "how long opening took", "pystore RecoveryReport"),
    ("store_recovery_cut_bytes", G, "bytes", (),
     "bytes at the end of the log that were not a whole record when it was opened",
     "pystore RecoveryReport"),
    ("store_recovery_scanned_bytes", G, "bytes", (),
     "log that was checked when it was opened", "pystore RecoveryReport"),
    ("retention_log_bytes_total", C, "bytes", (),
     "log that retention has deleted since the start", "services/broker_metrics"),
    # the cold tier: no sample without tieredStoreFilePath
    ("tier_up", G, "", (),
     "1: the last request to the tier was answered", "services/cold/cold"),
    ("tier_success_age_seconds", G, "s", (),
     "since the last round without an error", "services/cold/cold"),
    ("tier_written_bytes_total", C, "bytes", (),
     "segments that were written out", "services/cold/uploads"),
    ("tier_written_messages_total", C, "", (),
     "messages in them", "services/cold/uploads"),
    ("tier_puts_total", C, "", (),
     "objects that were written, manifests included", "services/cold/uploads"),
    ("tier_errors_total", C, "", (),
     "rounds of writing out that ended with an error", "services/cold/uploads"),
    ("tier_deleted_segments_total", C, "", (),
     "segments that were older than their time", "services/cold/uploads"),
    ("tier_behind_bytes", G, "bytes", (),
     "log from the first message on that is not out: so much stays locally",
     "services/cold/behind"),
    ("tier_behind_messages", G, "", (),
     "messages that are not out, of those that are settled", "services/cold/behind"),
    ("tier_behind_queues", G, "", (),
     "queues that have some", "services/cold/behind"),
    ("tier_behind_seconds", G, "s", (),
     "age of the oldest of them", "services/cold/behind"),
    ("tier_strange_queues", G, "", (),
     "queues that are not those which the tier has under their names", "services/cold/uploads"),
    ("tier_let_go_bytes_total", C, "bytes", (),
     "log that a full disk has taken although it was not out (tieredWhenFull)",
     "services/cold/cold"),
    ("tier_passed_over_messages_total", C, "", (),
     "messages damaged in two reads, after which consumers continued (tieredWhenDamaged)",
     "services/cold/reads"),
    ("tier_cache_hits_total", C, "", ("place",),
     "blocks of the tier's objects that were found: in memory, on the disk",
     "pystore/cold/blocks"),
    ("tier_cache_misses_total", C, "", (),
     "blocks that had to be fetched, also ahead of who reads on", "pystore/cold/blocks"),
    ("tier_cache_fetched_bytes_total", C, "bytes", (),
     "bytes of them that came", "pystore/cold/blocks"),
    ("tier_cache_evictions_total", C, "", ("place",),
     "blocks that gave way to others", "pystore/cold/blocks"),
    ("tier_cache_bytes", G, "bytes", ("place",),
     "blocks that are kept, of tieredCacheBytes on the disk", "pystore/cold/blocks"),
    # lite topics: no sample while no topic has some
    ("lite_topics", G, "", (),
     "lite topics that there are", "csrc/store/lightview.c"),
    ("lite_topics_max", G, "", (),
     "maxLmqConsumeQueueNum, where enableLmqQuota is on; 0: any number", "services/config"),
    ("lite_topics_expired_total", C, "", (),
     "those that lite.topic.expiration has deleted", "services/lite/lite_topics"),
    ("lite_topics_behind", G, "", ("consumer_group", "topic"),
     "lite topics of this topic in which the group has messages after its offset",
     "csrc/tables/lags.c"),
    ("lite_names_skipped_total", C, "", (),
     "names of light queues in records of another broker that can be no queue's",
     "csrc/store/lights.c"),
    ("lite_plain_sends_total", C, "", ("topic",),
     "messages that were sent to a topic of type LITE without a lite topic: no group of lite topics"
     " gets them",
     "csrc/sends/send.c"),
    ("lite_clients", G, "", (),
     "clients of lite topics, of all groups", "csrc/lite/litesubs.c"),
    ("lite_clients_overflowed", G, "", (),
     "those with more lite topics to read than maxClientEventCount: they are looked at again",
     "csrc/lite/litesubs.c"),
    ("lite_subscriptions", G, "", (),
     "pairs of client and lite topic", "csrc/lite/litesubs.c"),
    ("lite_subscriptions_max", G, "", (),
     "maxLiteSubscriptionCount: more are refused with 2018", "services/config"),
    ("lite_events", G, "", (),
     "lite topics with something to read that wait for their client to pop",
     "csrc/lite/litesubs.c"),
    ("lite_polls", G, "", (),
     "pops of lite topics that wait for messages", "csrc/lite/litesubs.c"),
    # LMDB
    ("metadata_bytes", G, "bytes", ("of",),
     "LMDB: map, the most it may become; used, the pages in use", "pystore/metadata"),
    ("metadata_readers", G, "", (),
     "LMDB: slots of readers in use", "pystore/metadata"),
    # loop, threads, connections
    ("loop_delay_seconds", G, "s", (),
     "how late the event loop was at worst, since the scrape before", "metrics/loop_delay"),
    ("loop_held_total", C, "", ("request_code",),
     "requests that held the event loop longer than loopHeldWarnMillis", "loop/watchdog"),
    ("loop_held_max_seconds", G, "s", (),
     "the longest of them", "loop/watchdog"),
    ("network_threads", G, "", (),
     "threads that read and write connections", "remoting/links"),
    ("network_reads_total", C, "", (),
     "reads of connections by these", "csrc/net/reactor.c"),
    ("core_lock_takes_total", C, "", (),
     "how often the lock of the core was taken", "csrc/core/lock.c"),
    ("core_lock_waits_total", C, "", (),
     "how often somebody had to wait for it", "csrc/core/lock.c"),
    ("core_lock_wait_seconds_total", C, "s", (),
     "for how long", "csrc/core/lock.c"),
    ("connections", G, "", ("listener",),
     "open connections by port: remoting, vip, grpc", "remoting/server"),
    ("connections_max", G, "", (),
     "maxConnections", "remoting/server"),
    ("unfinished_bytes", G, "bytes", (),
     "requests that are not whole or not answered, and answers that are not read", "loop/budget"),
    ("held_pulls", G, "", (),
     "pulls that wait for messages", "csrc/waits/parked.c"),
    ("pulls_total", C, "", ("outcome",),
     "pulls with and without messages: found, empty", "csrc/remoting/pull.c"),
    ("waiting_answers", G, "", (),
     "answers that wait for the disk or the slaves", "csrc/sends/sent.c"),
    # gRPC
    ("grpc_clients", G, "", (),
     "clients that have sent their settings", "grpc/clients"),
    ("grpc_renewals", G, "", (),
     "messages whose invisible time the service lengthens by itself", "grpc/renewal"),
    ("grpc_call_seconds", H, "s", ("method",),
     "how long calls take, from their whole request to their last reply, whatever its status;"
     " a ReceiveMessage with its wait for messages. Not Telemetry, which lasts as long as its"
     " client", "csrc/http2/times.c", _SECONDS),
    # access control
    ("access_refused_total", C, "", (),
     "requests that access control refused", "access/authorizer"),
    ("access_first_frames_refused_total", C, "", (),
     "frames that were too large for a connection nobody knew yet", "csrc/remoting/conn.c"),
    ("access_problem", G, "", (),
     "1: an access list could not be read, the rules of before hold", "services/plain_access"),
    # replication
    ("ha_slaves", G, "", ("state",),
     "slaves that follow: connected, in_sync", "services/replication"),
    ("ha_slave_lag_bytes", G, "bytes", ("slave",),
     "log that a slave does not have yet", "services/replication"),
    ("ha_slave_bytes_per_second", G, "bytes", ("slave",),
     "what is sent to it", "services/replication"),
    ("ha_connected", G, "", (),
     "a slave: 1 while it follows its master", "services/replication"),
    ("ha_master_silent_seconds", G, "s", (),
     "a slave: since it heard of its master", "services/replication"),
    ("ha_diverged", G, "", (),
     "a slave: 1 when its log and its master's part", "services/replication"),
    ("ha_cut_off", G, "", (),
     "a master that slaves may act for: 1 while it reaches neither a name server that knows it nor"
     " a slave, or a slave acts, and it leaves pops, timers and transactions to that slave",
     "services/acting"),
    ("ha_cut_offs_total", C, "", (),
     "how often that happened", "services/acting"),
    # retries, transactions, timers, deduplication
    ("sent_back_total", C, "", ("consumer_group", "topic"),
     "messages that consumers returned for a retry", "processors/retry"),
    ("transactions_open", G, "", (),
     "open transactions", "services/transaction"),
    ("idempotent_remembered", G, "", (),
     "messages in the deduplication window", "hot/dedup"),
    ("idempotent_repeats_total", C, "", (),
     "sends that were repeats", "hot/dedup"),
    ("idempotent_bytes", G, "bytes", (),
     "memory of the deduplication window", "hot/dedup"),
    # name servers
    ("registered", G, "", ("server",),
     "1: that name server answered the last registration", "services/registration"),
    # the scrape itself
    ("scrape_seconds", G, "s", (),
     "how long the scrape before took", "figures/exporter"),
    ("scrape_series_left_out", G, "", (),
     "series beyond metricsOtelCardinalityLimit, counted in one with otel_metric_overflow",
     "csrc/remoting/exposition.c"),
    ("scrape_lag_age_seconds", G, "s", (),
     "age of the figures of consumer lag, POP and connections of clients, which are renewed every"
     " few seconds", "figures/lag"),
)  # fmt: skip

_NAMESRV = (
    ("brokers", G, "", ("cluster",),
     "brokers that are registered", "namesrv/routes"),
    ("topics", G, "", (),
     "topics that have a route", "namesrv/routes"),
    ("connections", G, "", (),
     "open connections", "remoting/server"),
    ("requests_total", C, "", ("request_code", "result"),
     "requests that were answered", "metrics/rpc"),
    ("loop_held_total", C, "", ("request_code",),
     "requests that held the event loop longer than 50 ms", "loop/watchdog"),
    ("loop_delay_seconds", G, "s", (),
     "how late the event loop was at worst, since the scrape before", "metrics/loop_delay"),
)  # fmt: skip

_PROXY = (
    ("clients", G, "", (),
     "gRPC clients that have sent their settings", "grpc/clients"),
    ("renewals", G, "", (),
     "messages whose invisible time the proxy lengthens by itself", "grpc/renewal"),
    ("call_seconds", H, "s", ("method",),
     "as pystore_grpc_call_seconds of a broker", "csrc/http2/times.c", _SECONDS),
    ("connections", G, "", ("listener",),
     "open connections: grpc, remoting", "grpc/server"),
    ("loop_delay_seconds", G, "s", (),
     "how late the event loop was at worst, since the scrape before", "metrics/loop_delay"),
)  # fmt: skip

_CLIENT = (
    ("sends_total", C, "", ("group", "topic", "status"),
     "messages sent, by status: ok, failed", "client/client_metrics"),
    ("send_seconds", H, "s", ("group", "topic"),
     "how long a send took, retries included", "client/client_metrics", _SECONDS),
    ("handled_total", C, "", ("group", "topic", "result"),
     "messages that a handler was done with: ok, retry", "client/client_metrics"),
    ("handle_seconds", H, "s", ("group", "topic"),
     "how long a handler took", "client/client_metrics", _SECONDS),
)  # fmt: skip


#: What request 28 says of them, under upstream's names and ours.
_ENTRIES = {
    "rocketmq_storage_dispatch_behind_bytes": "dispatchBehindBytes",
    "rocketmq_storage_flush_behind_bytes": "remainHowManyDataToFlush",
    "rocketmq_timer_dequeue_latency_milliseconds": "timerReadBehind",
    "rocketmq_timer_dequeue_tps": "timerDequeueTps",
    "rocketmq_timer_enqueue_lag": "timerOffsetBehind",
    "rocketmq_timer_enqueue_tps": "timerEnqueueTps",
    "rocketmq_timer_pending": "timerCongestNum",
    "pystore_access_first_frames_refused_total": "firstFramesRefused",
    "pystore_access_refused_total": "accessRefused",
    "pystore_idempotent_bytes": "idempotentProduceBytes",
    "pystore_idempotent_remembered": "idempotentProduceRemembered",
    "pystore_idempotent_repeats_total": "idempotentProduceRepeats",
    "pystore_store_log_max_offset_bytes": "commitLogMaxOffset",
    "pystore_store_log_min_offset_bytes": "commitLogMinOffset",
    "pystore_store_put_failures_total": "putMessageFailedTimes",
    "pystore_tier_behind_bytes": "tieredBehindBytes",
    "pystore_tier_behind_seconds": "tieredBehindSeconds",
    "pystore_tier_written_bytes_total": "tieredWrittenBytes",
}


def _rows(prefix: str, of: str, rows: Iterable[tuple]) -> list[Metric]:  # type: ignore[type-arg]
    made = []
    for name, kind, unit, labels, meaning, where, *bounds in rows:
        entry, bucket_bounds = _ENTRIES.get(prefix + name, ""), bounds[0] if bounds else ()
        full = prefix + name
        made.append(Metric(full, kind, unit, labels, meaning, where, of, bucket_bounds, entry))
    return made


#: All of them.
TABLE: tuple[Metric, ...] = (
    *_rows("rocketmq_", "broker", (*_UPSTREAM, *_OLD)),
    *_rows("pystore_", "broker", _OURS),
    *_rows("pystore_namesrv_", "namesrv", _NAMESRV),
    Metric("rocketmq_proxy_up", G, "", ("proxy_mode",), "1", "figures/proxy", "proxy"),
    *_rows("pystore_proxy_", "proxy", _PROXY),
    *_rows("pystore_client_", "client", _CLIENT),
)
BY_NAME = {metric.name: metric for metric in TABLE}
