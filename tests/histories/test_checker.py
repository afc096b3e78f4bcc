"""The checker of histories: it takes what a log can give, and finds each kind of fault that it is
there for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run

Q, G = "orders/0", "readers"


@pytest.fixture(scope="module")
def checker() -> Path:
    made = run.program()
    if made is None:
        pytest.skip("Go, or Porcupine as its module, is missing")
    return made


def send(name: str, offset: int | None, call: int, back: int | None) -> dict[str, Any]:
    found = {"op": "send", "queue": Q, "id": name, "offset": offset, "call": call, "return": back}
    return {key: value for key, value in found.items() if value is not None}


def read(offset: int, ids: list[str], call: int, back: int, **more: Any) -> dict[str, Any]:
    found = {"op": "read", "queue": Q, "offset": offset, "ids": ids, "call": call, "return": back}
    return found | more


def end(offset: int, call: int, back: int) -> dict[str, Any]:
    return {"op": "end", "queue": Q, "offset": offset, "call": call, "return": back}


def commit(op: str, offset: int, call: int) -> dict[str, Any]:
    return {"op": op, "queue": Q, "group": G, "offset": offset, "call": call, "return": call + 1}


A, B, C = send("a", 0, 1, 2), send("b", 1, 3, 4), send("c", 2, 5, 6)


def whole(*ids: str) -> dict[str, Any]:
    return read(0, list(ids), 90, 91, whole=True)


GOOD = {
    "one after the other": [A, B, C, end(3, 7, 8), whole("a", "b", "c")],
    "side by side": [send("a", 1, 1, 9), send("b", 0, 1, 9), whole("b", "a")],
    "no answer, and it is there": [A, send("b", None, 3, None), C, read(1, ["b"], 4, 9),
                                   whole("a", "b", "c")],
    "no answer, and it is not there": [A, send("b", None, 3, None), whole("a")],
    "no answer, and it comes late": [send("x", None, 1, None), send("a", 0, 2, 3),
                                     send("b", 2, 4, 5), whole("a", "x", "b")],
    "a read in the middle": [A, B, read(0, ["a"], 2, 3), whole("a", "b")],
    "a group goes back": [A, commit("commit", 1, 3), commit("commit", 2, 5),
                          commit("committed", 1, 9), whole("a")],
    "a group begins": [commit("committed", 0, 1)],
}  # fmt: skip

BAD = {
    "a lost send": [A, B, C, whole("a", "b")],
    "a lost send, and another one in its place": [A, B, send("d", None, 9, None), whole("a", "d")],
    "two contents at one offset": [A, send("x", None, 1, None), read(0, ["x"], 3, 4), whole("a")],
    "two acknowledged at one offset": [A, send("b", 0, 3, 4), whole("a")],
    "one at two offsets": [A, B, whole("a", "b", "a")],
    "a gap": [A, C, read(2, ["c"], 7, 8)],
    "an order that time forbids": [send("a", 1, 1, 2), send("b", 0, 3, 4), whole("b", "a")],
    "a read of what is sent later": [read(0, ["a"], 1, 2), send("a", 0, 3, 4), whole("a")],
    "a read of what nobody has sent": [A, read(1, ["ghost"], 7, 8), whole("a")],
    "a stale read": [A, B, end(1, 7, 8), whole("a", "b")],
    "an end that is not there yet": [A, end(2, 3, 4), send("b", 1, 5, 6), whole("a", "b")],
    "brokers that differ": [A, B, whole("a", "b"), whole("b", "a")],
    "a commit of nobody": [A, commit("commit", 1, 3), commit("committed", 2, 5), whole("a")],
    "a commit of later": [A, commit("committed", 1, 3), commit("commit", 1, 5), whole("a")],
}


def said_of(checker: Path, folder: Path, history: list[dict[str, Any]]) -> bool:
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in history))
    return bool(run.check(checker, path, "0s")["ok"])


@pytest.mark.parametrize("name", GOOD)
def test_it_takes(checker: Path, tmp_path: Path, name: str) -> None:
    assert said_of(checker, tmp_path, GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_it_finds(checker: Path, tmp_path: Path, name: str) -> None:
    assert not said_of(checker, tmp_path, BAD[name])


def test_porcupine_itself_finds_what_is_not_seen_without_it(checker: Path, tmp_path: Path) -> None:
    """Faults of order alone: no two lines of these contradict each other."""
    for name in ("an order that time forbids", "a stale read", "a read of what is sent later"):
        path = tmp_path / "history.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in BAD[name]))
        found = run.check(checker, path, "0s")
        assert (found["logs"], found["problems"]) == ("Illegal", []), name


def test_the_end_of_a_queue_may_be_late_by_what_is_allowed(checker: Path, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in BAD["a stale read"]))
    assert run.check(checker, path, "5ns")["ok"]
    assert not run.check(checker, path, "2ns")["ok"]
