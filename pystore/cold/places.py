"""Where things lie in a tier: upstream's names (TieredStoreUtil, FileSegment), and our manifests.

``HASH_CLUSTER/BROKER/TOPIC/QUEUE/KIND/HASHBASE``; a hash in front spreads keys over an object
store's partitions, and HASHBASE sorts by its last 20 digits.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from pystore.format.names import LIGHT_PREFIX, is_system_topic
from pystore.native import lib

__all__ = [
    "INDEX_TOPIC",
    "LOG",
    "MANIFESTS",
    "NUMBER_MAX",
    "UNITS",
    "Floor",
    "base_of",
    "broker_folder",
    "cluster_of",
    "floor_of",
    "is_kept",
    "is_topic",
    "manifest_key",
    "object_name",
    "queue_folder",
    "queue_of",
    "split_manifest",
]  # fmt: skip

LOG, UNITS = "COMMIT_LOG", "CONSUME_QUEUE"
#: A name of the system's, as upstream gives its index the topic rmq_sys_INDEX: no topic of an
#: application has it, and one listing of it finds every queue.
MANIFESTS = "rmq_sys_MANIFEST"
INDEX_TOPIC = "rmq_sys_INDEX"
_NAME = re.compile(r"([0-9a-f]{8})([0-9]{20})")
#: Of any number in a name or a manifest: the sum of two is one that the core can count with.
NUMBER_MAX = (1 << 62) - 1
_FLOOR = re.compile(f"{MANIFESTS}/floor-([0-9]{{20}})-([0-9]{{20}})")
_CLUSTER = re.compile(r"[0-9a-f]{8}_(.+)")


def _hash(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def broker_folder(cluster: str, broker: str) -> str:
    """Returns the folder of a broker below the tier's root."""
    return f"{_hash(cluster)}_{cluster}/{broker}"


def cluster_of(folder: str) -> str | None:
    """Returns the cluster whose folder has this name; None: no cluster's has."""
    found = _CLUSTER.fullmatch(folder)
    return found[1] if found and _hash(found[1]) == folder[:8] else None


def object_name(base: int) -> str:
    """Returns the name of the file that begins with this byte of its queue's log or units."""
    return f"{_hash(str(base))}{base:020d}"


def base_of(name: str) -> int | None:
    """Returns the first byte of a file of that name; None: no segment has it."""
    found = _NAME.fullmatch(name)
    base = int(found[2]) if found else -1
    return base if 0 <= base <= NUMBER_MAX and name == object_name(base) else None


def queue_folder(topic: str, queue: int) -> str:
    return f"{topic}/{queue}"


def queue_of(name: str) -> int | None:
    """Returns the number of the queue whose folder has this name; None: no queue's has, each has
    one name."""
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,4}", name) else None


def is_topic(name: str) -> bool:
    """Says whether a topic may have the name of a folder: strangers write others into a tier."""
    if name in ("", ".", "..") or "\0" in name or "/" in name:
        return False
    try:
        return len(name.encode()) <= int(lib.PS_TOPIC_MAX)
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        return False


def manifest_key(topic: str, queue: int, version: int) -> str:
    return f"{MANIFESTS}/{topic}/{queue}/{version:020d}"


def split_manifest(key: str) -> tuple[str, int, int] | None:
    """Returns topic, queue and version of a manifest's key; None for another object there."""
    parts = key.split("/")
    if len(parts) != 4 or parts[0] != MANIFESTS or not re.fullmatch("[0-9]{20}", parts[3]):
        return None
    queue, version = queue_of(parts[2]), int(parts[3])
    # A version above all that can be written would hide what is written after it.
    if queue is None or not is_topic(parts[1]) or version > NUMBER_MAX:
        return None
    return parts[1], queue, version


class Floor(NamedTuple):
    """Where a queue begins that has no manifest: above every version, and behind every byte of a
    log, of which a collector has deleted the last manifest. Each part is the greatest there was."""

    version: int = 0
    base: int = 0

    def over(self, version: int, base: int) -> Floor:
        return Floor(max(self.version, version), max(self.base, base))

    def covers(self, version: int, base: int) -> bool:
        return version <= self.version and base <= self.base

    @property
    def key(self) -> str:
        """Returns the key of the empty object that says it, beside the manifests: a listing of
        these tells it."""
        return f"{MANIFESTS}/floor-{self.version:020d}-{self.base:020d}"


def floor_of(key: str) -> Floor | None:
    """Returns what an object of this key says; None: it is another one."""
    found = _FLOOR.fullmatch(key)
    if found is None:
        return None
    floor = Floor(int(found[1]), int(found[2]))
    return floor if max(floor) <= NUMBER_MAX else None


def is_kept(topic: str, cluster: str, broker: str) -> bool:
    """Says whether messages of a topic go to the tier: not those of the system, whose results do,
    nor light queues (upstream TieredStoreTopicFilter)."""
    return not (
        not topic.strip()
        or is_system_topic(topic)
        or topic.startswith(LIGHT_PREFIX)
        or topic in (cluster, broker)
    )
