"""Lists of a folder: groups and dead letters. On the thread of the store's pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.client.admin import QueueLag
from broker.client.message import MessageQueue
from broker.web.rows import (
    GroupRow,
    TopicRow,
    groups_of_kind,
    kind_of,
    of_kind,
    paged,
)
from broker.web.store_pages import StorePages
from pystore.errors import NotFound, StoreError
from pystore.format.names import DLQ_PREFIX

__all__ = ["StoreLists"]

_Query = dict[str, str]


@dataclass(slots=True)
class _Groups:
    rows: list[GroupRow]
    lags: dict[str, list[QueueLag]]
    configs: dict[str, Any]
    trouble: str = ""


class StoreLists:
    """pages: has the reader."""

    def __init__(self, pages: StorePages) -> None:
        self._pages = pages

    def all_groups(self) -> _Groups:
        """Reads all of them. Raises: StoreError for a store that cannot be opened; metadata that
        cannot be read is a trouble that the page tells."""
        reader = self._pages.open()
        ends = {(q.topic, q.queue): q.max_offset for q in reader.queues()}
        dead: dict[str, int] = {}
        for each in reader.queues():
            if each.topic.startswith(DLQ_PREFIX):
                name = each.topic[len(DLQ_PREFIX) :]
                dead[name] = dead.get(name, 0) + len(each)
        made = _Groups([], {}, {})
        try:
            reader.metadata.refresh()
            made.configs = {each.name: each for each in reader.metadata.groups.list()}
            for o in reader.metadata.offsets.all():
                queue = MessageQueue(o.topic, "", o.queue)
                row = QueueLag(o.group, queue, o.offset, ends.get((o.topic, o.queue), 0), 0, 0)
                made.lags.setdefault(o.group, []).append(row)
        except StoreError as failed:
            made.trouble = failed.text
        names = sorted({*made.configs, *made.lags, *dead})
        made.rows = [
            GroupRow.of(name, made.lags.get(name, ()), dead.get(name, 0)) for name in names
        ]
        return made

    def groups(self, query: _Query, page: int) -> dict[str, Any]:
        """Returns the groups, those furthest behind first, or by name. Raises: StoreError."""
        found = self.all_groups()
        order = None if query.get("by") == "name" else lambda group: group.behind
        chosen = groups_of_kind(found.rows, query.get("kind", ""))
        rows = paged(chosen, page, wanted=query.get("q", ""), text=lambda g: g.name, order=order)
        most = max((row.behind or 0 for row in chosen), default=0)
        return {"found": rows, "trouble": found.trouble, "most": most}

    def topics(self, query: _Query, page: int) -> dict[str, Any]:
        """Returns the topics by name. Raises: StoreError."""
        counts: dict[str, list[int]] = {}
        for queue in self._pages.open().queues():
            row = counts.setdefault(queue.topic, [0, 0])
            row[0] += 1
            row[1] += len(queue)
        rows = [TopicRow(name, kind_of(name), *counts[name]) for name in sorted(counts)]
        chosen = of_kind(rows, query.get("kind", ""))
        return {"found": paged(chosen, page, wanted=query.get("q", ""), text=lambda t: t.name)}

    def group(self, query: _Query, page: int) -> dict[str, Any]:
        """Returns one group, queue by queue. Raises: NotFound, StoreError."""
        found, name = self.all_groups(), query.get("name", "")
        row = next((each for each in found.rows if each.name == name), None)
        if row is None:
            raise NotFound(f"there is no group {name}")
        lags = paged(found.lags.get(name, []), page, order=lambda lag: lag.behind)
        return {
            "name": name, "row": row, "config": found.configs.get(name), "found": lags,
            "members": None,
        }  # fmt: skip

    def dead(self, query: _Query, page: int) -> dict[str, Any]:
        """Returns the groups with dead letters. Raises: StoreError."""
        rows = [each for each in self.all_groups().rows if each.dead]
        found = paged(rows, page, order=lambda group: group.dead or 0)
        return {"found": found, "rows": found.rows, "prefix": DLQ_PREFIX, "runs": False}
