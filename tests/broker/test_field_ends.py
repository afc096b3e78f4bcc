"""Numbers of hot requests at 0, -1 and the ends of their types: answered as by Apache's broker, or
otherwise on purpose, as docs/broker.md says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from field_ends import ANSWERS, CASES, answers, prepare

from broker import Broker

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))

import launch

#: Cases that are answered otherwise, and with which code.
OURS: Mapping[str, int] = {
    # A topic without queues could take no message, ever.
    r"send: d (-1|0|min)": 0,
    r"send 1: defaultTopicQueueNums (-1|0|min)": 0,
    r"batch: d (-1|0|min)": 0,
    # Upstream answers with an error that names nothing, or with nothing.
    r"(ordered )?pop: maxMsgNums (-1|0|min)": 29,
    r"peek: maxMsgNums (-1|0|min|max)": 29,
    # Messages would be back at once, or never.
    r"(ordered )?pop: invisibleTime (-1|0|min|max)": 29,
    r"change: invisibleTime (-1|min|max)": 29,
    # No broker has made such a handle.
    r"(ack|change): \w+ (-1|min) of the handle": 13,
    r"(ack|change): (start|pop|invisible|offset) max of the handle": 13,
    # That delivery is none, so it is over.
    r"change: pop 0 of the handle": 208,
    r"commit: (queueId (-1|min|max)|commitOffset (-1|min))": 29,
    r"units: queueId (-1|min|max)": 1,
    r"units: index -1": 0,
}


def difference(name: str, said: list[Any], apaches: list[Any]) -> str | None:
    """What is wrong with an answer; None: nothing is."""
    rows = [row for row in OURS if re.fullmatch(row, name)]
    if not rows:
        return None if said == apaches else f"{name}: {said}, Apache {apaches}"
    if said == apaches:
        return f"{name}: is as Apache's, and listed as different"
    return None if said[0] == OURS[rows[0]] else f"{name}: {said}, meant {OURS[rows[0]]}"


def compared(said: dict[str, list[Any]]) -> list[str]:
    apaches = json.loads(ANSWERS.read_text())
    assert apaches.keys() == CASES.keys()
    found = (difference(name, said[name], apaches[name]) for name in CASES)
    return [each for each in found if each is not None]


def test_ends_of_numbers_are_answered_as_by_apaches(store_path):
    with Broker(
        store_path, listenPort=0, brokerName="broker-a", autoCreateTopicEnable=True,
        autoCreateSubscriptionGroup=True, mappedFileSizeCommitLog=1 << 20, drain_s=0.0,
    ) as broker:  # fmt: skip
        prepare(broker.address)
        assert compared(answers(broker.address)) == []


def test_every_difference_is_met_by_a_case():
    unmet = [row for row in OURS if not any(re.fullmatch(row, name) for name in CASES)]
    assert unmet == []


@pytest.mark.java
@pytest.mark.long
def test_apaches_broker_answers_ends_as_was_written_down(tmp_path, reference):
    with launch.running("java", tmp_path / "peer") as peer:
        prepare(peer.broker)
        assert answers(peer.broker) == json.loads(ANSWERS.read_text())
