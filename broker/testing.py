"""The pytest plugin: a real broker for the tests of any project (docs/testing.md).

It is loaded by its entry point as soon as the package is installed. Nothing of the broker is
imported before a test asks for a fixture.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker.broker import Broker

__all__ = [
    "pytest_configure", "rocketmq_broker", "rocketmq_grpc", "rocketmq_namesrv", "rocketmq_topic",
]  # fmt: skip

#: Files that are quick to make, and a stop that waits for nobody.
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 10_000,
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "enablePropertyFilter": True,
}
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "rocketmq(**settings): settings of the broker that rocketmq_broker starts, under upstream's"
        " names, for example messageDelayLevel='1s 2s'",
    )


@pytest.fixture
def rocketmq_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Starts a broker for this test alone, with a name server, on free ports."""
    from broker.broker import Broker

    given: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("rocketmq"))):
        if marker.args:
            raise pytest.UsageError("the marker rocketmq takes settings by name only")
        given |= marker.kwargs
    if "rocketmq_grpc" in request.fixturenames:
        given.setdefault("grpc_port", 0)
    folder = tmp_path_factory.mktemp("rocketmq")
    with Broker(
        folder / "store", listenPort=0, with_namesrv=True, drain_s=0.0, **(SETTINGS | given)
    ) as broker:
        yield broker


@pytest.fixture
def rocketmq_namesrv(rocketmq_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns ``host:port`` of the name server; the environment variable NAMESRV_ADDR says it
    too."""
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq_broker.namesrv_address)
    return rocketmq_broker.namesrv_address


@pytest.fixture
def rocketmq_grpc(rocketmq_broker: Broker) -> str:
    """Returns ``host:port`` for RocketMQ 5's gRPC clients. Needs the extra ``grpc``."""
    return rocketmq_broker.grpc_address


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest, rocketmq_broker: Broker) -> str:
    """Returns the name of a new topic with four queues."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", request.node.name)[:100]
    topic = f"{name}-{next(_numbers)}"
    rocketmq_broker.create_topic(topic)
    return topic
