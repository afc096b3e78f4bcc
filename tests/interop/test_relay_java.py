"""Official remoting clients before a proxy: the scenarios of tests/reference/src, their producers
and consumers relayed, the admin tool at the brokers. PS_JUDGE=java: Apache's broker and proxy."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import launch
import pytest
from proxies import Addresses, proxy
from test_clients import AT_ONCE, NAMES
from waiting import BOUND_S

pytestmark = [pytest.mark.java, pytest.mark.long]

#: They ask for messages by key, delete topics at name servers, or use the VIP port: no proxy serves
#: that, Apache's neither.
UNSERVED = {"query", "consume-directly", "topics", "vip"}
#: Apache's proxy keeps groups to itself: at its brokers they have no members, no retry topics and
#: no offsets that tools find; filters are not tested, answers say nothing of traces.
FAIL_AT_APACHES = {
    "running-info", "sql92", "push-concurrent", "send-sync", "send-back", "lite-subscribe",
    "connections", "request-reply", "trace", "namespace",
}  # fmt: skip


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def reports(
    peer: launch.Peer, reference: Any, request: Any, tmp_path_factory: Any
) -> dict[str, dict[str, Any]]:
    """What a client of this version says of each scenario."""
    reference.run("setup", timeout=reference.setup_s, RMQ_VERSION=request.param)
    skipped = UNSERVED | (FAIL_AT_APACHES if peer.make == "java" else set())
    folder = tmp_path_factory.mktemp("proxy")
    with proxy(peer.make, peer.namesrv, folder, enableTopicMessageTypeCheck=False) as made:
        found = _run(peer, made, request.param, skipped)
        if peer.make == "ours":
            assert "Traceback" not in made.log.read_text()
    return found


def _run(
    peer: launch.Peer, made: Addresses, version: str, skipped: set[str]
) -> dict[str, dict[str, Any]]:
    options = f"-Xmx384m -Dclients={made.remoting} -Dskip={','.join(sorted(skipped))}"
    run = subprocess.run(
        [str(launch.SCRIPT), "scenario", "all", peer.namesrv, str(AT_ONCE)],
        env=os.environ | {"RMQ_VERSION": version, "JAVA_OPTS": options},
        capture_output=True, text=True, timeout=2 * BOUND_S,
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert lines, run.stderr[-3000:]
    return {line["scenario"]: line for line in lines}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNSERVED])
def test_scenario(peer: launch.Peer, reports: Any, name: str) -> None:
    if peer.make == "java" and name in FAIL_AT_APACHES:
        pytest.skip("Apache's proxy fails here")
    report = reports[name]
    assert report["ok"], f"{report['failed']}; {report['facts']}"
