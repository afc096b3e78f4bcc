"""Apache's push client with server-side rebalance pops from our broker, and mqadmin sets the mode
and sees what is in flight."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import launch
import pytest
from waiting import BOUND_S

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from popping import Popper, popping, records

from broker.broker import Broker
from broker.remoting.client import RemotingClient
from pystore.meta.configfiles import TopicConfig

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


class OfApache(Popper):
    """The same client, of Apache's broker."""

    def __init__(self, peer, client):
        self.broker, self.address, self.client = self, peer.broker, client

    async def pop(self, **given):
        """Apache's answers when the poll's time is over since bornTime, not since it came."""
        return await super().pop(**{"bornTime": time.time_ns() // 1_000_000, **given})


@pytest.mark.long
def test_what_is_in_flight_crosses_over_to_apaches_broker_and_back(tmp_path, reference):
    """Of three messages one is acknowledged here; Apache brings back the two others, of which one
    is acknowledged there; here again the last one comes."""
    sizes = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}
    folder = tmp_path / "peer"

    async def before():
        async with popping(folder / "store", **sizes, brokerName="broker-a") as p:
            p.make_topic()
            p.put("a", "b", "c")
            found = await p.handles(invisible=3_000)
            assert (await p.ack(found[1][0])).code == 0

    async def at_apache(peer):
        came, ends = {}, time.monotonic() + BOUND_S
        async with RemotingClient() as client:
            p = OfApache(peer, client)
            while len(came) < 2 and time.monotonic() < ends:
                answer = await p.pop(poll=2_000, invisible=5_000)
                rows = records(answer.body) if answer.code == 0 else []
                for one, row in zip(p.handles_of(answer), rows, strict=True):
                    came[row[1]] = (one, row[4])
            assert {body: times for body, (_, times) in came.items()} == {b"a": 1, b"c": 1}
            handle, name, _ = came[b"a"][0]
            handle = handle._replace(broker="broker-a")
            assert (await p.ack(handle, name)).code == 0

    async def after():
        async with popping(folder / "store", **sizes, brokerName="broker-a") as p:
            answer = await p.pop(poll=60_000)
            assert [(row[1], row[4]) for row in records(answer.body)] == [(b"c", 2)]
            assert (await p.pop()).code == 210

    asyncio.run(before())
    with launch.name_server("ours", tmp_path / "names") as names:
        peer = launch.MAKES["java"](folder, launch.SETTINGS | sizes, "5.3.3", names)
        peer.broker_server.start()
        try:
            peer.wait_ready()
            asyncio.run(at_apache(peer))
        finally:
            peer.stop()
    asyncio.run(after())
