"""What Apache's own store makes of each kind of damage, beside what ours makes of it.

A row says of one damaged store how many of its undamaged messages no queue delivers afterwards.
`make museum-java` writes the rows; the page docs/damage.md shows them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import storeview

import pystore
from pystore.repair import repair
from tests.museum import kinds
from tests.museum.test_kinds import damaged

ROWS = Path(__file__).with_name("apache.json")
BATCH = 48  # stores of one Java process
LIMIT_S = 60
BATCH_LIMIT_S = 420
#: A reader of either make would wait for these for ever, or map no end of them.
NO_FILES = ("a pipe", "a device")

Place = tuple[str, int, int, int]  # topic, queue, queue offset, physical offset


def shown() -> list[kinds.Kind]:
    """All kinds, each store undamaged first."""
    stores = dict.fromkeys(kind.store for kind in kinds.all_kinds())
    sound = [kinds.Kind("undamaged", store, "undamaged", lambda s, r: None) for store in stores]
    return sound + [
        k
        for k in kinds.all_kinds()
        if not k.what.endswith(NO_FILES) and k.what not in kinds.GENERATION
    ]  # the golden stores have too few segments


@dataclass
class Case:
    """A damaged store, and a copy of it for each of the two."""

    kind: kinds.Kind
    sample: kinds.Sample
    ours: Path
    java: Path
    sound: list[kinds.Whole] = field(default_factory=list)

    def places(self) -> set[Place]:
        return {(w.topic, w.queue, w.offset, w.physical) for w in self.sound}


def make_case(kind: kinds.Kind, sample: kinds.Sample, folder: Path) -> Case:
    case = Case(kind, sample, folder / "ours", folder / "java")
    touched = damaged(kind, sample, case.ours)
    if kind.what == "first segment gone":  # what has left at the front is no longer of the store
        left = [int(f.name) for f in (case.ours / "commitlog").iterdir()]
        touched |= {w.physical for w in sample.whole if not left or w.physical < min(left)}
    shutil.copytree(case.ours, case.java, symlinks=True)
    case.sound = [w for w in sample.whole if w.physical not in touched]
    return case


# ---- ours ----


def kept_by_ours(case: Case) -> tuple[set[Place], set[Place]]:
    """Places that are delivered after an open, and after a repair when the open left some out."""
    opened = _opened(case)
    if opened == case.places():
        return opened, opened
    repair(case.ours)
    return opened, _opened(case)


def _opened(case: Case) -> set[Place]:
    try:
        with pystore.open(case.ours) as store:
            there = storeview.delivered(store)
    except pystore.StoreError:
        return set()
    found = {(topic, queue, *m) for (topic, queue), got in there.items() for m in got}
    return found & case.places()


# ---- Apache's ----


def dump(reference: Any, folder: Path, cases: list[Case]) -> list[tuple[str, list[dict[str, Any]]]]:
    """How Apache's store ended over each, and the lines that it wrote."""
    folder.mkdir(parents=True)
    _dump(reference, folder, list(enumerate(cases)))
    for i, case in enumerate(cases):
        if not (folder / f"{i}.end").exists():  # the process ended: is it this one's doing?
            _dump(reference, folder, [(i, case)])
    found = []
    for i in range(len(cases)):
        end, lines = folder / f"{i}.end", folder / str(i)
        how = end.read_text(encoding="utf-8") if end.exists() else "ends the process"
        text = lines.read_text(encoding="utf-8") if lines.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        found.append((how, [json.loads(line) for line in whole.splitlines()]))
    return found


def _dump(reference: Any, folder: Path, numbered: list[tuple[int, Case]]) -> None:
    parts = []
    for i, case in numbered:
        settings = storeview.sizes_of(case.sample.root)
        told = "\t".join(f"{name}={value}" for name, value in settings.items())
        parts.append(f"{case.java}\t{folder / str(i)}\t{told}\n")
    (folder / "list").write_text("".join(parts), encoding="utf-8")
    # Those that have no end after it are asked again, one by one.
    with contextlib.suppress(subprocess.TimeoutExpired):
        reference.run("dump-list", folder / "list", LIMIT_S, timeout=BATCH_LIMIT_S, check=False)


def kept_by_apache(case: Case, lines: list[dict[str, Any]]) -> set[Place]:
    """Places whose unit Apache's store has, within its log, and whose bytes are still there."""
    if not lines or lines[0].get("loaded") is not True:
        return set()
    limits = lines[0]
    units = {
        (u["topic"], u["queue"], u["offset"], u["phy"], u["size"]) for u in lines if u["at"] == "cq"
    }
    before, after = Segments(case.sample.root), Segments(case.java)
    return {
        (w.topic, w.queue, w.offset, w.physical)
        for w in case.sound
        if (w.topic, w.queue, w.offset, w.physical, w.size) in units
        and limits["min_phy"] <= w.physical < limits["max_phy"]
        and before.read(w.physical, w.size) == after.read(w.physical, w.size)
    }


class Segments:
    """The bytes of a log by physical offset."""

    def __init__(self, root: Path) -> None:
        files = [f for f in (root / "commitlog").iterdir() if f.name.isdigit() and f.is_file()]
        self.bytes = {int(f.name): f.read_bytes() for f in files}
        self.starts = sorted(self.bytes)

    def read(self, physical: int, size: int) -> bytes:
        i = bisect_right(self.starts, physical) - 1
        if i < 0:
            return b""
        at = physical - self.starts[i]
        return self.bytes[self.starts[i]][at : at + size]


# ---- rows ----


def rows(
    reference: Any, sample_of: Callable[[str], kinds.Sample], folder: Path
) -> Iterator[dict[str, Any]]:
    chosen = shown()
    for start in range(0, len(chosen), BATCH):
        part = folder / str(start)
        cases = [
            make_case(kind, sample_of(kind.store), part / str(i))
            for i, kind in enumerate(chosen[start : start + BATCH])
        ]
        dumps = dump(reference, part / "dumps", cases)
        for case, (how, lines) in zip(cases, dumps, strict=True):
            yield row(case, how, lines)
        shutil.rmtree(part)


def row(case: Case, how: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    java = kept_by_apache(case, lines)
    opened, repaired = kept_by_ours(case)
    if lines and lines[0].get("loaded") is False:
        how = "does not start"
    return {
        "store": case.kind.store,
        "kind": case.kind.name,
        "what": case.kind.what,
        "undamaged": len(case.sound),
        "apache": how.split(":")[0],
        "apache_loses": len(case.sound) - len(java),
        "open_loses": len(case.sound) - len(opened),
        "repair_loses": len(case.sound) - len(repaired),
        "only_apache_keeps": len(java - repaired),
    }


def write(found: list[dict[str, Any]]) -> None:
    text = ",\n".join(json.dumps(one) for one in found)
    ROWS.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ROWS.read_text(encoding="utf-8"))
    return found


# ---- the page ----

HEAD = """| damage | Apache RocketMQ | an open here | after a repair |
|---|---|---|---|
"""


def table(found: list[dict[str, Any]]) -> str:
    """A line a damage, over its places and the stores."""
    by_what: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_what.setdefault(one["what"], []).append(one)
    lines = [
        f"| {what} | {_apache(group)} | {_loss(group, 'open_loses')} "
        f"| {_loss(group, 'repair_loses')} |\n"
        for what, group in by_what.items()
    ]
    return HEAD + "".join(lines)


def _apache(group: list[dict[str, Any]]) -> str:
    ends = [one for one in group if one["apache"] != "read"]
    said = [
        f"{_name(how)} ({sum(one['apache'] == how for one in ends)} of {len(group)})"
        for how in dict.fromkeys(one["apache"] for one in ends)
    ]
    opened = [one for one in group if one["apache"] == "read"]
    return "; ".join(said + ([_loss(opened, "apache_loses")] if opened else []))


def _name(how: str) -> str:
    return how if " " in how else f"`{how.rsplit('.', 1)[-1]}`"


def _loss(group: list[dict[str, Any]], column: str) -> str:
    worst = max(group, key=lambda one: one[column] / max(1, one["undamaged"]))
    if worst[column] == 0:
        return "keeps all"
    return f"loses up to {worst[column]:,} of {worst['undamaged']:,}"
