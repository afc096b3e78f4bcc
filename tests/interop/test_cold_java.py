"""Apache's push consumer begins with the first message of a topic, whose older part is in the cold
tier alone, and does not notice; nor does it when the tier is away for a while."""

from __future__ import annotations

import asyncio

import pytest
from java_member import JavaMember
from waiting import until

from broker.broker import Broker
from pystore.cold.failures import TierUnreachable

pytestmark = [pytest.mark.java, pytest.mark.long]

COUNT, LATER = 3000, 50


def write_out(broker: Broker) -> None:
    """Has the broker write its log out, and delete what it may."""
    store, queues = broker.services.store, range(4)

    def is_gone() -> bool:
        store.clean(immediate=True)
        return all(store.range("cold", queue)[0] > 100 for queue in queues)

    until(is_gone, "the log to be out", pause_s=1)
    assert all(store.span("cold", queue)[0] == 0 for queue in queues)


@pytest.mark.parametrize("away", [False, True])
def test_a_java_consumer_reads_on_from_the_tier(tmp_path, reference, away):
    with Broker(
        tmp_path / "store", listenPort=0, with_namesrv=True, brokerName="broker-a",
        mappedFileSizeCommitLog=1 << 16, tieredStoreFilePath=str(tmp_path / "cold"),
        tieredUploadWaitMillis=0,
    ) as broker:  # fmt: skip
        broker.create_topic("cold", 4)
        store = broker.services.store
        for number in range(COUNT):
            store.put("cold", b"%d" % number + b"-" * 100, queue=number % 4)
        write_out(broker)
        objects = broker.services.cold.reads._lender.blocks._objects
        get, refused = objects.get, []

        def fail(key, start, end):
            refused.append(key)
            raise TierUnreachable("the store is away", key)

        if away:
            objects.get = fail
        member = JavaMember(broker.namesrv_address, "cold", "java-readers")
        try:
            until(lambda: "ready" in member.lines, "the consumer")
            if away:
                until(lambda: len(refused) > 20, "questions to the tier that fail")
                objects.get = get
            for number in range(COUNT, COUNT + LATER):
                store.put("cold", b"%d" % number + b"-" * 100, queue=number % 4)
            until(lambda: len(member.lines) > COUNT + LATER, "all messages")
            bodies = sorted(int(line.rstrip("-")) for line in member.lines if line != "ready")
            assert bodies == list(range(COUNT + LATER))
        finally:
            asyncio.run(member.stop())
