"""`pystore ha` beside brokers of ours that replicate."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pairs import SMALL, Answer, master_of, send, slave_of, until_alike
from waiting import until

from broker import Broker, NameServer


@pytest.fixture
def names() -> Iterator[str]:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture
def ha(answer: Callable[..., Answer]) -> Callable[..., Answer]:
    return partial(answer, "ha")


def test_a_master_says_how_far_its_slave_is(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2) as master:
        master.create_topic("orders", 4)
        began = time.time() * 1000
        with slave_of(tmp_path / "s", names) as slave:
            send(master, 5)
            until_alike(master, slave)
            until(lambda: ha("status", master.address)[1]["slaves"], "the slave")
            found = until(lambda: _in_sync(ha("status", master.address)), "that it is in sync")
            (row,), (seen,) = found["slaves"], found["brokers"]
            assert row["end"] == seen["log_end"] == master.store.info().log_max
            assert (row["behind"], row["behind_s"]) == (0, 0.0)
            assert began - 1000 < row["since"] <= time.time() * 1000
            assert (seen["role"], seen["id"]) == ("SYNC_MASTER", 0)
            assert seen["state"] == "waits for 1 of 1 slaves"


def _in_sync(answer: Answer) -> dict[str, Any] | None:
    rows = answer[1]["slaves"]
    return answer[1] if rows and rows[0]["in_sync"] and not rows[0]["behind"] else None


def test_of_a_name_server_all_are_asked_and_slaves_compared(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with (
        master_of(tmp_path / "m", names) as master,
        slave_of(tmp_path / "s", names) as slave,
    ):
        master.create_topic("orders", 4)
        send(master, 5)
        until_alike(master, slave)
        until(lambda: not slave.services.replication.slave.problem, "that it follows")
        code, found, _ = ha("status", "-n", names, "--cluster", "DefaultCluster")
        assert code == 0
        assert [(b["role"], b["id"]) for b in found["brokers"]] == [
            ("ASYNC_MASTER", 0), ("SLAVE", 1),
        ]  # fmt: skip
        follower = found["brokers"][1]
        assert follower["behind"] == 0
        port = master.settings["haListenPort"]
        assert follower["state"] == f"follows 127.0.0.1:{port}"
        assert abs(follower["heard"] - time.time() * 1000) < 300_000


def test_a_slave_without_a_master_says_why_it_does_not_follow(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with slave_of(tmp_path / "s", names) as slave:
        code, found, _ = ha("status", slave.address)
        assert code == 0
        assert "master" in found["brokers"][0]["state"]
        assert found["brokers"][0]["behind"] is None


def test_a_slave_that_lags_shows_bytes_and_seconds(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    """One that has nothing yet, by a connection that reads nothing."""
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 1)
        send(master, 3)
        _, lacked, _ = master.store.messages()
        at, stored = lacked.physical_offset, lacked.store_timestamp
        with socket.create_connection(("127.0.0.1", master.settings["haListenPort"])) as sock:
            sock.sendall(struct.pack(">q", at))  # it says that it has the first record alone
            found = until(
                lambda: (
                    (rows := ha("status", master.address)[1]["slaves"])
                    and rows[0]["end"] == at
                    and rows[0]
                ),
                "its report",
            )
        assert found["behind"] == master.store.info().log_max - at
        assert 0 <= found["behind_s"] <= time.time() - stored / 1000 + 1


def test_unknown_clusters_and_silent_brokers_have_names(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        assert ha("status", "-n", names, "--cluster", "nowhere")[0] == 1
        assert ha("status", master.address, "-n", names)[0] == 2
        assert ha("status")[0] == 2
        assert ha("status", "nonsense")[0] == 2
        gone = master.address
    assert ha("status", gone)[0] == 6


# ---- ha promote ----


def conf_of(folder: Path, **more: object) -> Path:
    given = SMALL | {"brokerRole": "SLAVE", "brokerId": 1, "storePathRootDir": folder, **more}
    file = folder.with_suffix(".conf")
    file.write_text("# of a slave\n" + "".join(f"{name}={given[name]}\n" for name in given))
    return file


@pytest.fixture
def pair(names: str, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Stores of a master and of its slave, both stopped, and the slave's file; the master has five
    messages that the slave has not."""
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 20)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
        send(master, 5)
    return tmp_path / "m", tmp_path / "s", conf_of(tmp_path / "s")


def test_a_slave_that_lacks_messages_is_promoted_only_when_the_loss_is_accepted(
    ha: Callable[..., Answer], pair: tuple[Path, Path, Path]
) -> None:
    master, slave, conf = pair
    before = conf.read_text()
    code, found, error = ha("promote", slave, "-c", conf, "--compare", master)
    assert (code, error["kind"]) == (2, "LossRefused")
    assert "5 messages" in error["text"]
    assert found["compared"][0]["messages"] == 5
    assert conf.read_text() == before
    arguments = ("promote", slave, "-c", conf, "--compare", master, "--accept-loss")
    assert ha(*arguments, "--dry-run")[0] == 0
    assert conf.read_text() == before
    assert ha(*arguments)[0] == 0
    text = conf.read_text()
    assert "brokerRole=ASYNC_MASTER" in text
    assert "brokerId=0" in text
    assert text.startswith("# of a slave")
    with Broker(conf=conf) as promoted:
        send(promoted, 4)
        assert sum(promoted.store.range("orders", queue)[1] for queue in range(4)) == 24


def test_a_slave_that_has_all_is_promoted(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 20)
        with (
            slave_of(tmp_path / "s", names) as slave,
            slave_of(tmp_path / "other", names) as other,
        ):
            until_alike(master, slave)
            until_alike(master, other)
    conf = conf_of(tmp_path / "s", inSyncReplicas=2)
    stores = ("--compare", tmp_path / "m", "--compare", tmp_path / "other")
    # A file that the broker would refuse is not written.
    assert ha("promote", tmp_path / "s", "-c", conf, *stores, "--role", "ASYNC_MASTER")[0] == 2
    assert "brokerRole=SLAVE" in conf.read_text()
    code, found, _ = ha("promote", tmp_path / "s", "-c", conf, *stores)
    assert code == 0
    assert [(row["more"], row["same_past"]) for row in found["compared"]] == [(0, True)] * 2
    assert "brokerRole=SYNC_MASTER" in conf.read_text()


def test_running_brokers_are_compared_and_a_running_master_forbids_it(
    ha: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 20)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
        conf = conf_of(tmp_path / "s")
        send(master, 5)
        with slave_of(tmp_path / "other", names) as other:
            until_alike(master, other)
            arguments = ("promote", tmp_path / "s", "-c", conf, "--compare")
            code, found, error = ha(*arguments, other.address)
            assert (code, error["kind"]) == (2, "LossRefused")
            (row,) = found["compared"]
            assert (row["same_past"], row["more"] > 0) == (True, True)
            code, _, error = ha(*arguments, master.address, "--accept-loss")
            assert (code, error["kind"]) == (2, "LossRefused")
            assert "answers" in error["text"]


def test_what_cannot_be_known_or_is_no_slave_is_refused(
    ha: Callable[..., Answer], pair: tuple[Path, Path, Path], tmp_path: Path, names: str
) -> None:
    _, slave, conf = pair
    assert ha("promote", slave, "-c", conf)[2]["kind"] == "LossRefused"
    assert ha("promote", slave)[0] == 2
    assert ha("promote", tmp_path / "nowhere", "-c", conf, "--accept-loss")[0] == 3
    with Broker(tmp_path / "foreign", **SMALL) as foreign:
        foreign.create_topic("orders", 4)
        send(foreign, 3)
    code, found, _ = ha("promote", slave, "-c", conf, "--compare", tmp_path / "foreign")
    assert (code, found["compared"][0]["same_past"]) == (2, False)
    with slave_of(slave, names):
        assert ha("promote", slave, "-c", conf, "--accept-loss")[0] == 4
    master = conf_of(tmp_path / "x", brokerRole="ASYNC_MASTER", brokerId=0)
    assert ha("promote", slave, "-c", master, "--accept-loss")[0] == 2
