"""A broker with a LITE topic that serves until it is killed; prints its port."""

from __future__ import annotations

import sys
import time

from broker.broker import Broker
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig


def main(path: str) -> None:
    with Broker(path, listenPort=0, mappedFileSizeCommitLog=1 << 20) as broker:

        async def make() -> None:
            broker.services.topics.update(TopicConfig("chat", 4, 4), "+message.type=LITE")
            for name in ("Shared", "Exclusive"):
                said = {"+lite.bind.topic": "chat", "+lite.sub.model": name}
                broker.services.groups.update(SubscriptionGroup(name, attributes=said))
            await broker.services.topics.settled()

        broker.run(make())
        print(broker.port, flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1])
