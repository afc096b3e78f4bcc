"""Stores that are broken, and those that break under a scan: a sentence, or what is left of
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pystore
from spark_ext import schema
from spark_ext.batch import read_part
from spark_ext.errors import DataLoss, SourceError
from spark_ext.options import parse_read
from spark_ext.plan import plan
from tests.spark.conftest import put, said
from tests.spark.losses import damage, drop_oldest, segments

pytestmark = pytest.mark.spark

LAYOUT = schema.Layout(("queueOffset", "body"), (False, False), "json")


def options(path: Path, **more: str) -> Any:
    return parse_read({"path": str(path), **more}, streaming=False)


def rows(parts: Any, o: Any) -> list[int]:
    return [
        n for part in parts for b in read_part(part, LAYOUT, o) for n in b.column(0).to_pylist()
    ]


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_path_that_is_no_store(load, tmp_path, kind):
    path = tmp_path / "nothing"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    with pytest.raises(Exception, match=r"give the folder that holds\s+commitlog/") as failure:
        load(path).collect()
    assert str(path) in said(failure)


def test_a_topic_that_does_not_exist(load, make):
    path = make({"orders": [1]})
    with pytest.raises(Exception, match="the store has no topic 'order'; did you mean 'orders'"):
        load(path, topic="order").collect()


def test_offsets_beyond_the_end_and_queues_that_are_not_read(load, make):
    path = make({"t": [5]})
    with pytest.raises(Exception, match="the start 6 of t/0 is beyond the end: the queue holds"):
        load(path, startingOffsets='{"t":{"0":6}}').collect()
    with pytest.raises(Exception, match="the end 99 of t/0 is beyond the end"):
        load(path, endingOffsets='{"t":{"0":99}}').collect()
    with pytest.raises(Exception, match="the query does not read a queue t/7"):
        load(path, startingOffsets='{"t":{"7":0}}').collect()
    with pytest.raises(Exception, match="no broker 'b'; there are: broker-a"):
        load(path, startingOffsets='{"t":{"b":{"0":0}}}').collect()


def test_a_damaged_record_is_named_and_skipped_only_when_asked(load, store_path, small, tmp_path):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 10)
        at = store.read("t", 0, 4)[0].physical_offset
    damage(store_path, at)
    with pytest.raises(Exception, match=f"physical offset {at} cannot be read") as failure:
        load(store_path).collect()
    assert "t/0, offset 4" in said(failure)
    report = tmp_path / "report"
    frame = load(store_path, failOnDataLoss="false", damageReport=report)
    assert sorted(r.queueOffset for r in frame.collect()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (told,) = [json.loads(p.read_text()) for p in report.iterdir()]
    assert (told["skipped"], told["firstSkipped"], told["store"]) == (1, at, str(store_path))


def test_a_wrong_body_is_found_when_sums_are_checked(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        m = [store.put("t", b"a" * 50, queue=0).physical_offset for _ in range(3)][1]
    damage(store_path, m + 84 + 10, b"b")
    assert load(store_path).count() == 3
    with pytest.raises(Exception, match=f"physical offset {m} cannot be read"):
        load(store_path, checkCrc="true").collect()
    assert load(store_path, checkCrc="true", failOnDataLoss="false").count() == 2


def test_a_segment_deleted_before_the_scan(load, make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    frame = load(path)
    frame.selectExpr("queueOffset").limit(1).collect()  # planned
    low = drop_oldest(path, 1)
    with pytest.raises(Exception, match="does not hold offsets 0 to 5999 any more: it holds"):
        frame.count()
    kept = load(path, startingOffsets='{"t":{"0":0}}', failOnDataLoss="false")
    assert kept.count() == 6000 - low
    with pytest.raises(Exception, match=f"offsets 0 to {low - 1} of t/0 are not there any more"):
        load(path, startingOffsets='{"t":{"0":0}}').count()


def test_a_segment_deleted_in_mid_scan_is_told_or_stepped_over(make, tmp_path, capsys):
    for fails in ("true", "false"):
        path = make({"t": [6000]}, tmp_path / fails, mappedFileSizeCommitLog=1 << 18)
        o = options(path, batchRows="100", failOnDataLoss=fails)
        (part,) = plan(o)
        scan = read_part(part, LAYOUT, o)
        got = next(scan).num_rows
        segments(path)[1].unlink()
        if fails == "true":
            with pytest.raises(DataLoss, match=r"t/0, offset \d+: .* physical offset 262144"):
                list(scan)
        else:
            got += sum(b.num_rows for b in scan)
            assert 3000 < got < 6000
            assert f"stepped over {6000 - got} damaged or missing" in capsys.readouterr().err


def test_a_segment_truncated_in_mid_scan_is_told(make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    o = options(path, batchRows="100")
    (part,) = plan(o)
    scan = read_part(part, LAYOUT, o)
    next(scan)
    with segments(path)[1].open("r+b") as segment:
        segment.truncate(4096)
    with pytest.raises(DataLoss, match=r"was cut off to 4096 bytes while it was read; it must"):
        list(scan)


def test_a_truncated_segment_before_the_scan(load, make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    with segments(path)[1].open("r+b") as segment:
        segment.truncate(4096)
    with pytest.raises(Exception, match="4096") as failure:
        load(path).collect()
    assert segments(path)[1].name in said(failure)


def test_another_store_under_the_same_path_is_found_out(make, tmp_path):
    path = make({"t": [10]})
    (part,) = plan(options(path, startingOffsets='{"t":{"0":5}}'))
    path.rename(tmp_path / "old")
    make({"u": [10], "t": [10]})
    from spark_ext import stores

    stores._cache.clear()
    with pytest.raises(SourceError, match="is not the store that was planned"):
        rows([part], options(path))


def test_a_folder_that_is_not_there_on_the_executor_names_the_host(make, tmp_path):
    import socket

    path = make({"t": [10]})
    (part,) = plan(options(path))
    part.path = str(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=f"on host {socket.gethostname()}: .*elsewhere"):
        rows([part], options(path))


def test_a_copy_of_a_crashed_store_is_read_as_recovery_would_leave_it(load, store_path, small):
    store = pystore.open(store_path, **small)
    try:
        put(store, "t", 0, 1000)
        store.wait_flushed(store.info().log_max)
        copy = store_path.with_name("copy")
        import shutil

        shutil.copytree(store_path, copy)
    finally:
        store.close()
    assert (copy / "abort").exists()
    assert load(copy).count() == 1000
    assert load(copy, scan="log").count() == 1000
