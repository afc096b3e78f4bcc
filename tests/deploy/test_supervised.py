"""A broker under a supervisor: it says when it is ready, reads its settings again, checks them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import BOUND_S, until

from broker import Admin
from pystore.cli import main

PROGRAM = Path(sys.executable).parent / "pystore"
CONF = """\
mappedFileSizeCommitLog=4194304
maxMessageSize=65536
listenPort=0
brokerIP1=127.0.0.1
fileReservedTime=72
"""


class Supervisor:
    """A socket as systemd gives it to a service, and what came there."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(BOUND_S)

    def told(self) -> list[str]:
        """The lines of the next message."""
        return self._socket.recv(4096).decode().split("\n")

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def supervised(
    folder: Path, address: str
) -> Iterator[tuple[subprocess.Popen[str], Supervisor, Path]]:
    conf = folder / "broker.conf"
    conf.write_text(CONF)
    with contextlib.closing(Supervisor(address)) as supervisor:
        words = [PROGRAM, "broker", "-c", conf, "--store", folder / "s", "--log-level", "INFO"]
        words += ["--with-namesrv", "--namesrv-port", "0", "--json"]
        env = os.environ | {"NOTIFY_SOCKET": address}
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(
                words, env=env, text=True, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            try:
                yield process, supervisor, conf
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_says_when_it_is_ready_reloads_and_stops(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@doctor-{os.getpid()}"
    with supervised(tmp_path, address) as (process, supervisor, _):
        assert supervisor.told() == ["READY=1"]
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] == "broker"
        process.send_signal(signal.SIGHUP)
        reloading, stamp = supervisor.told()
        assert reloading == "RELOADING=1" and stamp.startswith("MONOTONIC_USEC=")
        assert supervisor.told() == ["READY=1"]
        process.send_signal(signal.SIGTERM)
        assert supervisor.told() == ["STOPPING=1"]
        assert process.wait(BOUND_S) == 0


def test_what_changed_in_the_file_holds_after_sighup(tmp_path: Path) -> None:
    with supervised(tmp_path, str(tmp_path / "notify")) as (process, supervisor, conf):
        supervisor.told()
        assert process.stdout is not None
        broker = json.loads(process.stdout.readline())["address"]

        def reloaded(text: str) -> str:
            conf.write_text(text)
            process.send_signal(signal.SIGHUP)
            supervisor.told()
            supervisor.told()
            with Admin(broker=broker) as admin:
                return admin.configuration()["fileReservedTime"]

        assert reloaded(CONF.replace("=72", "=48")) == "48"
        assert reloaded(CONF.replace("=72", "=24") + "flushDiskType=SYNC_FLUSH\n") == "24"
        assert reloaded(CONF.replace("=72", "=12") + "flushDiscType=1\n") == "24", "all or nothing"
        assert reloaded(CONF.replace("fileReservedTime=72\n", "")) == "72", "the default"
        log = (tmp_path / "log").read_text()
        assert "Only a start takes over: flushDiskType" in log
        assert "flushDiscType" in log
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0


def test_a_name_server_lives_on_after_sighup(tmp_path: Path) -> None:
    words = [PROGRAM, "namesrv", "--port", "0", "--json"]
    words += ["--set", f"kvConfigPath={tmp_path}/kv", "--set", f"configStorePath={tmp_path}/conf"]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        process.send_signal(signal.SIGHUP)
        until(lambda: _answers(port), "an answer after it")
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0


def _answers(port: int) -> bool:
    with Admin(f"127.0.0.1:{port}") as admin:
        return admin.cluster() == []


# ---- --check-conf ----


def test_settings_that_hold_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "broker.conf"
    inner = 'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"secret"}'
    conf.write_text(f"brokerName=a\nfileReservedTime=48\n{inner}\n")
    assert main(["broker", "-c", str(conf), "--check-conf", "--set", "brokerId=0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: (row["value"], row["from"]) for row in found["settings"]}
    assert rows["fileReservedTime"] == (48, f"{conf}:2")
    assert rows["brokerId"] == (0, "keyword")
    assert rows["innerClientAuthenticationCredentials"][0] == "***", "secrets are not shown"
    assert found["findings"] == []


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("flushDiscType=ASYNC_FLUSH", "refused-setting"),
        ("flushDiskType=SOMETIMES", "refused-setting"),
        ("enableControllerMode=true", "refused-setting"),
        ("brokerIP1=no-such-host.invalid", "refused-setting"),
    ],
)
def test_what_is_wrong_ends_with_2_and_names_the_line(
    line: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=a\n{line}\n")
    assert main(["broker", "-c", str(conf), "--check-conf", "--json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["check"] == check
    assert str(conf) in finding["where"]


def test_a_start_names_all_lines_that_it_refuses_each_in_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokername=a\nbrokerId=x\nbrokerIP1=no-such-host.invalid\n")
    words = ["broker", "-c", str(conf), "--store", str(tmp_path / "s"), "--port", "0"]
    assert main(words) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("error: 3 settings are refused")
    assert [line.split(": ")[0].strip() for line in lines] == [f"{conf}:{n}" for n in (1, 2, 3)]
    assert main([*words, "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert [row["name"] for row in error["problems"]] == ["brokername", "brokerId", "brokerIP1"]
    assert not (tmp_path / "s").exists()


def test_nothing_is_started(tmp_path: Path) -> None:
    store = tmp_path / "s"
    assert main(["broker", "--store", str(store), "--check-conf"]) == 0
    assert not store.exists()
