"""The pages of a cluster with ten thousand topics of four queues, one of 4,000 queues that twenty
groups read, and ten thousand groups: what the first visitor waits for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pages import visiting_server
from waiting import until

from broker import Admin, Broker
from broker.web import cluster_overview
from broker.web.cluster_server import ClusterServer
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

TOPICS, GROUPS = 10_000, 10_000
LARGE, LARGE_QUEUES, READERS = "large", 4000, 20
PAGES = (
    "/", "/topics", "/topics?page=2", "/topic?name=T7", "/groups", "/groups?page=2",
    "/group?name=g100", f"/topic?name={LARGE}",
)  # fmt: skip


async def _fill(broker: Broker) -> None:
    s = broker.services
    for number in range(TOPICS):
        s.topics.update(TopicConfig(f"T{number}", 4, 4))
    s.topics.update(TopicConfig(LARGE, LARGE_QUEUES, LARGE_QUEUES))
    for number in range(GROUPS):
        s.groups.update(SubscriptionGroup(f"g{number}"))
        for queue in range(4):
            s.offsets.commit(f"g{number}", f"T{number}", queue, 0)
    for number in range(READERS):
        for queue in range(LARGE_QUEUES):
            s.offsets.commit(f"g{number}", LARGE, queue, 0)


async def _nothing(*given: object, **named: object) -> tuple[str, list[Any]]:
    return "broker", []


def _rests() -> bool:
    """What goes on is done."""
    used = time.process_time()
    time.sleep(0.5)
    return time.process_time() - used < 0.02


@pytest.mark.long
def test_no_page_of_ten_thousand_topics_waits_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_overview, "examine_network", _nothing)  # it asks group by group
    most = {"maxQueuesPerTopic": LARGE_QUEUES}
    with Broker(tmp_path / "store", listenPort=0, with_namesrv=True, **most) as broker:
        broker.run(_fill(broker))
        with Admin(broker.namesrv_address) as admin:
            until(lambda: len(admin.topic_names()) > TOPICS, "that all are registered", 0.5)
        until(_rests, "the broker to be done with it")
        server = ClusterServer(broker.namesrv_address, "127.0.0.1", 0)
        server._options["request_timeout_s"] = 120  # a busy machine takes its time
        with visiting_server(lambda: server) as one:
            for path in PAGES:
                began, used = time.perf_counter(), time.process_time()
                page = one.get(path)
                took, cpu = time.perf_counter() - began, time.process_time() - used
                print(f"{path}: {took * 1000:.0f} ms, processor {cpu * 1000:.0f} ms")
                assert page.status == 200, page.text
                # What a page has asked for beside it is not the next one's.
                until(_rests, "what goes on beside the page", 0.1)
            counted = lambda: "Refresh" not in one.get("/groups").headers  # noqa: E731
            until(counted, "the count", 0.1)
            assert one.get("/groups", q="g9999").rows()[1][1] == "1"
            assert one.get("/groups", q="g19").rows()[1][1] == "2"
