"""Java's hash of a text: by it tags are coded, and messages of a message group or a lite topic find
their queue."""

from __future__ import annotations

__all__ = ["bucket_of", "java_hash"]


def java_hash(text: str) -> int:
    """Computes String.hashCode: over UTF-16 units, lone surrogates too; signed, 32 bits."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def bucket_of(key: str, count: int) -> int:
    """Returns which of `count` queues has the messages of a message group or a lite topic: by the
    jump consistent hash of Lamping and Veach over the key's hash, seeded and stepped as Guava's
    Hashing.consistentHash, which Apache's clients and proxy use (upstream: LiteShardingImpl)."""
    state = java_hash(key) & 0xFFFFFFFFFFFFFFFF
    found = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        fraction = ((state >> 33) + 1) / (1 << 31)
        follows = (found + 1) / fraction
        if not 0 <= follows < count:
            return found
        found = int(follows)
