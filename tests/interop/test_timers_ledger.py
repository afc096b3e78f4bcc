"""The same program of timers, odd ones and recalls before Apache's broker and before ours: what was
answered and what arrived agree line by line, but for the differences that docs/internals/timers.md
names."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import launch
import pytest
from waiting import BOUND_S, until

from broker.wire import mqjson

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
OVERFLOW = ("TIMER_DELAY_SEC", str(2**63 - 1))
#: Whoever is recalled, or recalls, so soon before its time may come too late on a busy machine, and
#: in its last second Apache's broker refuses it.
MARGIN_MS = 2000
#: Those of the program are due 30 s ahead at most: what comes after this was asked for has come.
LAST_MS = 31_000
TOPICS = "ledger_timer", "ledger_odd", "%RETRY%ledger-consumer"
STATS = 202


def same_in_all(value: object) -> str:
    text = str(value)
    for pattern, word in OF_A_RUN:
        text = pattern.sub(word, text)
    return text


def name_of(key: str | None) -> str:
    """The name in a key of the program, without the time that was asked for."""
    return re.sub(r"-(\d+|TIME)$", "", key or "")


def properties(given: dict[str, str], names: set[str] | None = None) -> tuple[tuple[str, str], ...]:
    """names: of those alone."""
    chosen = given.keys() & names if names is not None else given.keys() - BY_CHANCE
    return tuple(sorted((k, same_in_all(given[k])) for k in chosen))


def answers(lines: list[dict]) -> dict[tuple, tuple]:
    """Each send and recall of a run, in order: what was asked, and what the broker made of it. A
    refusal of ours may go on after the words of Apache's."""
    found: dict[tuple, tuple] = {}
    for line in lines:
        asked = (line["kind"], same_in_all(line["key"]), properties(line.get("set", {})))
        nth = sum(asked == other[:3] for other in found)
        ok = line.get("status") or ("msg_id" in line and "recalled")
        remark = same_in_all(line.get("remark") or line.get("error") or "").split(": ")[0]
        found[(*asked, nth)] = ok, line.get("code"), remark, bool(line.get("handle"))
    return found


def shape(line: dict) -> tuple:
    """An arrival, whether it has waited or not."""
    rest = {k: v for k, v in line["props"].items() if k not in WAITED}
    return name_of(line["key"]), line["reconsume"], line["sys_flag"], properties(rest)


def arrivals(lines: list[dict]) -> Counter[tuple]:
    return Counter(map(shape, lines))


def waits(lines: list[dict]) -> dict[tuple, set[tuple]]:
    """What those have that did wait."""
    found: dict[tuple, set[tuple]] = {}
    for line in lines:
        if WAITED & line["props"].keys():
            found.setdefault(shape(line), set()).add(properties(line["props"], WAITED))
    return found


def late(lines: list[dict]) -> set[str]:
    """Of those that are recalled, whose recall may have come too late: whether it has is a matter
    of speed. Each line was answered before the next one was sent."""
    found = set()
    for line, after in zip(lines, [*lines[1:], lines[-1]], strict=True):
        if line["kind"] not in ("recall", "odd-victim", "odd-marker"):
            continue
        due = re.search(r"-(\d{13})$", line["key"] or "")
        if due and after["sent"] > int(due[1]) - MARGIN_MS:
            found.add(name_of(line["key"]))
    # A mark takes along the message that it was made for.
    victims = {name_of(each["key"]) for each in lines if each["kind"] == "odd-victim"}
    return found | victims if "marker" in found else found


def facts(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def stored(peer: launch.Peer) -> int:
    """How many messages the topics of the program have."""
    count = 0
    for topic in TOPICS:
        code, _, body = launch.ask(peer.broker, STATS, {"topic": topic})
        ends = mqjson.loads(body)["offsetTable"] if code == 0 else {}
        count += sum(int(each["maxOffset"]) for each in ends.values())
    return count


def ledger(make: str, folder) -> tuple[list[dict], list[dict]]:
    """What the program was answered and what its consumer got, until all is there."""

    def program(*words: str) -> list[str]:
        return [str(launch.SCRIPT), "timers", words[0], peer.namesrv, "ledger", *words[1:]]

    def send(*words: str, **more: str) -> list[dict]:
        done = subprocess.run(
            program("send", *words), stdout=subprocess.PIPE, text=True, check=True,
            env=os.environ | more,
        )  # fmt: skip
        return facts(done.stdout)

    with launch.running(make, folder, {"recallMessageEnable": "true"}) as peer:
        out = folder.parent / f"{make}.arrivals"
        words = program("consume", "ledger-consumer", str(2 * int(BOUND_S)))
        with out.open("w") as into, subprocess.Popen(words, stdout=into) as consumer:
            try:
                sent = send("2", "0,6000,12000", "4")
                last = {line["key"] for line in send("1", str(LAST_MS), "0", JAVA_OPTS="-Dodd=no")}

                def arrived() -> list[dict]:
                    lines = facts(out.read_text().rpartition("\n")[0])
                    has_last = last <= {line["key"] for line in lines}
                    return lines if has_last and len(lines) >= stored(peer) else []

                came = until(arrived, f"all messages of {make}", 0.2)
            finally:
                consumer.kill()  # it would go on for long
        return sent, [line for line in came if line["key"] not in last]


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


def too_late(ledgers) -> set[str]:
    return late(ledgers["java"][0]) | late(ledgers["ours"][0])


def test_answers_agree(ledgers):
    java, ours = (answers(ledgers[make][0]) for make in ("java", "ours"))
    assert java.keys() == ours.keys() and len(java) > 50
    differ = {asked for asked in java if java[asked] != ours[asked]}
    unsure = {each for each in differ if name_of(each[1]) in too_late(ledgers)}
    assert {each for each in differ - unsure if not differ_on_purpose(each)} == set()
    assert {ours[asked][1] for asked in differ - unsure} <= {13, 604}, "each is a refusal of ours"


def test_arrivals_agree(ledgers):
    java, ours = (arrivals(ledgers[make][1]) for make in ("java", "ours"))
    unsure = too_late(ledgers)
    assert {name for name, *_ in ours - java} - unsure == {"tx-commit"}
    more = [each for each in java - ours if OVERFLOW not in each[3]]
    expected = {"batch0", "batch1", "batch2", "victim-id"}
    assert {name for name, *_ in more} - unsure == expected - unsure


def test_those_that_waited_bring_the_same_along(ledgers):
    java, ours = (waits(ledgers[make][1]) for make in ("java", "ours"))
    both = java.keys() & ours.keys()
    assert both
    assert {each: ours[each] for each in both} == {each: java[each] for each in both}


def test_what_was_recalled_does_not_come_and_what_was_not_does(ledgers):
    sent, came = ledgers["ours"]
    recalls = [each for each in sent if each["kind"] == "recall" and "-" in (each["key"] or "")]
    keys = {each["key"] for each in came}
    assert recalls
    for each in recalls:
        if re.search(r"-\d{13}$", each["key"]):
            assert ("msg_id" in each) == (each["key"] not in keys), each


def test_nothing_of_ours_is_early(ledgers):
    assert min(line["error_stored_ms"] for line in ledgers["ours"][1]) >= 0


def test_nothing_comes_twice(ledgers):
    ids = Counter((line["msg_id"], line["reconsume"]) for line in ledgers["ours"][1])
    assert max(ids.values()) == 1
