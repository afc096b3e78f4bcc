"""A slave whose master is silent: paused, cut off, without power."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pairs import SMALL
from waiting import until

from broker import Broker


def test_who_follows_a_master_no_more_does_not_wait_for_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the next master, and serves at once."""
    monkeypatch.setattr("broker.services.replication.replication._ASK_S", 3600.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Broker(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **SMALL) as one,
    ):
        replication = one.services.replication
        assert replication is not None

        def ask() -> None:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            assert replication is not None and replication.slave is not None
            replication.use_master(address, "")
            replication.slave.followed = address
            replication.synchronize()

        assert one.loop is not None
        one.loop.call_soon_threadsafe(ask)
        silent.accept()[0].recv(1)  # request 21 is under way
        one.run(replication.stop())
        round_ = replication._synchronizing
        assert round_ is not None
        until(round_.done, "the end of the round")
