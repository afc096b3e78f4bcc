"""Where things lie in a tier: upstream's names (TieredStoreUtil, FileSegment), and our manifests.

``HASH_CLUSTER/BROKER/TOPIC/QUEUE/KIND/HASHBASE``; a hash in front spreads keys over an object
store's partitions, and HASHBASE sorts by its last 20 digits.
"""

from __future__ import annotations

import hashlib
import re

from pystore.cold.failures import TierDamaged
from pystore.format.names import LIGHT_PREFIX, is_system_topic

__all__ = ["INDEX_TOPIC", "LOG", "MANIFESTS", "UNITS", "base_of", "broker_folder", "cluster_of",
           "is_kept", "manifest_key", "object_name", "queue_folder", "queue_of",
           "split_manifest"]  # fmt: skip

LOG, UNITS = "COMMIT_LOG", "CONSUME_QUEUE"
#: A name of the system's, as upstream gives its index the topic rmq_sys_INDEX: no topic of an
#: application has it, and one listing of it finds every queue.
MANIFESTS = "rmq_sys_MANIFEST"
INDEX_TOPIC = "rmq_sys_INDEX"
_NAME = re.compile(r"([0-9a-f]{8})([0-9]{20})")
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
    return int(found[2]) if found and name == object_name(int(found[2])) else None


def queue_folder(topic: str, queue: int) -> str:
    return f"{topic}/{queue}"


def queue_of(name: str) -> int | None:
    """Returns the number of the queue whose folder has this name; None: no queue's has."""
    return int(name) if re.fullmatch("[0-9]{1,5}", name) else None


def manifest_key(topic: str, queue: int, version: int) -> str:
    return f"{MANIFESTS}/{topic}/{queue}/{version:020d}"


def split_manifest(key: str) -> tuple[str, int, int] | None:
    """Returns topic, queue and version of a manifest's key; None for another object there. Raises:
    TierDamaged."""
    parts = key.split("/")
    if len(parts) != 4 or parts[0] != MANIFESTS or not re.fullmatch("[0-9]{20}", parts[3]):
        return None
    queue = queue_of(parts[2])
    if queue is None:
        raise TierDamaged(f"{key!r} names a queue out of range")
    return parts[1], queue, int(parts[3])


def is_kept(topic: str, cluster: str, broker: str) -> bool:
    """Says whether messages of a topic go to the tier: not those of the system, whose results do,
    nor light queues (upstream TieredStoreTopicFilter)."""
    return not (
        not topic.strip()
        or is_system_topic(topic)
        or topic.startswith(LIGHT_PREFIX)
        or topic in (cluster, broker)
    )
