"""Node's client (ali-ons) and a broker: tests/node/client.js sends, takes by push, and asks again.

Its consumer asks for the route of its retry topic before the broker has heard of the group.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import launch
import pytest
from waiting import BOUND_S

from broker import Consumer, Message, Producer

pytestmark = [pytest.mark.long]

PROGRAM = Path(__file__).resolve().parents[1] / "node" / "client.js"
WANTED = "ali-ons@3.12.0"
COUNT = 20


@pytest.fixture(scope="module")
def library():
    """The folder of Node's packages; skips where they cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rocketmq-reference" / "node" / WANTED
    if not (folder / "node_modules" / "ali-ons" / "package.json").exists():
        got = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder,
             WANTED],
            capture_output=True, text=True, timeout=BOUND_S,
        )  # fmt: skip
        if got.returncode:
            pytest.skip(f"{WANTED} cannot be had: {got.stderr[-300:]}")
    return folder / "node_modules"


def test_the_node_client_sends_and_takes_by_push_and_asks_again(peer: launch.Peer, library):
    topic = f"node-{time.time_ns()}"
    with Producer(namesrv=peer.namesrv) as producer:  # Node's asks for no template of a new topic
        producer.send(Message(topic, b"first"))
        asked = {"topic": topic}
        launch.wait("a route", lambda: launch.ask(peer.namesrv, launch.ROUTE, asked)[0] == 0)
    done = subprocess.run(
        ["node", PROGRAM, peer.namesrv, topic, f"readers-of-{topic}", str(COUNT)],
        env=os.environ | {"NODE_PATH": str(library)},
        capture_output=True, text=True, timeout=2 * BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    stored = {}
    with Consumer(f"all-of-{topic}", topic, namesrv=peer.namesrv, start="first") as consumer:
        while len(stored) <= COUNT:
            stored |= {m.body: (m.tags, m.keys) for m in consumer.poll(BOUND_S)}
    assert stored.pop(b"first") == (None, [])
    said = json.loads(done.stdout)
    assert said["sent"] == ["SEND_OK"] * COUNT
    assert {each["body"] for each in said["got"]} == {f"body {n}" for n in range(1, COUNT, 2)}
    times = {each["body"]: each["times"] for each in said["got"]}
    assert times.pop(said["refused"]) == 1
    assert set(times.values()) == {0}
    assert stored == {
        b"body %d" % n: ("odd" if n % 2 else "even", [f"key-{n}"]) for n in range(COUNT)
    }
