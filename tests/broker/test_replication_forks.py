"""A slave whose log has parted from its master's: with haTruncateDiverged it is cut back to the
place where it is the master's, and what is cut is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pairs import SMALL, master_of, send, slave_of, until_alike
from waiting import until

import pystore
from broker import Broker
from pystore.audit import verify
from pystore.errors import BadArgument, DiskFull
from pystore.files import aside
from pystore.repair import tail
from pystore.settings import load


def _alone(folder: Path, count: int) -> int:
    """A broker of its own puts messages. Returns the end of its log."""
    with Broker(folder, **SMALL) as broker:
        if broker.services.topics.get("orders") is None:
            broker.create_topic("orders", 4)
        send(broker, count)
        return broker.store.info().log_max


def _forked(tmp_path: Path, common: int, ours: int, theirs: int) -> tuple[int, int]:
    """A master's store and a slave's that have so many messages in common, and then so many of
    their own. Returns the end of what is common, and of the slave's log."""
    fork = _alone(tmp_path / "m", common)
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    end = _alone(tmp_path / "s", ours)
    if theirs:
        _alone(tmp_path / "m", theirs)
    return fork, end


def _kept(store: Path) -> list[dict[str, Any]]:
    """What the cut has kept; each row with its folder."""
    return [
        json.loads(line) | {"folder": manifest.parent}
        for manifest in sorted((store / "aside").glob("*/manifest.jsonl"))
        for line in manifest.read_text().splitlines()
        if "the master's log does not have it" in line
    ]


@pytest.mark.parametrize(
    ("common", "ours", "theirs"),
    [(2500, 700, 0), (2500, 700, 2000), (2500, 5000, 900), (30, 2000, 2000)],
)
def test_a_parted_log_is_cut_back_to_where_it_is_the_masters(
    common: int, ours: int, theirs: int, names: str, tmp_path: Path
) -> None:
    fork, end = _forked(tmp_path, common, ours, theirs)
    log = {f.name: f.read_bytes() for f in (tmp_path / "s" / "commitlog").iterdir()}
    with (
        master_of(tmp_path / "m", names) as master,
        slave_of(tmp_path / "s", names, haTruncateDiverged=True) as slave,
    ):
        port = slave.port
        until(lambda: slave.loop and slave._services and not
              slave.services.replication.slave.problem, "that it follows")  # fmt: skip
        send(master, 500)
        until_alike(master, slave)
        assert slave.port == port
    rows = _kept(tmp_path / "s")
    for row in rows:
        was = log[Path(row["file"]).name][row["at"] :][: row["length"]]
        assert (row["folder"] / row["kept"]).read_bytes() == was
    first = min(int(Path(row["file"]).name) + row["at"] for row in rows)
    assert first == fork
    assert max(int(Path(row["file"]).name) + row["at"] + row["length"] for row in rows) >= end
    assert verify(tmp_path / "s").findings == []


def test_a_log_that_has_nothing_of_the_masters_is_left_alone(names: str, tmp_path: Path) -> None:
    end = _alone(tmp_path / "s", 40)
    with (
        master_of(tmp_path / "m", names) as master,
        slave_of(tmp_path / "s", names, haTruncateDiverged=True) as slave,
    ):
        master.create_topic("orders", 4)
        send(master, 100)
        ha = slave.services.replication.slave
        until(lambda: "no record of this log" in ha.problem, "it says")
        assert slave.store.info().log_max == end
    assert not (tmp_path / "s" / "aside").exists()


@pytest.mark.parametrize("name", ["haTruncateDiverged", "haFlowControlEnable"])
def test_a_broker_that_nobody_follows_refuses_what_would_have_no_effect(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=f"{name} has no effect"):
        Broker(tmp_path, **{name: True})


# ---- the cut itself ----


def test_nothing_is_cut_that_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _alone(tmp_path, 2500)
    before = {f.name: f.read_bytes() for f in (tmp_path / "commitlog").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(aside, "sync_folder", full)
    with pytest.raises(DiskFull):
        tail.cut_back(tmp_path, load(None, SMALL), 1000)
    assert {f.name: f.read_bytes() for f in (tmp_path / "commitlog").iterdir()} == before


def test_a_log_that_is_cut_where_a_segment_begins_opens(tmp_path: Path) -> None:
    """Its last segment is full, and the queues had messages of the next one."""
    _alone(tmp_path, 3000)
    with pystore.Reader(tmp_path) as reader:
        places = [message.physical_offset for message in reader.messages()]
    at = next(place for place in places if place and place % SMALL["mappedFileSizeCommitLog"] == 0)
    tail.cut_back(tmp_path, load(None, SMALL), at)
    with pystore.open(tmp_path, **_sizes()) as store:
        assert [message.physical_offset for message in store.messages()] == [
            place for place in places if place < at
        ]
    assert verify(tmp_path).findings == []


@pytest.mark.parametrize("after", range(6))
def test_a_cut_that_is_interrupted_leaves_a_log_that_can_be_cut_again(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole records of before the cut stay, and none of after it comes back after the second."""
    _alone(tmp_path, 1800)
    with pystore.Reader(tmp_path) as reader:
        places = [message.physical_offset for message in reader.messages()]
    at, steps = places[700], iter(range(after))

    def until_killed(step: Callable[..., None], *args: Any) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        step(*args)

    try:
        with monkeypatch.context() as patched:
            for name in ("_behead", "_delete", "_end_file"):
                patched.setattr(tail, name, partial(until_killed, getattr(tail, name)))
            tail.cut_back(tmp_path, load(None, SMALL), at)
    except KeyboardInterrupt:
        with pystore.open(tmp_path, **_sizes()) as store:
            found = [message.physical_offset for message in store.messages()]
            assert found == [place for place in places if place < store.info().log_max]
        tail.cut_back(tmp_path, load(None, SMALL), at)
    with pystore.open(tmp_path, **_sizes()) as store:
        assert [message.physical_offset for message in store.messages()] == places[:700]
    assert verify(tmp_path).findings == []


def _sizes() -> dict[str, Any]:
    return {name: value for name, value in SMALL.items() if "axHash" in name or "Size" in name}
