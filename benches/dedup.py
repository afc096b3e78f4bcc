"""What idempotent produce costs: a send in the protocol core with and without it, memory, a start.

    python -m benches dedup [--count 1000000] [--keep FILE]

Frames of SEND_MESSAGE_V2 go through the C core as a connection's bytes would, without sockets and
without an event loop, so that what is added stands out: a real send costs some microseconds more.
Windows smaller than the messages sent push one out for each that comes in; "repeats" sends again
what the window holds.
"""

from __future__ import annotations

import time
from typing import Any

from benches import harness
from benches.harness import Figures, Given, Row
from broker.hot.core import Core
from broker.hot.dedup import Dedup
from broker.wire import codec
from broker.wire.command import Command
from pystore.native import ffi, lib

BODY = 128
CHUNK = 240 << 10
ROUNDS = 5


def commands(count: int) -> list[Command]:
    """Sends of different UNIQ_KEYs, as a client makes them."""
    made = []
    for i in range(count):
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": str(i % 4), "f": "0"}
        ext |= {"g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\1{i:032X}\2WAIT\1true\2"}
        ext |= {"j": "0", "m": "false"}
        made.append(Command(310, ext, b"x" * BODY, opaque=i))
    return made


def chunks_of(made: list[Command]) -> list[bytes]:
    """Their frames, in reads of what fits a buffer."""
    chunks, chunk = [], bytearray()
    for command in made:
        frame = codec.encode(command)
        if len(chunk) + len(frame) > CHUNK:
            chunks.append(bytes(chunk))
            chunk.clear()
        chunk += frame
    return [*chunks, bytes(chunk)]


class Feed:
    """One connection of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._error, self._step = ffi.new("ps_error *"), ffi.new("ps_step *")
        self._conn = lib.ps_conn_new(core.handle, 1, bytes(8), 8, self._error)

    def send(self, chunks: list[bytes]) -> None:
        step, at = self._step, ffi.new("uint8_t **")
        for chunk in chunks:
            size = len(chunk)
            room: Any = self._core.room
            if step.part:
                found = lib.ps_conn_room(self._conn, at, self._error)
                room = ffi.buffer(at[0], found)
            room[:size] = chunk
            while True:
                assert lib.ps_conn_received(self._conn, size, step, self._error) == 0
                assert step.frame_count == 0
                if not step.more:
                    break
                size = 0

    def close(self) -> None:
        lib.ps_conn_free(self._conn)


def measure(chunks: list[bytes], count: int, window: int) -> dict[str, float]:
    """Microseconds a message, bytes a message, seconds of a start, of one round."""
    found: dict[str, float] = {}
    with harness.new_store("once") as store:
        core = Core(store, cluster="DefaultCluster")
        once = Dedup(core, window, "UNIQ_KEY") if window else None
        core.publish_topic("T", 4, 4, 6, hot=True, once=bool(window))
        feed = Feed(core)
        cpu = time.process_time()
        took = harness.seconds(lambda: feed.send(chunks))
        found["cpu"] = (time.process_time() - cpu) / count * 1e6
        found["send"] = took / count * 1e6
        assert core.sums().puts == count
        if once is not None and window >= count:
            found["repeats"] = harness.seconds(lambda: feed.send(chunks)) / count * 1e6
            assert once.state().repeats == count
            again = Dedup(core, window, "UNIQ_KEY")
            found["start"] = harness.seconds(again.build)
            assert again.state().remembered == count
        if once is not None:
            found["bytes"] = once.state().bytes / window
        feed.close()
        core.close()
    return found


def bench(given: Given) -> list[Row]:
    count = given.count
    chunks = chunks_of(commands(count))
    names = {0: "off", count // 10: f"window {count // 10:,}", count: f"window {count:,}"}
    what = {
        "send": ("a send in the core", " us"), "cpu": ("its processor time, with dispatch", " us"),
        "repeats": ("a repeat in the core", " us"), "bytes": ("memory a message", " B"),
        "start": (f"start: {count:,} found in the log", " s"),
    }  # fmt: skip
    figures = Figures(f"{BODY} B")
    for number in range(ROUNDS + 1):
        for window, mode in names.items():
            for key, value in measure(chunks, count, window).items():
                if number:  # the first touches memory for the first time
                    figures.add(what[key][0], mode, what[key][1], value)
    return figures.rows
