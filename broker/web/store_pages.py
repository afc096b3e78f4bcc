"""What the pages show of a store. Everything here runs on one thread, one call after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from broker.client.admin.facts import QueueEnds
from broker.client.message import MessageQueue
from broker.web.explaining import body_of, explain
from broker.web.records import RecordView
from broker.web.rows import counted
from pystore import QueueInfo, Reader, RecoveryReport
from pystore.cli.verbs import hex_dump, holder_of, human_size, iso, parse_time
from pystore.errors import BadArgument, NotFound, StoreError
from pystore.format.records import check_record
from pystore.store.pending_log import find_pending
from pystore.store.timers import Timers

__all__ = ["MessagePage", "OpenForecast", "StorePages", "message_page", "next_open"]

#: Rows of one page; bytes of a body that are shown.
ROWS, BODY_MAX = 100, 64 << 10
#: Of them where they are shown as a dump.
_HEX_MAX = 4096


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A message in full. body: as text or hex. json: indented, when it is JSON."""

    facts: Mapping[str, str]
    properties: Mapping[str, str]
    body: str
    body_kind: str
    body_len: int
    cut: bool
    problem: str
    json: str
    fields: Iterable[Any]
    at: int
    whole_body: bytes


@dataclass(frozen=True, slots=True)
class OpenForecast:
    """What the next open for writing would do. changes: whether it would change anything."""

    text: str
    changes: bool
    items: tuple[str, ...] = ()


def next_open(report: RecoveryReport, *, is_held: bool, is_crashed: bool) -> OpenForecast:
    """Returns what the next open will do. report: of a reader, which says what recovery would
    do."""
    if is_held:
        return OpenForecast("A process has the store open, and has recovered it.", False)
    items = tuple(
        f"{item.action.name.lower()}: {item.what}, {item.start:,} to {item.end:,}: {item.why}"
        for item in report.items[:ROWS]
    )
    if not is_crashed and not report.bytes_cut and not items:
        return OpenForecast("It was closed cleanly: the next open changes nothing.", False)
    checked = f"{human_size(report.scanned_bytes)} of the log"
    text = f"The next open for writing checks {checked} from byte {report.scanned_from:,} on"
    if is_crashed:
        text = f"It was not closed cleanly. {text}, and writes queues and index of it again"
    if report.bytes_cut:
        text += f"; it cuts off {report.bytes_cut:,} bytes at the end that are not a whole record"
    return OpenForecast(f"{text}.", True, items)


class StorePages:
    """Reads a store, ours or Java's, whoever has it open; it takes no lock and writes nothing."""

    def __init__(self, path: Path, conf: Path | None, given: Mapping[str, Any]) -> None:
        self.path = path
        self._conf = conf
        self._given = dict(given)
        self._reader: Reader | None = None

    def open(self) -> Reader:
        """Opens the store. Raises: StoreError."""
        if self._reader is None:
            self._reader = Reader(self.path, self._conf, **self._given)
        else:
            self._reader.refresh()
        return self._reader

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # ---- pages ----

    def overview(self) -> dict[str, Any]:
        """Returns the store, and what its next open would do. Raises: StoreError."""
        reader = self.open()
        info, holder = reader.info(), holder_of(self.path)
        state = (
            "in use" if holder.locked else "not closed cleanly" if info.abort_present else "closed"
        )
        return {
            "facts": {
                "State": f"{state}, by process {holder.pid}" if holder.pid else state,
                "Log, from byte to byte": f"{info.log_min:,} to {info.log_max:,}",
                "Files of the log": f"{info.log_files:,}", "Queues": f"{info.queues:,}",
                "Index files": f"{info.index_files:,}",
                "First stored": _moment(info.store_timestamp_min),
                "Last stored": _moment(info.store_timestamp_max),
            },
            "size": info.log_max - info.log_min,
            "will": next_open(reader.report, is_held=holder.locked, is_crashed=info.abort_present),
        }  # fmt: skip

    def topic(self, name: str) -> tuple[list[QueueEnds], list[tuple[str, int]]]:
        """Returns queues of a topic, and its groups with what waits for them. Raises: NotFound."""
        reader = self.open()
        queues = reader.queues(name)
        if not queues:
            raise NotFound(f"there is no topic {name}")
        rows = [
            QueueEnds(
                MessageQueue(name, "", q.queue), q.min_offset, q.max_offset,
                self._last_ms(reader, q),
            )
            for q in queues
        ]  # fmt: skip
        return rows, self._groups(reader, name, queues)

    @staticmethod
    def _last_ms(reader: Reader, queue: QueueInfo) -> int:
        """Returns the time of the last message; 0 where nothing is, or where it cannot be read."""
        if not len(queue):
            return 0
        try:
            last = reader.read(queue.topic, queue.queue, queue.max_offset - 1, max_messages=1)
            return last[0].store_timestamp if len(last) else 0
        except StoreError:
            return 0

    def views(self, queue: MessageQueue, offset: int, most: int) -> list[RecordView]:
        """Returns messages of a queue from an offset on. Raises: NotFound, StoreError."""
        batch = self.open().read(queue.topic, queue.queue, offset, max_messages=most)
        return [RecordView(bytes(message.record)) for message in batch]

    @staticmethod
    def _groups(reader: Reader, name: str, queues: Iterable[Any]) -> list[tuple[str, int]]:
        """Returns groups with their lag; none when nobody can read them."""
        ends = {q.queue: q.max_offset for q in queues}
        found: dict[str, int] = {}
        try:
            rows = reader.metadata.offsets.all(topic=name)
        except StoreError:
            return []
        for row in rows:
            behind = max(0, ends.get(row.queue, 0) - row.offset)
            found[row.group] = found.get(row.group, 0) + behind
        return sorted(found.items())

    def waiting(self) -> dict[str, Any]:
        """Returns open transactions, the oldest first, and timers, the next due first: the first of
        each. A store whose broker was killed long before its end takes its time. Raises:
        StoreError."""
        reader = self.open()
        halves = sorted(find_pending(reader).rows.values(), key=lambda half: half.store_ms)
        with closing(Timers(reader)) as timers:
            due = list(islice(timers.each(), ROWS))
            count = timers.count()
        return {
            "halves": [
                (
                    _moment(half.store_ms), half.topic, half.group, half.checks,
                    _properties(reader, half.physical).get("KEYS", ""), half.physical,
                )
                for half in halves[:ROWS]
            ],
            "timers": [
                (
                    _moment(timer.due_ms), said.get("REAL_TOPIC", ""), said.get("KEYS", ""),
                    timer.physical,
                )
                for timer in due
                for said in (_properties(reader, timer.physical),)
            ],
            "half_count": len(halves), "timer_count": count, "rows": ROWS,
        }  # fmt: skip

    def find(
        self, topic: str, key: str, id_: str, time: str
    ) -> int | tuple[str, int, int] | list[int]:
        """Returns where to look: the place of one message, or a queue and an offset, or places of
        several. Raises: NotFound, BadArgument."""
        reader = self.open()
        if id_:
            return reader.message_by_id(id_).physical_offset
        if key:
            found = [m.physical_offset for m in reader.query(topic, key, max_messages=ROWS)]
            if not found:
                raise NotFound(f"no message of {topic} has the key {key}")
            return found[0] if len(found) == 1 else found
        if time:
            moment = parse_time(time, "time")
            queue = next((q.queue for q in reader.queues(topic) if len(q)), 0)
            return topic, queue, reader.offset_at(topic, queue, moment)
        raise BadArgument("name an id, a topic and a key, or a topic and a time")

    def record(self, at: int) -> bytes:
        """Returns the record at a place of the log. Raises: NotFound, StoreError."""
        return bytes(self.open().message(at).record)

    def message(self, at: int) -> MessagePage:
        """Returns the message at a place. Raises: NotFound, StoreError."""
        return message_page(self.record(at), at)


def message_page(data: bytes, at: int) -> MessagePage:
    """Returns the page of a message. data: a record. at: its place in the log. Raises: NotFound
    when it is not one."""
    head = check_record(data)
    if head is None:
        raise NotFound(f"no record begins at {at}")
    body, problem = body_of(data, head)
    kind, text = _as_text(body[:BODY_MAX])
    view, fields = RecordView(data), explain(data, head)
    hosts = {field.name: field.value for field in fields}
    facts = {
        "topic": view.topic, "queue": str(head.queue), "queue offset": str(head.queue_offset),
        "log offset": str(at), "message id": view.properties.get("UNIQ_KEY") or view.offset_id,
        "offset id": view.offset_id, "tags": view.tags or "-", "keys": view.keys or "-",
        "born": f"{_moment(head.born_ms)} at {hosts['bornHost']}",
        "stored": f"{_moment(head.store_ms)} at {hosts['storeHost']}",
        "sent back": counted(head.reconsume_times, "time"),
    }  # fmt: skip
    return MessagePage(
        facts, dict(view.properties), text, kind, len(body), len(body) > BODY_MAX, problem,
        _as_json(body) if kind == "text" and len(body) <= BODY_MAX else "", fields, at, body,
    )  # fmt: skip


def _properties(reader: Reader, at: int) -> Mapping[str, str]:
    """Returns the properties of the message at a place; none when it is gone."""
    try:
        return reader.message(at).properties if at >= 0 else {}
    except StoreError:
        return {}


def _moment(ms: int) -> str:
    return iso(ms) if ms >= 0 else "-"


def _as_text(body: bytes) -> tuple[str, str]:
    """Returns the kind, and the text; bytes that are not UTF-8 as a dump."""
    try:
        return "text", body.decode()
    except UnicodeDecodeError as bad:
        if bad.start >= len(body) - 3 and len(body) == BODY_MAX:  # cut within a letter
            return "text", body[: bad.start].decode()
    return "hex", hex_dump(body[:_HEX_MAX])


def _as_json(body: bytes) -> str:
    """Returns JSON, indented; empty when it is not JSON, or hostile JSON."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict | list):
            return ""
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
