"""One broker for the files that only ask it. A build without nghttp2 has no service to test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from caller import Caller, serving

from broker import Broker

if importlib.util.find_spec("broker.grpc._http2") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("grpc") / "store") as made:
        yield made


@pytest.fixture
def caller(broker: Broker) -> Iterator[Caller]:
    with Caller(broker.grpc_address) as made:
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes of what the service asks its broker by requests."""
    from broker.grpc.local import LocalBroker  # which a build without the service lacks

    seen: list[int] = []
    ask = LocalBroker.request

    async def request(self: LocalBroker, call: Any, command: Any, *rest: Any, **named: Any) -> Any:
        seen.append(command.code)
        return await ask(self, call, command, *rest, **named)

    monkeypatch.setattr(LocalBroker, "request", request)
    return seen
