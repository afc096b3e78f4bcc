"""Which fields the answers of a broker have, of success and of refusal: those of Apache's broker.
Clients read some of them whatever the code is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from field_cases import ANSWERS, CASES, answers

from broker import Broker

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))

import launch

APACHES = {name: (code, fields) for name, (code, fields) in json.loads(ANSWERS.read_text()).items()}
#: Answered otherwise, on purpose: ours.
OURS = {
    # It is known to be a send before its fields are read.
    "send: bad field": (1, ["MSG_REGION", "TRACE_ON"]),
    # A group that nobody has made is not made by what was never handed out to it.
    "back: no group": (26, []),
    # A topic without such a queue is an error.
    "units: none": (1, []),
}


def test_every_answer_has_the_fields_of_apaches(store_path):
    with Broker(
        store_path, listenPort=0, brokerName="broker-a", autoCreateTopicEnable=True,
        mappedFileSizeCommitLog=1 << 20, drain_s=0.0,
    ) as broker:  # fmt: skip
        assert answers(broker.address) == APACHES | OURS
    assert APACHES.keys() == CASES.keys()


@pytest.mark.java
@pytest.mark.long
def test_apaches_broker_answers_as_was_written_down(tmp_path, reference):
    with launch.running("java", tmp_path / "peer") as peer:
        assert answers(peer.broker) == APACHES
