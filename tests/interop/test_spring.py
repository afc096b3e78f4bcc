"""RocketMQ's Spring Boot starter, the binder of Spring Cloud Stream, and a broker: the programs of
tests/spring send in every way, and their listeners get what they are to get."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import launch
import pytest
from waiting import BOUND_S

from broker import Message, Producer

pytestmark = [pytest.mark.long, pytest.mark.java]

FOLDER = Path(__file__).resolve().parents[1] / "spring"
SOURCES = FOLDER / "src"


def compiled(name: str, pom: Path) -> str:
    """The class path of that program; skips where its jars cannot be had."""
    source = SOURCES / f"{name}.java"
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    state = zlib.crc32(pom.read_bytes() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = cache / "rocketmq-reference" / f"spring-{state:08x}"
    if not (made / "ready").exists():
        (made / "classes").mkdir(parents=True, exist_ok=True)
        shutil.copy(pom, made)
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        got = subprocess.run(fetch, cwd=made, capture_output=True, text=True, timeout=4 * BOUND_S)
        if got.returncode:
            pytest.skip(f"the starter cannot be had: {got.stdout[-300:]}")
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:none", "-d", "classes", "-cp", "lib/*", source],
            cwd=made, check=True, timeout=BOUND_S,
        )  # fmt: skip
        (made / "ready").touch()
    return f"{made}/classes:{made}/lib/*"


def new_topic(peer: launch.Peer) -> str:
    """A topic that the name server knows, with one message: listeners begin at its end."""
    topic = f"spring-{time.time_ns()}"
    with Producer(namesrv=peer.namesrv) as producer:
        producer.send(Message(topic, b"before"))
        asked = {"topic": topic}
        launch.wait("a route", lambda: launch.ask(peer.namesrv, launch.ROUTE, asked)[0] == 0)
    return topic


def got_by_listeners(program: str, name: str, settings: Mapping[str, str]) -> dict[str, set[str]]:
    """Runs a program to its end: bodies by the name of the listener."""
    done = subprocess.run(
        ["java", "-cp", program, f"rocketmq.demo.{name}",
         *(f"--{name}={value}" for name, value in settings.items())],
        capture_output=True, text=True, timeout=2 * BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {name: set(found.split(",")) - {"before"} for name, _, found in lines}


def test_a_spring_boot_program_sends_and_its_listeners_get_it(peer: launch.Peer):
    program, topic = compiled("SpringClient", FOLDER / "pom.xml"), new_topic(peer)
    settings = {
        "rocketmq.name-server": peer.namesrv, "rocketmq.producer.group": f"of-{topic}",
        "demo.topic": topic, "spring.main.banner-mode": "off", "logging.level.root": "error",
    }  # fmt: skip
    said = got_by_listeners(program, "SpringClient", settings)
    assert said["paid"] == {"tagged"}
    assert said["all"] == {
        "sync", "tagged", "orderly", "oneway", "async", "delayed", "committed",
    }  # fmt: skip


def test_a_spring_cloud_stream_program_sends_and_its_functions_get_it(peer: launch.Peer):
    program, topic = compiled("CloudClient", FOLDER / "cloud" / "pom.xml"), new_topic(peer)
    stream, binder = "spring.cloud.stream.bindings", "spring.cloud.stream.rocketmq"
    settings = {
        "spring.cloud.function.definition": "all;paid", "spring.main.banner-mode": "off",
        "logging.level.root": "error", f"{binder}.binder.name-server": peer.namesrv,
        f"{binder}.bindings.out-0.producer.group": f"of-{topic}",
        f"{binder}.bindings.paid-in-0.consumer.subscription": "paid",
        **{f"{stream}.{name}.destination": topic for name in ("out-0", "all-in-0", "paid-in-0")},
        **{f"{stream}.{name}-in-0.group": f"{topic}-{name}" for name in ("all", "paid")},
    }  # fmt: skip
    said = got_by_listeners(program, "CloudClient", settings)
    assert said["all"] == {"plain", "tagged", "delayed"}
    assert said["paid"] == {"tagged"}
