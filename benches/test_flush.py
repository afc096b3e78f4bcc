"""SYNC_FLUSH under many threads: how many puts one sync of the disk serves."""

from __future__ import annotations

import threading
from typing import Any

from benches.harness import QUEUES, TOPIC, Row, bodies, new_store, scaled, seconds

THREADS = 64
SIZE = 128


def test_group_commit(measure: Any) -> None:
    """64 threads, each waiting for the disk after each message."""
    each = max(20, scaled(64_000) // THREADS)
    body = bodies(1, SIZE)[0]
    rates, syncs, shared = [], [], []

    def one_round() -> None:
        with new_store("sync", flushDiskType="SYNC_FLUSH") as store:
            before = store.info()

            def work(number: int) -> None:
                for _ in range(each):
                    store.put(TOPIC, body, queue=number % QUEUES)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]

            def run() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            took = seconds(run)
            after = store.info()
            puts, fsyncs = after.puts - before.puts, after.fsyncs - before.fsyncs
            rates.append(puts / took)
            syncs.append(fsyncs / took)
            shared.append(puts / max(1, fsyncs))

    measure.benchmark.pedantic(one_round, rounds=3, warmup_rounds=0)
    payload, mode = f"{SIZE} B bodies", f"SYNC_FLUSH, {THREADS} threads"
    measure.add(Row("sync flush, puts", payload, mode, "/s", rates))
    measure.add(Row("sync flush, fdatasync calls", payload, mode, "/s", syncs))
    measure.add(Row("sync flush, puts a sync", payload, mode, "", shared, target=20))
