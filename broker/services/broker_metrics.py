"""What a scrape and request 28 both say of a broker: its store, timers, deduplication, refusals."""

from __future__ import annotations

import shutil
import time
from bisect import bisect_left

from broker.metrics.page import Page, buckets
from broker.metrics.table import BY_NAME
from broker.services.context import Services
from pystore.errors import StoreError
from pystore.store import hosting

__all__ = [
    "DISK",
    "add_access",
    "add_deduplication",
    "add_disks",
    "add_store",
    "add_tier",
    "add_timers",
]

DISK = {"storage_medium": "disk", "storage_type": "local"}
_PUT = "pystore_store_put_seconds"
#: Places of the core's table of puts: a millisecond each up to this one, then a second each.
_EXACT_MS = 1000


def add_store(page: Page, s: Services) -> None:
    info, report = s.store.info(), s.store.report
    now_ms = time.time_ns() // 1_000_000
    behind = max(0, info.log_max - info.dispatched)
    page.add("rocketmq_storage_flush_behind_bytes", max(0, info.log_max - info.log_flushed), **DISK)
    page.add("rocketmq_storage_dispatch_behind_bytes", behind, **DISK)
    if info.store_timestamp_min >= 0:
        name = "rocketmq_storage_message_reserve_time_milliseconds"
        page.add(name, max(0, now_ms - info.store_timestamp_min), **DISK)
    page.add("pystore_store_log_min_offset_bytes", info.log_min)
    page.add("pystore_store_log_max_offset_bytes", info.log_max)
    page.add("pystore_store_segments", info.log_files, file="commitlog")
    page.add("pystore_store_segments", info.index_files, file="index")
    page.add("pystore_store_queues", info.queues)
    page.add("pystore_store_dispatch_behind_seconds", _late_s(s, info.dispatched, behind, now_ms))
    page.add("pystore_store_damaged_reads_total", info.damaged_reads)
    page.add("pystore_store_disk_full", int(info.disk_full))
    page.add("pystore_store_syncs_total", info.fsyncs)
    page.add("pystore_store_sync_seconds_total", info.sync_ns / 1e9)
    page.add("pystore_store_sync_max_seconds", info.sync_max_ns / 1e9)
    page.add("pystore_store_sync_failed", info.flush_errno)
    page.add("pystore_store_recovery_seconds", report.seconds)
    page.add("pystore_store_recovery_cut_bytes", report.bytes_cut)
    page.add("pystore_store_recovery_scanned_bytes", report.scanned_bytes)
    page.add("pystore_retention_log_bytes_total", max(0, info.log_min - report.log_min))
    _add_puts(page, s)
    _add_metadata(page, s)


def _late_s(s: Services, at: int, behind: int, now_ms: int) -> float:
    """Returns the age of the first record that was not dispatched, in seconds."""
    if not behind:
        return 0.0
    try:
        return max(0, now_ms - s.store.message(at).store_timestamp) / 1000
    except StoreError:  # a blank at the end of a segment, or dispatched by now
        return 0.0


def _add_puts(page: Page, s: Services) -> None:
    times, bounds = s.core.times(), BY_NAME[_PUT].bounds
    counts = [0] * (len(bounds) + 1)
    for place, count in enumerate(times.puts):
        if count:
            ms = place if place <= _EXACT_MS else (place - _EXACT_MS) * 1000
            counts[bisect_left(bounds, (ms + 1) / 1000)] += count
    page.extend(buckets(_PUT, {}, counts, times.put_ns / 1e9))
    page.add("pystore_store_put_failures_total", s.core.totals().put_failures)


def _add_metadata(page: Page, s: Services) -> None:
    used, most, readers = s.store.metadata.size()
    page.add("pystore_metadata_bytes", used, of="used")
    page.add("pystore_metadata_bytes", most, of="map")
    page.add("pystore_metadata_readers", readers)


def add_disks(page: Page, s: Services) -> None:
    """Asks the system, which may take its time: in a thread."""
    mapped, resident = hosting.log_resident(s.store)
    page.add("pystore_store_page_bytes", mapped, state="mapped")
    page.add("pystore_store_page_bytes", resident, state="resident")
    used_by_device: dict[int, int] = {}
    for folder in s.store.settings.commitlog_dirs(s.store.path):
        found = shutil.disk_usage(folder)
        used_by_device[folder.stat().st_dev] = found.used
        page.add("pystore_store_disk_bytes", found.total, folder=str(folder), of="total")
        page.add("pystore_store_disk_bytes", found.free, folder=str(folder), of="free")
    page.add("rocketmq_storage_size_bytes", sum(used_by_device.values()), **DISK)


def add_timers(page: Page, s: Services) -> None:
    schedule = s.schedule
    if schedule is not None and schedule.timers is not None:
        page.extend(schedule.timers.metrics.samples(schedule.now_ms()), **DISK)


def add_deduplication(page: Page, s: Services) -> None:
    if s.once is not None:
        state = s.once.state()
        page.add("pystore_idempotent_remembered", state.remembered)
        page.add("pystore_idempotent_repeats_total", state.repeats)
        page.add("pystore_idempotent_bytes", state.bytes)


def add_tier(page: Page, s: Services) -> None:
    cold = s.cold
    if cold is None:
        return
    counts, lack = cold.uploads.counts, cold.lack
    late_ms = time.time_ns() // 1_000_000 - lack.oldest_ms if lack.oldest_ms else 0
    page.add("pystore_tier_up", int(cold.trouble is None and cold.handle.tier is not None))
    page.add("pystore_tier_success_age_seconds", time.monotonic() - cold.well_s)
    page.add("pystore_tier_written_bytes_total", counts.bytes)
    page.add("pystore_tier_written_messages_total", counts.messages)
    page.add("pystore_tier_puts_total", counts.puts)
    page.add("pystore_tier_errors_total", counts.errors)
    page.add("pystore_tier_deleted_segments_total", counts.deleted)
    page.add("pystore_tier_behind_bytes", lack.bytes)
    page.add("pystore_tier_behind_messages", lack.messages)
    page.add("pystore_tier_behind_queues", lack.queues)
    page.add("pystore_tier_behind_seconds", max(0, late_ms) / 1000)
    page.add("pystore_tier_strange_queues", len(counts.strange))
    page.add("pystore_tier_let_go_bytes_total", cold.let_go)
    page.add("pystore_tier_passed_over_messages_total", cold.reads.passed_over)
    memory, disk = cold.reads.caches
    if memory is not None:
        page.add("pystore_tier_cache_misses_total", memory.misses)
        page.add("pystore_tier_cache_fetched_bytes_total", memory.fetched)
    for place, kept in ("memory", memory), ("disk", disk):
        if kept is not None:
            page.add("pystore_tier_cache_hits_total", kept.hits, place=place)
            page.add("pystore_tier_cache_evictions_total", kept.evictions, place=place)
            page.add("pystore_tier_cache_bytes", kept.size, place=place)


def add_access(page: Page, s: Services) -> None:
    if s.authorizer is not None:
        page.add("pystore_access_refused_total", s.authorizer.refused)
        page.add("pystore_access_first_frames_refused_total", s.core.first_frames_refused)
    if s.access is not None and s.access.plain is not None:
        page.add("pystore_access_problem", int(bool(s.access.plain.problem)))
