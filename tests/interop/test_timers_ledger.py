"""The same program of timers, odd ones and recalls before Apache's broker and before ours: what was
answered and what arrived agree line by line, but for the differences that docs/internals/timers.md
names."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import launch
import pytest

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

#: What a run chose by itself: times, ids, addresses, queues.
OF_A_RUN = (
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"[0-9A-F]{32,56}"), "ID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
)
BY_CHANCE = {"KEYS", "MAX_OFFSET", "REAL_QID"}
#: What a message brings along that waited. On a busy machine one of some milliseconds is due before
#: its broker looks at it, and does not wait.
WAITED = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_OUT_MS", "REAL_TOPIC"}
SOON_MS = 200
OVERFLOW = ("TIMER_DELAY_SEC", str(2**63 - 1))
#: The odd ones reach to 30 s ahead, and nothing else is further away.
CONSUME_S = 60


def same_in_all(value: object) -> str:
    text = str(value)
    for pattern, word in OF_A_RUN:
        text = pattern.sub(word, text)
    return text


def name_of(key: str | None) -> str:
    """The name in a key of the program, without the time that was asked for."""
    return re.sub(r"-\d+$", "", key or "")


def properties(given: dict[str, str], of_an_arrival: bool) -> tuple[tuple[str, str], ...]:
    soon = of_an_arrival and int(given.get("TIMER_DELAY_MS", SOON_MS)) < SOON_MS
    left_out = BY_CHANCE | WAITED if soon else BY_CHANCE
    return tuple(sorted((k, same_in_all(v)) for k, v in given.items() if k not in left_out))


def answers(lines: list[dict]) -> dict[tuple, tuple]:
    """Each send and recall of a run, in order: what was asked, and what the broker made of it. A
    refusal of ours may go on after the words of Apache's."""
    found: dict[tuple, tuple] = {}
    for line in lines:
        asked = (line["kind"], same_in_all(line["key"]), properties(line.get("set", {}), False))
        nth = sum(asked == other[:3] for other in found)
        ok = line.get("status") or ("msg_id" in line and "recalled")
        remark = same_in_all(line.get("remark") or line.get("error") or "").split(": ")[0]
        found[(*asked, nth)] = ok, line.get("code"), remark, bool(line.get("handle"))
    return found


def arrivals(lines: list[dict]) -> Counter[tuple]:
    return Counter(
        (name_of(line["key"]), line["reconsume"], line["sys_flag"], properties(line["props"], True))
        for line in lines
        if line["kind"] == "arrival"
    )


def facts(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def ledger(make: str, folder) -> tuple[list[dict], list[dict]]:
    """What the program was answered and what its consumer got."""
    program = [str(launch.SCRIPT), "timers"]
    with launch.running(make, folder, {"recallMessageEnable": "true"}) as peer:
        consumer = subprocess.Popen(
            [*program, "consume", peer.namesrv, "ledger", "ledger-consumer", str(CONSUME_S)],
            stdout=subprocess.PIPE,
            text=True,
        )
        sender = subprocess.run(
            [*program, "send", peer.namesrv, "ledger", "2", "0,6000,12000", "4"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        arrived, _ = consumer.communicate()
    return facts(sender.stdout), facts(arrived)


@pytest.fixture(scope="module")
def ledgers(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledgers")
    makes = "java", "ours"
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda make: ledger(make, folder / make), makes)
        return dict(zip(makes, made, strict=True))


def differ_on_purpose(asked: tuple) -> bool:
    """Where ours answers in another way: docs/internals/timers.md, "Where it differs"."""
    kind, key, given, _ = asked
    return (
        kind == "odd-batch"
        or OVERFLOW in given
        or (kind == "recall" and (key == "again" or key.endswith((" ID", " nobody"))))
    )


def test_answers_agree(ledgers):
    java, ours = (answers(ledgers[make][0]) for make in ("java", "ours"))
    assert java.keys() == ours.keys() and len(java) > 50
    differ = {asked for asked in java if java[asked] != ours[asked]}
    assert {asked for asked in differ if not differ_on_purpose(asked)} == set()
    assert {ours[asked][1] for asked in differ} <= {13, 604}, "each is a refusal of ours"


def test_arrivals_agree(ledgers):
    java, ours = (arrivals(ledgers[make][1]) for make in ("java", "ours"))
    assert {name for name, *_ in (ours - java)} == {"tx-commit"}
    more = java - ours
    more = [each for each in more if OVERFLOW not in each[3]]
    assert {name for name, *_ in more} == {"batch0", "batch1", "batch2", "victim-id"}


def test_nothing_of_ours_is_early(ledgers):
    assert min(line["error_stored_ms"] for line in ledgers["ours"][1]) >= 0


def test_nothing_comes_twice(ledgers):
    ids = Counter((line["msg_id"], line["reconsume"]) for line in ledgers["ours"][1])
    assert max(ids.values()) == 1
