"""librocketmq, the official C++ client, through its binding for Python: sends, and takes by push.

client.py NAMESRV TOPIC GROUP COUNT: ends with 0 once COUNT messages came. A process of its own: the
library has threads that no test could stop, and a crash of it ends nothing else.
"""

from __future__ import annotations

import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer

BOUND_S = 240.0


def main(namesrv: str, topic: str, group: str, count: int) -> int:
    got: set[bytes] = set()
    enough = threading.Event()

    def take(message: object) -> None:
        got.add(bytes(message.body))
        if len(got) >= count:
            enough.set()

    producer = Producer(group + "-makers")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    sent = set()
    for i in range(count // 2):
        sent.add(send(producer, topic, i))
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, take, "even || odd")
    consumer.start()
    for i in range(count // 2, count):
        sent.add(send(producer, topic, i))
    enough.wait(BOUND_S)
    ok = got == sent
    print(f"sent {len(sent)}, took {len(got)}", flush=True)
    consumer.shutdown()
    producer.shutdown()
    return 0 if ok else 1


def send(producer: Producer, topic: str, i: int) -> bytes:
    body = f"message {i}".encode()
    message = Message(topic)
    message.set_tags("odd" if i % 2 else "even")
    message.set_keys(str(i))
    message.set_body(body)
    end = time.monotonic() + BOUND_S
    while True:
        try:
            assert producer.send_sync(message).status == 0
            return body
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
