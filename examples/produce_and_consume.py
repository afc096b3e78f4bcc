"""Produces and consumes, with a broker inside this process: nothing else has to run."""

import tempfile

from broker import Broker, Message

with tempfile.TemporaryDirectory() as folder, Broker(folder, listenPort=0) as broker:
    with broker.producer() as producer:
        producer.send(Message("orders", b"12 apples", tags="fruit", keys="order-17"))
    with broker.consumer("billing", "orders", start="first") as consumer:
        for message in consumer:
            print(message.tags, message.keys, message.body.decode())
            break
