"""What access control costs: a send in the protocol core that is signed, beside one that is not.

    python -m benches signed [--count 300000] [--rounds 3] [--seconds 4] [--keep FILE]

Frames of SEND_MESSAGE_V2 go through the C core as a connection's bytes would, without sockets and
without an event loop (benches/dedup.py), one kind after the other in each round.

Then over sockets: an AsyncProducer with 64 sends in flight (benches/client.py), which signs for one
broker and not for the other, in turn. Processor time is that of the whole process a message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches import client, harness
from benches.client import WARM_S
from benches.dedup import BODY, Feed, chunks_of, commands
from benches.harness import Given, Row, command_of
from broker import Broker, Credentials
from broker.client.credentials import SigningHook
from broker.hot.core import Core
from broker.wire.command import Command

ROUNDS = 7
WHO = Credentials("orders-team", "orders-secret")


def signed_commands(count: int) -> list[Command]:
    made, hook = commands(count), SigningHook(WHO)
    for command in made:
        hook.before_request("", command)
    return made


def a_send(chunks: list[bytes], count: int, guarded: bool) -> float:
    """Microseconds of this thread's processor time."""
    with harness.new_store("signed") as store:
        core = Core(store, cluster="DefaultCluster")
        core.publish_topic("T", 4, 4, 6, hot=True)
        if guarded:
            core.check_access()
            core.grant(("0.0.0.0", 0), 310, WHO.access_key, WHO.secret_key, "T", "")
        feed = Feed(core)
        began = time.thread_time()
        feed.send(chunks)
        took = time.thread_time() - began
        assert core.sums().puts == count
        assert core.let_in == (count if guarded else 0)
        feed.close()
        core.close()
    return took / count * 1e6


def core_rows(count: int) -> list[Row]:
    plain_chunks, signed_chunks = chunks_of(commands(count)), chunks_of(signed_commands(count))
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


# ---- over sockets ----

KINDS = ("unsigned", "signed")
RULES = f"""accounts:
- accessKey: {WHO.access_key}
  secretKey: {WHO.secret_key}
  defaultTopicPerm: PUB|SUB
"""


def serve(path: str, kind: str) -> None:
    """A broker until its input ends; tells the address of its name server."""
    folder = Path(path)
    folder.mkdir(parents=True)
    if kind == "signed":
        rules = folder / "plain_acl.yml"
        rules.write_text(RULES)
        rules.chmod(0o600)
    settings: dict[str, Any] = {"aclEnable": kind == "signed", "bindAddress": "127.0.0.1"}
    with Broker(folder / "store", listenPort=0, with_namesrv=True, **settings) as broker:
        print(broker.namesrv_address, flush=True)
        sys.stdin.read()


@contextmanager
def served(folder: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        command_of(serve, str(folder / kind), kind),
        cwd=harness.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.communicate()


def used_s(process: subprocess.Popen[str]) -> float:
    return harness.cpu_s(process.pid)


def sent(process: subprocess.Popen[str], names: str, kind: str, seconds: float) -> list[float]:
    """Messages a second; us of the client and of the broker a message."""
    pair = {"ROCKETMQ_ACCESS_KEY": WHO.access_key, "ROCKETMQ_SECRET_KEY": WHO.secret_key}
    before = used_s(process)
    said = subprocess.run(
        command_of(client.send, names, seconds), cwd=harness.ROOT, check=True, text=True,
        stdout=subprocess.PIPE, env=os.environ | (pair if kind == "signed" else {}),
    ).stdout  # fmt: skip
    count, spent, used = json.loads(said)
    # The broker also served what was sent while the client warmed up, at about the same rate.
    broker = (used_s(process) - before) * seconds / (seconds + WARM_S)
    return [count / spent, used / count * 1e6, broker / count * 1e6]


def wire_rows(rounds: int, seconds: float) -> list[Row]:
    names = (("sends, 64 in flight", " /s", False), ("of the client", " us", True),
             ("of the broker", " us", True))  # fmt: skip
    rows = {kind: [Row(n, f"{BODY} B", kind, u, [], smaller=s) for n, u, s in names]
            for kind in KINDS}  # fmt: skip
    ratio = Row("sends, 64 in flight", f"{BODY} B", "signed to unsigned", " x", [])
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=harness.SCRATCH) as made,
        served(Path(made), "unsigned") as plain,
        served(Path(made), "signed") as signed,
    ):
        for number in range(rounds):
            turns = (("unsigned", plain), ("signed", signed))
            for kind, broker in turns if number % 2 else turns[::-1]:
                for row, value in zip(rows[kind], sent(*broker, kind, seconds), strict=True):
                    row.rounds.append(value)
            ratio.rounds.append(rows["signed"][0].rounds[-1] / rows["unsigned"][0].rounds[-1])
    return [*rows["unsigned"], *rows["signed"], ratio]


def bench(given: Given) -> list[Row]:
    return [*core_rows(given.count), *wire_rows(given.rounds, given.seconds)]
