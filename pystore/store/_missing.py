"""The error for a topic or queue that a store does not have, with the nearest one that it has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice

from pystore.errors import NotFound

__all__ = ["missing", "nearest_topic"]

#: Topics with a longer name are not compared: difflib's time grows with the square of it.
_NAME_MAX = 256
#: Of so many names each is compared, which takes some 50 ms; of more, those that look alike.
_NAMES_MAX = 1000


def nearest_topic(name: str, topics: Iterable[str]) -> str:
    """Returns ``; did you mean 'orders'?`` for the topic nearest to a name, or an empty text."""
    if len(name) > _NAME_MAX:
        return ""
    lower = {topic.lower(): topic for topic in topics}
    if len(lower) > _NAMES_MAX:
        begin, near = name[:2].lower(), range(len(name) - 2, len(name) + 3)
        alike = (one for one in lower if one[:2] == begin and len(one) in near)
        lower = {one: lower[one] for one in islice(alike, _NAMES_MAX)}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"; did you mean '{lower[found[0]]}'?" if found else ""


def missing(topic: str, queue: int | None, queues: Mapping[str, list[int]]) -> NotFound:
    """Makes the error for a topic, or one of its queues, that is not there. queues: ids by topic,
    of the whole store."""
    there = queues.get(topic)
    if there is None:
        return NotFound(f"the store has no topic '{topic:.260}'{nearest_topic(topic, queues)}")
    ids = f"{there[0]} to {there[-1]}" if len(there) > 1 else f"{there[0]}"
    return NotFound(f"the store has no queue {topic}/{queue}; queues of this topic: {ids}")
