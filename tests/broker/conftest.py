"""Fixtures of tests in which brokers know each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker import NameServer


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    """The address of a name server for the tests of a file, whose groups have their own names."""
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"
