"""Apache's push client with server-side rebalance pops from our broker, and mqadmin sets the mode
and sees what is in flight."""

from __future__ import annotations

import json
import subprocess

import launch
import pytest

from broker.broker import Broker
from pystore.configfiles import TopicConfig

pytestmark = [pytest.mark.java, pytest.mark.slow]


def test_the_official_client_pops_and_gets_a_failure_again(store_path, reference):
    with Broker(store_path, listenPort=0, with_namesrv=True, brokerName="broker-a") as broker:

        async def make():
            broker.services.topics.update(TopicConfig("pop_client", 4, 4))
            await broker.services.topics.settled()
            await broker.services.registration.settled()
            broker.services.groups.found("pop_cg")

        broker.run(make())
        said = reference.run(
            "mqadmin", "setConsumeMode", "-n", broker.namesrv_address, "-b", broker.address,
            "-t", "pop_client", "-g", "pop_cg", "-m", "POP", "-q", "0",
        )  # fmt: skip
        assert "success" in said.stdout
        words = [
            launch.SCRIPT,
            "pop",
            "client",
            broker.namesrv_address,
            "pop_client",
            "pop_cg",
            "40",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        lines = [json.loads(each) for each in done.stdout.splitlines() if each.startswith("{")]
        came = [(each["body"], each["tries"]) for each in lines if each["kind"] == "consumed"]
        assert sorted(came) == [
            ("fail three", 0), ("fail three", 1), ("four", 0), ("one", 0), ("two", 0),
        ]  # fmt: skip
        assert {each["topic"] for each in lines if each["kind"] == "consumed"} == {"pop_client"}
        assert not len(broker.services.pop.points)
