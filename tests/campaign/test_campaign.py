"""Clients come and go, and the broker is killed again and again: nothing acknowledged is lost.

PS_CAMPAIGN_S is how long it takes (without it two kills, soon; `make campaign` takes ten minutes),
PS_JUDGE=java lets Apache's broker prove the harness.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import launch

from pystore.metadata import Metadata

pytestmark = [pytest.mark.java, pytest.mark.slow]

SECONDS = float(os.environ.get("PS_CAMPAIGN_S", "0"))
MAKES = os.environ.get("PS_JUDGE", "ours").split(",")
#: Seconds between two kills. Apache's broker writes offsets 10 s after its start at the earliest.
LIVES = {"ours": (1.0, 6.0 if SECONDS else 2.0), "java": (14.0, 18.0)}
SETTINGS = {"flushConsumerOffsetInterval": 1000, "flushDiskType": "ASYNC_FLUSH"}
#: Producers send as fast as they can: the slice needs members that come and go, not their rate.
PRODUCERS, CONSUMERS = (4 if SECONDS else 2), 3
QUERY_OFFSET, UPDATE_OFFSET, MAKE_GROUP = 14, 15, 200


class Clients:
    """The Java process of all producers and consumers (tests/reference/src/Campaign.java)."""

    def __init__(self, peer: launch.Peer, topic: str, seed: int) -> None:
        words = [peer.namesrv, topic, seed, PRODUCERS, CONSUMERS, 90]
        self.process = subprocess.Popen(
            [str(launch.SCRIPT), "campaign", *map(str, words)],
            env=os.environ | {"JAVA_OPTS": "-Xmx512m"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert '"running"' in line, f"the clients ended before they ran: {line}"

    def end(self) -> dict[str, object]:
        """Stops the producers, waits for the consumers; what the ledger says."""
        out, _ = self.process.communicate("stop\n", timeout=200)
        return json.loads(out.splitlines()[-1])


class Offset:
    """One committed offset that only this harness moves, so that nobody else can set it back.

    The official clients' own offsets also fall when a member that has lost its queue commits late.
    """

    GROUP = "campaign-offset"

    def __init__(self, peer: launch.Peer, topic: str) -> None:
        self.peer = peer
        self.place = {"consumerGroup": self.GROUP, "topic": topic, "queueId": "0"}
        body = json.dumps({"groupName": self.GROUP}).encode()
        code, _, _ = launch.ask(peer.broker, MAKE_GROUP, body=body)
        assert code == 0
        self.committed = 0
        self.faults: list[str] = []

    def commit(self) -> None:
        """The next one, which stays well below the end of the queue."""
        code, _, _ = launch.ask(
            self.peer.broker, UPDATE_OFFSET, self.place | {"commitOffset": str(self.committed + 1)}
        )
        assert code == 0
        self.committed += 1

    def saved(self) -> int:
        """What the folder holds."""
        with Metadata(self.peer.store, readonly=True) as metadata:
            found = metadata.offsets.get(self.GROUP, self.place["topic"], 0)
        return 0 if found is None else found

    def check_restart(self, saved: int) -> None:
        """The broker is back, and the disk held this much when it was down."""
        code, fields, _ = launch.ask(self.peer.broker, QUERY_OFFSET, self.place)
        said = int(fields["offset"]) if code == 0 else 0
        if said != saved:
            self.faults.append(f"the disk held {saved}, the broker says {said}")


def batter(peer: launch.Peer, rng: random.Random, offset: Offset) -> int:
    """Kills and restarts the broker on its folder until the time is over, at least twice; how many
    times."""
    kills = saved = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or kills < 2:
        death = time.monotonic() + rng.uniform(*LIVES[peer.make])
        while time.monotonic() < death:
            offset.commit()
            time.sleep(0.1)
        peer.kill()
        kills += 1
        before, saved = saved, offset.saved()
        if saved < before:
            offset.faults.append(f"the disk held {before}, and after kill {kills} {saved}")
        peer.restart()
        peer.wait_ready()
        offset.check_restart(saved)
    return kills


@pytest.fixture(scope="module", params=MAKES)
def ledger(request, reference, tmp_path_factory, seed):
    """What the clients say after the campaign, and how many kills there were."""
    make, folder = request.param, tmp_path_factory.mktemp("campaign")
    with (
        launch.name_server(make, folder / "names") as namesrv,
        launch.running(make, folder / "peer", SETTINGS, namesrv=namesrv) as peer,
    ):
        clients = Clients(peer, "campaign", seed)
        offset = Offset(peer, "campaign")
        try:
            kills = batter(peer, random.Random(seed), offset)
            offset.commit()
            launch.wait("the offset on the disk", lambda: offset.saved() == offset.committed)
            found = clients.end()
        finally:
            clients.process.kill()
            clients.process.wait()
    print(f"{kills} kills: {found}")
    return found | {"kills": kills, "offset_faults": offset.faults}


def test_the_broker_was_killed_under_load(ledger):
    assert ledger["kills"] >= 2
    assert ledger["acked"] > 100
    assert ledger["joined"] > CONSUMERS


def test_no_acknowledged_message_is_missing_from_its_topic(ledger):
    assert ledger["missing"] == 0, ledger["missing_names"]


def test_every_acknowledged_message_is_delivered_to_somebody(ledger):
    assert ledger["lost"] == 0, ledger["lost_names"]


def test_a_committed_offset_is_what_the_last_sync_held(ledger):
    assert ledger["offset_faults"] == []
