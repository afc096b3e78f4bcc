"""Official Java clients and a broker: each scenario of tests/reference/src, by three clients."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import launch
import pytest
from ports import free_port
from waiting import BOUND_S

pytestmark = [pytest.mark.java, pytest.mark.slow]

#: Version of the client and the encoding of its headers.
CLIENTS = {
    "5.3.3-json": ("5.3.3", ""),
    "5.3.3-binary": ("5.3.3", "-Drocketmq.serialize.type=ROCKETMQ"),
    "4.9.7-json": ("4.9.7", ""),
}
#: How many scenarios a client runs at once; most of them mostly wait.
AT_ONCE = 8
NAMES = """
    reset-offset connections running-info consume-directly topics orderly-rebalance
    push-concurrent push-orderly push-wakes broadcasting lite-assign lite-subscribe retry-dlq
    orderly-dlq send-back rebalance sql92 consume-from post-subscription two-groups send-sync
    send-async send-oneway send-batch send-ordered send-compressed send-big send-refused
    auto-create request-reply delayed query pull vip trace namespace
""".split()  # noqa: SIM905
#: What `make test` has of the others: each kind of request, and what a broker asks of its clients.
#: `make judge` has the rest.
SLICES = {
    "5.3.3-binary": """
        reset-offset running-info topics push-concurrent lite-assign retry-dlq send-sync send-batch
        request-reply delayed query pull
    """.split(),  # noqa: SIM905
    "4.9.7-json": """
        reset-offset running-info topics push-concurrent push-orderly lite-subscribe send-back
        send-sync send-compressed request-reply delayed query pull vip
    """.split(),  # noqa: SIM905
}  # fmt: skip
CASES = [
    pytest.param(client, name, marks=[pytest.mark.long] * (name not in SLICES.get(client, NAMES)))
    for client in CLIENTS
    for name in NAMES
]


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, peer: launch.Peer, reference: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """What each client says of each scenario that this run has; they run once, side by side."""
    asked: dict[str, list[str]] = {}
    for item in request.session.items:
        # Other modules have tests of this name, and may run in the same session.
        if item.path == request.path and getattr(item, "originalname", "") == "test_scenario":
            params = item.callspec.params
            asked.setdefault(params["client"], []).append(params["name"])
    reference.run("setup", timeout=reference.setup_s, RMQ_VERSION="4.9.7")
    runs = {
        client: subprocess.Popen(
            [str(launch.SCRIPT), "scenario", ",".join(names), peer.namesrv, str(AT_ONCE)],
            env=os.environ | {"RMQ_VERSION": version, "JAVA_OPTS": f"-Xmx384m {options}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for client, names in asked.items()
        for version, options in [CLIENTS[client]]
    }
    found = {}
    try:
        for client, run in runs.items():
            out, errors = run.communicate(timeout=2 * BOUND_S)
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            assert lines, f"{client} said nothing:\n{errors[-3000:]}"
            found |= {(client, line["scenario"]): line for line in lines}
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    return found


@pytest.mark.parametrize(("client", "name"), CASES)
def test_scenario(reports, client, name):
    report = reports[client, name]
    assert report["ok"], f"{report['failed']}; {report['facts']}"


def test_no_scenario_is_forgotten(reference):
    assert reference.run("scenario", "list").stdout.split() == NAMES


def test_a_wrong_expectation_ends_with_exit_code_1(peer, reference):
    """The judge itself: a scenario whose broker is not there fails, and says so."""
    nobody = f"127.0.0.1:{free_port()}"
    done = reference.run("scenario", "send-sync", nobody, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False


def test_the_broker_said_nothing_of_errors(peer: launch.Peer, reports):
    if peer.make == "ours":
        said = Path(peer.broker_server.log).read_text("utf-8", "replace")
        assert "Traceback" not in said, said[:5000]
