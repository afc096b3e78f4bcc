"""What RocketMQ 5.5.0 needs to serve a tier of ours: files of units, and its metadata.

Its POSIX provider opens the segments that ``config/tieredStoreMetadata.json`` of the store names,
and creates those that are missing; so all that it is to have is named, and nothing else.
Upstream: DefaultMetadataStore, FileSegmentMetadata.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Manifest, Row
from pystore.cold.objects import FolderObjects
from pystore.cold.places import UNITS, object_name, queue_folder
from pystore.cold.segment import check_segment, units_of_row
from pystore.cold.tier import Tier
from pystore.errors import BadArgument
from pystore.files import FILE_MODE, make_folders, write_whole
from pystore.format.units import UNIT

__all__ = ["METADATA_FILE", "hand_over"]

METADATA_FILE = "tieredStoreMetadata.json"
_LOG_TYPE, _UNITS_TYPE = 0, 1
_OLDER = "take away what is older than offset"


def hand_over(tier: Tier, store: str | os.PathLike[str]) -> tuple[int, int]:
    """Writes files of units beside the segments, and the metadata into a store's ``config``;
    returns segments and messages. The tier must be a folder of this host, which no writer of ours
    uses from then on. Raises: BadArgument, TierDamaged."""
    objects = tier.objects
    if not isinstance(objects, FolderObjects):
        error = BadArgument("RocketMQ's provider reads a folder of its host", objects.address)
        error.next_step = "copy the tier first: pystore cold fetch ADDRESS FOLDER"
        raise error
    tables = _Tables(tier.broker)
    for topic, queue in tier.queues():
        manifest = tier.manifest(topic, queue)
        rows = list(tier.rows(manifest, 0, 1 << 62))
        _check_dense(manifest, rows)
        for row in rows:
            data = objects.get(tier.key_of(topic, queue, row.base), 0, row.size)
            check_segment(data, row, tier.key_of(topic, queue, row.base))
            place = objects.root / queue_folder(topic, queue) / UNITS
            make_folders(place, FILE_MODE)
            write_whole(place / object_name(row.first * UNIT.size), bytes(units_of_row(data, row)))
            tables.add(topic, queue, row)
    config = Path(store) / "config"
    make_folders(config, FILE_MODE)
    write_whole(config / METADATA_FILE, json.dumps(tables.encoded(), indent=1).encode())
    return tables.segments, tables.messages


def _check_dense(manifest: Manifest, rows: list[Row]) -> None:
    """Checks that upstream can stitch the segments together. Raises: TierDamaged."""
    place = f"{manifest.topic}/{manifest.queue}"
    for before, after in itertools.pairwise(rows):
        if after.first != before.end:
            error = TierDamaged(f"{place} has no offsets {before.end} to {after.first - 1}")
            error.next_step = f"RocketMQ cannot read over a hole: {_OLDER} {after.first}"
            raise error
        if after.base != before.base + before.size:
            error = TierDamaged(f"{place} has bytes of no segment before offset {after.first}")
            error.next_step = "copy the tier, which closes them: pystore cold fetch TIER TARGET"
            raise error


class _Tables:
    """The tables of upstream's metadata."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._now = int(time.time() * 1000)
        self._log: dict[str, dict[str, Any]] = {}
        self._units: dict[str, dict[str, Any]] = {}
        self._queues: dict[str, dict[str, Any]] = {}
        self._topics: dict[str, Any] = {}
        self.segments = self.messages = 0

    def add(self, topic: str, queue: int, row: Row) -> None:
        path = f"{self._broker}/{topic}/{queue}"
        at = row.first * UNIT.size
        self._log.setdefault(path, {})[str(row.base)] = self._file(
            path, _LOG_TYPE, row.base, row.size, row
        )
        self._units.setdefault(path, {})[str(at)] = self._file(
            path, _UNITS_TYPE, at, row.count * UNIT.size, row
        )
        self._queues.setdefault(topic, {})[str(queue)] = {
            "queue": {"brokerName": self._broker, "queueId": queue, "topic": topic},
            "minOffset": -1, "maxOffset": -1, "updateTimestamp": self._now,
        }  # fmt: skip
        self._topics.setdefault(topic, {
            "topicId": len(self._topics), "topic": topic, "status": 0, "reserveTime": -1,
            "updateTimestamp": self._now,
        })  # fmt: skip
        self.segments += 1
        self.messages += row.count

    @staticmethod
    def _file(path: str, kind: int, base: int, size: int, row: Row) -> dict[str, Any]:
        return {
            "path": path, "type": kind, "baseOffset": base, "status": 0, "size": size,
            "createTimestamp": row.time_max, "beginTimestamp": row.time_min,
            "endTimestamp": row.time_max, "sealTimestamp": 0,
        }  # fmt: skip

    def encoded(self) -> dict[str, Any]:
        return {
            "commitLogFileSegmentTable": self._log, "consumeQueueFileSegmentTable": self._units,
            "indexFileSegmentTable": {}, "queueMetadataTable": self._queues,
            "topicMetadataTable": self._topics, "topicSerialNumber": max(0, len(self._topics) - 1),
        }  # fmt: skip
