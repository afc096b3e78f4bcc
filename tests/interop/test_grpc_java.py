"""RocketMQ 5's official Java client does one of everything (tests/reference/grpc), and what it was
answered, in local and in cluster mode, is what Apache's proxy in local mode answered, but for what
is listed here."""

from __future__ import annotations

import contextlib
import json
import lzma
import re
from pathlib import Path

import pytest
from proxies import proxy

from broker import Broker
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

pytestmark = [pytest.mark.java, pytest.mark.long]

LEDGER = Path(__file__).parent.parent / "golden" / "grpc-5.3.3.ledger.jsonl.xz"
#: What differs from run to run.
VOLATILE = {"id", "ms", "at", "born", "handle"}
#: Answered otherwise, by kind: ours.
OURS = {
    # It says what is wrong, and with which status.
    "recall-wrong": "BadRequestException: [request-id=?, response-code=40000] recall handle is",
    "receive-bad-sql": "BadRequestException: [request-id=?, response-code=40010] parse the",
    # A failed change answers the old handle, and not an empty one.
    "ack-after-failed-change": "OK",
}
#: Depends on the order in which queues were asked, or on what was acknowledged above; and at Apache
#: committed transactions are checked once more and delivered twice.
BY_LUCK = {
    "receive-batch-33", "again*", "again*-total", "ack-again", "received-tx", "received-tx-total",
    "received-tx-more", "received-tx-more-total", "check*", "checks*", "close", "drained*",
}  # fmt: skip


def normal(line):
    row = {name: value for name, value in json.loads(line).items() if name not in VOLATILE}
    if row["kind"] == "change-invisible":
        del row["body"]
    if "result" in row:
        row["result"] = re.sub(r"(\w+Impl)-\d+", r"\1", row["result"])
    return row


def ledger(lines):
    """Rows that are compared in order, rows that are compared as a set, and all by kind."""
    rows = [normal(line) for line in lines]
    by_kind = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)
    compared = [row for row in rows if row["kind"] not in BY_LUCK | OURS.keys()]
    in_order = [row for row in compared if not row["kind"].endswith("*")]
    others = sorted(json.dumps(r, sort_keys=True) for r in compared if r["kind"].endswith("*"))
    return in_order, others, by_kind


def check(lines):
    with lzma.open(LEDGER, "rt", encoding="utf-8") as file:
        in_order, others, _ = ledger(file)
    ours_in_order, our_others, ours = ledger(lines)
    assert ours_in_order == in_order
    assert our_others == others
    for kind, begins in OURS.items():
        (row,) = ours[kind]
        assert row["result"].startswith(begins), row
    assert [row["body"] for row in ours["received-tx"]] == ["commit", "checked-commit"]
    asked = {row["body"] for row in ours["check*"]}
    assert asked == {"checked-commit", "checked-rollback"}
    # Of five messages one was acknowledged, one changed and acknowledged, one after its failed
    # change; two come again.
    assert {row["attempt"] for row in ours["again*"]} >= {2}
    assert len({row["body"] for row in ours["again*"]}) == 2
    assert sum(row["n"] for row in ours["receive-batch-33"]) > 0


@pytest.mark.parametrize("mode", ["local", "cluster", "local over TLS"])
def test_the_official_java_client_is_answered_as_by_apaches_proxy(
    store_path, reference, tmp_path, mode
):
    with Broker(
        store_path, listenPort=0, grpc_port=0, brokerIP1="127.0.0.1", brokerName="broker-a",
        with_namesrv=True,
        recallMessageEnable=True, transactionTimeOut=3000, transactionCheckInterval=3000,
        flushDiskType="ASYNC_FLUSH", mappedFileSizeCommitLog=64 << 20,
    ) as broker:  # fmt: skip

        async def make():
            services = broker.services
            kinds = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "tx": "TRANSACTION"}
            for name, kind in kinds.items():
                services.topics.update(TopicConfig(f"g_{name}", 4, 4), f"+message.type={kind}")
            services.groups.update(SubscriptionGroup("g_group", retry_max_times=2))
            services.groups.update(
                SubscriptionGroup("g_order", consume_message_orderly=True, retry_max_times=1)
            )

            await services.topics.settled()
            await services.registration.settled()

        broker.run(make())
        with contextlib.ExitStack() as undo:
            address = broker.grpc_address
            if mode == "cluster":
                address = undo.enter_context(proxy("ours", broker.namesrv_address, tmp_path)).grpc
            done = reference.run(
                "grpc", address, "g", timeout=540,
                JAVA_OPTS="-Xmx256m -DcheckWait=30000 -DpushWait=30000"
                f" -Dssl={'true' if mode == 'local over TLS' else 'false'}",
            )  # fmt: skip
    check([line for line in done.stdout.splitlines() if line.startswith("{")])
