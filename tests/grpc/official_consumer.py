"""The official Python simple consumer: receives and acknowledges so many messages of a topic;
prints one JSON object a line.

official_consumer.py ADDRESS TOPIC COUNT
"""

from __future__ import annotations

import json
import random
import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer


def main() -> None:
    address, topic, count = sys.argv[1:]
    # The client draws the queue of each receive. So it draws the two halves of eight queues in
    # turn, which are two brokers': one that has nothing left would hold call after call.
    random.seed(2)
    consumer = SimpleConsumer(
        ClientConfiguration(address, Credentials()), f"grpc-readers-of-{topic}",
        {topic: FilterExpression()}, await_duration=6,
    )  # fmt: skip
    consumer.startup()
    left = int(count)
    while left:
        for message in consumer.receive(32, 30):
            facts = {"id": message.message_id, "body": message.body.decode(), "tag": message.tag}
            print(json.dumps(facts), flush=True)
            consumer.ack(message)
            left -= 1
    consumer.shutdown()


main()
