"""One of everything goes into our broker; then Apache's own store opens the folder it leaves."""

from __future__ import annotations

import json
import random

import launch
import pytest

pytestmark = [pytest.mark.java, pytest.mark.slow]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}
INDEX = {"maxHashSlotNum": 512, "maxIndexNum": 1024}


@pytest.fixture(scope="module")
def seen(reference, tmp_path_factory):
    """(ledger, dump): what the clients were told, and what Apache's store sees afterwards."""
    folder = tmp_path_factory.mktemp("golden")
    seed = random.SystemRandom().randrange(100, 1000)
    print(f"golden seed {seed}")
    with launch.running("ours", folder / "peer", SIZES | INDEX) as peer:
        done = reference.run(
            *("golden", peer.namesrv, seed, 60, 600),
            JAVA_OPTS="-Xmx256m -Dskip=tx -Dlinger=8",
        )
        assert peer.broker_server.stop() == 0, peer.broker_server.said()
        job = reference.job(peer.store, SIZES | INDEX)
        (dump,) = reference.dumps(folder / "dump", [job])
    return [json.loads(line) for line in done.stdout.splitlines()], dump


def test_golden_runs_to_its_end(seen):
    ledger, _ = seen
    assert ledger[-1]["kind"] == "done"
    assert ledger[-1]["consumed"] >= 60


def test_every_acknowledged_message_is_in_apaches_view(seen):
    ledger, dump = seen
    units = {(line["topic"], line["queue"], line["offset"]) for line in dump if line["at"] == "cq"}
    kinds = {"plain", "compressed", "large", "ordered"}
    told = [line for line in ledger if line["kind"] in kinds]
    assert len(told) > 180
    missing = [x for x in told if (x["topic"], x["queue"], x["queue_offset"]) not in units]
    assert missing == []


def test_messages_lie_where_their_ids_say(seen):
    ledger, dump = seen
    by_place = {line["phy"]: line for line in dump if line["at"] == "msg"}
    plain = [line for line in ledger if line["kind"] == "plain"]
    for line in plain:
        record = by_place[int(line["offset_msg_id"][-16:], 16)]
        assert record["topic"] == line["topic"]
        assert record["queue"] == line["queue"]
        assert record["queue_offset"] == line["queue_offset"]


def test_delayed_messages_came_and_the_far_ones_wait(seen):
    _, dump = seen
    records = [line for line in dump if line["at"] == "msg"]
    delivered = [x for x in records if x["topic"].endswith("_delay")]
    waiting = [x for x in records if x["topic"] == "SCHEDULE_TOPIC_XXXX" and x["queue"] >= 16]
    assert len(delivered) == 3
    assert len(waiting) == 4


def test_what_a_group_gave_up_is_among_the_dead_letters(seen):
    _, dump = seen
    assert any(x["at"] == "msg" and x["topic"].startswith("%DLQ%golden") for x in dump)
