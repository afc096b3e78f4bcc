"""Fixtures of tests in which brokers know each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pairs import Answer

from broker import NameServer
from pystore.cli import main


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    """The address of a name server for the tests of a file, whose groups have their own names."""
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture
def command(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., tuple[int, str, str]]:
    """Runs `pystore`: its exit code, and what it wrote to both."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


@pytest.fixture
def answer(command: Callable[..., tuple[int, str, str]]) -> Callable[..., Answer]:
    """The same with --json: exit code, what was found, the error."""

    def run(*words: object) -> Answer:
        code, out, err = command(*words, "--json")
        last = err.splitlines()[-1] if err else "{}"  # progress may stand before it
        return code, json.loads(out or "{}"), json.loads(last).get("error", {})

    return run
