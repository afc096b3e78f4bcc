"""The ways to start the service: a fixture, the command line; and what is said when it cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from caller import CODE, Caller, message
from waiting import BOUND_S

from broker import Broker
from pystore.errors import BadArgument


def test_the_fixture(rocketmq_grpc: str, rocketmq_topic: str) -> None:
    with Caller(rocketmq_grpc) as caller:
        assert caller.send(message(rocketmq_topic)).status.code == CODE.OK


def test_the_command_line(tmp_path: Path) -> None:
    """And the broker ends at once at SIGTERM, although a client has its stream open."""
    words = ["broker", "--store", str(tmp_path / "store"), "--port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("pystore"), *words, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["grpc"]
    with Caller(address) as caller:
        assert caller.telemetry().publish("Normal").status.code == CODE.OK
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_named(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(broker.grpc_port)):
        Broker(tmp_path / "store", listenPort=0, grpc_port=broker.grpc_port).__enter__()


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests find the modules, and the package its modules, as they were.
    monkeypatch.setattr("broker.grpc", sys.modules["broker.grpc"])
    for name in [name for name in sys.modules if name.startswith("broker.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    says = r"needs google.protobuf: pip install 'rocketmq-pystore\[grpc\]'"
    with pytest.raises(BadArgument, match=says):
        Broker(tmp_path / "store", listenPort=0, grpc_port=0).__enter__()


def test_a_start_imports_no_clients_and_no_schema_of_schemas() -> None:
    """Nor a name server: what it may never need comes when somebody asks for it."""
    late = ["broker.client.producer", "broker.namesrv", "google.protobuf.descriptor_pb2"]
    code = (
        "import sys, broker.broker, broker.grpc.local, broker.grpc.service;"
        f" print([name for name in {late} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
