"""Our broker and Apache's in one cluster, with one name server, of either make."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import launch
import pytest

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

#: Those in which the topic's queues lie on both brokers.
NAMES = ["rebalance", "broadcasting", "send-ordered", "request-reply", "delayed", "lite-subscribe"]


#: The one whose name server both use, and the other.
PAIRS = [("java", "ours"), ("ours", "java")]


def judge(reference, folder, first, second):
    """What the scenarios say of a cluster of the two."""
    other = {"brokerName": "broker-b"}
    with (
        launch.running(first, folder / "a") as one,
        launch.running(second, folder / "b", other, namesrv=one.namesrv) as two,
    ):
        code, _, body = launch.ask(one.namesrv, launch.CLUSTER)
        assert code == 0
        assert {one.broker.encode(), two.broker.encode()} <= set(body.split(b'"'))
        done = reference.run("scenario", ",".join(NAMES), one.namesrv, 6, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["scenario"]: line for line in found}


@pytest.fixture(scope="module")
def reports(reference, tmp_path_factory):
    """Both clusters, side by side: they mostly wait."""
    with ThreadPoolExecutor() as pool:
        runs = {
            pair: pool.submit(judge, reference, tmp_path_factory.mktemp("two"), *pair)
            for pair in PAIRS
        }
    return {pair: run.result() for pair, run in runs.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pair", PAIRS, ids="-with-".join)
def test_scenario_over_both(reports, pair, name):
    report = reports[pair][name]
    assert report["ok"], f"{report['failed']}; {report['facts']}"
