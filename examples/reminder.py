"""A message that comes later: delay level 1 is a second, 4 half a minute, 18 two hours."""

import time

from broker import Consumer, Message, Producer

with Producer("reminders") as producer:
    sent = time.monotonic()
    producer.send(Message("reminders", b"the order is not paid yet", delay_level=1))
with Consumer("reminding", "reminders", start="first") as consumer:
    message = next(iter(consumer))
    print(f"after {time.monotonic() - sent:.0f} s:", message.body.decode())
