"""``kill -9`` of a broker while it delivers delay levels: what it delivered is in its log, so that
each message comes once, though the progress on the disk is seconds old.

``PS_LEVEL_KILLS`` rounds (3), ``PS_SEED`` repeats a run."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import launch
from test_acting_kill import count_at, delivered_in, make_topic, put

ROUNDS = int(os.environ.get("PS_LEVEL_KILLS", "3"))
COUNT, KILLS = 150, 3


@pytest.mark.long
def test_each_delayed_message_comes_once_however_often_its_broker_is_killed(
    tmp_path: Path, rng: random.Random
) -> None:
    with launch.running("ours", tmp_path / "b") as broker:
        make_topic(broker)
        wanted = Counter[str]()
        for turn in range(ROUNDS):
            for number in range(COUNT):
                put(broker, body := f"{turn}-{number}", DELAY=rng.choice("12"))
                wanted[body] += 1
            for _ in range(KILLS):
                time.sleep(rng.uniform(0, 1))
                broker.kill()
                broker.restart()
                broker.wait_ready()
        launch.wait("what is due", lambda: count_at(broker) >= len(wanted))
        time.sleep(2)
        broker.broker_server.stop()
        assert delivered_in(broker.store) == wanted
