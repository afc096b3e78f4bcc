"""What a master says of the brokers of its group: who is in sync, and why somebody is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.services.controlled.in_sync import InSync
from broker.services.controlled.set_keeper import SetKeeper
from broker.services.replication.elected_role import ElectionRecord
from broker.services.replication.master import HaMaster, SlaveSeen

END, NEAR, LATE_S = 5000, 1000, 15.0


def whys(rules: InSync, ends: dict[int, int], now_s: float) -> dict[int, str]:
    """Of each member but the master."""
    seen = {each.number: each for each in rules.members(ends, END, NEAR, now_s, LATE_S)}
    assert seen[1].end == END and seen[1].in_sync and not seen[1].why
    assert all(seen[n].end == ends.get(n) and seen[n].in_sync == (n in rules.held)
               for n in seen if n != 1)  # fmt: skip
    return {number: each.why for number, each in seen.items() if number != 1}


@pytest.mark.parametrize(
    ("has", "now_s", "why"),
    [
        (END, 9.0, ""), (END - 1, 1.0, ""),
        (END - 1, 9.0, "behind for 9 s; out after 15 s"),
        (None, 1.0, "not connected for 1 s; out after 1.5 s"),
    ],
)  # fmt: skip
def test_of_a_member_it_says_when_it_may_be_out(has: int | None, now_s: float, why: str) -> None:
    rules = InSync(1, frozenset({1, 2}))
    assert not rules.next_request({2: END}, END, 0.0, LATE_S)
    assert whys(rules, {} if has is None else {2: has}, now_s) == {2: why}


def test_of_others_it_says_what_is_missing() -> None:
    rules = InSync(1, frozenset({1}))
    assert whys(rules, {2: END - NEAR - 1, 3: END - NEAR}, 0.0) == {
        2: "too far behind: invited below 1000 bytes", 3: "invited in the next round",
    }  # fmt: skip
    rules.invited(3, END)
    assert whys(rules, {3: END - 7}, 0.0) == {
        3: "waited for already; the controller is asked once it has 7 bytes more"
    }
    assert rules.next_request({3: END}, END, 0.0, LATE_S)
    assert whys(rules, {3: END}, 0.0) == {3: "the controller is asked to add it"}


def test_who_was_in_the_set_is_not_forgotten() -> None:
    rules = InSync(1, frozenset({1, 2}))
    rules.next_request({2: END}, END, 0.0, LATE_S)
    assert rules.next_request({2: END - 1}, END, 16.0, LATE_S)
    assert whys(rules, {2: END - 1}, 16.0) == {
        2: "it is late: the controller is asked to remove it"
    }
    rules.answered(frozenset({1}), is_new=True)
    assert whys(rules, {}, 16.0) == {2: "not connected"}


def test_who_may_still_be_added_is_waited_for_though_the_controller_refuses() -> None:
    """Apache's controller refuses a set with a dead broker; an earlier request may still come."""
    rules = InSync(1, frozenset({1}))
    rules.invited(2, END)
    assert rules.next_request({2: END}, END, 0.0, LATE_S)
    rules.answered(frozenset({1}), is_new=False)
    assert rules.next_request({}, END, 1.0, LATE_S)  # for a new number
    assert (rules.asked, rules.required) == ({1}, {2})
    rules.answered(frozenset({1}), is_new=True)
    assert rules.required == frozenset()


def test_neither_a_learner_nor_a_log_that_is_not_compared_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java's asyncLearner follows, and never joins the set."""
    monkeypatch.setattr(HaMaster, "look", lambda _: None)
    master = HaMaster.__new__(HaMaster)
    seen = (-2, True), (3, True), (4, False)
    master.slaves = [SlaveSeen("h:1", END, 0, 0, 0, 0, each, 0, same) for each, same in seen]
    assert master.ends() == {3: END}


def test_who_is_always_a_little_behind_a_steady_load_stays_in_the_set() -> None:
    rules = InSync(1, frozenset({1, 2}))
    for second in range(100):
        assert not rules.next_request({2: second * 1000 + 999}, (second + 1) * 1000, second, 15.0)


def test_who_stands_still_below_a_steady_load_is_removed() -> None:
    rules = InSync(1, frozenset({1, 2}))
    asks = [rules.next_request({2: 1}, (second + 1) * 1000, second, 15.0) for second in range(20)]
    assert (asks.index(True), rules.asked) == (16, frozenset({1}))


def test_who_lacks_what_was_put_in_a_second_is_invited() -> None:
    """At more than a MiB a second, of which a slave never has the last."""
    ends = {1: 0, 2: 0}
    required: list[frozenset[int]] = []

    def require(members: frozenset[int], **_: bool) -> int:
        required.append(members)
        return ends[1]

    master: Any = SimpleNamespace(end=lambda: ends[1], ends=lambda: {2: ends[2]}, require=require)
    settings: Any = {"minInSyncReplicas": 1, "haMaxTimeSlaveNotCatchup": 15_000}
    record = ElectionRecord(1, "h:1", "h:2", 1, frozenset({1}), 1)
    keeper = SetKeeper(None, master, record, 1, settings)  # type: ignore[arg-type]
    ends |= {1: 100_000_000, 2: 98_000_000}
    asyncio.run(keeper.round())
    assert required[-1] == {2}


def test_of_a_broker_that_is_connected_twice_the_newer_connection_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HaMaster, "look", lambda _: None)
    master = HaMaster.__new__(HaMaster)
    master.slaves = [SlaveSeen("h:1", acked, 0, 0, 0, 0, 3, 0, True) for acked in (7, END)]
    assert master.ends() == {3: 7}
