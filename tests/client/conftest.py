"""A broker a module: ours in this process, or Apache's (marker `long`, `make judge`)."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
sys.path[1:1] = [str(HERE.parent / "broker"), str(HERE.parent)]

import launch  # noqa: E402
import loops  # noqa: E402

from broker import Broker  # noqa: E402
from broker.client import blocking  # noqa: E402
from broker.client.options import ClientSettings  # noqa: E402

#: in-process: tests and their clients run on the broker's own loop, where nobody needs a socket.
MAKES = ["ours", "in-process"]
#: Of Apache's.
VERSIONS = ["5.3.3", "5.5.0"]
JUDGES = [pytest.param(v, marks=[pytest.mark.long, pytest.mark.java]) for v in VERSIONS]


@dataclass
class Server:
    make: str
    namesrv: str


@pytest.fixture(scope="module", params=[*MAKES, *JUDGES])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A running broker with its name server."""
    folder = tmp_path_factory.mktemp("server")
    if request.param in VERSIONS:
        reference, version = request.getfixturevalue("reference"), request.param
        reference.run("setup", timeout=reference.setup_s, RMQ_VERSION=version)
        with launch.running("java", folder, version=version) as peer:
            yield Server("java", peer.namesrv)
        return
    settings = launch.SETTINGS | {"brokerName": "broker-a"}
    with Broker(folder / "store", listenPort=0, with_namesrv=True, drain_s=0.2, **settings) as made:
        if request.param == "in-process":
            with beside(made):
                yield Server("in-process", made.namesrv_address)
            return
        yield Server("ours", made.namesrv_address)


@contextlib.contextmanager
def beside(made: Broker) -> Iterator[None]:
    """Clients are made as the broker itself makes them: on its loop, with its connector."""
    thread, defaults = made._thread, ClientSettings.__init__.__kwdefaults__
    assert thread is not None and defaults is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "connector", made._join)
        patch.setattr(loops, "target", thread)
        patch.setattr(blocking._shared, "acquire", lambda: thread)
        patch.setattr(blocking._shared, "release", lambda: None)
        yield


_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """name("topic") is a topic, or group, that no other test has."""
    number = next(_numbers)
    return lambda kind: f"{kind}-{number}"
