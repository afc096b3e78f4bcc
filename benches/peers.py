"""The same work by this store, by Apache RocketMQ's own store and by two Python libraries.

    python -m benches peers [ROUNDS]

Rounds are interleaved, so that a noisy machine is noisy for everybody; figures are medians, and
ratios are taken round by round. Every participant stores the same number of 128-byte bodies from
one thread and need not wait for the disk. Apache's store runs embedded in a JVM of its own, warmed
up first (the script tests/reference/reference; it is left out when there is no Java). Raw rounds
are saved under benches/results.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess

import lmdb

from benches import harness
from benches.harness import (
    QUEUES,
    ROOT,
    TOPIC,
    Figures,
    Given,
    Row,
    bodies,
    flat,
    fresh,
    new_store,
    ratio,
    seconds,
)

SIZE = 128
COUNT = harness.scaled(2_000_000)
WARM = harness.scaled(1_000_000)
CALL = min(100_000, COUNT)
TRANSACTION = 1000
PAYLOAD = f"{SIZE} B bodies, {COUNT:,} messages"
REFERENCE = ROOT / "tests" / "reference" / "reference"

#: Names of participants, used in the table, the file and the documents.
MANY = "pystore put_many"
ONE = "pystore put"
APACHE = "Apache RocketMQ embedded put"
BATCH = "pystore batch.put"
BATCHED = "a thousand together, to the last queue unit"
LMDB = "py-lmdb put"
SQLITE = "SQLite insert"


# ---- ours ----


def put_many() -> dict[str, float]:
    """A buffer with offsets; until the last queue unit is written."""
    column = flat(bodies(CALL, SIZE))
    with new_store("peer-many") as store:

        def work() -> None:
            for _ in range(COUNT // CALL):
                store.put_many(TOPIC, column)
            store.refresh()

        return {"to the last queue unit": COUNT // CALL * CALL / seconds(work)}


def put() -> dict[str, float]:
    """One call a message; until the last call returns, and until the last queue unit is written."""
    values = bodies(1000, SIZE)
    with new_store("peer-one") as store:

        def work() -> None:
            one = store.put
            for i in range(COUNT):
                one(TOPIC, values[i % 1000], queue=i % QUEUES)

        took = seconds(work)
        lag = seconds(store.refresh)
        return {"to the last put": COUNT / took, "to the last queue unit": COUNT / (took + lag)}


def batch() -> dict[str, float]:
    """One call a message into Store.batch, which stores a thousand together."""
    values = bodies(1000, SIZE)
    with new_store("peer-batch") as store:

        def work() -> None:
            with store.batch(TOPIC, size=TRANSACTION) as batch:
                one = batch.put
                for i in range(COUNT):
                    one(values[i % 1000])
            store.refresh()

        return {BATCHED: COUNT / seconds(work)}


# ---- peers ----


def apache() -> dict[str, float]:
    """EmbeddedPut of the reference: DefaultMessageStore in its own process, defaults, 4 queues."""
    path = fresh("peer-apache")
    words = [str(REFERENCE), "embedded-put", str(path), str(SIZE), str(WARM), str(COUNT)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    shutil.rmtree(path, ignore_errors=True)
    said = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("{")))
    if said["refused"]:
        raise SystemExit(f"Apache's store refused {said['refused']} messages")
    took = said["puts"] / said["per_s"]
    return {
        "to the last put": said["per_s"],
        "to the last queue unit": said["puts"] / (took + said["dispatch_lag_s"]),
    }


def py_lmdb() -> dict[str, float]:
    """Keys are numbers in order; a write transaction a thousand, none synced."""
    values = bodies(1000, SIZE)
    path = fresh("peer-lmdb")
    env = lmdb.open(str(path), map_size=8 << 30, sync=False, metasync=False)
    keys = [i.to_bytes(8, "big") for i in range(COUNT)]

    def work() -> None:
        for at in range(0, COUNT, TRANSACTION):
            with env.begin(write=True) as transaction:
                for i in range(at, min(at + TRANSACTION, COUNT)):
                    transaction.put(keys[i], values[i % 1000], append=True)

    took = seconds(work)
    env.close()
    shutil.rmtree(path)
    return {"a transaction a thousand, sync=False": COUNT / took}


def sqlite() -> dict[str, float]:
    """One table, WAL, synchronous=NORMAL: commits wait for no sync; executemany of a thousand."""
    values = bodies(1000, SIZE)
    path = fresh("peer-sqlite")
    path.mkdir()
    db = sqlite3.connect(path / "queue.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, topic TEXT, queue INT, body BLOB)")
    insert = "INSERT INTO queue (topic, queue, body) VALUES (?, ?, ?)"
    rows = [(TOPIC, i % QUEUES, values[i % 1000]) for i in range(TRANSACTION)]

    def work() -> None:
        for _ in range(COUNT // TRANSACTION):
            db.execute("BEGIN")
            db.executemany(insert, rows)
            db.execute("COMMIT")

    took = seconds(work)
    db.close()
    shutil.rmtree(path)
    return {"WAL, a transaction a thousand": COUNT // TRANSACTION * TRANSACTION / took}


# ---- the run ----


def java_version() -> str | None:
    """The version of the reference, None where it cannot run."""
    if shutil.which("java") is None:
        return None
    done = subprocess.run([str(REFERENCE), "setup"], capture_output=True, check=False)
    return os.environ.get("RMQ_VERSION", "5.3.3") if done.returncode == 0 else None


#: What is compared with what: (name, its mode, peer, the peer's mode, the ratio aimed at).
COMPARED = (
    (MANY, "to the last queue unit", APACHE, "to the last put", 6.0),
    (MANY, "to the last queue unit", APACHE, "to the last queue unit", None),
    (ONE, "to the last put", APACHE, "to the last put", 1.5),
    (ONE, "to the last queue unit", APACHE, "to the last queue unit", None),
    (MANY, "to the last queue unit", LMDB, "a transaction a thousand, sync=False", None),
    (MANY, "to the last queue unit", SQLITE, "WAL, a transaction a thousand", None),
    (BATCH, BATCHED, LMDB, "a transaction a thousand, sync=False", None),
    (BATCH, BATCHED, SQLITE, "WAL, a transaction a thousand", None),
    (ONE, "to the last put", LMDB, "a transaction a thousand, sync=False", None),
    (ONE, "to the last put", SQLITE, "WAL, a transaction a thousand", None),
)


def ratios(rows: list[Row]) -> list[Row]:
    found = {(row.bench, row.mode): row for row in rows}
    out = []
    for name, mode, peer, peer_mode, target in COMPARED:
        if (peer, peer_mode) in found:
            over, under = found[name, mode], found[peer, peer_mode]
            out.append(ratio(f"{name} / {peer}", f"{mode} / {peer_mode}", over, under, target))
    return out


def bench(given: Given) -> list[Row]:
    participants = {MANY: put_many, BATCH: batch, ONE: put, LMDB: py_lmdb, SQLITE: sqlite}
    java = java_version()
    if java is not None:
        participants[APACHE] = apache
    given.facts |= {"Apache RocketMQ": java or "not run", "sqlite": sqlite3.sqlite_version}
    figures = Figures(PAYLOAD)
    for number in range(given.rounds + 1):
        for name, work in participants.items():
            for mode, rate in work().items():
                if number:  # round 0 touches memory and disk for the first time
                    figures.add(name, mode, "/s", rate, smaller=False)
    return [*figures.rows, *ratios(figures.rows)]
