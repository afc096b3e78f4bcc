"""Jobs that are run twice, killed, held up by a lock, a full disk or damage: what they leave, and
what the next run makes of it. Executors that are lost: test_cluster.py."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from storeview import derived
from waiting import BOUND_S

import pystore
from pystore.format.names import HALF_TOPIC
from spark_ext.jobs.frame import Job
from spark_ext.jobs.runs import alone
from tests.spark.conftest import SEGMENT
from tests.spark.test_jobs import dump, visible

pytestmark = pytest.mark.spark

#: All jobs; those of the second line change nothing.
WRITERS = ("archive", "restore", "rebuild")
READERS = ("transactions", "topics", "lag", "delays", "reconcile", "verify")
JOBS = WRITERS + READERS
#: What differs from run to run: times, and names that hold them.
_BY_RUN = {"seconds", "side_folder", "store", "path"}


def words(name: str, store: Path, out: Path) -> list[str]:
    """The arguments of a job. out: a directory; what a job writes is OUT/NAME."""
    made = str(out / name)
    more: dict[str, list[str]] = {
        "archive": [made], "reconcile": [str(store)], "transactions": ["--halves", made],
        "restore": [str(out / "source"), "--set", "mappedFileSizeConsumeQueue=6000",
                    "--set", "maxHashSlotNum=512", "--set", "maxIndexNum=1024"],
    }  # fmt: skip
    return [made if name == "restore" else str(store), *more.get(name, [])]


def told(report: Any) -> Any:
    """A report without what differs from run to run."""
    if isinstance(report, list):
        return [told(each) for each in report]
    if isinstance(report, dict):
        return {name: told(each) for name, each in report.items() if name not in _BY_RUN}
    return report


def tree(path: Path) -> dict[str, bytes]:
    """Every file of a store, but its lock."""
    files = (
        p for p in sorted(path.rglob("*")) if p.is_file() and p.name not in ("lock", "lock.mdb")
    )
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


# ---- twice, and killed ----


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_the_second_run_says_what_the_first_said(run_job, busy, store_path, tmp_path, name):
    busy(store_path)
    before = tree(store_path)
    one, two = (run_job(name, *words(name, store_path, tmp_path / each)) for each in ("one", "two"))
    assert told(one) == told(two) and len(told(one)) > 0
    assert tree(store_path) == before


#: A process that dies with the first task of the step of that name that has something to tell
#: (dying.py), or instead of calling a function.
KILLED = """
import contextlib, importlib, os, pathlib, signal, sys
from pyspark.sql.classic.dataframe import DataFrame
from pystore.cli import main
from spark_ext.jobs import archive, spread
from spark_ext.jobs.frame import Job

# Each step reads the store, by Python: the virtual machine alone does not die.
DataFrame.persist = lambda frame, *_: frame
step, working = sys.argv[1], Job.working
archive._ALONE_BYTES = spread._ALONE_BYTES = 0
os.environ["DYING_GROUP"] = str(os.getpgid(0))

def die(*_, **__):
    os.killpg(0, signal.SIGKILL)

@contextlib.contextmanager
def watched(self, label):
    with working(self, label):
        if label == step:
            pathlib.Path(os.environ["DYING_STEP"]).touch()
        yield

if step.startswith("spark_ext."):
    module, _, function = step.rpartition(".")
    setattr(importlib.import_module(module), function, die)
Job.working = watched
main(["spark", *sys.argv[2:], "--spark", "spark.python.daemon.module=tests.spark.dying"])
"""


def killed(step: str, *job: str) -> None:
    """Runs a job in a process group of its own, which is killed in that step."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, step, *job],
            capture_output=True, timeout=BOUND_S, check=False, start_new_session=True,
            env=os.environ | {"DYING_STEP": f"{folder}/step"},
        )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("transactions", "reading transactions"),
        ("topics", "reading topics"),
        ("lag", "reading what waits"),
        ("delays", "pairing deliveries"),
        ("reconcile", "comparing places"),
        ("verify", "checking the log"),
    ],
)
def test_a_reader_that_was_killed_changed_nothing(run_job, busy, store_path, tmp_path, name, step):
    given = words(name, busy(store_path), tmp_path)
    before = tree(store_path)
    killed(step, name, *given)
    assert tree(store_path) == before
    assert told(run_job(name, *given)) == told(
        run_job(name, *words(name, store_path, tmp_path / "beside"))
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    ["writing Parquet", "spark_ext.jobs.archive.make_folders", "spark_ext.jobs.archive.publish"],
)
def test_an_archive_that_was_killed_shows_nothing(run_job, busy, store_path, tmp_path, step):
    given = words("archive", busy(store_path), tmp_path)
    killed(step, "archive", *given)
    assert visible(tmp_path / "archive") == []
    run_job("archive", *given)
    assert run_job("reconcile", store_path, tmp_path / "archive")["reconcile"]["same_places"]


@pytest.mark.long
@pytest.mark.parametrize("step", ["writing the halves", "spark_ext.jobs.runs.place_folder"])
def test_halves_that_were_being_written(run_job, busy, store_path, tmp_path, spark, step):
    given = words("transactions", busy(store_path), tmp_path)
    killed(step, "transactions", *given)
    folder = tmp_path / "transactions"
    assert not folder.exists()
    count = run_job("transactions", *given)["transactions"]["halves"]
    assert spark.read.parquet(str(folder)).count() == count == 30
    assert not list(tmp_path.glob("*.writing"))


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        "writing segments",
        "spark_ext.jobs.restore._finish",
        "spark_ext.jobs.restore._verify",
        "spark_ext.jobs.runs.place_folder",
    ],
)
def test_a_restore_that_was_killed(run_job, busy, store_path, tmp_path, capfd, step):
    busy(store_path)
    run_job("archive", store_path, tmp_path / "source")
    given = words("restore", store_path, tmp_path)
    killed(step, "restore", *given)
    assert not (tmp_path / "restore").exists()
    run_job("restore", *given)
    assert dump(tmp_path / "restore", capfd) == dump(store_path, capfd)
    assert not list(tmp_path.glob("*.restoring"))


@pytest.mark.long
@pytest.mark.parametrize(
    "step", ["reading the queues", "checking the log", "making queues and index"]
)
def test_a_rebuild_that_was_killed_at_its_tasks(run_job, busy, store_path, tmp_path, step):
    """It had not begun to write, or writes what the next one writes."""
    busy(store_path)
    for file in store_path.glob("index/*"):
        file.unlink()
    beside = tmp_path / "beside"
    shutil.copytree(store_path, beside)
    killed(step, "rebuild", str(store_path))
    assert run_job("rebuild", store_path)["result"]["sound"]
    assert run_job("rebuild", beside)["result"]["sound"]
    assert derived(store_path) == derived(beside)


# ---- locks ----


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("archive", "archive"), ("transactions", "transactions.writing"),
        pytest.param("restore", "restore.restoring", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_two_jobs_never_write_at_one_place(
    run_job, busy, store_path, tmp_path, name, place, monkeypatch
):
    """archive, restore and --halves beside another one that is at work there: they have not begun
    when they find it."""
    busy(store_path)
    (tmp_path / "one").mkdir()
    if name == "restore":
        run_job("archive", store_path, tmp_path / "one" / "source")
    monkeypatch.setattr(Job, "working", pytest.fail)
    with alone(tmp_path / "one" / place, "_lock"):
        given = words(name, store_path, tmp_path / "one")
        assert run_job(name, *given, code=4)["kind"] == "StoreLocked"


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_a_store_that_is_held_is_read_and_not_written(run_job, busy, store_path, tmp_path, name):
    given = words(name, busy(store_path), tmp_path)
    closed = told(run_job(name, *words(name, store_path, tmp_path / "closed")))
    with pystore.open(store_path, mappedFileSizeCommitLog=SEGMENT):
        held = told(run_job(name, *given))
    assert {n: b for n, b in held.items() if n != "audit"} == {
        n: b for n, b in closed.items() if n != "audit"
    }


# ---- damage ----


def place_of(path: Path) -> int:
    """The byte of the log at which a record of the second segment begins."""
    with pystore.Reader(path) as reader:
        places = [
            m.physical_offset
            for start in range(0, 150, 10)
            for m in reader.read("t", 0, start)
            if SEGMENT + SEGMENT // 4 < m.physical_offset < SEGMENT + SEGMENT // 2
        ]
    return places[0]


def _long(names: tuple[str, ...], *short: str) -> list[Any]:
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", _long((*READERS[:-1], "archive"), "delays", "archive"))
def test_a_damaged_record_is_told_by_its_place(run_job, busy, store_path, tmp_path, name):
    place = place_of(busy(store_path))
    with (store_path / "commitlog" / f"{SEGMENT:020d}").open("r+b") as log:
        log.seek(place - SEGMENT + 4)
        log.write(b"\xff" * 4)
    error = run_job(name, *words(name, store_path, tmp_path), code=5)
    assert error["kind"] == "RecordDamaged" and f"offset {place} " in error["text"]
    assert not (tmp_path / "transactions").exists() and visible(tmp_path / "archive") == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["gone", "cut off"])
@pytest.mark.parametrize("name", (*READERS[:-1], "archive", "rebuild"))
def test_a_damaged_segment_is_told_by_its_name(run_job, busy, store_path, tmp_path, name, how):
    segment = busy(store_path) / "commitlog" / f"{SEGMENT:020d}"
    if how == "gone":
        segment.unlink()
    else:
        os.truncate(segment, SEGMENT // 2)
    error = run_job(name, *words(name, store_path, tmp_path), code=5)
    # The file itself, or the one that does not follow any more.
    assert _names(error, segment), error


def _bodies_in(parquet: Path) -> int:
    """Returns where the first page of bodies begins in a file."""
    group = pq.read_metadata(parquet).row_group(0)
    columns = (group.column(i) for i in range(group.num_columns))
    return next(c.data_page_offset for c in columns if c.path_in_schema == "body")


def _names(error: dict[str, Any], segment: Path) -> bool:
    after = f"{2 * SEGMENT:020d}"
    return segment.name in error["text"] or after in error["text"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["gone", "cut off", "spoiled"])
def test_a_damaged_archive_makes_no_store(run_job, busy, store_path, tmp_path, how):
    run_job("archive", busy(store_path), tmp_path / "source")
    largest = max((tmp_path / "source").rglob("*.parquet"), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    if how == "gone":
        largest.unlink()
    elif how == "cut off":
        os.truncate(largest, len(data) // 2)
    else:
        at = _bodies_in(largest)
        data[at : at + 64] = bytes(b ^ 0xFF for b in data[at : at + 64])
        largest.write_bytes(data)
    given = words("restore", store_path, tmp_path)
    error = run_job("restore", *given, code=6 if how != "gone" else 5)
    assert error["text"] and not (tmp_path / "restore").exists()


# ---- a full disk ----

#: A job on a small disk, and again when the disk is larger. In a mount namespace of its own:
#: nothing is left mounted, however it ends.
FULL = """
import subprocess, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pystore.cli import main
from spark_ext.jobs import archive

folder, size, how, *job = sys.argv[1:]
if how == "in tasks":
    archive._ALONE_BYTES = 0
mount = ["mount", "-t", "tmpfs", "-o"]
subprocess.run([*mount, f"size={size}", "tmpfs", folder], check=True)
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder.config("spark.log.level", "OFF").getOrCreate()
first = main(["spark", *job, "--json"])
print("left", sorted(p.name for p in Path(folder).iterdir()), flush=True)
print("runs", len(list(Path(folder).glob("*/run=*"))), flush=True)
subprocess.run([*mount, "remount,size=256m", "tmpfs", folder], check=True)
print("codes", first, main(["spark", *job, "--json"]), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "how"),
    [("archive", "in tasks"), ("archive", "in the driver"), ("restore", ""), ("transactions", "")],
)
def test_a_disk_that_is_full_is_named_and_shows_no_half_of_anything(
    run_job, store_path, tmp_path, name, how
):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a mount namespace")
    rng = random.Random(1)
    with pystore.open(store_path, mappedFileSizeCommitLog=1 << 22) as store:
        for i in range(200):
            more = {"REAL_TOPIC": "t", "PGROUP": "g", "UNIQ_KEY": rng.randbytes(4000).hex()}
            store.put(f"t{i % 3}", rng.randbytes(20_000), queue=0)
            store.put(HALF_TOPIC, b"x", queue=0, properties=more)
    run_job("archive", store_path, tmp_path / "source")
    disk = tmp_path / "disk"
    disk.mkdir()
    given = words(name, store_path, disk)
    given = [str(tmp_path / "source") if word == str(disk / "source") else word for word in given]
    size = {"archive": "3m", "restore": "3m", "transactions": "600k"}[name]
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", FULL, disk, size, how, name, *given],
        capture_output=True, text=True, timeout=3 * BOUND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    error = json.loads(next(x for x in done.stderr.splitlines() if x.startswith('{"error"')))
    assert error["error"]["kind"] == "DiskFull" and str(disk / name) in error["error"]["text"]
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    (left,) = [line for line in lines if line.startswith("left")]
    assert name == "archive" or f"'{name}'" not in left
    assert "runs 0" in lines and "codes 6 0" in lines


def test_a_full_disk_is_named_however_spark_says_it(monkeypatch, run_job, make, tmp_path):
    from spark_ext.jobs import archive as steps

    archive = tmp_path / "archive"

    def fails(j: Any, *_: object) -> None:
        j.spark.sql("SELECT raise_error('java.io.IOException: No space left on device')").collect()

    monkeypatch.setattr(steps, "_write", fails)
    error = run_job("archive", make({"t": [3]}), archive, code=6)
    assert error["kind"] == "DiskFull" and str(archive) in error["text"]
    assert "spark.local.dir" in error["next_step"] and visible(archive) == []


def test_what_cannot_be_written_is_refused_before_the_work(run_job, make, tmp_path):
    store, page, file = make({"t": [1]}), tmp_path / "nowhere" / "page.html", tmp_path / "file"
    file.touch()
    for words, why in (
        (("--report", page), "no such directory"), (("--report", tmp_path), "is not a file"),
        (("--skip-damaged", file), "is not a directory"),
    ):  # fmt: skip
        assert why in run_job("topics", store, *words, code=2)["text"]


def test_nothing_is_written_into_the_store_itself(run_job, make):
    """It would not open any more."""
    store = make({"t": [1]})
    before, log = tree(store), store / "commitlog"
    for words in (
        ("archive", store, log), ("archive", store, store / "archive"),
        ("transactions", store, "--halves", log / "halves"),
        ("topics", store, "--report", log / "page.html"),
        ("topics", store, "--skip-damaged", log / "notes"),
    ):  # fmt: skip
        assert "lies in the store" in run_job(*words, code=2)["text"]
    assert tree(store) == before


def test_an_archive_with_files_of_others_makes_no_store(run_job, make, tmp_path):
    import pyarrow as pa

    archive, target = tmp_path / "archive", tmp_path / "restored"
    run_job("archive", make({"t": [3]}), archive)
    (facts,) = archive.glob("run=*/_run.json")
    right = json.loads(facts.read_text())
    for wrong in (
        {"start": -5}, {"end": "x"}, {"segment_size": 0}, {"witness": ["a"]}, {"witness": 5},
        {"topics": [1]}, {"topics": {"t": 5}}, {"messages": None},
    ):  # fmt: skip
        facts.write_text(json.dumps(right | wrong))
        for job, *words in (("restore", target, archive), ("archive", tmp_path / "store", archive)):
            assert "is not a run of an archive" in run_job(job, *words, code=2)["text"], wrong
    facts.write_text(json.dumps(right))
    (file,) = archive.rglob("*.parquet")
    pq.write_table(pa.table({"x": [1]}), file.with_name("another.parquet"))
    assert "not of an archive" in run_job("restore", target, archive, code=6)["text"]
    assert not target.exists()


def test_what_a_machine_of_java_says_first_is_told():
    from spark_ext.jobs.frame import _first_line

    said = "An error occurred while calling o1.collect.\n: java.lang.Bad: why\n\tat a.b(C.java)"
    assert _first_line(RuntimeError(said)) == "java.lang.Bad: why"
    assert _first_line(RuntimeError("")) == "RuntimeError"
