"""``kill -9`` with timers due, being delivered, recalled: none lost, none early, none twice.

``PS_TIMER_KILLS`` rounds (`make crash-timers`: 200), each on the store that the last one left.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from storeview import everything

import pystore
from pystore.format.names import TIMER_TOPIC
from pystore.store.timers import Timers

CHILD = Path(__file__).with_name("timers_child.py")
ROUNDS = int(os.environ.get("PS_TIMER_KILLS", "6"))


def live_and_die(store_path, seed, round_, told):
    """Runs the child until it is killed in the midst of its work."""
    words = [sys.executable, str(CHILD), str(store_path), str(seed), str(round_)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        most = random.Random(seed).randrange(20, 400)
        for count, line in enumerate(child.stdout):
            note(line, told)
            if count >= most:
                break
        child.kill()
        for line in child.stdout:
            if line.endswith("\n"):
                note(line, told)


def note(line, told):
    what, key, due = line.split()
    told[what][key] = int(due)


def delivered(store):
    return [(m.properties["UNIQ_KEY"], m.store_timestamp) for m in everything(store, "orders")]


def test_killed_again_and_again_each_comes_once(store_path, seed):
    told = {"put": {}, "recalled": {}}
    for round_ in range(ROUNDS):
        live_and_die(store_path, seed + round_, round_, told)
    with pystore.open(store_path) as store:
        early = [key for key, at in delivered(store) if at < told["put"].get(key, 0)]
        timers = Timers(store)
        while timers.run(now_ms=time.time_ns() // 1_000_000 + 120_000).more:
            pass
        assert timers.count() == 0
        timers.close()
        came = Counter(key for key, _ in delivered(store))
        asked = {r.properties["UNIQ_KEY"] for r in records(store)}
    twice = [key for key, count in came.items() if count > 1]
    lost = set(told["put"]) - set(told["recalled"]) - set(came)
    assert (early, twice) == ([], [])
    assert not set(told["recalled"]) & set(came)
    # The last mark of a life may be in the log although nobody was told.
    assert (
        len(lost) <= ROUNDS
        and lost <= asked - set(told["recalled"])
        and not unmarked(lost, store_path)
    )


def records(store):
    timers = everything(store, TIMER_TOPIC)
    yield from (m for m in timers if "TIMER_DEL_UNIQKEY" not in m.properties)


def unmarked(keys, store_path):
    """Those that no mark names."""
    with pystore.Reader(store_path) as store:
        timers = everything(store, TIMER_TOPIC)
        return keys - {m.properties.get("TIMER_DEL_UNIQKEY", "+").split("+")[1] for m in timers}
