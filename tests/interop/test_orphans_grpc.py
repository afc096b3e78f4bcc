"""Halves of official producers that are killed before they decide: another producer of the topic is
asked, and its answer counts. At our service in local and in cluster mode."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import golang
import launch
import pytest
from proxies import service_of_ours

from broker import Consumer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["local", "cluster"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Addresses of the service and of the name server."""
    topics = {"of-java": "TRANSACTION", "of-go": "TRANSACTION"}
    soon = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
    folder = tmp_path_factory.mktemp(request.param)
    with service_of_ours(request.param, folder, topics, **soon) as addresses:
        yield addresses


@contextmanager
def running(words: list[str | Path], asked: str = "") -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, as by a crash."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "JAVA_OPTS": "-Xmx128m"},
    )  # fmt: skip
    try:
        assert process.stdin is not None
        process.stdin.write(asked)
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


def until_said(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return
    raise AssertionError(text)


def is_delivered(namesrv: str, topic: str) -> bool:
    with Consumer("readers", topic, namesrv=namesrv, start="first") as consumer:
        return next(iter(consumer)).body == topic.encode()


@pytest.mark.java
def test_of_java(service: tuple[str, str], reference: object) -> None:
    words: list[str | Path] = [launch.SCRIPT, "grpc-load"]
    endpoint, namesrv = service
    with running(words, f"half {endpoint} of-java of-java\n") as half:
        until_said(half, "half")
    with running(words, f"check {endpoint} of-java\n") as checks:
        until_said(checks, '{"checked": "of-java"}')
        assert is_delivered(namesrv, "of-java")


def test_of_go(service: tuple[str, str], orphan: Path) -> None:
    endpoint, namesrv = service
    with running([orphan, "half", endpoint, "of-go"]) as half:
        until_said(half, "half of-go")
    with running([orphan, "check", endpoint, "of-go"]) as checks:
        until_said(checks, "checked of-go")
        assert is_delivered(namesrv, "of-go")


@pytest.fixture(scope="module")
def orphan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    tree = golang.module(folder)
    (tree / "orphan").mkdir()
    shutil.copy(Path(__file__).with_name("orphan.go"), tree / "orphan" / "main.go")
    golang.build(tree, "orphan", folder / "orphan-program")
    return folder / "orphan-program"
