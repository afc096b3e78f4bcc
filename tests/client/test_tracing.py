"""Message trace: what is written, and that upstream's tool reads it."""

from __future__ import annotations

import re

import pytest
import waiting
from loops import run, until

from broker import AsyncConsumer, AsyncProducer, Message
from broker.client import SendFailed

TRACE = "RMQ_SYS_TRACE_TOPIC"


async def traced(namesrv, topic, group):
    """Sends and handles one message with trace; its id."""
    handled = []

    async def handle(message):
        handled.append(message)

    async with AsyncProducer("shop", namesrv, trace=True) as producer:
        sent = await producer.send(Message(topic, b"12 apples", tags="fruit", keys="order-17"))
    async with AsyncConsumer(
        group, topic, namesrv=namesrv, start="first", handler=handle, trace=True
    ):
        await until(lambda: handled)
    return sent


async def records_of(namesrv, key, kinds=("Pub", "SubBefore", "SubAfter")):
    """Lists of fields by kind, of the records about a message with that key, once they are all
    there."""
    found = {}
    async with AsyncConsumer("trace-reader", namesrv=namesrv, start="first") as reader:
        await reader.assign(await reader.queues(TRACE))
        while not found.keys() >= set(kinds):
            for message in await reader.poll(1.0):
                records = [r.split("\x01") for r in message.body.decode().split("\x02")]
                found |= {record[0]: record for record in records if key in record}
    return found


async def test_a_message_leaves_three_records(server, name):
    topic, group = name("topic"), name("group")
    sent = await traced(server.namesrv, topic, group)
    found = await records_of(server.namesrv, sent.message_id)
    pub, before, after = found["Pub"], found["SubBefore"], found["SubAfter"]
    key, stored = sent.message_id, sent.offset_message_id
    assert pub[3:8] == ["shop", topic, key, "fruit", "order-17"]
    assert (pub[9], pub[11:]) == ("9", ["0", stored, "true"])
    assert (before[3], before[5:]) == (group, [key, "0", "order-17"])
    assert after[1:3] == [before[4], key]
    assert (after[4:7], after[8]) == (["true", "order-17", "0"], group)


async def test_a_send_that_fails_is_traced_as_failed(server, name):
    settings = {"trace": True, "compress_over": 0, "message_max": 8 << 20}
    key = name("key")
    async with AsyncProducer("shop", server.namesrv, **settings) as producer:
        with pytest.raises(SendFailed):  # it is larger than maxMessageSize of the broker
            await producer.send(Message(name("topic"), b"x" * (5 << 20), keys=key))
    found = await records_of(server.namesrv, key, ["Pub"])
    assert found["Pub"][-1] == "false"


@pytest.mark.java
def test_mqadmin_reads_the_trace(server, name, reference):
    """It looks in the index, which may be a moment behind the queue, and waits three seconds for
    an answer, which a busy machine may not give by then."""
    sent = run(traced(server.namesrv, name("topic"), name("group")))
    run(records_of(server.namesrv, sent.message_id))

    def shown():
        words = ("queryMsgTraceById", "-n", server.namesrv, "-i", sent.message_id)
        return reference.run("mqadmin", *words, check=False).stdout

    waiting.until(lambda: {"success", "Pub", "Sub"} <= set(re.findall(r"\w+", shown())))
