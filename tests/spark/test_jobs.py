"""Jobs over whole stores: `pystore spark NAME` in the session of the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import pystore
from pystore.cli import main
from pystore.pending import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC

pytestmark = pytest.mark.spark

Run = Callable[..., Any]


@pytest.fixture
def run_job(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    """run_job(name, store, *arguments, code=0): what the job writes as JSON; its error where it
    ends with another code."""

    def run(name: str, *arguments: object, code: int = 0) -> Any:
        capfd.readouterr()
        got = main(["spark", name, *map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        assert got == code, err
        if not out:
            assert "Traceback" not in err and "at org.apache" not in err
            return json.loads(err.splitlines()[-1])["error"]
        return json.loads(out)

    return run


# ---- transactions ----


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_fates_are_those_of_the_clients_ledger(run_job, golden, golden_ledger, name):
    """Message by message: what the producer said, or answered to the broker's check."""
    ledger = golden_ledger(name)
    said = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}
    late = {"late-commit": "committed", "late-rollback": "rolled back", "orphan": "open"}
    want, asked = {}, {}
    for line in ledger:
        if line["kind"] == "tx":
            word = re.sub(r"\d+$", "", line["keys"])
            want[line["tx_id"]] = said.get(line["state"]) or late[word]
        elif line["kind"] == "check":
            asked[line["tx_id"]] = asked.get(line["tx_id"], 0) + 1
    report = run_job("transactions", golden(name), "--max", 0)
    halves = {h["id"]: h for h in report["halves"]}
    assert {key: half["fate"] for key, half in halves.items()} == want
    assert len(report["halves"]) == len(want) == report["transactions"]["halves"]
    assert all(halves[key]["checks"] >= count for key, count in asked.items())
    assert report["committed more than once"] == []


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
    page, folder = tmp_path / "page.html", tmp_path / "halves"
    report = run_job(
        "transactions", store_path, "--orphan-after", 0, "--report", page, "--halves", folder
    )
    got = [(h["id"], h["fate"], h["checks"], h["commits"]) for h in report["halves"]]
    assert got == [
        ("b1", "open", 2, 0), ("a1", "committed", 0, 2), ("a2", "discarded", 0, 0),
        ("a3", "rolled back", 0, 0),
    ]  # fmt: skip
    assert [h["id"] for h in report["committed more than once"]] == ["a1"]
    assert [(o["group"], o["halves"]) for o in report["orphans"]] == [("g-b", 1)]
    assert list(folder.glob("*.parquet"))
    text = page.read_text("utf-8")
    assert text.count("<svg") == 3 and "g-b" in text
    assert not re.search(r"(src|href)=\"?(https?:)?//", text)


def test_a_store_without_transactions_is_an_empty_result(run_job, make):
    assert run_job("transactions", make({"t": [1]}), code=1)["transactions"] == {"halves": 0}


# ---- what all jobs share ----


def test_damage_is_told_by_its_place_and_can_be_skipped(run_job, make, tmp_path):
    path = make({HALF_TOPIC: [0], "t": [40]})
    with pystore.open(path) as store:
        store.put(HALF_TOPIC, b"x", queue=0, properties={"PGROUP": "g", "REAL_TOPIC": "t"})
    with pystore.Reader(path) as reader:
        place = reader.read("t", 0, 20)[0].physical_offset
    segment = path / "commitlog" / f"{0:020d}"
    raw = bytearray(segment.read_bytes())
    raw[place + 4 : place + 8] = b"\xff" * 4
    segment.write_bytes(raw)
    error = run_job("transactions", path, code=5)
    assert error["kind"] == "RecordDamaged" and str(place) in error["text"]
    notes = tmp_path / "notes"
    report = run_job("transactions", path, "--skip-damaged", notes, code=5)
    assert report["transactions"]["open"] == 1
    assert [d["first_at_byte"] for d in report["damage"]] == [place]


def test_what_is_no_store_is_told_before_spark_starts(run_job, tmp_path):
    error = run_job("transactions", tmp_path / "nowhere", code=3)
    assert error["kind"] == "NotAStore"
    assert run_job("transactions", tmp_path, "--spark", "x", code=2)["text"].startswith("--spark x")
