"""``pystore cold``, and the verbs of stores on a tier."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cli import main


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    """say(words...): what a verb prints as JSON, and its exit code."""

    def run(*words: object) -> tuple[Any, int]:
        code = main([*map(str, words), "--json"])
        out = capsys.readouterr().out
        lines = [json.loads(line) for line in out.splitlines()]
        return (lines[0] if len(lines) == 1 else lines), code

    return run


def test_a_store_goes_out_and_comes_back(filled: Path, root: str, say: Any, tmp_path: Path):
    pushed, code = say("cold", "push", filled, root, "--broker", "b1", "--segment", 8192)
    assert (pushed["pushed"]["messages"], code) == (900, 0)
    assert say("cold", "push", filled, root, "--broker", "b1")[1] == 1
    listed, _ = say("cold", "ls", root)
    assert (listed["tier"]["broker"], listed["tier"]["messages"]) == ("b1", 900)
    assert say("info", root)[0] == listed
    found, code = say("query", root, "orders", "order-4")
    assert (found["msg_id"], found["queue_offset"], code) == (found["offset_msg_id"], 0, 0)
    assert len(say("tail", root, "orders", "--from", "earliest", "-n", 20)[0]) == 20
    assert say("tail", root, "orders", "--lite", "session")[1] == 1  # it has no light queues
    exported = tmp_path / "all.jsonl"
    assert say("export", root, "--messages", exported)[0]["exported"]["count"] == 900
    assert say("cold", "fetch", root, tmp_path / "copy")[0]["fetched"]["messages"] == 900
    audit, code = say("cold", "verify", tmp_path / "copy")
    assert (audit["tier"]["sound"], audit["tier"]["messages"], code) == (True, 900, 0)
    made, _ = say("cold", "restore", root, tmp_path / "made", "--segment", 1 << 20)
    assert made["restored"]["messages"] == 900
    assert say("cold", "rm", root, "--topic", "orders")[1] == 0
    assert say("cold", "ls", root)[0]["tier"]["messages"] == 450
    assert say("cold", "rm", root, "--orphans")[1] == 1  # none is a day old


def test_damage_is_exit_code_5(filled: Path, tmp_path: Path, say: Any):
    say("cold", "push", filled, tmp_path / "cold", "--broker", "b1")
    segment = next((tmp_path / "cold").rglob("orders/0/COMMIT_LOG/*"))
    segment.write_bytes(segment.read_bytes()[:-1])
    for words in ("verify",), ("verify", "--quick"):
        audit, code = say("cold", words[0], tmp_path / "cold", *words[1:])
        assert (len(audit["wrong"]), code) == (1, 5)


def test_a_wrong_address_is_told_what_lies_there(
    filled: Path, root: str, capsys: pytest.CaptureFixture[str]
):
    main(["cold", "push", str(filled), f"{root}/cold", "--broker", "b1"])
    capsys.readouterr()
    for verb in "ls", "verify":
        assert main(["cold", verb, root]) == 3
        assert capsys.readouterr().err.rstrip().endswith("below this one lie: cold")
    assert main(["cold", "ls", f"{root}/gone"]) == 3


def test_what_a_service_refuses_is_told_without_its_page(
    s3: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["cold", "ls", "s3://no-such-bucket/cold"]) == 6
    said = capsys.readouterr().err
    assert " 404 Not Found: s3://no-such-bucket/cold" in said and "<" not in said


def test_names_and_options_that_make_no_sense_are_refused(filled: Path, tmp_path: Path, say: Any):
    cold = tmp_path / "cold"
    assert say("cold", "push", filled, cold)[1] == 2  # no name of a broker
    for broker in ("b1", "b2"):
        say("cold", "push", filled, cold, "--broker", broker)
    assert [b["broker"] for b in say("cold", "ls", cold)[0]["brokers"]] == ["b1", "b2"]
    assert say("info", cold)[1] == 3  # which of the two?
    one = next(cold.glob("*/b1"))
    assert say("info", one)[1] == 0
    assert say("cold", "rm", one)[1] == 2
    assert say("cold", "rm", one, "--orphans", "--queue", 1)[1] == 2


def test_a_damaged_tier_becomes_a_store_of_what_is_left(filled: Path, tmp_path: Path, say: Any):
    cold = tmp_path / "cold"
    say("cold", "push", filled, cold, "--broker", "b1", "--segment", 8192)
    first = next(cold.rglob("orders/0/COMMIT_LOG/*00000000"))
    data = bytearray(first.read_bytes())
    data[60] ^= 1  # one record
    first.write_bytes(data)
    next(cold.rglob("rmq_sys_MANIFEST/orders/2/*")).write_bytes(b"?")  # and a queue's manifest
    made, code = say("salvage", cold, tmp_path / "made")
    assert code == 5
    assert made["lost"] == [{"topic": "orders", "queue": 0, "from": 0, "to": 1}]
    assert made["salvaged"] == {"store": str(tmp_path / "made"), "messages": 899, "lost": 1}
    assert say("verify", tmp_path / "made")[1] == 0
    with pystore.Reader(tmp_path / "made") as reader, pystore.Reader(filled) as store:
        for queue in (1, 2):
            wanted = [bytes(m.body) for m in store.read("orders", queue, 0, max_messages=999)]
            assert wanted == [
                bytes(m.body) for m in reader.read("orders", queue, 0, max_messages=999)
            ]


def test_queues_that_begin_late_come_back_whole(filled: Path, tmp_path: Path, say: Any):
    say("cold", "push", filled, tmp_path / "cold", "--broker", "b1", "--segment", 8192)
    with pystore.Reader(tmp_path / "cold") as reader:
        first = next(reader.tier.extents("orders", 0, 0, 1))
    before = first.time_max + 1
    moment = datetime.fromtimestamp(before / 1000, UTC).isoformat()
    assert say("cold", "rm", tmp_path / "cold", "--topic", "orders", "--before", moment)[1] == 0
    assert (
        say("cold", "restore", tmp_path / "cold", tmp_path / "made", "--segment", 1 << 20)[1] == 0
    )
    assert say("verify", tmp_path / "made")[1] == 0
    with pystore.Reader(tmp_path / "made") as made, pystore.Reader(tmp_path / "cold") as cold:
        for queue in cold.queues():
            assert made.range(queue.topic, queue.queue) == (queue.min_offset, queue.max_offset)


def test_verify_of_a_store_knows_a_tier(filled: Path, root: str, tmp_path: Path, say: Any):
    say("cold", "push", filled, root, "--broker", "b1")
    audit, code = say("verify", root)
    assert (audit["tier"]["sound"], audit["tier"]["messages"], code) == (True, 900, 0)
    assert audit == say("cold", "verify", root)[0]
