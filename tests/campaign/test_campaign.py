"""Clients come and go, and the broker is killed again and again: nothing acknowledged is lost.

PS_CAMPAIGN_S is how long it takes (15 seconds; `make campaign` takes ten minutes), PS_JUDGE=java
lets Apache's broker prove the harness.
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

pytestmark = [pytest.mark.java, pytest.mark.slow]

SECONDS = float(os.environ.get("PS_CAMPAIGN_S", "15"))
MAKES = os.environ.get("PS_JUDGE", "ours").split(",")
#: Seconds between two kills. Apache's broker writes offsets 10 s after its start at the earliest.
LIVES = {"ours": (1.0, 6.0), "java": (14.0, 18.0)}
#: Offsets are written every 2 s here; the watcher looks twice a second, and starts take time.
SETTINGS = {"flushConsumerOffsetInterval": 2000, "flushDiskType": "ASYNC_FLUSH"}
SLACK_S = {"ours": 8.0, "java": 25.0}
PRODUCERS, CONSUMERS = 4, 3


class Clients:
    """The Java process of all producers and consumers (tests/reference/src/Campaign.java)."""

    def __init__(self, peer: launch.Peer, topic: str, seed: int) -> None:
        words = [peer.namesrv, topic, seed, PRODUCERS, CONSUMERS, SLACK_S[peer.make], 90]
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


def batter(peer: launch.Peer, rng: random.Random) -> int:
    """Kills and restarts the broker on its folder until the time is over; how many times."""
    kills = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(rng.uniform(*LIVES[peer.make]))
        peer.kill()
        kills += 1
        peer.restart()
        peer.wait_ready()
    return kills


@pytest.fixture(scope="module", params=MAKES)
def ledger(request, reference, tmp_path_factory):
    """What the clients say after the campaign, and how many kills there were."""
    make, folder = request.param, tmp_path_factory.mktemp("campaign")
    given = os.environ.get("PS_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 31)
    print(f"repeat with PS_SEED={seed}")
    with (
        launch.name_server(make, folder / "names") as namesrv,
        launch.running(make, folder / "peer", SETTINGS, namesrv=namesrv) as peer,
    ):
        clients = Clients(peer, "campaign", seed)
        try:
            kills = batter(peer, random.Random(seed))
            found = clients.end()
        finally:
            clients.process.kill()
            clients.process.wait()
    print(f"{kills} kills: {found}")
    return found | {"kills": kills}


def test_the_broker_was_killed_under_load(ledger):
    assert ledger["kills"] >= 2 or SECONDS < 10
    assert ledger["acked"] > 500
    assert ledger["joined"] > CONSUMERS


def test_no_acknowledged_message_is_missing_from_its_topic(ledger):
    assert ledger["missing"] == 0, ledger["missing_names"]


def test_every_acknowledged_message_is_delivered_to_somebody(ledger):
    assert ledger["lost"] == 0, ledger["lost_names"]


def test_offsets_never_fall_behind_the_last_sync(ledger):
    assert ledger["bad_drops"] == []
