"""A program that puts from several threads and notes each acknowledgement, until it is killed.

writer PATH SETTINGS LEDGER SEED THREADS [PAUSE]: LEDGER gains a JSON line [thread, number, topic,
queue, queue offset, physical offset, CRC-32 of the body, key] for each message that was
acknowledged, written before the thread goes on. PAUSE: seconds before each put. Now and then a
group commits how far a queue is.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import threading
import time
import zlib

import audit

import pystore


def item(body: bytes) -> bytes:
    """One message of a client's batch."""
    rest = struct.pack(">ii", 0, len(body)) + body + struct.pack(">h", 0)
    return struct.pack(">iii", 12 + len(rest), 0, 0) + rest


def work(store: pystore.Store, ledger: int, rng: random.Random, thread: int, pause: float) -> None:
    number = 0

    def told(queue, offset, place, body, key=""):
        nonlocal number
        line = [thread, number, topic, queue, offset, place, zlib.crc32(body), key]
        os.write(ledger, (json.dumps(line) + "\n").encode())  # one call: whole or not at all
        number += 1

    while True:
        time.sleep(pause)
        topic = f"T{rng.randrange(3)}"
        kind, size = rng.random(), rng.choice((10, 300, 5000))
        run = f"{os.getpid()}-{thread}-{number}"
        body = run.encode() + rng.randbytes(rng.randrange(size))
        if kind < 0.85:
            put = store.put(topic, body, queue=rng.randrange(2), keys=run, tags="ab"[number % 2])
            told(put.queue, put.queue_offset, put.physical_offset, body, run)
        elif kind < 0.95:
            bodies = [body + b"%d" % k for k in range(5)]
            many = store.put_many(topic, bodies, queue=1, keys=run)
            for k in range(5):
                told(1, many.queue_offsets[k], many.physical_offsets[k], bodies[k], run)
        elif kind < 0.97:
            put = store.put(topic, body, keys=run, delay_level=1 + number % 3)
            topic = audit.DELAYED
            told(put.queue, put.queue_offset, put.physical_offset, body, run)
        elif kind < 0.98:
            for q in store.queues(topic):
                store.metadata.offsets.commit("group", topic, q.queue, q.max_offset)
        else:
            bodies = [body + b"%d" % k for k in range(5)]
            batch = store.put_batch(topic, b"".join(map(item, bodies)), queue=0)
            for k in range(5):
                told(0, batch.queue_offsets[k], -1, bodies[k])


def main() -> None:
    path, settings, ledger_path, seed, threads, *pause = sys.argv[1:]
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = pystore.open(path, **json.loads(settings))
    for n in range(int(threads)):
        rng = random.Random(int(seed) + n)
        threading.Thread(target=work, args=(store, ledger, rng, n, float(*pause))).start()


if __name__ == "__main__":
    main()
