"""The official Go client (rocketmq-client-go v2) and a broker: the checks of tests/go/main.go."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import launch
import pytest
from waiting import BOUND_S

from broker import Broker

pytestmark = [pytest.mark.java, pytest.mark.slow]

SOURCE = Path(__file__).resolve().parents[1] / "go"
CHECKS = ["create", "produce", "admin", "push", "push-tag", "push-orderly", "broadcasting"]
CHECKS += ["pull", "retry"]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The compiled client; skips where Go or the client's module cannot be had."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    path = tmp_path_factory.mktemp("go") / "goclient"
    built = subprocess.run(
        ["go", "build", "-o", path, "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=4 * BOUND_S,
    )
    if built.returncode:
        pytest.skip(f"the Go client cannot be built: {built.stderr[-300:]}")
    return path


@pytest.fixture(scope="module")
def reports(peer: launch.Peer, program):
    """What the client says of each check; all of them run once."""
    run = str(time.time_ns())
    done = subprocess.run(
        [program, peer.namesrv, peer.broker, run],
        capture_output=True,
        text=True,
        timeout=2 * BOUND_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr[-3000:]
    return {line["check"]: line for line in found}


@pytest.mark.parametrize(("secret", "passes"), [("orders-secret", True), ("guessed-secret", False)])
def test_it_signs(program, tmp_path, secret, passes):
    """Producer and push consumer with credentials, at a broker with an access list."""
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: orders-team\n  secretKey: orders-secret\n"
        "  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n"
    )
    with Broker(
        tmp_path / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1",
        with_namesrv=True,
    ) as broker:  # fmt: skip
        broker.create_topic(f"go-{secret}", 4)
        keys = {"ROCKETMQ_ACCESS_KEY": "orders-team", "ROCKETMQ_SECRET_KEY": secret}
        done = subprocess.run(
            [program, broker.namesrv_address, broker.address, secret, "push" if passes else "none"],
            capture_output=True,
            text=True,
            timeout=2 * BOUND_S,
            env=os.environ | keys,
        )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        ok = {line["check"]: line["ok"] for line in found}
        assert ok["produce"] == passes, (found, done.stderr[-2000:])
        assert ok.get("push", False) == passes, found


@pytest.mark.parametrize("check", CHECKS)
def test_check(reports, check):
    assert reports[check]["ok"], reports[check]["failed"]
