"""A process that puts, delivers and recalls timers until it is killed; prints what it was told."""

from __future__ import annotations

import random
import sys
import time

import pystore
from pystore.store.timers import Timers, save_timers


def main(path: str, seed: int, round_: int) -> None:
    chance = random.Random(seed)
    with pystore.open(path, mappedFileSizeCommitLog=1 << 20) as store:
        timers = Timers(store)
        waiting: list[tuple[str, int]] = []
        for i in range(1_000_000):
            key = f"{round_}-{i}"
            due = time.time_ns() // 1_000_000 + chance.choice((1, 3, 20, 200, 60_000))
            properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due)}
            store.put("orders", b"x", properties=properties, queue=0)
            print("put", key, due, flush=True)
            waiting.append((key, due))
            if chance.random() < 0.2:
                recall(store, timers, *waiting[chance.randrange(len(waiting))])
            if chance.random() < 0.5:
                timers.run(most=chance.choice((1, 7, 512)))
            if chance.random() < 0.05:
                state, end = timers.capture()
                store.wait_flushed(end)
                save_timers(store, state)


def recall(store: pystore.Store, timers: Timers, key: str, due: int) -> None:
    out = due - 1000 if due % 1000 == 0 else due - due % 1000
    found = timers.find("orders", key, out)
    if found is None or found.due_ms <= time.time_ns() // 1_000_000 + 50:
        return
    properties = {"TIMER_DEL_UNIQKEY": f"orders+{key}", "TIMER_DELIVER_MS": str(found.due_ms)}
    store.put("orders", b"0", properties=properties, queue=0)
    print("recalled", key, due, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
