"""What access control costs: a send in the protocol core that is signed, beside one that is not.

    python -m benches.signed [--count 300000] [--keep FILE]

Frames of SEND_MESSAGE_V2 go through the C core as a connection's bytes would, without sockets and
without an event loop (benches/dedup.py), one kind after the other in each round.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benches import harness
from benches.dedup import BODY, CHUNK, Feed
from benches.harness import ROOT, Row
from broker import Credentials
from broker.client.credentials import SigningHook
from broker.remoting import codec
from broker.remoting.command import Command
from broker.remoting.hot import Core

ROUNDS = 7
WHO = Credentials("orders-team", "orders-secret")


def commands(count: int, signed: bool) -> list[Command]:
    made = []
    for i in range(count):
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": str(i % 4), "f": "0"}
        ext |= {"g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\1{i:032X}\2WAIT\1true\2"}
        ext |= {"j": "0", "m": "false"}
        command = Command(310, ext, b"x" * BODY, opaque=i)
        if signed:
            SigningHook(WHO).before_request("", command)
        made.append(command)
    return made


def chunks_of(made: list[Command]) -> list[bytes]:
    """In reads of what fits a buffer."""
    chunks, chunk = [], bytearray()
    for command in made:
        frame = codec.encode(command)
        if len(chunk) + len(frame) > CHUNK:
            chunks.append(bytes(chunk))
            chunk.clear()
        chunk += frame
    return [*chunks, bytes(chunk)]


def a_send(chunks: list[bytes], count: int, guarded: bool) -> float:
    """Microseconds of this thread's processor time."""
    with harness.new_store("signed") as store:
        core = Core(store, cluster="DefaultCluster")
        core.publish_topic("T", 4, 4, 6, hot=True)
        if guarded:
            core.guard()
            core.grant(("0.0.0.0", 0), 310, WHO.access_key, WHO.secret_key, "T", "")
        feed = Feed(core)
        began = time.thread_time()
        feed.send(chunks)
        took = time.thread_time() - began
        assert core.totals().puts == count
        assert core.let_in == (count if guarded else 0)
        feed.close()
        core.close()
    return took / count * 1e6


def rows_of(count: int) -> list[Row]:
    plain_chunks, signed_chunks = (chunks_of(commands(count, signed)) for signed in (False, True))
    rows = [
        Row("a send in the core", f"{BODY} B", mode, " us", [], smaller=True)
        for mode in ("unsigned", "signed", "what signing adds")
    ]
    for number in range(ROUNDS + 1):
        plain = a_send(plain_chunks, count, False)
        signed = a_send(signed_chunks, count, True)
        if number:  # the first touches memory for the first time
            for row, value in zip(rows, (plain, signed, signed - plain), strict=True):
                row.rounds.append(value)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.signed")
    parser.add_argument("--count", type=int, default=300_000, help="messages a round")
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    given = parser.parse_args()
    facts: dict[str, Any] = harness.machine()
    rows = rows_of(given.count)
    harness.show(rows, facts, "access control")
    path = harness.save(rows, facts, "signed")
    print(f"raw rounds: {path.relative_to(ROOT)}")
    if given.keep:
        given.keep.write_text(path.read_text("utf-8"), "utf-8")


if __name__ == "__main__":
    main()
