"""One of everything goes into our broker; then Apache's own store opens the folder it leaves."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import launch
import pytest
from rounds import decisions_are_in, timed
from storeview import everything
from transacting import DISCARDED, HALF

from pystore import Reader

pytestmark = [pytest.mark.java, pytest.mark.slow]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}
INDEX = {"maxHashSlotNum": 512, "maxIndexNum": 1024}


class Seen(NamedTuple):
    """ledger: what the clients were told. dump: what Apache's store sees afterwards. keys: of two
    topics, as we see them, with how often each is there. places: of all records, as we see them."""

    ledger: list[dict[str, Any]]
    dump: list[dict[str, Any]]
    committed: Counter[str]
    given_up: Counter[str]
    places: set[int]


def decided_at_once(broker):
    """How many halves their producer commits or rolls back when it has sent them."""
    keys = [m.keys[0] for m in everything(broker.store, HALF)]
    return sum(key.startswith(("COMMIT_", "ROLLBACK_")) for key in keys)


@pytest.fixture(scope="module")
def seen(reference, tmp_path_factory, seed):
    """One run of the golden scenario. The rounds of checks go by a clock that is set, so that the
    durations are upstream's and nobody waits for them."""
    folder = tmp_path_factory.mktemp("golden")
    seed = 100 + seed % 900
    store = folder / "store"
    with (
        timed(store, **(launch.SETTINGS | SIZES | INDEX)) as (broker, rounds),
        ThreadPoolExecutor() as pool,
    ):
        job = pool.submit(
            reference.run,
            *("golden", broker.namesrv_address, seed, 60, 600),
            JAVA_OPTS="-Xmx256m -Dlinger=15 -Drocketmq.client.rebalance.waitInterval=1000",
        )
        launch.wait("all halves", lambda: decisions_are_in(broker, 30, decided_at_once(broker)))
        rounds.start()
        done = job.result()
    with Reader(store) as reader:
        committed = Counter(m.keys[0] for m in everything(reader, f"golden{seed}_tx"))
        given_up = Counter(m.keys[0] for m in everything(reader, DISCARDED))
        places = {m.physical_offset for topic in reader.topics() for m in everything(reader, topic)}
    (dump,) = reference.dumps(folder / "dump", [reference.job(store, SIZES | INDEX)])
    ledger = [json.loads(line) for line in done.stdout.splitlines()]
    return Seen(ledger, dump, committed, given_up, places)


def test_golden_runs_to_its_end(seen):
    ledger = seen.ledger
    assert ledger[-1]["kind"] == "done"
    assert ledger[-1]["consumed"] >= 60


def test_every_acknowledged_message_is_in_apaches_view(seen):
    ledger, dump = seen.ledger, seen.dump
    units = {(line["topic"], line["queue"], line["offset"]) for line in dump if line["at"] == "cq"}
    kinds = {"plain", "compressed", "large", "ordered"}
    told = [line for line in ledger if line["kind"] in kinds]
    assert len(told) > 180
    missing = [x for x in told if (x["topic"], x["queue"], x["queue_offset"]) not in units]
    assert missing == []


def test_messages_lie_where_their_ids_say(seen):
    ledger, dump = seen.ledger, seen.dump
    by_place = {line["phy"]: line for line in dump if line["at"] == "msg"}
    plain = [line for line in ledger if line["kind"] == "plain"]
    for line in plain:
        record = by_place[int(line["offset_msg_id"][-16:], 16)]
        assert record["topic"] == line["topic"]
        assert record["queue"] == line["queue"]
        assert record["queue_offset"] == line["queue_offset"]


def test_delayed_messages_came_and_the_far_ones_wait(seen):
    dump = seen.dump
    records = [line for line in dump if line["at"] == "msg"]
    delivered = [x for x in records if x["topic"].endswith("_delay")]
    waiting = [x for x in records if x["topic"] == "SCHEDULE_TOPIC_XXXX" and x["queue"] >= 16]
    assert len(delivered) == 3
    assert len(waiting) == 4


def test_what_a_group_gave_up_is_among_the_dead_letters(seen):
    dump = seen.dump
    assert any(x["at"] == "msg" and x["topic"].startswith("%DLQ%golden") for x in dump)


# ---- transactions ----


def transactions(seen):
    """Keys of those that were sent: what is to become of each is in its name."""
    sent = [line["keys"] for line in seen.ledger if line["kind"] == "tx"]
    assert len(sent) == 30
    return sent


def test_what_was_committed_is_there_once_and_nothing_else(seen):
    """By the producer itself, or by its answer to a check."""
    wanted = [k for k in transactions(seen) if k.startswith(("COMMIT", "late-commit"))]
    assert seen.committed == Counter(wanted)


def test_what_nobody_decides_is_given_up_after_fifteen_checks(seen):
    orphans = [k for k in transactions(seen) if k.startswith("orphan")]
    assert seen.given_up == Counter(orphans)
    checks = Counter(line["keys"] for line in seen.ledger if line["kind"] == "check")
    assert {key: checks[key] for key in orphans} == dict.fromkeys(orphans, 15)


def test_apaches_store_sees_the_same_transactions(seen):
    """And the same records as our own view of the folder."""
    records = [line for line in seen.dump if line["at"] == "msg"]
    final = Counter(x["props"]["KEYS"] for x in records if x["topic"].endswith("_tx"))
    assert final == seen.committed
    assert {x["phy"] for x in records} == seen.places
