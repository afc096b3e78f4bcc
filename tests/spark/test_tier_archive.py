"""Archives of cold tiers: each message of each queue once, over runs, remade topics and kills."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.store import hosting

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pystore.cli import main
from pystore.cold.push import PushReport, QueuePusher, push
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import collect, remove
from spark_ext.jobs import archive as steps

#: Topic, queue, queue offset, body.
Row = tuple[str, int, int, bytes]
Archive = Callable[..., Any]


class Source:
    """A store, and the tier that it is written out to."""

    def __init__(self, folder: Path, small: dict[str, Any]) -> None:
        self.store = pystore.open(folder / "store", **small)
        self.address = folder / "cold"
        self.segment_bytes = 4096

    @property
    def tier(self) -> Tier:
        return new_tier(self.address, "c", "broker-a")

    def put(self, topic: str, *bodies: bytes, queue: int = 0) -> None:
        for body in bodies:
            self.store.put(topic, body, queue=queue)

    def push(self) -> None:
        self.store.flush()
        push(self.store, self.tier, segment_bytes=self.segment_bytes)

    def rows(self) -> list[Row]:
        """What the tier has."""
        with pystore.Reader(self.address) as reader:
            return sorted((m.topic, m.queue, m.queue_offset, bytes(m.body))
                          for m in reader.messages())  # fmt: skip


@pytest.fixture
def source(tmp_path: Path, small: dict[str, Any]):
    made = Source(tmp_path, small)
    made.put("a", *(b"%d" % n * 40 for n in range(150)))
    made.put("a", *(b"%d" % n for n in range(9)), queue=1)
    made.put("b", b"one", b"two")
    made.push()
    yield made
    made.store.close()


@pytest.fixture
def archive(source: Source, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Archive:
    """archive(*options, code=0): a run, by the driver alone; its report, or its error."""

    def run(*options: str, code: int = 0, of: Path | None = None) -> Any:
        capfd.readouterr()
        words = [str(of or source.address), str(tmp_path / "archive"), *options]
        got = main(["spark", "archive", *words, "--json"])
        out, err = capfd.readouterr()
        assert got == code, err
        return json.loads(err.splitlines()[-1])["error"] if code else json.loads(out)["archive"]

    return run


def archived(tmp_path: Path) -> list[Row]:
    from pyarrow import dataset  # by whom it is needed: it loads pandas

    table = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    names = ("topic", "queueId", "queueOffset", "body")
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_runs_add_what_is_new_of_each_queue(source: Source, archive: Archive, tmp_path: Path):
    assert archive()["new_messages"] == 161
    assert archived(tmp_path) == source.rows()
    assert archive()["new_messages"] == 0
    source.put("a", b"later", queue=1)
    source.put("z", b"new")
    source.push()
    report = archive()
    assert (report["runs"], report["new_messages"], report["queues"]) == (2, 2, 2)
    assert archived(tmp_path) == source.rows()
    assert archive()["new_messages"] == 0


def test_a_segment_that_the_archive_has_in_part_is_not_there_twice(
    source: Source, archive: Archive, tmp_path: Path
):
    """As when a queue is written out again, in other segments."""
    archive()
    for topic in "ab":
        remove(source.tier, topic)
    source.put("a", b"later")
    source.segment_bytes = 8192
    source.push()
    assert archive()["new_messages"] == 1
    assert archived(tmp_path) == source.rows()


def test_what_is_being_written_out_again_is_waited_for(
    source: Source, archive: Archive, tmp_path: Path
):
    archive()
    remove(source.tier, "b")
    (queue,) = source.store.queues("b")
    with ThreadPoolExecutor(1) as pool:
        QueuePusher(source.store, source.tier, queue, PushReport(), pool, to=1).run()
    assert archive()["new_messages"] == 0
    source.push()
    assert archive()["new_messages"] == 0
    assert archived(tmp_path) == source.rows()


@pytest.mark.parametrize("count", [1, 5])
def test_a_topic_that_was_made_again_is_archived_from_its_beginning(
    source: Source, archive: Archive, tmp_path: Path, count: int
):
    """Whether its queue is shorter than the one before, or longer."""
    archive()
    before = archived(tmp_path)
    remove(source.tier, "b")
    hosting.delete_queues(source.store, "b")
    source.put("b", *(b"again %d" % n for n in range(count)))
    source.push()
    assert archive()["new_messages"] == count
    assert archived(tmp_path) == sorted([*before, *(r for r in source.rows() if r[0] == "b")])
    assert archive()["new_messages"] == 0


def test_what_went_before_it_was_archived_is_named(
    source: Source, archive: Archive, tmp_path: Path
):
    archive()
    source.put("a", *(b"x" * 900 for _ in range(20)))
    source.push()
    manifest = source.tier.manifest("a", 0)
    source.tier.publish(manifest.kept_from(160, 0, source.tier.writer))
    kept = source.tier.manifest("a", 0).start
    error = archive(code=1)
    assert f"of a/0, {kept - 150} messages from offset 150 on" in error["text"]
    assert "--allow-gap" in error["next_step"]
    assert archive("--allow-gap")["new_messages"] == 170 - kept
    source.put("a", b"later")
    source.push()
    assert archive()["new_messages"] == 1


def test_a_queue_that_was_not_there_in_the_first_run_is_whole_or_named(
    source: Source, archive: Archive
):
    archive()
    source.put("z", *(b"x" * 900 for _ in range(20)))
    source.push()
    source.tier.publish(source.tier.manifest("z", 0).kept_from(9, 0, source.tier.writer))
    assert "of z/0" in archive(code=1)["text"]


def test_what_retention_and_the_collector_took_later_does_no_harm(
    source: Source, archive: Archive, tmp_path: Path
):
    archive()
    whole = archived(tmp_path)
    source.tier.publish(source.tier.manifest("a", 0).kept_from(150, 0, source.tier.writer))
    collect(source.tier, grace_s=-1)
    assert archive()["new_messages"] == 0
    source.put("a", b"later")
    source.push()
    assert archive()["new_messages"] == 1
    assert archived(tmp_path) == sorted([*whole, ("a", 0, 150, b"later")])


@pytest.mark.parametrize("step", ["_write", "write_queues", "publish", "_check_offsets"])
def test_a_run_that_fails_anywhere_shows_nothing_and_the_next_is_whole(
    source: Source, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(steps, step, fails)
        archive(code=6)
    assert not list((tmp_path / "archive").glob("run=*"))
    archive()
    assert archived(tmp_path) == source.rows()


def test_an_offset_that_is_not_written_is_never_published(
    source: Source, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As where a task read another manifest than the plan."""
    from spark_ext.jobs import tier_news

    packed = tier_news.packed

    def with_another(*given: Any) -> Any:
        for ranges in packed(*given):
            yield tuple((*r[:2], r[2] + (r[:2] == ("a", 1)), r[3]) for r in ranges)

    monkeypatch.setattr(tier_news, "packed", with_another)
    assert "158 messages of a were written, not those 159 that were read" in archive(code=6)["text"]
    assert not list((tmp_path / "archive").glob("run=*"))


def test_archives_of_other_sources_are_refused(
    source: Source, archive: Archive, tmp_path: Path, small: dict[str, Any]
):
    other = tmp_path / "other"
    push(source.store, new_tier(other, "c", "broker-b"))
    archive()
    assert "the archive is of the tier of c/broker-a" in archive(of=other, code=2)["text"]
    assert "is the archive of a cold tier" in archive(of=tmp_path / "store", code=2)["text"]
    words = ["spark", "restore", str(tmp_path / "copy"), str(tmp_path / "archive")]
    assert main(words) == 2 and not (tmp_path / "copy").exists()
    shutil.rmtree(tmp_path / "archive")
    archive(of=tmp_path / "store")
    assert "is the archive of a store" in archive(code=2)["text"]


def test_a_run_that_somebody_changed_is_refused(source: Source, archive: Archive, tmp_path: Path):
    archive()
    (folder,) = (tmp_path / "archive").glob("run=*")
    facts, queues = folder / "_run.json", folder / "_queues.json"
    right = facts.read_text()
    for wrong in (
        {"number": 2}, {"number": "1"}, {"cluster": 5}, {"messages": None}, {"topics": []},
        {"queues_crc": 0}, {"more": 1},
    ):  # fmt: skip
        facts.write_text(json.dumps(json.loads(right) | wrong))
        assert "is not a run of an archive" in archive(code=2)["text"], wrong
    facts.write_text(right)
    queues.write_bytes(queues.read_bytes().replace(b"150", b"149", 1))
    assert "is not a run of an archive" in archive(code=2)["text"]
    queues.unlink()
    assert "is not a run of an archive" in archive(code=2)["text"]


def test_a_damaged_manifest_or_segment_ends_the_run(source: Source, archive: Archive):
    segment = next(source.address.rglob("a/0/COMMIT_LOG/*"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert "another CRC" in archive(code=5)["text"]
    segment.write_bytes(whole)
    manifest = next(source.address.rglob("rmq_sys_MANIFEST/a/0/*"))
    manifest.write_bytes(b"{}")
    assert "a manifest is wrong" in archive(code=5)["text"]


@pytest.mark.long
@pytest.mark.spark
def test_tasks_archive_a_tier_that_reconcile_finds_there(
    source: Source, run_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps, "_ALONE_BYTES", 0)
    monkeypatch.setattr(steps, "_PART_BYTES", 4096)
    assert run_job("archive", source.address, tmp_path / "archive")["archive"]["runs"] == 1
    assert len(list((tmp_path / "archive").rglob("topic=a/*/*.parquet"))) > 1
    report = run_job("reconcile", source.address, tmp_path / "archive")
    assert report["reconcile"] == {"same_places": True, "same_contents": True}
