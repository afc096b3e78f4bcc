"""The doctor of a client's environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from examining import examined, found, names, running
from waiting import until


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_found_where_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "s") as broker:
        monkeypatch.setenv("NAMESRV_ADDR", f"http://{broker.namesrv_address}")
        until(lambda: not examined(None), "nothing")


def test_no_name_server_is_named() -> None:
    assert "NAMESRV_ADDR" in found(None, "no-address").mend


def test_the_address_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "nameserver")
    assert "nameserver" in found(None, "bad-address").text


def test_the_name_server_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    found(None, "no-answer")


def test_the_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "no-such-host.invalid:9876")
    found(None, "host-unknown")


def test_a_broker_is_named_as_name_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as broker:
        monkeypatch.setenv("NAMESRV_ADDR", broker.address)
        found(None, "broker-as-name-server")


def test_half_of_the_credentials_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "shop")
    assert "ROCKETMQ_SECRET_KEY" in found(None, "half-credentials").text


def test_the_brokers_cannot_be_reached_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with names() as server, running(tmp_path / "s", brokerIP1="127.0.0.9", namesrvAddr=server):
        monkeypatch.setenv("NAMESRV_ADDR", server)
        assert "127.0.0.9" in found(None, "broker-unreachable").text
