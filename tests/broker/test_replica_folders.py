"""The folder of a slave: the command line on it, live and stopped; folders that change roles."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pairs import SMALL, master_of, send, slave_of, until_alike
from snapshots import snapshot
from waiting import until

from broker import Broker

COUNT = 500


@pytest.fixture
def pystore(
    command: Callable[..., tuple[int, str, str]],
) -> Callable[..., tuple[int, list[Any]]]:
    """Exit code and the lines on stdout."""

    def one(*arguments: object) -> tuple[int, list[Any]]:
        code, out, _ = command(*arguments, "--json")
        return code, [json.loads(line) for line in out.splitlines()]

    return one


def look(pystore: Callable[..., tuple[int, list[Any]]], store: Path, *conf: object) -> None:
    """Every command that reads."""
    code, (seen,) = pystore("verify", store, "--deep", *conf)
    assert (code, seen["findings"]) == (0, [])
    code, (seen,) = pystore("info", store, *conf)
    assert code == 0
    assert sum(q["max"] for q in seen["queues"] if q["topic"] == "orders") == COUNT
    code, lines = pystore("dump", store, "--kind", "msg", *conf)
    assert (code, sum(line.get("topic") == "orders" for line in lines)) == (0, COUNT)
    code, lines = pystore("tail", store, "orders", "-n", "3", *conf)
    assert (code, len(lines)) == (0, 3)
    code, lines = pystore("query", store, "orders", "k7", *conf)
    assert (code, len(lines)) == (0, 1)
    code, lines = pystore("get", store, "--topic", "orders", "--queue", "1", "--offset", "0", *conf)
    assert (code, len(lines)) == (0, 1)


def test_the_command_line_reads_the_folder_of_a_slave(
    pystore: Callable[..., tuple[int, list[Any]]], names: str, tmp_path: Path
) -> None:
    conf = tmp_path / "slave.conf"
    conf.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, COUNT)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
            look(pystore, tmp_path / "s", "--conf", conf)
        assert pystore("diff", tmp_path / "m", tmp_path / "s")[0] == 0
    look(pystore, tmp_path / "s", "--conf", conf)
    look(pystore, tmp_path / "s")
    before = shutil.copytree(tmp_path / "s", tmp_path / "before")
    assert pystore("rebuild", tmp_path / "s")[0] == 0
    look(pystore, tmp_path / "s")
    assert pystore("diff", before, tmp_path / "s")[0] == 0
    # What belongs to a broker that follows takes no messages.
    assert pystore("put", tmp_path / "s", "orders", "x", "--conf", conf)[0] == 2


def test_two_folders_change_roles_and_lose_nothing(names: str, tmp_path: Path) -> None:
    """Each is the master three times; the other one follows it, and has all before they change."""
    sent, folders = 0, [tmp_path / "a", tmp_path / "b"]
    for turn in range(6):
        with master_of(folders[0], names, "SYNC_MASTER", inSyncReplicas=2) as master:
            if turn == 0:
                master.create_topic("orders", 4)
            with slave_of(folders[1], names) as slave:
                until_alike(master, slave)
                send(master, 50)
                sent += 50
                until_alike(master, slave)
                until(lambda slave=slave: slave.services.topics.get("orders"), "the topic")
            ends = [master.store.range("orders", queue)[1] for queue in range(4)]
            assert sum(ends) == sent
        folders.reverse()


def test_a_slave_that_was_killed_is_opened_as_a_master(names: str, tmp_path: Path) -> None:
    """A copy of its folder while it follows, as kill -9 leaves it."""
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, COUNT)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
            slave.run(slave.services.topics.settled())  # else it would have the default queues
            snapshot(tmp_path / "s", tmp_path / "killed")
    assert os.path.lexists(tmp_path / "killed" / "abort")
    with Broker(tmp_path / "killed", **SMALL) as promoted:
        send(promoted, 10)
        ends = [("orders", queue) for queue in range(4)]
        until(
            lambda: sum(promoted.store.range(*each)[1] for each in ends) == COUNT + 10,
            "the queues to have all of them",
        )
