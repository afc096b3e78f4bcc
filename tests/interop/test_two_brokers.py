"""Our broker and Apache's in one cluster, with one name server, of either make."""

from __future__ import annotations

import json

import launch
import pytest

pytestmark = [pytest.mark.java, pytest.mark.slow]

#: Those in which the topic's queues lie on both brokers.
NAMES = ["rebalance", "broadcasting", "send-ordered", "request-reply", "delayed", "lite-subscribe"]


@pytest.fixture(scope="module", params=[("java", "ours"), ("ours", "java")], ids="-with-".join)
def reports(request, reference, tmp_path_factory):
    """What the scenarios say of a cluster whose name server came with the first of the two."""
    first, second = request.param
    folder = tmp_path_factory.mktemp("two")
    with (
        launch.running(first, folder / "a") as one,
        launch.running(
            *(second, folder / "b", {"brokerName": "broker-b"}), namesrv=one.namesrv
        ) as two,
    ):
        code, _, body = launch.ask(one.namesrv, launch.CLUSTER)
        assert code == 0
        assert {one.broker.encode(), two.broker.encode()} <= set(body.split(b'"'))
        done = reference.run("scenario", ",".join(NAMES), one.namesrv, 6, check=False, timeout=200)
        found = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
        return {line["scenario"]: line for line in found}


@pytest.mark.parametrize("name", NAMES)
def test_scenario_over_both(reports, name):
    report = reports[name]
    assert report["ok"], f"{report['failed']}; {report['facts']}"
