"""What must hold of any store, and of one whose acknowledgements were noted."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import pystore
from tests.storeview import delivered

PREPARED, ROLLBACK = 0x4, 0xC
#: Where delayed messages wait.
DELAYED = "SCHEDULE_TOPIC_XXXX"


def ledger_of(path: Path) -> list[list[Any]]:
    """Lines of a ledger; a last line that was cut is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(True) if line[-1:] == "\n"]


def check_queues(store: pystore.Store | pystore.Reader) -> int:
    """The queues hold exactly the log's records, in its order, each at its offset; how many."""
    expected: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for m in store.messages(check_crc=True):
        if m.sys_flag & 0xC not in (PREPARED, ROLLBACK):
            expected.setdefault((m.topic, m.queue), []).append(
                (m.queue_offset, m.physical_offset, m.size)
            )
    found = {}
    for q in store.queues():
        at, units = q.min_offset, []
        while at < q.max_offset:
            for place, size, _ in store.units(q.topic, q.queue, at):
                units.append((at, place, size))
                at += 1
        if units:
            found[q.topic, q.queue] = units
    assert found == expected
    for units in expected.values():
        first = units[0][0]
        assert [u[0] for u in units] == list(range(first, first + len(units)))
    return sum(map(len, expected.values()))


def check_delivered(store: pystore.Store | pystore.Reader) -> set[int]:
    """Queues deliver each record of the log that is theirs, in its order; places of those of none.

    The topic of these is zeros: it was in a page that a power failure took, and as they have no
    properties everything else of them is whole. The report names each."""
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    nowhere = set()
    for m in store.messages(check_crc=True):
        if "\0" in m.topic:
            nowhere.add(m.physical_offset)
        elif m.sys_flag & 0xC not in (PREPARED, ROLLBACK):
            expected.setdefault((m.topic, m.queue), []).append((m.queue_offset, m.physical_offset))
    found = {queue: got for queue, got in delivered(store).items() if got}
    for queue in sorted(expected.keys() | found.keys()):
        there, got = expected.get(queue, []), found.get(queue, [])
        if there != got:
            missing, extra = sorted(set(there) - set(got)), sorted(set(got) - set(there))
            raise AssertionError(
                f"{queue}: {len(there)} records in the log, {len(got)} delivered; "
                f"missing {missing[:5]} of {len(missing)}, extra {extra[:5]} of {len(extra)}; "
                f"{store.info()}"
            )
    skipped = {i.start for i in store.report.items if i.action is pystore.Action.SKIPPED}
    assert nowhere <= skipped or store.report.items_dropped, (nowhere, store.report)
    return nowhere


def check_offsets(store: pystore.Store | pystore.Reader) -> None:
    """No group would skip what comes next."""
    ends = {(q.topic, q.queue): q.max_offset for q in store.queues()}
    for row in store.metadata.offsets.all():
        assert row.offset <= ends.get((row.topic, row.queue), 0), row
    for level, offset in store.metadata.delay_offsets.all().items():
        assert offset <= ends.get((DELAYED, level - 1), 0), level


def check_acknowledged(
    store: pystore.Store | pystore.Reader, ledger: list[list[Any]], keys: int = 200
) -> None:
    """Each acknowledged message stands where it was said to, in the order of its thread.

    keys: of how many, spread over the ledger, the key is looked up.
    """
    there = {(m.topic, m.queue, m.queue_offset): m for m in store.messages()}
    last: dict[tuple[int, str], int] = {}
    for thread, _, topic, queue, offset, place, crc, key in ledger:
        m = there[topic, queue, offset]
        body = bytes(m.body)
        assert zlib.crc32(body) == crc
        assert place in (-1, m.physical_offset)
        run = (thread, body.split(b"-", 1)[0].decode())
        assert m.physical_offset > last.get(run, -1)
        last[run] = m.physical_offset
        assert key == m.properties.get("KEYS", "")
    for line in ledger[:: max(1, len(ledger) // keys)] + ledger[-20:]:
        _, _, topic, queue, offset, _, crc, key = line
        m = store.read(topic, queue, offset, max_messages=1)[0]
        assert (m.topic, m.queue, m.queue_offset) == (topic, queue, offset)
        assert zlib.crc32(bytes(m.body)) == crc
        if key:
            assert (queue, offset) in [(m.queue, m.queue_offset) for m in store.query(topic, key)]


def check_goes_on(store: pystore.Store) -> None:
    """Puts go to the end of the log and of each queue, and can be read at once."""
    for q in store.queues():
        end = store.info().log_max
        put = store.put(q.topic, b"after", queue=q.queue, keys="after")
        assert put.queue_offset == q.max_offset
        assert put.physical_offset >= end
        assert bytes(store.read(q.topic, q.queue, put.queue_offset)[0].body) == b"after"


def fingerprint(store: pystore.Store | pystore.Reader) -> tuple[str, list[Any]]:
    """Hash of every record in the log's order, and every queue with its range."""
    digest = hashlib.md5()
    for m in store.messages():
        digest.update(m.record)
    return digest.hexdigest(), store.queues()
