"""`pystore clone`: whole copies of running masters, runs that ended early, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pairs import SMALL, Answer, JavaLikePort, master_of, send, slave_of

from broker import Broker, Message
from pystore import Reader
from pystore.audit import verify
from pystore.audit.diff import diff
from pystore.meta.configfiles import SubscriptionGroup


@pytest.fixture
def clone(answer: Callable[..., Answer]) -> Callable[..., Answer]:
    return partial(answer, "clone")


def make(master: Broker, count: int) -> None:
    master.create_topic("orders", 4)
    send(master, count)
    with master.producer() as producer:
        producer.send(Message("orders", b"later", delay_level=9))

    async def more() -> None:
        master.services.groups.update(SubscriptionGroup("g"))
        master.services.offsets.commit("g", "orders", 0, 7)

    master.run(more())


def same(one: Path, other: Path) -> None:
    """Nothing is wrong with the other, and the two have the same messages and logs."""
    assert verify(other).findings == []
    assert diff(one, other).same
    with Reader(one) as mine:
        begin, end = mine.info().log_min, mine.info().log_max
    for file in sorted((one / "commitlog").iterdir()):
        length = end - int(file.name)
        if length > 0 and int(file.name) >= begin:
            copy = other / "commitlog" / file.name
            assert file.read_bytes()[:length] == copy.read_bytes()[:length]


def test_a_copy_has_the_whole_log_and_what_tools_made(
    clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        make(master, 3000)
        code, found, _ = clone(master.address, tmp_path / "copy")
        assert code == 0
        assert found["clone"]["log_end"] == master.store.info().log_max
        assert found["clone"]["not_taken_over"] == []
        same(tmp_path / "m", tmp_path / "copy")
    with Reader(tmp_path / "copy") as copy:
        assert copy.metadata.offsets.get("g", "orders", 0) == 7
        assert "g" in copy.metadata.groups
        assert copy.metadata.topics.get("orders").write_queue_nums == 4


@pytest.mark.parametrize("deleted", [0, 2])
def test_a_master_that_sends_new_slaves_its_last_segment_is_copied_whole(
    deleted: int, clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, deleteFileBatchMax=2) as master:
        make(master, 4000)
        assert not deleted or master.store.clean(immediate=True).log_files == deleted
        with JavaLikePort(master) as port:
            code, found, error = clone(master.address, tmp_path / "copy", "--ha", port.address)
        assert (code, error) == (0, {})
        assert found["clone"]["log_begin"] == deleted * SMALL["mappedFileSizeCommitLog"]
        same(tmp_path / "m", tmp_path / "copy")


def test_a_run_that_ended_early_goes_on(
    clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        make(master, 800)
        assert clone(master.address, tmp_path / "copy")[0] == 0
        segment = tmp_path / "copy" / "commitlog" / f"{0:020d}"
        first = segment.stat().st_ino
        (tmp_path / "copy" / "abort").touch()  # killed
        make(master, 800)
        assert clone(master.address, tmp_path / "copy")[0] == 0
        assert segment.stat().st_ino == first
        same(tmp_path / "m", tmp_path / "copy")


def test_a_copy_is_the_store_of_a_slave_or_of_a_master(
    clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        make(master, 50)
        assert clone(master.address, tmp_path / "copy")[0] == 0
    with Broker(tmp_path / "copy", **SMALL) as alone:
        send(alone, 10)
        assert sum(alone.store.range("orders", queue)[1] for queue in range(4)) == 60


def test_a_dry_run_copies_nothing(clone: Callable[..., Answer], names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        make(master, 10)
        code, found, _ = clone(master.address, tmp_path / "copy", "--dry-run")
        assert (code, found["plan"]["to_come"]) == (0, master.store.info().log_max)
        assert not (tmp_path / "copy").exists()


def test_what_cannot_be_copied_has_a_name(
    clone: Callable[..., Answer], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    with Broker(tmp_path / "other", **SMALL) as other:
        other.create_topic("orders", 4)
        send(other, 30)
    with master_of(tmp_path / "m", names, trustedSlaves="10.0.0.1") as closed:
        make(closed, 10)
        code, _, error = clone(closed.address, tmp_path / "copy")
        assert (code, error["kind"]) == (6, "NotServed")
        assert "trustedSlaves" in error["text"]
    with master_of(tmp_path / "m", names) as master:
        make(master, 100)
        code, _, error = clone(master.address, tmp_path / "full")
        assert (code, error["kind"]) == (3, "NotAStore")
        code, _, error = clone(master.address, tmp_path / "other")
        assert (code, error["kind"]) == (2, "ForeignLog")
        code, _, error = clone(master.address, tmp_path / "m", "--existing")
        assert (code, error["kind"]) == (4, "StoreLocked")
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        code, _, error = clone(master.address, tmp_path / "copy2")
        assert (code, error["kind"]) == (6, "DiskFull")
        with slave_of(tmp_path / "s", names) as slave:
            code, _, error = clone(slave.address, tmp_path / "copy3")
            assert (code, "is a slave" in error["text"]) == (2, True)
        gone = master.address
    code, _, error = clone(gone, tmp_path / "copy3")
    assert (code, "Connection" in error["kind"]) == (6, True)
    assert not (tmp_path / "copy3").exists()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("told", [(), ("--existing",)])
def test_a_full_store_is_not_made_a_copy_of_an_empty_master(
    told: tuple[str, ...], clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with Broker(tmp_path / "full", **SMALL) as other:
        other.create_topic("orders", 4)
        send(other, 30)
    (tmp_path / "full" / "abort").touch()  # an open would recover it
    before = tree(tmp_path / "full")
    with master_of(tmp_path / "m", names) as master:
        code, _, error = clone(master.address, tmp_path / "full", *told)
    assert (code, error["kind"]) == (2, "ForeignLog")
    assert tree(tmp_path / "full") == before


def test_a_store_that_no_clone_made_is_a_target_only_when_told(
    clone: Callable[..., Answer], names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        make(master, 50)
        assert clone(master.address, tmp_path / "copy")[0] == 0
        (tmp_path / "copy" / "clone.json").unlink()
        before = tree(tmp_path / "copy")
        code, _, error = clone(master.address, tmp_path / "copy")
        assert (code, error["kind"]) == (2, "ForeignLog")
        assert tree(tmp_path / "copy") == before
        assert clone(master.address, tmp_path / "copy", "--existing")[0] == 0
        same(tmp_path / "m", tmp_path / "copy")
