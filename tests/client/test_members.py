"""A group whose members are Python and Java clients."""

from __future__ import annotations

import pytest
from java_member import JavaMember
from loops import until

from broker import AsyncConsumer, AsyncProducer, Message


@pytest.mark.long
@pytest.mark.java
async def test_java_and_python_members_share_the_queues(server, name, reference):
    topic, group = name("topic"), name("group")
    seen = []

    async def handle(message):
        seen.append(message.body.decode())

    def mine(consumer):
        return {q for q in consumer.assignment if q.topic == topic}

    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"first"))
        async with AsyncConsumer(
            group, topic, namesrv=server.namesrv, start="first", handler=handle
        ) as consumer:
            await until(lambda: len(mine(consumer)) == 4)
            java = JavaMember(server.namesrv, topic, group)
            try:
                await until(lambda: len(mine(consumer)) == 2)
                wanted = {f"{n}" for n in range(200)}
                for body in wanted:
                    await producer.send(Message(topic, body.encode()))
                await until(lambda: wanted <= {*seen, *java.lines})
                theirs = {line for line in java.lines if line.isdigit()}
                ours = {body for body in seen if body.isdigit()}
                assert 50 <= len(theirs) <= 150
                # Each message went to one of them, but for repeats while queues changed hands.
                assert len(theirs & ours) <= 8
            finally:
                await java.stop()
            await until(lambda: len(mine(consumer)) == 4)
            await producer.send_batch([Message(topic, b"last")] * 20)
            await until(lambda: seen.count("last") == 20)
