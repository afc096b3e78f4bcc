"""A store through pystore, as the lines that the reference's dump prints for it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pystore


def message_facts(m: pystore.Message) -> dict[str, Any]:
    """The ``msg`` line of a message."""
    body = bytes(m.raw_body)
    return {
        "at": "msg",
        "phy": m.physical_offset,
        "size": m.size,
        "magic": m.magic,
        "topic": m.topic,
        "queue": m.queue,
        "queue_offset": m.queue_offset,
        "flag": m.flag,
        "sys_flag": m.sys_flag,
        "born_ts": m.born_timestamp,
        "born_host": m.born_host,
        "store_ts": m.store_timestamp,
        "store_host": m.store_host,
        "reconsume": m.reconsume_times,
        "prepared_offset": m.prepared_transaction_offset,
        "body_crc": m.body_crc,
        "body_len": len(body),
        "body_crc32": f"{zlib.crc32(body):08x}",
        "props": m.properties,
    }


def unit_facts(store: pystore.Store | pystore.Reader) -> Iterator[dict[str, Any]]:
    """The ``cq`` lines of every queue."""
    for q in store.queues():
        at = q.min_offset
        while at < q.max_offset:
            units = store.units(q.topic, q.queue, at, 4096)
            assert units, f"{q} has no unit at {at}"
            for physical, size, code in units:
                yield {
                    "at": "cq",
                    "topic": q.topic,
                    "queue": q.queue,
                    "offset": at,
                    "phy": physical,
                    "size": size,
                    "tags_code": code,
                }
                at += 1


def view(store: pystore.Store | pystore.Reader) -> list[dict[str, Any]]:
    """Every record in log order, then every unit, sorted."""
    log = [message_facts(m) for m in store.messages(check_crc=True)]
    return log + ordered_units(unit_facts(store))


def ordered_units(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lines, key=lambda u: (u["topic"], u["queue"], u["offset"]))


def of_dump(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The part of a reference dump that ``view`` gives, in its order."""
    lines = list(lines)
    assert not [line for line in lines if line["at"] == "bad"]
    log = [line for line in lines if line["at"] == "msg"]
    return log + ordered_units(line for line in lines if line["at"] == "cq")


def everything(
    store: pystore.Store | pystore.Reader, topic: str | None = None, queue: int | None = None
) -> Iterator[pystore.Message]:
    """Every message that reading queues to their ends gives: all of them, those of a topic, or
    one."""
    for q in store.queues() if topic is None else store.queues(topic):
        at = q.min_offset if queue in (None, q.queue) else q.max_offset
        while at < q.max_offset:
            batch = store.read(q.topic, q.queue, at, max_messages=1000)
            assert batch.next_offset > at, (q, batch)
            yield from batch
            at = batch.next_offset


def delivered(
    store: pystore.Store | pystore.Reader,
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """What consumers get: (queue offset, place in the log) of each message, by topic and queue."""
    found = {}
    for q in store.queues():
        of_queue = everything(store, q.topic, q.queue)
        found[q.topic, q.queue] = [(m.queue_offset, m.physical_offset) for m in of_queue]
    return found


def sizes_of(root: Path) -> dict[str, int]:
    """The settings that Apache's store must be told, as the files have them."""
    with pystore.Reader(root) as reader:
        info = reader.info()
    return {
        "mappedFileSizeCommitLog": info.commitlog_file_size,
        "mappedFileSizeConsumeQueue": info.consumequeue_file_size,
        "maxHashSlotNum": info.index_slots,
        "maxIndexNum": info.index_entries,
    }


def cli_dump(path: Path, **settings: object) -> list[str]:
    """The lines of ``pystore dump --json``, from a process of its own."""
    program = "import sys; from pystore.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "dump", str(path), "--json"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def explain(expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> str:
    """Where two views part, in a few lines; empty when they are equal."""
    if expected == got:
        return ""
    a = [json.dumps(line, sort_keys=True) for line in expected]
    b = [json.dumps(line, sort_keys=True) for line in got]
    missing, extra = set(a) - set(b), set(b) - set(a)
    head = f"{len(a)} lines expected, {len(b)} got, {len(missing)} missing, {len(extra)} extra"
    if not missing and not extra:
        return f"{head}: the order or the number of equal lines differs"
    first = [f"- {line}" for line in sorted(missing)[:3]]
    return "\n".join([head, *first, *(f"+ {line}" for line in sorted(extra)[:3])])


def keys_of(properties: dict[str, str]) -> set[str]:
    """What the index files a message under: UNIQ_KEY and each token of KEYS."""
    found = {token for token in properties.get("KEYS", "").split(" ") if token}
    if properties.get("UNIQ_KEY"):
        found.add(properties["UNIQ_KEY"])
    return found


def folder_hash(root: Path) -> dict[str, str]:
    """Content hash of every file and the name of every folder below a root."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            found[name] = "folder"
        else:
            with path.open("rb") as data:
                found[name] = hashlib.file_digest(data, "md5").hexdigest()
    return found


def derived(path: Path) -> dict[str, bytes]:
    """Queues and checkpoint by their names; index files, which are named by the clock, by their
    order."""
    found = {
        str(file.relative_to(path)): file.read_bytes()
        for file in [*path.glob("consumequeue/*/*/*"), path / "checkpoint"]
    }
    for n, file in enumerate(sorted(path.glob("index/*"))):
        found[f"index {n}"] = file.read_bytes()
    return found
