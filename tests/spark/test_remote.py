"""Stores on other file systems: an S3 server in this process, read block by block."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import s3_server

import pystore

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from spark_ext import remote, schema, stores  # noqa: E402
from spark_ext.batch import read_part  # noqa: E402
from spark_ext.errors import BadOption, SourceError  # noqa: E402
from spark_ext.options import parse_read, parse_write  # noqa: E402
from spark_ext.plan import plan  # noqa: E402
from tests.spark.conftest import put  # noqa: E402
from tests.spark.losses import damage  # noqa: E402

COUNT = 2000


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """bucket(folder, name): the folder's files in S3; the address."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    import fsspec

    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
        fs = fsspec.filesystem("s3")
        fs.mkdir("bucket")

        def upload(folder: Path, name: str) -> str:
            # Another instance, as another host's would be: ours does not hear of it.
            other = fsspec.filesystem("s3", skip_instance_cache=True)
            other.put(f"{folder}/", f"bucket/{name}/", recursive=True)
            return f"s3://bucket/{name}"

        yield upload


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "scratch"))
    stores._cache.clear()
    yield tmp_path / "scratch"
    stores._cache.clear()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranged reads of segments."""
    calls: list[tuple[str, int, int]] = []
    read = remote._Remote.read

    def watched(self: Any, name: str, start: int, end: int) -> bytes:
        if name.startswith("commitlog/"):
            calls.append((name, start, end))
        return read(self, name, start, end)

    monkeypatch.setattr(remote._Remote, "read", watched)
    return calls


@pytest.fixture
def log(store_path: Path, small: dict[str, Any]) -> Path:
    """Some 2.5 MB in segments of 1 MiB: a topic before, between and after two others."""
    with pystore.open(store_path, **(small | {"mappedFileSizeCommitLog": 1 << 20})) as store:
        put(store, "t", 0, COUNT)
        store.put_many("other", [b"x" * 900] * COUNT, queue=1)
        put(store, "t", 0, COUNT, first=COUNT)
    return store_path


def rows(path: object, **given: str) -> Any:
    """A batch as driver and tasks make it, without a session."""
    options = parse_read({"path": str(path), **given}, streaming=False)
    layout = schema.ColumnLayout(
        tuple(schema.COLUMNS), tuple(null for _, null in schema.COLUMNS.values()), "json"
    )
    found = [batch for part in plan(options) for batch in read_part(part, layout, options)]
    return pa.Table.from_batches(found).sort_by("commitLogOffset")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topic": "other", "maxRecordsPerPartition": "700"},
        {"scan": "log"},
        {"startingOffsets": '{"t": {"0": 1500}}', "endingOffsets": '{"t": {"0": 2500}}'},
    ],
)
def test_the_rows_are_those_of_the_folder(bucket, log, given):
    url = bucket(log, "same")
    assert rows(url, **given) == rows(log, **given)


def test_times_are_found_in_the_log(bucket, store_path, small, monkeypatch):
    now = time.time()
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 50)
    with pystore.Reader(store_path) as reader:
        times = [m.store_timestamp for m in reader.messages()]
    assert times[0] / 1000 >= now - 1
    url = bucket(store_path, "times")
    for ms in (times[0] - 1, times[25], times[-1]):
        given = {"startingTimestamp": str(ms)}
        assert rows(url, **given) == rows(store_path, **given)


def test_only_blocks_that_are_needed_come_and_only_once(bucket, log, fetched):
    url = bucket(log, "blocks")
    size = sum(file.stat().st_size for file in (log / "commitlog").iterdir())
    given = {"topic": "t", "endingOffsets": '{"t": {"0": 1000}}'}
    rows(url, **given)
    assert 0 < sum(end - start for _, start, end in fetched) < size // 2
    fetched.clear()
    stores._cache.clear()  # another process of this host
    rows(url, **given)
    assert fetched == []


def test_a_store_that_changed_has_a_mirror_of_its_own(bucket, log, store_path, small):
    url = bucket(log, "changed")
    before = rows(url, topic="t").num_rows
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 10, first=2 * COUNT)
    bucket(log, "changed")
    assert rows(url, topic="t").num_rows == before + 10


def test_a_copy_replaced_in_place_is_seen_where_nothing_tells_of_changes(tmp_path, small):
    """A file system without ETags or times of changes; both copies have files of the same sizes."""
    import fsspec

    fs = fsspec.filesystem("memory")
    for body in (b"old", b"new", b"one more"):
        path = tmp_path / ("more" if body == b"one more" else body.decode())
        if body == b"one more":  # the same store, written on
            shutil.copytree(tmp_path / "new", path)
        with pystore.open(path, **small) as store:
            store.put("t", body, queue=0)
        for file in (f for f in path.rglob("*") if f.is_file()):
            fs.pipe_file(f"/replaced/{file.relative_to(path)}", file.read_bytes())
        found = rows("memory://replaced").column("body").to_pylist()
        assert found == ([b"new", body] if body == b"one more" else [body])
    fs.rm("/replaced", recursive=True)


def test_damage_is_told_with_its_place(bucket, log):
    with pystore.Reader(log) as reader:
        at = reader.units("t", 0, 7, 1)[0][0]
    damage(log, at)
    url = bucket(log, "damaged")
    with pytest.raises(SourceError, match=f"physical offset {at} cannot be read"):
        rows(url, topic="t")
    assert rows(url, topic="t", failOnDataLoss="false").num_rows == 2 * COUNT - 1


def test_damage_hides_nothing_from_a_search_by_time(bucket, store_path, small):
    """The first message that the search looks at cannot be read."""
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 10)
        time.sleep(0.02)
        put(store, "t", 0, 30, first=10)
    with pystore.Reader(store_path) as reader:
        found = {n: reader.read("t", 0, n, max_messages=1)[0] for n in (10, 20)}
    damage(store_path, found[20].physical_offset)
    url = bucket(store_path, "halves")
    given = {"startingTimestamp": str(found[10].store_timestamp), "failOnDataLoss": "false"}
    assert rows(url, **given).num_rows == 29


def test_what_is_no_closed_store_is_refused(bucket, tmp_path, log):
    with pytest.raises(SourceError, match="s3://bucket/nothing is not a store"):
        rows("s3://bucket/nothing")
    (log / "commitlog/notes.txt").touch()
    with pytest.raises(SourceError, match=r"commitlog/notes\.txt is not a segment"):
        rows(bucket(log, "stray"))
    (log / "commitlog/notes.txt").unlink()
    last = max((log / "commitlog").iterdir())
    kept = last.rename(log / "kept")
    with pytest.raises(SourceError, match=f"{last.name}, which is not there"):
        rows(bucket(log, "cut"))
    kept.rename(last)
    (log / "abort").touch()
    with pytest.raises(SourceError, match="that was running or crashed"):
        rows(bucket(log, "crashed"))
    with pytest.raises(SourceError, match="Protocol not known: nowhere"):
        rows("nowhere://host/store")


@pytest.mark.parametrize("noted", [True, False], ids=["ours", "as Java leaves it"])
def test_a_copy_whose_queues_lack_messages_is_refused(bucket, log, noted):
    """A reader of files makes them again from the log, which is not here."""
    if not noted:
        (log / "queueEnds").unlink()
    queue = log / "consumequeue/t/0"
    first = min(queue.iterdir())
    units = first.read_bytes()
    first.write_bytes(units[:200] + bytes(len(units) - 200))
    with pytest.raises(SourceError, match=r"consumequeue/t/0 lacks messages .* `pystore repair`"):
        rows(bucket(log, "short"))
    shutil.rmtree(queue)
    with pytest.raises(SourceError, match=r"consumequeue/t/0 lacks messages .* `pystore repair`"):
        rows(bucket(log, "gone"))


@pytest.mark.parametrize(
    "given", [{"keys": "k"}, {"timers": "pending"}, {"storePathCommitLog": "/log"}]
)
def test_options_that_need_a_folder_are_refused(given):
    with pytest.raises(BadOption, match=f"option {next(iter(given))}"):
        parse_read({"path": "s3://b/c", **given}, streaming=False)


def test_streams_and_writes_need_a_folder(monkeypatch):
    with pytest.raises(BadOption, match="stays as it is: a stream reads a folder"):
        parse_read({"path": "s3://b/c"}, streaming=True)
    with pytest.raises(BadOption, match="'s3://b/c' is not a local directory: a write opens"):
        parse_write({"path": "s3://b/c"})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadOption, match="pip install fsspec"):
        parse_read({"path": "s3://b/c"}, streaming=False)


def test_a_tier_at_an_address_is_not_taken_for_a_copy(bucket, log, tmp_path):
    from pystore.cold.push import push
    from pystore.cold.tier import new_tier

    pytest.importorskip("obstore")
    with pystore.Reader(log) as reader:
        push(reader, new_tier(tmp_path / "cold", "c", "broker-a"))
    url = bucket(tmp_path / "cold", "tier")
    wanted = rows(log, topic="t").select(["queueOffset", "body"])
    assert rows(url, topic="t").select(["queueOffset", "body"]) == wanted
