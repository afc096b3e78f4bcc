"""What a send costs: when the tables of the core decide, and when Python does.

    python -m benches sends [--rounds 7] [--count 20000] [--only tables,..]

Each round starts a broker in a process of its own, with a store in memory if /dev/shm is there;
this process writes SEND_MESSAGE_V2 frames of 128-byte bodies to its socket, 256 at a time or one. A
figure is the processor time of the broker's process a message, so that what else the machine does
counts little. Python decides because a hook is there, or because the message comes without
UNIQ_KEY. A timed send counts with all that its time costs but the delivery: the index of timers
belongs to the process.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from benches.harness import ROOT, Figures, Given, Row
from broker.wire import codec
from broker.wire.command import Command

BODY = b"x" * 128
WINDOW = 256
#: A time that does not come while a round lasts.
SIX_HOURS_MS = 6 * 3_600_000
#: Kinds that need many messages to be measured: they are served without Python.
QUICK = ("tables", "timed")
#: One at a time: then what it costs to read and to write counts most.
SINGLE = ("single", "header")
HEADER = b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n"

#: A broker that tells its port, then its processor time.
BROKER = """
import sys, time
from broker.broker import Broker

class Hook:
    name = "nothing"
    def before(self, context): pass
    def after(self, context): pass

broker = Broker(sys.argv[1], listenPort=0, mappedFileSizeCommitLog=64 << 20)
if sys.argv[2] == "hook":
    broker.add_send_hook(Hook())
with broker:
    print(broker.port, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
"""


def frame(number: int, kind: str) -> bytes:
    properties = "WAIT\1true\2TAGS\1a\2" + ("" if kind == "no id" else f"UNIQ_KEY\1{number:032X}\2")
    if kind == "timed":
        properties += f"TIMER_DELAY_MS\1{SIX_HOURS_MS}\2"
    ext = {
        "a": "makers", "b": "orders", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    return codec.encode(Command(310, ext, BODY, opaque=number))


def _answers(sock: socket.socket, left: bytes, count: int) -> bytes:
    """Reads so many answers; what is left of the last read."""
    while count:
        at = 0
        while count and len(left) - at >= 4:
            size = 4 + struct.unpack_from(">i", left, at)[0]
            if len(left) - at < size:
                break
            at += size
            count -= 1
        left = left[at:]
        if count:
            left += sock.recv(1 << 18)
    return left


def send_all(port: int, frames: list[bytes], kind: str) -> None:
    window = 1 if kind in SINGLE else WINDOW
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if kind == "header":
            sock.sendall(HEADER)
        left = b""
        for at in range(0, len(frames), window):
            part = frames[at : at + window]
            sock.sendall(b"".join(part))
            left = _answers(sock, left, len(part))


def cost_us(kind: str, count: int) -> float:
    """Processor time a message of a broker, in microseconds."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", BROKER, Path(folder) / "store", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with process:
            port = int(process.stdout.readline())

            def spent(told: IO[str] = process.stdin, said: IO[str] = process.stdout) -> float:
                told.write("\n")
                told.flush()
                return float(said.readline())

            send_all(port, [frame(i, kind) for i in range(1000)], kind)
            frames = [frame(i, kind) for i in range(count)]
            began = spent()
            send_all(port, frames, kind)
            took = spent() - began
            process.stdin.close()
        return took / count * 1e6


def bench(given: Given) -> list[Row]:
    what = {"tables": "decided by the tables", "timed": "the same, for a time in six hours",
            "hook": "decided by Python, with a hook",
            "no id": "decided by Python, no UNIQ_KEY", "single": "one at a time",
            "header": "one at a time, after a PROXY header"}  # fmt: skip
    figures = Figures("128 B")
    for _ in range(given.rounds):
        for kind in given.only:
            many = given.count * (10 if kind in QUICK else 1)
            figures.add(f"a send, {what[kind]}", "ours", " us", cost_us(kind, many))
    return figures.rows
