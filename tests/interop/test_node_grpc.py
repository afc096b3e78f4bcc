"""The official Node client runs the examples of its README, at our service in local and in cluster
mode. They ask 127.0.0.1:8081, which is filled in, and lose their types: node knows none. Of lite
topics there is no example: tests/node/lite.mjs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxies import service_of_ours
from waiting import BOUND_S

from broker import Admin, Consumer, Message, Producer

pytestmark = pytest.mark.long

PACKAGE = "rocketmq-client-nodejs@1.0.8"
ADDRESS = "127.0.0.1:8081"
TOPICS = {"TopicTest": "NORMAL", "DelayTopic": "DELAY", "yourTopic": "NORMAL", "lites": "LITE"}
LITE = Path(__file__).resolve().parents[1] / "node" / "lite.mjs"
#: Of the README, in its order.
PRODUCER, RECALL, SIMPLE, PUSH = range(4)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client in it."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    words = ["npm", "install", PACKAGE, "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=BOUND_S)
    if done.returncode != 0:
        pytest.skip(f"{PACKAGE} cannot be fetched: {done.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module", params=["local", "cluster"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Addresses of the service and of the name server."""
    folder = tmp_path_factory.mktemp(request.param)
    with service_of_ours(request.param, folder, TOPICS, recallMessageEnable=True) as addresses:
        yield addresses


def example(package: Path, folder: Path, number: int, address: str) -> subprocess.Popen[str]:
    """One of the README's, as a process."""
    readme = package / "node_modules" / "rocketmq-client-nodejs" / "README.md"
    code = re.findall(r"```ts\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)[number]
    assert ADDRESS in code
    code = re.sub(r", type \w+", "", code.replace(ADDRESS, address))
    code = re.sub(r"\((\w+): \w+\): Promise<\w+>", r"(\1)", code)
    program = package / f"example{number}.mjs"
    program.write_text(code, "utf-8")
    return node(folder, program)


def node(folder: Path, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["node", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip


def said(process: subprocess.Popen[str], words: str) -> str:
    """What it says until these words come; then it is ended."""
    assert process.stdout is not None
    text = ""
    try:
        for line in process.stdout:
            text += line
            if words in text:
                return text
        raise AssertionError(text)
    finally:
        process.kill()
        process.communicate()


def test_a_producer(service: tuple[str, str], package: Path, tmp_path: Path) -> None:
    said(example(package, tmp_path, PRODUCER, service[0]), "offset: 0")
    with Consumer("readers", "TopicTest", namesrv=service[1], start="first") as consumer:
        found = next(iter(consumer))
    assert found.tags == "nodejs-demo"
    assert b"rocketmq-client-nodejs world" in found.body


def test_a_recall(service: tuple[str, str], package: Path, tmp_path: Path) -> None:
    said(example(package, tmp_path, RECALL, service[0]), "Message recalled successfully")


@pytest.mark.parametrize(
    ("number", "topic", "words"),
    [(SIMPLE, "TopicTest", "body="), (PUSH, "yourTopic", "Received message: for node")],
)
def test_consumers(
    service: tuple[str, str], package: Path, tmp_path: Path, number: int, topic: str, words: str
) -> None:
    with Producer("senders", namesrv=service[1]) as producer:
        for _ in range(4):
            producer.send(Message(topic, b"for node", tags="nodejs-demo"))
    said(example(package, tmp_path, number, service[0]), words)


def test_lite_topics(service: tuple[str, str], package: Path, tmp_path: Path) -> None:
    with Admin(service[1]) as admin:
        admin.create_group("agents", attributes={"lite.bind.topic": "lites"})
    program = shutil.copy(LITE, package)
    text = said(node(tmp_path, program, service[0], "agents", "lites"), "got read 2")
    got = [line for line in text.splitlines() if line.startswith("got ")]
    assert got == ["got read 0", "got read 1", "got read 2"]
