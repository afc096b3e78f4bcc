"""Stores that are broken, and those that break under a scan: a sentence, or what is left of
them."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystore
from spark_ext import schema
from spark_ext.batch import read_part
from spark_ext.errors import DataLoss, SourceError
from spark_ext.options import parse_read
from spark_ext.plan import plan
from tests.museum.damage import records
from tests.spark.conftest import put, said
from tests.spark.losses import damage, drop_oldest, segments

pytestmark = pytest.mark.spark

LAYOUT = schema.ColumnLayout(("queueOffset", "body"), (False, False), "json")


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
    with pytest.raises(Exception, match=r"pass the directory\s+that\s+contains") as failure:
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


def test_a_flipped_property_is_found_when_the_record_has_a_sum_of_all(store_path, small):
    with pystore.open(store_path, **small, enabledAppendPropCRC=True) as store:
        m = [store.put("t", b"a", queue=0, tags="red").physical_offset for _ in range(3)][1]
        size = store.message(m).size
    log = segments(store_path)[0].read_bytes()
    damage(store_path, log.index(b"red", m, m + size), b"rod")
    assert rows(plan(options(store_path)), options(store_path)) == [0, 1, 2]
    for more in ({}, {"sql92": "TAGS = 'red'"}, {"tags": "red"}):
        checked = options(store_path, checkCrc="true", **more)
        with pytest.raises(DataLoss, match=f"physical offset {m} cannot be read: bad crc"):
            rows(plan(checked), checked)
    left = options(store_path, checkCrc="true", failOnDataLoss="false")
    assert rows(plan(left), left) == [0, 2]


@pytest.mark.parametrize("which", [slice(1), slice(None)], ids=["one file", "every file"])
def test_keys_of_a_damaged_index_are_not_silently_missing(store_path, small, which):
    with pystore.open(store_path, **small | {"maxHashSlotNum": 100, "maxIndexNum": 40}) as store:
        for i in range(60):
            store.put("t", b"x", queue=0, keys=f"k{i % 3}")
    whole = options(store_path, keys="k0,k1,k2")
    assert rows(plan(whole), whole) == list(range(60))
    for file in sorted((store_path / "index").iterdir())[which]:
        with file.open("r+b") as index:
            index.seek(40)  # its slots
            index.write(bytes(400))
    with pytest.raises(DataLoss, match=r"option keys: the index of .* damaged: .*pystore rebuild"):
        plan(whole)
    assert len(plan(options(store_path))) == 1  # whatever needs no index


@pytest.mark.parametrize("size", [30_000, 1 << 17, 1 << 16])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_segment_that_was_cut_off_is_named_and_not_a_sound_one(make, size, which):
    path = make({"t": [9000]}, mappedFileSizeCommitLog=1 << 18)
    cut = segments(path)[which]
    os.truncate(cut, size)
    with pytest.raises(SourceError, match=f"has {size} bytes, not {1 << 18}: {cut}"):
        plan(options(path))


@pytest.mark.parametrize("hours", [1, 30])
@pytest.mark.parametrize("more", [{}, {"keys": "k"}])
def test_a_clock_that_was_set_back_hides_no_message_from_a_range_of_times(
    store_path, small, hours, more
):
    """Half the messages before it, and half after it: an hour's worth each."""
    with pystore.open(store_path, **small) as store:
        places = [store.put("t", b"a", queue=0, keys="k").physical_offset for _ in range(500)]
    begun, back, step = 1_700_000_000_000, hours * 3_600_000, 14_400
    times = [begun + i * step - (back if i >= 250 else 0) for i in range(500)]
    for place, stored in zip(places, times, strict=True):
        damage(store_path, place + 56, stored.to_bytes(8, "big"))
    for low, high in ((times[0], times[249]), (times[249], times[249]), (times[250], times[-1])):
        given = options(store_path, minStoreTimestamp=str(low), maxStoreTimestamp=str(high), **more)
        assert rows(plan(given), given) == [i for i in range(500) if low <= times[i] <= high]


def test_a_wrong_queue_offset_is_told_as_one(store_path, small):
    with pystore.open(store_path, **small) as store:
        m = [store.put("t", b"a", queue=0).physical_offset for _ in range(3)][1]
    damage(store_path, m + 20, (77).to_bytes(8, "big"))
    why = f"offset 1: the record .* {m} cannot be read: the record itself has the queue offset 77"
    with pytest.raises(DataLoss, match=why):
        rows(plan(options(store_path)), options(store_path))


def test_a_segment_deleted_before_the_scan(load, make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    frame = load(path)
    frame.selectExpr("queueOffset").limit(1).collect()  # planned
    low = drop_oldest(path, 1)
    with pytest.raises(Exception, match="no longer holds offsets 0 to 5999: it holds"):
        frame.count()
    kept = load(path, startingOffsets='{"t":{"0":0}}', failOnDataLoss="false")
    assert kept.count() == 6000 - low
    with pytest.raises(Exception, match=f"offsets 0 to {low - 1} of t/0 no longer exist"):
        load(path, startingOffsets='{"t":{"0":0}}').count()


def test_a_segment_deleted_in_mid_scan_loses_nothing_in_silence(make, tmp_path, capsys):
    """What is mapped is read to its end; what is not is told, or stepped over and counted."""
    for fails in ("true", "false"):
        path = make({"t": [6000]}, tmp_path / fails, mappedFileSizeCommitLog=1 << 18)
        o = options(path, batchRows="100", failOnDataLoss=fails)
        (part,) = plan(o)
        scan = read_part(part, LAYOUT, o)
        got = next(scan).num_rows
        segments(path)[1].unlink()
        try:
            got += sum(b.num_rows for b in scan)
        except DataLoss as told:
            assert fails == "true"
            assert re.search(r"t/0, offset \d+: .* physical offset 262144", str(told))
            continue
        said = capsys.readouterr().err
        if fails == "true" or got == 6000:
            assert got == 6000
        else:
            assert f"skipped {6000 - got} damaged or missing" in said


def test_a_segment_truncated_in_mid_scan_is_told(make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    o = options(path, batchRows="100")
    (part,) = plan(o)
    scan = read_part(part, LAYOUT, o)
    next(scan)
    with segments(path)[1].open("r+b") as segment:
        segment.truncate(4096)
    with pytest.raises(DataLoss, match=r"was truncated to 4096 bytes while it was read; expected"):
        list(scan)


def test_a_truncated_segment_before_the_scan(load, make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    with segments(path)[1].open("r+b") as segment:
        segment.truncate(4096)
    with pytest.raises(Exception, match="4096") as failure:
        load(path).collect()
    assert segments(path)[1].name in said(failure)


# ---- files that cannot be read ----


def forbidden(segment: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    segment.chmod(0)


def a_folder(segment: Path) -> None:
    segment.unlink()
    segment.mkdir()


def a_link_to_nowhere(segment: Path) -> None:
    segment.unlink()
    segment.symlink_to("/nowhere/segment")


def a_link_to_itself(segment: Path) -> None:
    segment.unlink()
    segment.symlink_to(segment)


def a_pipe(segment: Path) -> None:
    segment.unlink()
    os.mkfifo(segment)


def empty(segment: Path) -> None:
    segment.write_bytes(b"")


UNREADABLE = [forbidden, a_folder, a_link_to_nowhere, a_link_to_itself, a_pipe, empty]


@pytest.mark.parametrize("become", UNREADABLE)
def test_a_segment_that_cannot_be_read_is_named(make, become: Callable[[Path], None]):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    segment = segments(path)[1]
    become(segment)
    for more in ({}, {"scan": "log"}, {"failOnDataLoss": "false"}):
        o = options(path, **more)
        with pytest.raises(SourceError, match=f"on host .*: {segment}") as failure:
            rows(plan(o), o)
        assert "\n" not in said(failure)


@pytest.mark.parametrize("become", UNREADABLE)
def test_a_segment_that_cannot_be_read_any_more_is_named(make, become: Callable[[Path], None]):
    """The reader listed it when the query was planned, and maps it when the scan comes to it."""
    path = make({"t": [20_000]}, mappedFileSizeCommitLog=1 << 18)
    o = options(path)
    parts = plan(o)
    segment = segments(path)[3]
    become(segment)
    with pytest.raises(DataLoss, match=f"on host .*{segment}"):
        rows(parts, o)


def test_the_last_segment_too(load, make):
    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    segment = segments(path)[-1]
    a_folder(segment)
    with pytest.raises(Exception, match="not a regular file") as why:
        load(path).collect()
    assert str(segment) in said(why)


# ---- files cut off in the midst of a batch ----

SCANNING = """
import itertools, json, sys, pystore
from spark_ext import batch, options, plan, schema, stores
o = options.parse_read(json.loads(sys.argv[1]), streaming=False)
layout = schema.ColumnLayout(("queueOffset", "body"), (False, False), "json")
parts = plan.plan(o)
rows = 0
try:
    for i in itertools.count():
        print("scanning" if i == 1 else "", flush=True)
        for part in parts:
            for b in batch.read_part(part, layout, o):
                rows += b.num_rows
                bodies = b.column(1).to_pylist() if rows % 7 == 0 else []
                assert all(len(body) == 2000 and 0 not in body for body in bodies)
except Exception as e:
    print(type(e).__name__, e)
"""


def scanning(path: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCANNING, json.dumps({"path": str(path), **more})],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )


def cut_while_scanned(path: Path, after_s: float) -> tuple[int, str]:
    """Exit code and last words of a process that scans a store, of which a file is cut off."""
    with pystore.open(path, mappedFileSizeCommitLog=32 << 20) as store:
        store.put_many("t", [b"x" * 2000] * 40_000, queue=0)
    # One batch is most of a segment: the end comes in the midst of it.
    with scanning(path, batchRows="20000", batchBytes="30m") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["\n", "scanning\n"]
        time.sleep(after_s)
        with segments(path)[1].open("r+b") as segment:
            segment.truncate(1_000_100)  # in the midst of a page
        words = process.stdout.read().strip()
    return process.returncode, words


def test_a_worker_outlives_a_file_cut_off_in_mid_batch(tmp_path, seed):
    moments = random.Random(seed)
    for i in range(3):
        path = tmp_path / str(i)
        code, words = cut_while_scanned(path, moments.uniform(0, 0.3))
        assert code == 0
        assert words.startswith("DataLoss on host")
        assert f"{segments(path)[1]}" in words
        assert "was truncated" in words


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


@pytest.mark.parametrize("shift", [1, -1])
def test_a_record_that_no_queue_delivers_is_told(golden, shift):
    """The last one of a crashed store, whose unit was not written: no task meets it."""
    path = golden("killed")
    record = list(records(path))[-1]
    damage(path, record.physical + 20, struct.pack(">q", record.queue_offset + shift))
    with pytest.raises(DataLoss, match=rf"bytes {record.physical} to .*`pystore verify`"):
        plan(options(path))
    assert plan(options(path, failOnDataLoss="false"))
    damage(path, record.physical + 20, struct.pack(">q", record.queue_offset))
    assert plan(options(path))


def test_a_damaged_unit_does_not_make_a_sound_log_damaged(make):
    """A scan of the log is cut at records that units lead to."""
    path = make({"t": [3000]})
    o = options(path, scan="log", maxBytesPerPartition="20k")
    cuts = [part.log[0] for part in plan(o)]
    with pystore.Reader(path) as reader:
        at = [place for place, _, _ in reader.units("t", 0, 0, 3000)].index(cuts[1])
    unit = at * 20 % 6000
    with (path / f"consumequeue/t/0/{at * 20 - unit:020d}").open("r+b") as file:
        file.seek(unit)
        file.write(struct.pack(">q", cuts[1] + 10))
    assert sorted(rows(plan(o), o)) == list(range(3000))


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
