"""The metrics of a broker: one page, made in pieces between which others have their turn, and in a
thread where it is long. docs/metrics.md is the table that it is filled from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from broker.figures.connections import is_system_label
from broker.figures.health import Health
from broker.figures.lag import Lag
from broker.figures.lite import add_lite
from broker.figures.ports import PortFigures, add_ports
from broker.hot.core import Core
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.metrics.endpoint import ProbeCheck
from broker.metrics.labels import labels_of
from broker.metrics.loop_delay import LoopDelay
from broker.metrics.page import Page, buckets
from broker.metrics.rpc import RpcTimes, name_of_request, name_of_response
from broker.services.broker_metrics import (
    add_access,
    add_deduplication,
    add_disks,
    add_store,
    add_tier,
    add_timers,
)
from broker.services.context import Services
from broker.services.duties import BrokerRole
from broker.services.names import SYSTEM_TOPICS
from broker.wire.command import Body

__all__ = ["BrokerFigures"]

_quiet = RateLimitedLogger(SafeLogger("broker.metrics"))

#: Upstream's thread pools; here all of it runs on one loop, and no pool has a queue.
_POOLS = (
    "send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull",
    "transaction", "consumer_manager", "admin", "reply",
)  # fmt: skip
#: What request 28 says, too; of lite topics it says nothing.
_OF_SERVICES = (add_store, add_timers, add_deduplication, add_access, add_lite, add_tier)
_SYSTEMS = "".join(f"{name}\n" for name in sorted(SYSTEM_TOPICS))


class BrokerFigures:
    """All metrics of one broker. Once started, page() is the text of a scrape."""

    def __init__(self, services: Services, core: Core, ports: PortFigures) -> None:
        self._s, self._core, self._ports = services, core, ports
        settings = services.settings
        self._most = int(settings["metricsOtelCardinalityLimit"])
        self.common: Mapping[str, str] = {
            "otel_scope_name": "broker-meter",
            "cluster": services.cluster,
            "node_id": services.broker_name,
            "node_type": "broker",
            **labels_of(settings["metricsLabel"]),
        }
        self.probes = Health(services, ports.draining)
        self.lag = Lag(services, self.common, self._most)
        self._delay = LoopDelay()
        self._took_s = 0.0
        self._version = _version()

    def health(self) -> Sequence[ProbeCheck]:
        return self.probes.health()

    def ready(self) -> Sequence[ProbeCheck]:
        return self.probes.ready()

    def start(self) -> None:
        self.lag.start()
        self._delay.start()

    async def stop(self) -> None:
        self._delay.stop()
        await self.lag.stop()

    async def page(self) -> Sequence[Body]:
        """Returns all metrics as text, in parts. Raises: StoreError when the store is closed."""
        began = time.monotonic()
        page, turns = Page(self.common, self._most), Pieces()
        flows = asyncio.create_task(
            asyncio.to_thread(self._core.flows, page.common, _SYSTEMS, self._most)
        )
        try:
            for part in self._parts():
                part(page)
                await turns.next()
            await asyncio.to_thread(add_disks, page, self._s)
        finally:
            text, left_out = await flows
        page.add("pystore_scrape_seconds", self._took_s)
        page.add("pystore_scrape_lag_age_seconds", self.lag.age_s)
        left_out += page.left_out + self.lag.left_out
        page.add("pystore_scrape_series_left_out", left_out)
        if left_out:
            _quiet.warning(
                "cardinality",
                "%d series of metrics are beyond metricsOtelCardinalityLimit=%d and left out",
                left_out,
                self._most,
            )
        self._took_s = time.monotonic() - began
        return text, self.lag.text, page.text()

    def _parts(self) -> tuple[Callable[[Page], None], ...]:
        return (
            self._add_broker,
            *(partial(add, s=self._s) for add in _OF_SERVICES),
            self._add_transactions,
            self._add_retries,
            self._add_replication,
            self._add_requests,
            self._add_core,
            lambda page: add_ports(page, self._ports),
        )

    # ---- pieces ----

    def _add_broker(self, page: Page) -> None:
        s = self._s
        for pool in _POOLS:
            page.add("rocketmq_processor_watermark", 0, processor=pool)
        page.add("rocketmq_broker_permission", s.settings["brokerPermission"])
        page.add("rocketmq_topic_number", s.topics.count)
        page.add("rocketmq_consumer_group_number", s.groups.count)
        page.add("pystore_build_info", 1, version=self._version, speaks="V5_3_3")
        page.add("pystore_uptime_seconds", max(0.0, time.time() - s.started_ms / 1000))
        role = s.duties.role if s.duties is not None else BrokerRole.MASTER
        page.add("pystore_role", 1, role="slave" if role is BrokerRole.SLAVE else "master")
        page.add("pystore_healthy", int(all(c.ok for c in self.health())))
        page.add("pystore_ready", int(all(c.ok for c in self.ready())))
        page.add("pystore_loop_delay_seconds", round(self._delay.take(), 6))
        for address, registered in s.registration.states():
            page.add("pystore_registered", int(registered), server=address)

    def _add_transactions(self, page: Page) -> None:
        transactions = self._s.transactions
        if transactions is not None:
            page.extend(transactions.metrics.samples())
            page.add("pystore_transactions_open", sum(transactions.metrics.counts().values()))

    def _add_retries(self, page: Page) -> None:
        for (name, key), count in self._s.statistics.own().items():
            topic, _, group = key.partition("@")
            if name == "DLQ_PUT_NUMS":
                page.add(
                    "rocketmq_send_to_dlq_messages_total",
                    count,
                    consumer_group=group,
                    is_system=is_system_label(topic, group),
                    topic=topic,
                )
            elif name == "SNDBCK_PUT_NUMS":
                page.add("pystore_sent_back_total", count, consumer_group=group, topic=topic)

    def _add_replication(self, page: Page) -> None:
        replication, end = self._s.replication, self._s.store.info().log_max
        if replication is None:
            return
        gap = self._s.settings["haMaxGapNotInSync"]
        if replication.master is not None:
            slaves = replication.master.slaves
            page.add("pystore_ha_slaves", len(slaves), state="connected")
            in_sync = sum(each.is_within(gap, end) for each in slaves)
            page.add("pystore_ha_slaves", in_sync, state="in_sync")
            for each in slaves:
                page.add("pystore_ha_slave_lag_bytes", max(0, end - each.acked), slave=each.address)
                page.add("pystore_ha_slave_bytes_per_second", each.rate, slave=each.address)
        if self._s.mastership is not None:
            page.add("pystore_ha_cut_off", int(self._s.mastership.is_away))
            page.add("pystore_ha_cut_offs_total", self._s.mastership.cut_offs)
        slave = replication.slave
        if slave is not None:
            page.add("pystore_ha_connected", int(not slave.problem))
            page.add("pystore_ha_master_silent_seconds", slave.state()[2] / 1000)
            page.add("pystore_ha_diverged", int(slave.diverged))

    def _add_requests(self, page: Page) -> None:
        name = "rocketmq_rpc_latency_milliseconds"
        merged: dict[tuple[str, ...], tuple[list[int], float]] = {}

        def add(key: tuple[str, ...], counts: list[int], sum_ms: float) -> None:
            before, so_far = merged.get(key, ([0] * len(counts), 0.0))
            both = [a + b for a, b in zip(before, counts, strict=True)]
            merged[key] = both, so_far + sum_ms

        for row in self._core.rpc_rows():
            result = "oneway" if row.oneway else "success"
            key = (_held(row.held), name_of_request(row.request), name_of_response(row.response))
            add((*key, result), list(row.buckets), row.sum_ms)
        for asked, counts, sum_ms in self._ports.times.rows():
            key = (
                _held(asked.held),
                name_of_request(asked.request),
                name_of_response(asked.response),
            )
            add((*key, asked.result), counts, sum_ms)
        for (held, request, response, result), (counts, sum_ms) in merged.items():
            labels = {
                "is_long_polling": held,
                "protocol_type": "remoting",
                "request_code": request,
                "response_code": response,
                "result": result,
            }
            page.extend(buckets(name, labels, counts, round(sum_ms, 3)))
        add_creates(page, self._ports.times)

    def _add_core(self, page: Page) -> None:
        totals = self._core.totals()
        takes, waits, waited_s = self._core.lock_times()
        page.add("pystore_core_lock_takes_total", takes)
        page.add("pystore_core_lock_waits_total", waits)
        page.add("pystore_core_lock_wait_seconds_total", waited_s)
        page.add("pystore_held_pulls", totals.held)
        page.add("pystore_pulls_total", totals.found, outcome="found")
        page.add("pystore_pulls_total", totals.misses, outcome="empty")
        page.add("pystore_waiting_answers", self._core.waiting)
        dog = self._s.watchdog
        if dog is not None:
            for code, count in dog.counts.items():
                page.add("pystore_loop_held_total", count, request_code=name_of_request(code))
            page.add("pystore_loop_held_max_seconds", dog.longest_ms / 1000)


def add_creates(page: Page, times: RpcTimes) -> None:
    """Adds how long it took to create topics and groups."""
    for (family, good), row in times.creates.items():
        labels = {"invocation_status": "success" if good else "failure"}
        if "topic" in family:
            labels["is_system"] = "false"
        page.extend(buckets(family, labels, [int(n) for n in row[:-1]], round(row[-1], 3)))


def _held(held: bool) -> str:
    return "true" if held else "false"


def _version() -> str:
    try:
        return version("rocketmq-pystore")
    except PackageNotFoundError:
        return "unknown"
