"""`pystore ha status` and `pystore clone` beside brokers of Java's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from test_replication_java import COUNT, JAVA, OURS, SEGMENT, same_logs, send
from waiting import until

from broker import Broker
from pystore import Reader
from pystore.audit import verify
from pystore.audit.diff import diff

pytestmark = [pytest.mark.java, pytest.mark.long]


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    with launch.name_server("ours", tmp_path / "names") as address:
        yield address


def pystore(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [launch.PYSTORE, *map(str, words), "--json"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_java_master_of_several_segments_is_copied_whole(
    reference: Any, names: str, tmp_path: Path
) -> None:
    with launch.running("java", tmp_path / "java", JAVA, namesrv=names) as master:
        send(names, COUNT)
        found = pystore("clone", master.broker, tmp_path / "copy")["clone"]
        assert found["log_end"] > 2 * SEGMENT
        assert found["not_taken_over"] == []
        same_logs(tmp_path / "copy", master.store, found["log_end"])
        send(names, 100)
        again = pystore("clone", master.broker, tmp_path / "copy")["clone"]
        assert again["log_end"] > found["log_end"]
        same_logs(tmp_path / "copy", master.store, again["log_end"])
        assert verify(tmp_path / "copy").findings == []
        with Reader(tmp_path / "copy") as copy:
            assert "orders" in copy.metadata.topics
        assert diff(master.store, tmp_path / "copy").same


def test_the_status_of_a_java_pair(reference: Any, names: str, tmp_path: Path) -> None:
    role = {"brokerRole": "SLAVE", "brokerId": 1}
    with (
        launch.running("java", tmp_path / "java", JAVA, namesrv=names) as master,
        launch.running("java", tmp_path / "slave", {**JAVA, **role}, namesrv=names),
    ):
        send(names, 50)

        def in_sync() -> dict[str, Any] | None:
            found = pystore("ha", "status", "-n", names)
            rows = found["slaves"]
            whole = rows and rows[0]["in_sync"] and rows[0]["behind"] == 0
            return found if whole and found["brokers"][1]["behind"] == 0 else None

        found = until(in_sync, "that the slave is in sync", 0.5)
        mine, its = found["brokers"]
        assert (mine["role"], its["role"], its["id"]) == ("ASYNC_MASTER", "SLAVE", 1)
        assert mine["address"] == master.broker
        assert its["state"].startswith("follows ")
        assert found["slaves"][0]["end"] == mine["log_end"] == its["log_end"]


def test_a_slave_of_ours_on_a_java_master_shows_in_both(
    reference: Any, names: str, tmp_path: Path
) -> None:
    with (
        launch.running("java", tmp_path / "java", JAVA, namesrv=names) as master,
        Broker(tmp_path / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **OURS) as slave,
    ):
        send(names, COUNT)
        end = until(
            lambda: (
                (rows := pystore("ha", "status", master.broker)["slaves"])
                and rows[0]["behind"] == 0
                and rows[0]["end"]
            ),
            "that it is in sync",
            0.5,
        )
        same_logs(tmp_path / "s", master.store, end)
        (row,) = pystore("ha", "status", slave.address)["brokers"]
        assert (row["role"], row["log_begin"], row["log_end"]) == ("SLAVE", 0, end)
