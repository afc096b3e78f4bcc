"""RocketMQ's Spring Boot starter and a broker: tests/spring sends in every way, and its listeners
get what they are to get."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zlib
from pathlib import Path

import launch
import pytest
from waiting import BOUND_S

from broker import Message, Producer

pytestmark = [pytest.mark.long, pytest.mark.java]

FOLDER = Path(__file__).resolve().parents[1] / "spring"
SOURCE = FOLDER / "src" / "SpringClient.java"


@pytest.fixture(scope="module")
def program():
    """The class path of the compiled program; skips where its jars cannot be had."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    state = zlib.crc32((FOLDER / "pom.xml").read_bytes() + SOURCE.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = cache / "rocketmq-reference" / f"spring-{state:08x}"
    if not (made / "ready").exists():
        (made / "classes").mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / "pom.xml", made)
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        got = subprocess.run(fetch, cwd=made, capture_output=True, text=True, timeout=4 * BOUND_S)
        if got.returncode:
            pytest.skip(f"the starter cannot be had: {got.stdout[-300:]}")
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:none", "-d", "classes", "-cp", "lib/*", SOURCE],
            cwd=made, check=True, timeout=BOUND_S,
        )  # fmt: skip
        (made / "ready").touch()
    return f"{made}/classes:{made}/lib/*"


def test_a_spring_boot_program_sends_and_its_listeners_get_it(peer: launch.Peer, program):
    topic = f"spring-{time.time_ns()}"
    with Producer(namesrv=peer.namesrv) as producer:  # listeners begin at the end of what is there
        producer.send(Message(topic, b"before"))
        asked = {"topic": topic}
        launch.wait("a route", lambda: launch.ask(peer.namesrv, launch.ROUTE, asked)[0] == 0)
    settings = {
        "rocketmq.name-server": peer.namesrv, "rocketmq.producer.group": f"of-{topic}",
        "demo.topic": topic, "spring.main.banner-mode": "off", "logging.level.root": "error",
    }  # fmt: skip
    done = subprocess.run(
        ["java", "-cp", program, "rocketmq.demo.SpringClient",
         *(f"--{name}={value}" for name, value in settings.items())],
        capture_output=True, text=True, timeout=2 * BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    said = {name: set(found.split(",")) - {"before"} for name, _, found in lines}
    assert said["paid"] == {"tagged"}
    assert said["all"] == {
        "sync", "tagged", "orderly", "oneway", "async", "delayed", "committed",
    }  # fmt: skip
