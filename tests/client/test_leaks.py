"""Brokers and clients that come and go in one process leave nothing behind.

PS_LEAK_ROUNDS=200 makes the long run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

from broker import Broker, Message

ROUNDS = int(os.environ.get("PS_LEAK_ROUNDS", "12"))


def left():
    """What a process has open: threads by name, and descriptors by what they are."""
    gc.collect()
    threads = sorted(t.name for t in threading.enumerate())
    files = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            files.append(str(each.readlink()).partition(":")[0])
    return threads, sorted(files)


def turn(folder, settings):
    with Broker(folder, **settings) as broker, broker.producer() as producer:
        producer.send(Message("orders", b"x"))
        with broker.consumer("billing", "orders", start="first") as consumer:
            assert next(iter(consumer)).body == b"x"
        with broker.consumer("search", "orders", handler=lambda message: None):
            pass
    shutil.rmtree(folder)


def alive():
    """How many objects there are of each kind that must not stay."""
    kinds = {"Broker", "Connection", "AsyncProducer", "AsyncConsumer", "Puller", "QueueProgress"}
    return Counter(name for each in gc.get_objects() if (name := type(each).__name__) in kinds)


def test_brokers_and_clients_leave_nothing(tmp_path, small):
    settings = small | {"listenPort": 0, "drain_s": 0.0, "with_namesrv": True}
    known = None
    for number in range(ROUNDS):
        turn(tmp_path / str(number), settings)
        if number == 2:  # what is made once a process is there by now
            known = left(), alive()
    assert (left(), alive()) == known
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
