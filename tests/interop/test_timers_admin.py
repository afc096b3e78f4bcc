"""Timers in what the official admin tool shows of a broker of ours."""

from __future__ import annotations

import json
import re
import struct
import time

import pytest
from admin import Admin

from broker import Broker, Message
from broker.cli.inquirer import ask

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture
def scene(reference, tmp_path):
    with Broker(tmp_path / "store", with_namesrv=True, listenPort=0) as broker:
        admin = Admin(broker.namesrv_address, tmp_path)
        yield broker, admin
        admin.close()


def figure(said, name):
    return re.search(rf"^{name}\s*: (.*?)\s*$", said, re.M)[1]


def test_broker_status_shows_what_waits(scene):
    broker, admin = scene
    with broker.producer() as producer:
        for i in range(3):
            producer.send(Message("orders", b"%d" % i, deliver_at_ms=later(i)))
    said = admin.until(
        lambda said: figure(said, "timerCongestNum") == "3", "brokerStatus", "-b", broker.address
    )
    assert figure(said, "timerReadBehind") == figure(said, "timerOffsetBehind") == "0"
    assert float(figure(said, "timerEnqueueTps")) >= 0
    assert "rmq_sys_wheel_timer" in admin("topicList")
    status = admin("topicStatus", "-t", "rmq_sys_wheel_timer")
    assert re.search(r"^\S+ +0 +0 +3 ", status, re.M)  # queue 0, from 0 to 3
    # No verb of the tool asks for these; Java's slaves do.
    check_point = struct.unpack(">7q", ask(broker.address, 60, {}, next_step=""))
    assert check_point[2] == 3
    counts = json.loads(ask(broker.address, 61, {}, next_step=""))["timingCount"]
    assert counts["orders"]["count"] == 3


def later(i):
    return time.time_ns() // 1_000_000 + 3_600_000 + i
