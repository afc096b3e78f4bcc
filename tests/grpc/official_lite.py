"""The official Python clients of lite topics: sends three messages to one, and prints those that a
consumer of it gets, one JSON object a line.

official_lite.py ADDRESS push|simple GROUP PARENT LITE_TOPIC
"""

from __future__ import annotations

import json
import os
import sys
import time
from queue import SimpleQueue
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
)
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException


class Listener(MessageListener):
    """Hands messages on."""

    def __init__(self, seen: SimpleQueue[Any]) -> None:
        self.seen = seen

    def consume(self, message: Any) -> Any:
        self.seen.put(message)
        return ConsumeResult.SUCCESS


def subscribe(consumer: Any, name: str) -> None:
    """Subscribes once the settings have come: the client knows no quota before. What it sends then
    names each letter; only the set that it sends every half minute names the lite topic."""
    while True:
        try:
            consumer.subscribe_lite(name)
        except LiteSubscriptionQuotaExceededException:
            time.sleep(0.02)
        else:
            consumer.subscribe_lite_all()
            return


def main() -> None:
    address, kind, group, parent, name = sys.argv[1:]
    conf = ClientConfiguration(address, Credentials())
    seen: SimpleQueue[Any] = SimpleQueue()
    if kind == "push":
        consumer = LitePushConsumer(conf, group, parent, Listener(seen), consumption_thread_count=1)
    else:
        consumer = LiteSimpleConsumer(parent, conf, group, await_duration=6)
    consumer.startup()
    subscribe(consumer, name)
    producer = Producer(conf, (parent,))
    producer.startup()
    for number in range(3):
        made = Message()
        made.topic, made.body, made.lite_topic = parent, f"{kind} {number}".encode(), name
        producer.send(made)
    for _ in range(3):
        while kind == "simple" and seen.empty():
            for message in consumer.receive(32, 30):
                consumer.ack(message)
                seen.put(message)
        message = seen.get()
        print(json.dumps({"lite": message.lite_topic, "body": message.body.decode()}), flush=True)
    os._exit(0)  # a clean end waits until open polls are over


main()
