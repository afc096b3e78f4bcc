"""What verifying and rebuilding a store cost a core: rates by processor time, log in page cache.

    python -m benches audit [--count 1000000] [--keep FILE]

`verify` reads the log, sums every body, and compares queues and index with it both ways. `rebuild`
is taken without the verifications around it: derived files made from the log, synced. Processor
time is that of the whole process, system calls included, so that a busy machine and a slow disk say
little; a rebuild is one thread, a verification one a core.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pystore
from benches.harness import TOPIC, Given, Row, bodies, flat, fresh, into_cache
from pystore.audit import verify
from pystore.audit.layout import look
from pystore.repair.scratch import make_derived
from pystore.settings import load

ROUNDS = 3
QUEUES = 16
CHUNK = 100_000


def processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def fill(path: Path, count: int, size: int, *, keys: bool) -> None:
    made = bodies(min(count, CHUNK), size)
    with pystore.open(path) as store:
        for first in range(0, count, CHUNK):
            n = min(CHUNK, count - first)
            names = flat([b"k%08d" % (first + i) for i in range(n)]) if keys else None
            ids = [i % QUEUES for i in range(n)]
            store.put_many(TOPIC, flat(made[:n]), queues=ids, keys=names)


def rows_of_verify(count: int, size: int, *, keys: bool) -> list[Row]:
    path = fresh("verify")
    fill(path, count, size, keys=keys)
    into_cache(path)
    with pystore.Reader(path) as reader:
        total = reader.info().log_max
    took = [processor_seconds(lambda: verify(path)) for _ in range(ROUNDS)]
    payload = f"{size} B bodies, {count:,} messages" + (", a key each" if keys else "")
    mode = "processor time, CRC checked"
    return [
        Row("verify, log", payload, mode, "B/s", [total / t for t in took], target=1e9),
        Row("verify, records", payload, mode, "/s", [count / t for t in took]),
    ]


def rows_of_rebuild(count: int) -> list[Row]:
    rows = []
    for names, what, target in (
        (["consumequeue"], "rebuild --queues, records", 3e6),
        (["index"], "rebuild --index, keys", 1e6),
    ):
        path = fresh("rebuild")
        fill(path, count, 128, keys="index" in names)
        into_cache(path)
        settings, made = load(None, {}), path.with_name("made")
        layout = look(path, settings)
        work = partial(make_derived, layout, settings, made, None, names)
        took = [processor_seconds(work) for _ in range(ROUNDS)]
        shutil.rmtree(made)
        payload = f"128 B bodies, {count:,} messages" + (", a key each" if "index" in names else "")
        mode = "processor time, from the log's start, CRC checked"
        rows.append(Row(what, payload, mode, "/s", [count / t for t in took], target=target))
    return rows


def bench(given: Given) -> list[Row]:
    return [
        *rows_of_verify(given.count // 4, 4096, keys=False),
        *rows_of_verify(given.count, 128, keys=True),
        *rows_of_rebuild(given.count),
    ]
