"""An audit whose parts are done by many processes: the checks of core.py, some of them each.

The driver lists the store's files and keeps what is known of the whole; a part is a step of the
audit for some queues, index files or segments. Whoever does it (:func:`audit_part`) sees the store
at the same path, and begins with what the parts before it found.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pystore.audit.core import Claim, CoreAudit, IndexFacts, Key, Progress, QueueFacts, SegmentFacts
from pystore.audit.findings import Audit, Finding
from pystore.audit.layout import Layout, last_with_data
from pystore.errors import NotAStore
from pystore.files.quiet import open_quietly
from pystore.settings import Settings

__all__ = [
    "AuditContext",
    "AuditPart",
    "PartFindings",
    "Run",
    "SpreadAudit",
    "audit_part",
    "check_same",
    "cut_parts",
    "share",
]  # fmt: skip

_Item = TypeVar("_Item")
_WITNESS = 96  # a record's head: place, times, hosts


@dataclass(slots=True)
class AuditContext:
    """What all parts of a step begin with.

    `state` is that of the store. `deleted` is as CoreAudit.forget takes it. `queues` and `indexes`
    are what the parts of steps before found. `last` is the number of the last segment that holds
    anything, and `witness` the first bytes of it, by which a process knows the store."""

    layout: Layout
    settings: Settings
    state: str
    deleted: list[tuple[str, int]]
    last: int
    witness: bytes
    queues: dict[Key, QueueFacts] = field(default_factory=dict)
    indexes: list[IndexFacts] = field(default_factory=list)


@dataclass(slots=True)
class AuditPart:
    """A part of a step. `step` is "queues", "index", "log" or "units"; `items` are names of queues,
    or numbers of index files or of segments; `size` is the number of bytes to read."""

    step: str
    items: list[Any]
    size: int = 0


@dataclass(slots=True)
class PartFindings:
    """What a part found; of queues that segments ask for, `matched` alone."""

    findings: list[Finding]
    dropped: int
    queues: dict[Key, QueueFacts] = field(default_factory=dict)
    indexes: list[IndexFacts] = field(default_factory=list)
    segments: list[SegmentFacts] = field(default_factory=list)
    matched: dict[Key, int] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


#: Does the parts of one step, and returns what each found, in order.
Run = Callable[[AuditContext, Sequence[AuditPart]], Iterable[PartFindings]]


def _witness(layout: Layout, last: int) -> bytes:
    if not layout.segments:
        return b""
    with open_quietly(layout.segments[last].path) as file:
        return file.read(_WITNESS)


def share(layout: Layout, settings: Settings, state: str, last: int) -> AuditContext:
    """Returns what parts begin with, without what is found. Raises: OSError."""
    own = replace(layout, findings=[])
    return AuditContext(own, settings, state, [], last, _witness(layout, last))


def check_same(shared: AuditContext) -> None:
    """Checks that the store is the one that was planned for. Raises: NotAStore where this host has
    another store at the path, or none."""
    try:
        same = _witness(shared.layout, shared.last) == shared.witness
    except OSError:
        same = False
    if not same:
        error = NotAStore(
            f"on host {socket.gethostname()}: not the store that the driver sees at this path",
            str(shared.layout.root),
        )
        error.next_step = "executors must see the store at the driver's path"
        raise error


def audit_part(shared: AuditContext, part: AuditPart) -> PartFindings:
    """Does one part. Raises: NotAStore, and as pystore.audit.verify."""
    check_same(shared)
    audit = Audit(str(shared.layout.root), shared.state)
    core = CoreAudit(shared.layout, shared.settings, audit, lambda phase, done, total: None)
    found = PartFindings(audit.findings, 0)
    for topic, physical in shared.deleted:
        core.forget(topic, physical)
    core.learn(shared.queues, shared.indexes)
    if part.step == "queues":
        found.queues = core.queues(part.items)
    elif part.step == "index":
        found.indexes = core.index(part.items)
    elif part.step == "log":
        core.light()
        audit.findings.clear()  # the driver has them
        found.segments = core.segments(1, shared.last, part.items)
        found.claims = core.claims()
        asked = ((key, core.facts(*key).matched) for key in shared.queues)
        found.matched = {key: count for key, count in asked if count > 0}
    else:
        core.recount(part.items)
    found.dropped = audit.dropped
    return found


def cut_parts(
    step: str, items: Sequence[_Item], sizes: Sequence[int], most: int
) -> list[AuditPart]:
    """Returns at most `most` parts of about the same size, in order."""
    parts: list[AuditPart] = []
    weights = [size + 1 for size in sizes]  # an empty file takes a look, too
    share = sum(weights) / max(1, most)
    done = 0
    for item, size in zip(items, weights, strict=True):
        # A new part where the share of those before it is used up.
        if not parts or done >= len(parts) * share:
            parts.append(AuditPart(step, []))
        parts[-1].items.append(item)
        parts[-1].size += size
        done += size
    return parts


class SpreadAudit(CoreAudit):
    """The same audit, each step of which is cut into at most `most` parts, which `run` does."""

    def __init__(
        self, layout: Layout, settings: Settings, audit: Audit, progress: Progress,
        *, run: Run, most: int,
    ) -> None:  # fmt: skip
        super().__init__(layout, settings, audit, progress)
        self._shared = share(layout, settings, audit.state, last_with_data(layout))
        self._run = run
        self._most = most
        self._ahead: list[IndexFacts] | None = None

    def forget(self, topic: str, physical: int) -> None:
        self._shared.deleted.append((topic, physical))

    def queues(self, some: Collection[Key] | None = None) -> dict[Key, QueueFacts]:
        keys = list(self._layout.queues if some is None else some)
        parts = self._cut("queues", keys, [self._bytes_of(key) for key in keys])
        if some is None:
            # Neither asks for the other, and an index file, which is one part, may last as long as
            # all queues.
            self._ahead = []
            parts = self._index_parts(range(len(self._layout.index))) + parts
        found: dict[Key, QueueFacts] = {}
        for each in self._do(parts):
            found |= each.queues
            if self._ahead is not None:
                self._ahead += each.indexes
        self._audit.units += sum(facts.units for facts in found.values())
        self._shared.queues |= found
        self.learn(found, [])
        return found

    def index(self, some: Collection[int] | None = None) -> list[IndexFacts]:
        if some is None and self._ahead is not None:
            found, self._ahead = self._ahead, None
        else:
            numbers = range(len(self._layout.index)) if some is None else some
            found = [f for each in self._do(self._index_parts(numbers)) for f in each.indexes]
        self._shared.indexes += found
        return found

    def segments(
        self, jobs: int, last: int | None = None, some: Collection[int] | None = None
    ) -> list[SegmentFacts]:
        files = self._layout.segments
        numbers = list(range(len(files)) if some is None else some)
        found = list(self._do(self._cut("log", numbers, [files[i].size for i in numbers])))
        matched: dict[Key, int] = {}
        self.name_segments()
        for each in found:
            self.take_claims(each.claims)
            for key, count in each.matched.items():
                matched[key] = matched.get(key, 0) + count
        known = self._shared.queues
        self.learn({key: replace(known[key], matched=n) for key, n in matched.items()}, [])
        return [facts for each in found for facts in each.segments]

    def recount(self, some: Collection[Key]) -> None:
        keys = list(some)
        list(self._do(self._cut("units", keys, [self._bytes_of(key) for key in keys])))

    def _bytes_of(self, key: Key) -> int:
        return sum(file.size for file in self._layout.queues[key])

    def _index_parts(self, numbers: Collection[int]) -> list[AuditPart]:
        sizes = [sum(self._layout.index[i][1:]) for i in numbers]
        return self._cut("index", list(numbers), sizes)

    def _cut(self, step: str, items: Sequence[Any], sizes: Sequence[int]) -> list[AuditPart]:
        return cut_parts(step, items, sizes, self._most)

    def _do(self, parts: Sequence[AuditPart]) -> Iterable[PartFindings]:
        for found in self._run(self._shared, parts) if parts else ():
            self._audit.findings += found.findings
            self._audit.dropped += found.dropped
            yield found
