"""Jobs over whole stores: `pystore spark NAME` in the session of the folder."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from purecodec import MAGIC_V1, MAGIC_V2
from storeview import derived
from waiting import BOUND_S

import pystore
from pystore.cli import main
from pystore.format.names import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC
from pystore.repair.census import Census
from tests.spark.conftest import Run

pytestmark = pytest.mark.spark

# ---- transactions ----


def test_fates_are_those_of_the_clients_ledger(run_job, golden, golden_ledger):
    """Message by message: what the producer said, or answered to the broker's check."""
    ledger = golden_ledger("killed")
    said = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}
    late = {"late-commit": "committed", "late-rollback": "rolled back", "orphan": "open"}
    want, asked = {}, {}
    for line in ledger:
        if line["kind"] == "tx":
            word = re.sub(r"\d+$", "", line["keys"])
            want[line["tx_id"]] = said.get(line["state"]) or late[word]
        elif line["kind"] == "check":
            asked[line["tx_id"]] = asked.get(line["tx_id"], 0) + 1
    report = run_job("transactions", golden("killed"), "--max", 0)
    halves = {h["id"]: h for h in report["halves"]}
    assert {key: half["fate"] for key, half in halves.items()} == want
    assert len(report["halves"]) == len(want) == report["transactions"]["halves"]
    assert all(halves[key]["checks"] >= count for key, count in asked.items())
    assert report["committed more than once"] == []


@pytest.mark.long
def test_commits_that_came_twice_and_halves_that_nobody_ends(run_job, store_path, small, tmp_path):
    with pystore.open(store_path, **small) as store:

        def half(key: str, **more: str) -> Any:
            properties = {"PGROUP": f"g-{key[0]}", "REAL_TOPIC": "t", "UNIQ_KEY": key} | more
            return store.put(HALF_TOPIC, key, queue=0, properties=properties)

        def final(topic: str, place: int, sys_flag: int) -> None:
            store.put_message(
                topic=topic, queue=0, body=b"", sys_flag=sys_flag, prepared_transaction_offset=place
            )

        # The log's first byte names no half, so the first record is another.
        store.put("t", b"first", queue=0)
        twice, discarded, undone = half("a1"), half("a2"), half("a3")
        half("b1"), half("b1", TRANSACTION_CHECK_TIMES="2")
        for _ in range(2):
            final("t", twice.physical_offset, 8)
        final(DISCARD_TOPIC, discarded.physical_offset, 0)
        store.put(OP_TOPIC, f"{undone.queue_offset},", queue=0)
    page, folder, left = (tmp_path / name for name in ("page.html", "halves", "halves.writing"))
    left.mkdir()
    (left / "part-of-a-run-that-was-killed.parquet").write_bytes(b"PAR1")
    report = run_job(
        "transactions", store_path, "--orphan-after", 0, "--report", page, "--halves", folder
    )
    assert not left.exists()
    got = [(h["id"], h["fate"], h["checks"], h["commits"]) for h in report["halves"]]
    assert got == [
        ("b1", "open", 2, 0), ("a1", "committed", 0, 2), ("a2", "discarded", 0, 0),
        ("a3", "rolled back", 0, 0),
    ]  # fmt: skip
    assert [h["id"] for h in report["committed more than once"]] == ["a1"]
    assert [(o["group"], o["halves"]) for o in report["orphans"]] == [("g-b", 1)]
    assert sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet")) == 4
    again = run_job("transactions", store_path, "--halves", folder, code=2)
    assert "exists already" in again["text"]
    text = page.read_text("utf-8")
    assert text.count("<svg") == 3 and "g-b" in text
    assert not re.search(r"(src|href)=\"?(https?:)?//", text)


def test_what_settles_a_half_is_what_recovery_says(spark, store_path, small, rng):
    """Records of every kind of end, of halves and of others: csrc/transactions/outcomes.c."""
    from pystore.cli.verbs import Session
    from pystore.meta.pending import Decision
    from pystore.store.pending_log import settled
    from spark_ext.jobs.frame import Job
    from spark_ext.jobs.transactions import _finals

    with pystore.open(store_path, **small) as store:
        places = [store.put("t", b"first", queue=0).physical_offset]
        for i in range(400):
            topic = rng.choice(("t", HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC))
            properties = {"PGROUP": "g", "REAL_TOPIC": "t", "UNIQ_KEY": f"k{i}"}
            sys_flag = rng.choice((0, 1, 4, 8, 12)) | rng.choice((0, 0, 2))
            placed = store.put_message(
                topic=topic, queue=0, body=b"%d," % rng.randrange(i + 1), sys_flag=sys_flag,
                properties=properties, prepared_transaction_offset=rng.choice((0, *places)),
            )  # fmt: skip
            places.append(placed.physical_offset)
        store.refresh()
        want = sorted((place, how is Decision.COMMIT) for place, how in settled(store, 0))
    assert len(set(want)) > 50
    session: Any = Session(store_path, None, {}, None)  # type: ignore[arg-type]
    job = Job(session, "transactions", None, [])
    assert sorted((r.place, r.committed) for r in _finals(job).collect()) == want


def test_a_store_without_transactions_is_an_empty_result(run_job, make):
    assert run_job("transactions", make({"t": [1]}), code=1)["transactions"] == {"halves": 0}


# ---- topics and lag ----

HOUR = 3_600_000


def test_topics_have_sizes_tags_keys_and_hot_queues(run_job, store_path, small):
    sizes: dict[str, int] = {}
    with pystore.open(store_path, **small) as store:
        for i in range(60):
            queue = 0 if i < 48 else i % 3  # 52 of 60
            tags = None if i % 10 == 9 else ("a" if i % 3 else "b")
            placed = store.put("t", b"x" * 10, queue=queue, tags=tags, keys=[f"k{i % 7}", "all"])
            sizes["t"] = sizes.get("t", 0) + placed.size
        sizes["u"] = store.put("u", b"y", queue=0).size
    report = run_job("topics", store_path, "--tags", 1)
    topics = {row["topic"]: row for row in report["topics"]}
    assert {name: (row["messages"], row["bytes"]) for name, row in topics.items()} == {
        "t": (60, sizes["t"]), "u": (1, sizes["u"]),
    }  # fmt: skip
    assert (topics["t"]["with_keys"], topics["t"]["distinct_keys"]) == (60, 8)
    assert (topics["u"]["with_keys"], topics["u"]["distinct_keys"]) == (0, 0)
    assert [(r["topic"], r["tag"], r["messages"]) for r in report["tags"]] == [
        ("t", "a", 36), ("u", None, 1),
    ]  # fmt: skip
    assert sum(r["messages"] for r in report["by hour"]) == 61
    assert all(r["hour"] % HOUR == 0 for r in report["by hour"])
    assert [(r["topic"], r["queue"], r["messages"]) for r in report["hot queues"]] == [("t", 0, 52)]


def test_lag_is_what_lies_after_each_groups_offset(run_job, make, tmp_path):
    path = make({"t": [10, 5], "u": [4]})
    with pystore.open(path) as store:
        for group, topic, queue, offset in (
            ("g", "t", 0, 3), ("g", "t", 1, 5), ("h", "t", 0, 9), ("h", "u", 0, 0),
        ):  # fmt: skip
            store.metadata.offsets.commit(group, topic, queue, offset)
    page = tmp_path / "lag.html"
    report = run_job("lag", path, "--report", page)
    assert {(q["group"], q["topic"], q["queue"]): q["lag"] for q in report["queues"]} == {
        ("g", "t", 0): 7, ("g", "t", 1): 0, ("h", "t", 0): 1, ("h", "u", 0): 4,
    }  # fmt: skip
    assert [(g["group"], g["topic"], g["lag"]) for g in report["groups"]] == [
        ("g", "t", 7), ("h", "t", 1), ("h", "u", 4),
    ]  # fmt: skip
    waiting = {(r["group"], r["topic"]): r["messages"] for r in report["waiting by hour"]}
    assert waiting == {("g", "t"): 7, ("h", "t"): 1, ("h", "u"): 4}
    assert "<svg" in page.read_text("utf-8")
    assert run_job("lag", path, "--group", "none", code=1)["lag"] == {"groups": 0}


# ---- archive and restore ----


def dump(path: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Every record and every unit, as Apache's own store shows them."""
    capfd.readouterr()
    assert main(["dump", str(path), "--json"]) == 0
    return capfd.readouterr().out.splitlines()


def visible(archive: Path) -> list[str]:
    """What a reader of the archive sees."""
    return sorted(str(p.relative_to(archive)) for p in archive.glob("run=*/**/*.parquet"))


def test_a_restored_store_dumps_as_the_archived_one(run_job, golden, tmp_path, capfd):
    """The Java broker's: plain, batch, delayed, timed, transactional, compressed messages."""
    path, archive = golden("normal-exit"), tmp_path / "archive"
    made = run_job("archive", path, archive)["archive"]
    assert run_job("archive", path, archive)["archive"]["new_messages"] == 0
    small = ("--set", "mappedFileSizeConsumeQueue=6000", "--set", "maxHashSlotNum=512",
             "--set", "maxIndexNum=1024")  # fmt: skip
    plan = run_job("restore", tmp_path / "copy", archive, "--dry-run")["plan"]
    assert plan["messages"] == made["new_messages"] and not (tmp_path / "copy").exists()
    told = run_job("restore", tmp_path / "copy", archive, *small)["records"]
    assert told["records_in"] == told["records_out"] == made["new_messages"]
    log = Census.of((p, int(p.name)) for p in sorted((path / "commitlog").iterdir()))
    assert told["checksum_in"] == told["checksum_out"] == f"{log.checksum:016x}"
    assert dump(tmp_path / "copy", capfd) == dump(path, capfd)
    with pystore.Reader(path) as one, pystore.Reader(tmp_path / "copy") as other:
        assert other.metadata.offsets.all() == one.metadata.offsets.all()
        assert {t.name for t in one.metadata.topics.list()} <= set(other.metadata.topics.names())
    again = run_job("restore", tmp_path / "copy", archive, code=2)
    assert "exists already" in again["text"]


def test_runs_add_what_is_new_and_span_segments(
    run_job, store_path, small, tmp_path, capfd, spark, monkeypatch
):
    """The first run by Spark's tasks, the second by the driver, as one of few bytes is."""
    from spark_ext.jobs import archive as steps

    archive, copy = tmp_path / "archive", tmp_path / "copy"
    monkeypatch.setattr(steps, "_PART_BYTES", 4096)
    for turn in range(2):
        monkeypatch.setattr(steps, "_ALONE_BYTES", turn << 20)
        with pystore.open(store_path, **small | {"mappedFileSizeCommitLog": 4096}) as store:
            for i in range(40):
                store.put(f"%RETRY%t{i % 2}", bytes([turn]) * 200, queue=0, keys=f"k{i}")
        report = run_job("archive", store_path, archive)
        assert report["archive"]["new_messages"] == 40
    assert len(list(archive.glob("run=*"))) == 2
    by_tasks, alone = (len(list(run.glob("topic=*1/*/*"))) for run in sorted(archive.glob("run=*")))
    assert by_tasks > 1 == alone
    assert spark.read.parquet(str(archive)).groupBy("topic").count().count() == 2
    with pystore.open(store_path, **small | {"mappedFileSizeCommitLog": 4096}):
        assert run_job("restore", store_path, archive, code=4)["kind"] == "StoreLocked"
    sizes = (f"--set={name}={value}" for name, value in small.items() if "Log" not in name)
    run_job("restore", copy, archive, *sizes)
    assert dump(copy, capfd) == dump(store_path, capfd)


@pytest.mark.long
def test_a_topic_whose_name_is_too_long_for_a_directory(run_job, make, tmp_path, capfd):
    """Each '%' takes three bytes there; two topics differ in the last letter alone."""
    path, archive, copy = (
        make({"%" * 126 + end: [3] for end in "ab"}),
        *map(tmp_path.joinpath, "xy"),
    )
    run_job("archive", path, archive)
    assert len({name.split("/")[1] for name in visible(archive)}) == 2
    run_job("restore", copy, archive)
    assert dump(copy, capfd) == dump(path, capfd)
    same = run_job("reconcile", path, archive)
    assert same["reconcile"] == {"same_places": True, "same_contents": True}


#: A process that dies when all is written and nothing visible.
KILLED = """
import os, signal, sys
from pystore.cli import main
from spark_ext.jobs import archive
archive.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(["spark", "archive", *sys.argv[1:]])
"""


def test_a_run_that_fails_or_is_cut_off_shows_nothing(run_job, make, tmp_path, monkeypatch):
    """A full disk, then an end after the last write, before publication; the next run is whole."""
    from spark_ext.jobs import archive as steps

    path, archive, left = make({"t": [30]}), tmp_path / "archive", tmp_path / "left"

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device", str(archive))

    def cut_off(*_: object) -> None:
        shutil.copytree(archive, left)  # what a process that dies here leaves
        fails()

    for step, ends in (("_write", fails), ("publish", cut_off)):
        with monkeypatch.context() as patch:
            patch.setattr(steps, step, ends)
            text = run_job("archive", path, archive, code=6)["text"]
            assert text.startswith("No space left") and visible(archive) == []
    _is_whole_after_the_next_run(run_job, path, left)


def _is_whole_after_the_next_run(run_job: Run, path: Path, archive: Path) -> None:
    assert visible(archive) == [] and list((archive / "_staging").rglob("*.parquet"))
    report = run_job("archive", path, archive)
    assert report["archive"]["new_messages"] == 30 and len(visible(archive)) == 1


@pytest.mark.long
def test_a_run_that_is_killed_shows_nothing(run_job, make, tmp_path):
    """A process of its own, with SIGKILL."""
    path, archive = make({"t": [30]}), tmp_path / "archive"
    command = [sys.executable, "-c", KILLED, path, archive]
    done = subprocess.run(command, capture_output=True, timeout=BOUND_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    _is_whole_after_the_next_run(run_job, path, archive)


@pytest.mark.parametrize("how", ["a row less", "cut off"])
def test_a_parquet_file_that_differs_is_never_published(run_job, make, tmp_path, monkeypatch, how):

    from spark_ext.jobs import parquet

    read = parquet.read_sums

    def read_another(path: Path) -> parquet.Sums | None:
        if how == "cut off":
            os.truncate(path, path.stat().st_size // 2)
        else:
            pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
        return read(path)

    monkeypatch.setattr(parquet, "read_sums", read_another)
    error = run_job("archive", make({"t": [30]}), tmp_path / "archive", code=6)
    assert "topic=t" in error["text"] and visible(tmp_path / "archive") == []


def test_an_archive_of_another_log_is_refused(run_job, make, tmp_path):
    archive = tmp_path / "archive"
    run_job("archive", make({"t": [30]}, tmp_path / "a"), archive)
    error = run_job("archive", make({"u": [90]}, tmp_path / "b"), archive, code=2)
    assert "of another log" in error["text"]


# ---- delays and reconcile ----


def test_deliveries_of_javas_broker_are_paired_with_what_was_asked(run_job, golden, golden_records):
    """By the records themselves: each delivered message is one whose id was delayed."""
    asked, came = {}, {}
    for m in golden_records("normal-exit"):
        if m["at"] == "msg" and m["topic"] in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
            kind = f"level {m['queue'] + 1:02d}" if m["topic"][0] == "S" else "timer"
            asked.setdefault(kind, []).append((m["props"]["REAL_TOPIC"], m["props"]["UNIQ_KEY"]))
        elif m["at"] == "msg":
            key = (m["topic"], m["props"].get("UNIQ_KEY"))
            came[key] = came.get(key, 0) + 1
    want = {
        kind: (len(keys), sum(min(keys.count(k), came.get(k, 0)) for k in set(keys)))
        for kind, keys in asked.items()
    }
    report = run_job("delays", golden("normal-exit"))
    got = {r["kind"]: (r["asked"], r["delivered"]) for r in report["by kind"]}
    assert got == want and sum(n for _, n in got.values()) > 4
    assert all(
        r["early"] == 0 and 0 <= r["p50_s"] < 60 for r in report["by kind"] if r["delivered"]
    )


@pytest.mark.long
def test_what_one_of_two_logs_has_is_named(run_job, make, tmp_path):
    a, b = make({"t": [20], "u": [5]}, tmp_path / "a"), make({"t": [20], "u": [3]}, tmp_path / "b")
    with pystore.open(b) as store:
        store.put("t", b"t-0-7", queue=0)  # once more
        store.put("new", b"x", queue=0)
    report = run_job("reconcile", a, b, code=1)
    assert [tuple(r.values()) for r in report["by content"]] == [
        ("new", 0, 0, 1), ("t", 20, 0, 1), ("u", 3, 2, 0),
    ]  # fmt: skip
    assert {(r["topic"], r["offset"]) for r in report["differing contents"]} == {
        ("new", 0), ("t", 7), ("u", 3), ("u", 4),
    }  # fmt: skip
    assert run_job("reconcile", a, b, "--topic", "t", code=1)["by place"][0]["only_in_b"] == 1


# ---- verify and rebuild ----


def verified(path: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What one process says."""
    capfd.readouterr()
    main(["verify", str(path), "--json", *arguments])
    return json.loads(capfd.readouterr().out)


def by_text(findings: list[Any]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in findings)


def same_audit(one: Any, other: Any) -> bool:
    """Facts, but for the time that each took."""
    names = set(one["audit"]) & set(other["audit"]) - {"seconds"}
    assert len(names) > 12
    return all(one["audit"][name] == other["audit"][name] for name in names)


def spoil(path: Path, seed: int) -> None:
    """A store with damage in the log, a queue and the index. The log's is a wrong magic code of a
    record that is not the last: most other bytes of a record have no checksum, and what is cut at
    the end is not damage."""
    rng = random.Random(seed)
    queues = sorted(path.glob("consumequeue/*/*/*"))
    log = min(path.glob("commitlog/*"))
    data, starts, at = log.read_bytes(), [], 0
    while int.from_bytes(data[at + 4 : at + 8], "big") in (MAGIC_V1, MAGIC_V2):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    index = rng.choice(sorted(path.glob("index/*")))
    for file, place, size in (
        (log, rng.choice(starts[:-1]) + 4, 4),
        (index, rng.randrange(4000, 20_000), 64),
    ):
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(rng.randbytes(size))
    rng.choice(queues).write_bytes(b"")


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_executors_find_what_one_process_finds(
    run_job, golden, name, seed, tmp_path, capfd, monkeypatch
):
    """The driver reads the queues of one store, tasks those of the other."""
    from spark_ext.jobs import spread

    monkeypatch.setattr(spread, "_ALONE_BYTES", 0 if name == "killed" else 1 << 30)
    path, page = golden(name), tmp_path / "page.html"
    assert same_audit(run_job("verify", path, "--deep"), verified(path, capfd, "--deep"))
    spoil(path, seed)
    spread, alone = run_job("verify", path, "--report", page, code=5), verified(path, capfd)
    assert same_audit(spread, alone)
    assert by_text([{k: f[k] for k in spread["findings"][0]} for f in alone["findings"]]) == (
        by_text(spread["findings"])
    )
    assert "<svg" in page.read_text("utf-8")
    error = run_job("rebuild", path, code=5)
    assert error["kind"] == "RecordDamaged" and "pystore repair" in error["next_step"]


def test_rebuilt_files_are_those_of_one_process(run_job, golden, capfd, tmp_path, monkeypatch):
    """Queues and index that are gone, and damaged ones, made by tasks; the old ones can be put
    back."""
    repair = importlib.import_module("pystore.repair.repair")
    in_parts, derive = list[bool](), repair.derive
    monkeypatch.setattr(
        repair, "derive", lambda *given: in_parts.append(derive(*given)) or in_parts[-1]
    )
    path = golden("normal-exit")
    for file in (*path.glob("consumequeue/*/0/*"), *path.glob("index/*")):
        file.write_bytes(file.read_bytes()[:-7] + b"damaged")
    alone = tmp_path / "alone"
    shutil.copytree(path, alone)
    before = derived(path)
    assert run_job("rebuild", path, "--dry-run")["actions"] and derived(path) == before
    report = run_job("rebuild", path)
    assert report["result"]["sound"] and report["audit"]["sound"]
    assert main(["rebuild", str(alone)]) == 0
    made = derived(path)
    assert made == derived(alone) != before
    assert run_job("rebuild", path)["result"]["sound"] and derived(path) == made
    assert in_parts == [True] * 3
    assert main(["repair", str(path), "--undo"]) == main(["repair", str(path), "--undo"]) == 0
    assert derived(path) == before


#: A process that dies when the derived files are made and the first of them is in place.
KILLED_REBUILD = """
import os, signal, sys
from pystore.cli import main
from pystore.repair import journal
swap = journal.Journal.swap_in
def swap_and_die(*given):
    swap(*given)
    os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.swap_in = swap_and_die
main(["spark", "rebuild", *sys.argv[1:]])
"""


@pytest.mark.long  # of one process: tests/audit/test_repair.py
def test_a_rebuild_that_was_killed_is_finished_by_the_next_one(run_job, make, tmp_path):
    path = make({"t": [30, 20]})
    want = derived(path)
    for file in path.glob("consumequeue/t/*/*"):
        file.write_bytes(bytes(6000))
    command = [sys.executable, "-c", KILLED_REBUILD, path]
    done = subprocess.run(command, capture_output=True, timeout=BOUND_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    report = run_job("rebuild", path)
    assert report["result"]["sound"] and report["result"]["finished_before"].startswith("repair-")
    made = derived(path)
    assert {n: b for n, b in made.items() if n[0] != "i" and n != "checkpoint"} == {
        n: b for n, b in want.items() if n[0] != "i" and n != "checkpoint"
    }


def test_a_store_in_use_is_verified_and_never_written(run_job, make):
    path = make({"t": [30]})
    with pystore.open(path):
        assert run_job("verify", path)["audit"]["state"] == "live"
        for more in ((), ("--dry-run",)):
            assert run_job("rebuild", path, *more, code=4)["kind"] == "StoreLocked"
    assert not list(path.glob("repair-*"))


# ---- what all jobs share ----


def test_a_damaged_record_can_be_skipped_and_its_place_is_noted(run_job, make, tmp_path):
    path = make({HALF_TOPIC: [0], "t": [40]})
    with pystore.open(path) as store:
        store.put(HALF_TOPIC, b"x", queue=0, properties={"PGROUP": "g", "REAL_TOPIC": "t"})
    with pystore.Reader(path) as reader:
        place = reader.read("t", 0, 20)[0].physical_offset
    segment = path / "commitlog" / f"{0:020d}"
    raw = bytearray(segment.read_bytes())
    raw[place + 4 : place + 8] = b"\xff" * 4
    segment.write_bytes(raw)
    notes = tmp_path / "notes"
    report = run_job("transactions", path, "--skip-damaged", notes, code=5)
    assert report["transactions"]["open"] == 1
    assert [d["first_at_byte"] for d in report["damage"]] == [place]


def test_what_is_no_store_is_told_before_spark_starts(run_job, tmp_path):
    error = run_job("transactions", tmp_path / "nowhere", code=3)
    assert error["kind"] == "NotAStore"
    refused = run_job("transactions", tmp_path, "--spark", "x", code=2)
    assert refused["text"].startswith("--spark 'x' is not NAME=VALUE")
