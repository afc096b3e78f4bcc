"""Apache's client goes through the absence of a master whose slave acts: it sends to the other
master of the cluster, and what waits of delays, timers and transactions arrives once."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "crash"))

import launch
from test_acting_kill import (
    Cluster,
    cluster,
    count_at,
    delivered_in,
    end_of,
    follows,
    make_topic,
    open_in,
)
from test_orders_java import rows, services
from waiting import until

pytestmark = [pytest.mark.java, pytest.mark.long]

COUNT = 300
#: Requests that are on their way when the master is killed: their client sends them again.
SENDERS = 2


def everything(pair: Cluster) -> Counter[str]:
    return delivered_in(pair.master.store) + delivered_in(pair.other.store)


def open_ones(pair: Cluster) -> Counter[str]:
    return open_in(pair.master.store) + open_in(pair.other.store)


def test_the_official_client_goes_through_an_absence_of_the_master(
    reference: Any, tmp_path: Path
) -> None:
    db = tmp_path / "db"
    with cluster(tmp_path / "cluster", transactionCheckInterval="1000") as pair:
        make_topic(pair.other, "orders")
        launch.wait("a slave in sync", lambda: follows(pair.master))
        with services("products,unsure,later", pair.master.namesrv, db, COUNT) as s:
            s.wait(lambda: len(s.said("sent")) > COUNT // 5 and len(s.said("ordered")) > COUNT // 5)
            pair.master.kill()
            unknown = delivered_in(pair.master.store, end_of(pair.slave))
            before = count_at(pair.other)
            s.wait(lambda: len(s.said("end")) == 2)
            until(lambda: count_at(pair.other) > before, "sends and what is due, elsewhere", 0.2)
            pair.master.restart()
            wanted = {f"order {key}" for key in rows(db, "good")}
            wanted |= {f"later {number}" for number in range(COUNT)}
            until(lambda: set(everything(pair)) >= wanted, "all of it", 1.0)
            until(lambda: not open_ones(pair), "no open transaction", 1.0)
            s.wait(lambda: set(s.keys("consumed")) >= rows(db, "good").keys())
            time.sleep(2)
        for broker in (pair.slave, pair.master, pair.other):
            broker.broker_server.stop()
        found = everything(pair)
        assert set(found) == wanted
        twice = {body for body, count in found.items() if count > 1}
        assert len(twice - set(unknown)) <= SENDERS, twice
