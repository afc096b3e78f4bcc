"""The official Python client, told by its arguments what to do; prints one JSON object a line.

official.py ADDRESS DEED [KEY SECRET]
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def made(topic: str, **given: Any) -> Message:
    message = Message()
    message.topic, message.body = topic, f"body of {topic}".encode()
    message.tag, message.keys = "fruit", "k1"
    message.add_property("colour", "grün")
    for name, value in given.items():
        setattr(message, name, value)
    return message


class Commits(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        say(
            asked=message.message_id, topic=message.topic, body=message.body.decode(),
            tag=message.tag, colour=message.properties["colour"], corrupted=message.corrupted,
        )  # fmt: skip
        return TransactionResolution.COMMIT


def send(producer: Producer) -> None:
    for message in (
        made("Normal"),
        made("Fifo", message_group="row-7"),
        made("Delay", delivery_timestamp=int(time.time()) + 1),
    ):
        receipt = producer.send(message)
        say(topic=message.topic, id=receipt.message_id, offset=receipt.offset)


def transact(producer: Producer) -> None:
    for end in ("commit", "rollback"):
        transaction = producer.begin_transaction()
        receipt = producer.send(made("Tx"), transaction)
        getattr(transaction, end)()
        say(end=end, id=receipt.message_id)


def orphan(producer: Producer) -> None:
    """Sends a half message and is gone."""
    say(id=producer.send(made("Tx"), producer.begin_transaction()).message_id)
    os._exit(0)


def check(producer: Producer) -> None:
    """Is there for checks, until its input ends."""
    say(ready=True)
    sys.stdin.read()


def main() -> None:
    address, deed, *credentials = sys.argv[1:]
    conf = ClientConfiguration(address, Credentials(*credentials))
    topics = ("Normal", "Fifo", "Delay") if deed == "send" else ("Tx",)
    producer = Producer(conf, topics, checker=Commits() if deed != "send" else None)
    producer.startup()
    {"send": send, "transact": transact, "orphan": orphan, "check": check}[deed](producer)
    producer.shutdown()


main()
