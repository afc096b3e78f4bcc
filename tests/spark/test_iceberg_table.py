"""``pystore spark table``: an Iceberg table of a topic, each message once."""

from __future__ import annotations

import datetime as dt
import io
import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cli import main

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
pa = pytest.importorskip("pyarrow")

from pystore.cold.push import push  # noqa: E402
from pystore.cold.tier import new_tier  # noqa: E402
from spark_ext.jobs import bodies, iceberg  # noqa: E402
from spark_ext.jobs import table as keeping  # noqa: E402

Keep = Callable[..., int]
SCHEMA = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip


@pytest.fixture
def catalog(tmp_path: Path) -> list[str]:
    """Options of a catalogue in SQLite."""
    uri, warehouse = f"sqlite:///{tmp_path / 'catalog.db'}", f"file://{tmp_path / 'warehouse'}"
    return ["--property", f"uri={uri}", "--property", f"warehouse={warehouse}"]


@pytest.fixture
def keep(store_path: Path, catalog: list[str]) -> Keep:
    """keep(*arguments): one run of the verb; its exit code."""

    def run(*arguments: str) -> int:
        return main(
            ["spark", "table", str(store_path), "orders", "shop.orders", *catalog, *arguments]
        )

    return run


@pytest.fixture
def table(catalog: list[str]) -> Callable[[], Any]:
    def load() -> Any:
        properties = dict(each.split("=", 1) for each in catalog[1::2])
        return iceberg.catalog_of("default", properties).load_table("shop.orders")

    return load


def put(path: Path, *data: bytes, settings: dict[str, Any] | None = None) -> None:
    with pystore.open(path, **(settings or {})) as store:
        for number, body in enumerate(data):
            store.put("orders", body, queue=number % 2, tags="t", keys=f"k{number}")


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def bodies_of(table: Any) -> list[bytes]:
    found: list[bytes] = table.scan().to_arrow().column("body").to_pylist()
    return sorted(found, key=int)


def test_each_run_adds_what_is_new(keep: Keep, store_path: Path, table: Callable[[], Any]):
    put(store_path, *numbers(50))
    assert keep() == 0
    put(store_path, *numbers(30, 50))
    assert (keep(), keep()) == (0, 0)
    found = table()
    assert bodies_of(found) == numbers(80)
    assert len(found.snapshots()) == 2
    frame = found.scan().to_pandas()
    with pystore.Reader(store_path) as reader:
        wanted = {(m.queue, m.queue_offset): m for m in reader.messages()}
    for row in frame.itertuples():
        message = wanted[row.queueId, row.queueOffset]
        assert (row.body, row.tags, row.keys) == (bytes(message.body), "t", message.keys[0])
        assert row.storeTimestamp.timestamp() * 1000 == message.store_timestamp
        assert dict(row.properties) == message.properties


def test_files_are_of_a_day(keep: Keep, store_path: Path, table: Callable[[], Any]):
    put(store_path, *numbers(9))
    keep()
    work = iceberg.TableWork(
        None, table().metadata, table().io, None  # type: ignore[arg-type]
    )  # fmt: skip
    days = iceberg._DayFiles(work)
    rows = table().scan().to_arrow()
    moments = [dt.datetime(2026, 1, 1 + n // 5, tzinfo=dt.UTC) for n in range(9)]
    at = rows.column_names.index("storeTimestamp")
    days.write(rows.set_column(at, "storeTimestamp", pa.array(moments, pa.timestamp("us", "UTC"))))
    found = [iceberg.pickle.loads(each) for each in days.close()]
    first = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
    assert [(each.partition[0], each.record_count) for each in found] == [
        (first, 5),
        (first + 1, 4),
    ]
    assert [field.name for field in table().spec().fields] == ["day"]


def test_a_kill_between_write_and_commit_repeats_nothing(
    keep: Keep, store_path: Path, table: Callable[[], Any], catalog: list[str]
):
    put(store_path, *numbers(20))
    keep()
    put(store_path, *numbers(20, 20))
    program = (
        "import os, signal, sys\n"
        "from pystore.cli import main\n"
        "from spark_ext.jobs.iceberg import TopicTable\n"
        "TopicTable.append = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["spark", "table", str(store_path), "orders", "shop.orders", *catalog]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    files = list((Path(table().location().removeprefix("file://"))).rglob("*.parquet"))
    assert (len(files), bodies_of(table())) == (2, numbers(20))
    assert keep() == 0
    assert bodies_of(table()) == numbers(40)


def test_two_jobs_do_not_add_the_same_messages(
    keep: Keep, store_path: Path, table: Callable[[], Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    put(store_path, *numbers(10))
    keep()
    put(store_path, *numbers(10, 10))
    append = iceberg.TopicTable.append

    def later(self: Any, *more: Any) -> None:
        monkeypatch.setattr(iceberg.TopicTable, "append", append)
        assert keep() == 0
        append(self, *more)

    monkeypatch.setattr(iceberg.TopicTable, "append", later)
    assert keep() != 0
    assert "another job keeps this table" in capsys.readouterr().err
    assert bodies_of(table()) == numbers(20)


def test_others_may_change_the_table_meanwhile(
    keep: Keep, store_path: Path, table: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    put(store_path, *numbers(10))
    keep()
    put(store_path, *numbers(10, 10))
    append = iceberg.TopicTable.append

    def later(self: Any, *more: Any) -> None:
        with warnings.catch_warnings(action="ignore"):
            table().delete("queueId < 9")
        append(self, *more)

    monkeypatch.setattr(iceberg.TopicTable, "append", later)
    assert keep() == 0
    assert bodies_of(table()) == numbers(10, 10)


def test_a_commit_whose_answer_is_lost_is_not_made_again(
    keep: Keep, store_path: Path, table: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    from pyiceberg.catalog.sql import SqlCatalog

    put(store_path, *numbers(10))
    keep()
    put(store_path, *numbers(10, 10))
    commit = SqlCatalog.commit_table

    def lost(self: Any, *more: Any) -> Any:
        commit(self, *more)
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    assert keep() == 0
    monkeypatch.undo()
    assert bodies_of(table()) == numbers(20)


def test_offsets_outlive_the_snapshot_that_had_them(
    keep: Keep, store_path: Path, table: Callable[[], Any]
):
    put(store_path, *numbers(10))
    keep()
    found = table()
    with warnings.catch_warnings(action="ignore"):
        found.delete("queueId < 9")
    first = found.snapshots()[0].snapshot_id
    found.maintenance.expire_snapshots().by_id(first).commit()
    put(store_path, *numbers(4, 10))
    assert keep() == 0
    assert bodies_of(table()) == numbers(4, 10)


def test_a_table_begins_in_the_tier(
    keep: Keep, store_path: Path, table: Callable[[], Any], tmp_path: Path
):
    put(store_path, *numbers(3000), settings={"mappedFileSizeCommitLog": 1 << 16})
    with pystore.Reader(store_path) as reader:
        push(reader, new_tier(tmp_path / "cold", "c", "broker-a"))
    for segment in sorted((store_path / "commitlog").iterdir())[:3]:
        segment.unlink()
    assert keep("--tier", str(tmp_path / "cold")) == 0
    assert bodies_of(table()) == numbers(3000)


@pytest.mark.spark
def test_tasks_of_spark_write_the_files(
    spark: Any, keep: Keep, store_path: Path, table: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    put(store_path, *[json.dumps({"n": n}).encode() for n in range(3000)])
    monkeypatch.setattr(keeping, "_PART_BYTES", "32k")
    assert keep("--json-bodies") == 0
    rows = table().scan().to_arrow()
    assert sorted(v["n"] for v in rows.column("value").to_pylist()) == list(range(3000))
    assert len(table().inspect.files()) > 2


# ---- bodies ----


def test_json_bodies_are_a_column_and_what_does_not_fit_stays(
    keep: Keep, store_path: Path, table: Callable[[], Any], capsys: pytest.CaptureFixture[str]
):
    put(store_path, b'{"a": 1, "b": {"c": ["x"]}}', b'{"a": 2}')
    assert keep("--json-bodies") == 0
    put(store_path, b'{"a": "text"}', b"\xff", b'{"a": 3, "d": 1.5}', b'{"a": 4}')
    assert keep("--json-bodies", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["table"]["bodies_kept_as_bytes"] == 2
    frame = table().scan().to_pandas()
    found = [
        (v and v["a"], v and v["d"], body) for v, body in zip(frame.value, frame.body, strict=True)
    ]
    assert sorted(found, key=repr) == [
        (1, None, None), (2, None, None), (3, 1.5, None), (4, None, None),
        (None, None, b"\xff"), (None, None, b'{"a": "text"}'),
    ]  # fmt: skip


def test_a_catalogue_that_does_not_open_is_named_with_its_place(tmp_path: Path):
    """The database says no more than that it cannot open its file."""
    uri = f"sqlite:///{tmp_path}/gone/catalog.db"
    with pytest.raises(pystore.StoreIOError, match=f"catalogue shop .uri={uri}, warehouse=/wh."):
        iceberg.catalog_of("shop", {"type": "sql", "uri": uri, "warehouse": "/wh"})
    with pytest.raises(pystore.StoreIOError, match=r"uri=http://me:\*\*\*@127"):
        iceberg.catalog_of("shop", {"uri": "http://me:secret@127.0.0.1:1"})


def test_duckdb_reads_the_table(keep: Keep, store_path: Path, catalog: list[str]):
    put(store_path, *[json.dumps({"n": n}).encode() for n in range(100)])
    assert keep("--json-bodies") == 0
    program = (
        "import sys\n"
        "from spark_ext.jobs.iceberg import catalog_of\n"
        "properties = dict(each.split('=', 1) for each in sys.argv[1:])\n"
        "table = catalog_of('default', properties).load_table('shop.orders')\n"
        "con = table.scan(row_filter='queueId = 1').to_duckdb('orders')\n"
        "print(con.execute('SELECT sum(value.n), count(body) FROM orders').fetchone())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *catalog[1::2]], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str((sum(range(1, 100, 2)), 0))


@pytest.mark.parametrize(
    "body",
    [b'{"a":1}\n{"a":2}', b"", b"1", b"[1]", b'"x"', b"null", b'{"a":1},"v":{"a":2}', b'1,"w":2',
     b'{"a":1}}', b'{"a":', b'{"a":1.5}', b'{"a":1,"new":0}', b'{"a":1}\x00', b"\xff\xfe"],
)  # fmt: skip
def test_a_body_that_does_not_fit_moves_no_other(body: bytes):
    known = pa.struct([("a", pa.int64())])
    data = [b'{"a":%d}' % number for number in range(7)]
    found = bodies.parse_json([*data[:3], body, *data[3:]], known)
    values = [value and value["a"] for value in found.values.to_pylist()]
    assert values[:3] + values[4:] == list(range(7))
    assert found.kept.to_pylist() == [False] * 3 + [True] + [False] * 4


def test_avro_bodies_are_a_column(
    keep: Keep, store_path: Path, table: Callable[[], Any], tmp_path: Path
):
    fastavro = pytest.importorskip("fastavro")
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    moment = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    rows = [{"id": 1, "note": None, "at": moment}, {"id": 2, "note": "x", "at": moment}]
    data = []
    for row in rows:
        to = io.BytesIO()
        fastavro.schemaless_writer(to, SCHEMA, row)
        data.append(to.getvalue())
    put(store_path, *data, b"\x02", data[0] + b"!")
    assert keep("--avro", str(tmp_path / "order.avsc")) == 0
    found = table().scan().to_arrow()
    assert [v for v in found.column("value").to_pylist() if v] == rows
    assert sorted(filter(None, found.column("body").to_pylist())) == sorted(
        [b"\x02", data[0] + b"!"]
    )


def test_a_table_of_another_topic_is_refused(
    keep: Keep, store_path: Path, catalog: list[str], capsys: pytest.CaptureFixture[str]
):
    put(store_path, b"1")
    keep()
    assert main(["spark", "table", str(store_path), "other", "shop.orders", *catalog]) == 2
    assert "its rocketmq.topic is 'orders', not 'other'" in capsys.readouterr().err
