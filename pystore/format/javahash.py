"""Java's hash of a text: by it tags are coded, and ordered messages find their queues."""

from __future__ import annotations

__all__ = ["java_hash"]


def java_hash(text: str) -> int:
    """Computes String.hashCode: over UTF-16 units, lone surrogates too; signed, 32 bits."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
