"""Steps of each order, worked on in the order in which they were sent."""

import time
from collections import defaultdict

from broker import Consumer, Message, Producer, ReceivedMessage

STEPS = ("created", "paid", "shipped")
seen: dict[str, list[str]] = defaultdict(list)


def handle(message: ReceivedMessage) -> None:
    seen[message.keys[0]].append(message.body.decode())


with Producer("orders") as producer:
    for step in STEPS:
        for order in range(5):
            # One key, one queue: the steps of an order stay in order.
            producer.send(Message("steps", step.encode(), keys=f"order-{order}"), key=str(order))
with Consumer("tracking", "steps", start="first", handler=handle, orderly=True):
    while sum(map(len, seen.values())) < 15:
        time.sleep(0.01)
for order_id, steps in sorted(seen.items()):
    print(order_id, *steps)
