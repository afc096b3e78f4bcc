"""RocketMQ 5's official Java client sends messages with priorities and receives them, and is told
what a broker of 5.5.0 told it."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from broker import Broker
from pystore.meta.configfiles import SubscriptionGroup

pytestmark = [pytest.mark.java, pytest.mark.long]

LEDGER = Path(__file__).parent.parent / "golden" / "priority-5.5.0.ledger.jsonl.xz"
TOLD = ("kind", "group", "body", "priority", "attempt", "acked", "result")


def rows(lines, *, ranked):
    """What was told, in its order; of the group that does not go by priority, what it got."""
    all_rows = [json.loads(line) for line in lines if line.startswith("{")]
    if not ranked:
        return sorted(
            row["body"] for row in all_rows if row["kind"] == "seen" and row["group"] == "_prio0"
        )
    return [
        [row.get(name) for name in TOLD]
        for row in all_rows
        if ("prio" in row["kind"] or row["kind"] == "seen") and row.get("group") != "_prio0"
    ]


def test_priorities_of_the_official_java_client(store_path, reference):
    with Broker(store_path, listenPort=0, grpc_port=0) as broker:
        broker.create_topic("L_prio", 8, message_type="PRIORITY")
        broker.create_topic("L_normal", 4, message_type="NORMAL")

        async def make_groups():
            for name, changes in (("L_prio", {}), ("L_prio0", {"+priority.factor": "0"})):
                broker.services.groups.update(SubscriptionGroup(name, attributes=changes))

        broker.run(make_groups())
        done = reference.run("lite", broker.grpc_address, "L", "prio", timeout=540)
    ours = done.stdout.replace("L_", "L3_").splitlines()
    with lzma.open(LEDGER, "rt", encoding="utf-8") as file:
        golden = file.read().splitlines()
    for ranked in (True, False):
        assert rows(ours, ranked=ranked) == rows(golden, ranked=ranked)
