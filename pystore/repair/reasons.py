"""Why the records of a log differ after its repair: what the actions say, place by place."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pystore.repair.census import Balance, Census
from pystore.repair.manifest import Action

__all__ = ["balance_of"]

_END = 1 << 62


def balance_of(
    before: Census, after: Census, actions: Sequence[Action],
    reasons: Iterable[str] = (),
) -> Balance:  # fmt: skip
    """Returns the balance of the log before and after the actions. A record that is no longer as it
    was has an action that was for it, or is a difference without a reason. reasons: what else is
    known."""
    made = Balance(before.records, after.records, before.checksum, after.checksum, list(reasons))
    if made.equal:
        return made
    starts = sorted(before.places)
    stretches = [one for action in actions for one in _stretches(action, starts)]
    counted: Counter[str] = Counter()
    for places, how in ((before.without(after), "is no more as it was"),
                        (after.without(before), "is new")):  # fmt: skip
        for place in places:
            why = next((why for low, high, why in stretches if low <= place < high), None)
            if why is None:
                made.unexplained.append(f"the record at {place} of the log {how}")
            elif how != "is new":
                counted[why] += 1
    made.reasons += [f"{n} records: {why}" for why, n in counted.items()]
    return made


def _stretches(action: Action, starts: list[int]) -> Iterable[tuple[int, int, str]]:
    """Yields the bytes of the log, from and to, that an action wrote or removed."""
    name = Path(action.file).name
    if not name.isdigit():
        return
    base, data = int(name), action.data
    if action.do == "patch":
        pieces = [(base + at, base + at + len(new) // 2) for at, new in data["new"]]
        low, high = min(at for at, _ in pieces), max(at for _, at in pieces)
        if not _is_head(data["new"][0][1]):
            # Fields of one record: it begins before them.
            low = starts[max(0, bisect_right(starts, low) - 1)] if starts else low
        elif _is_blank(data["new"][0][1]):
            high = low + int(data["new"][0][1][:8], 16)
        yield low, high, action.what
    elif action.do == "zero":
        yield base + data["start"], base + data["end"], action.what
    elif action.do == "resize":
        yield base + data["size"], base + _END, action.what


def _is_head(new: str) -> bool:
    """Returns whether the bytes, in hexadecimal digits, begin a record or a blank."""
    return new[8:16] in ("daa320a7", "daa320ab", "cbd43194")


def _is_blank(new: str) -> bool:
    return new[8:16] == "cbd43194"
