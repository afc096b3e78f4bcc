"""A broker that serves until it is killed; prints its port."""

from __future__ import annotations

import sys
import time

from broker.broker import Broker
from pystore.meta.configfiles import TopicConfig


def main(path: str) -> None:
    with Broker(path, listenPort=0, mappedFileSizeCommitLog=1 << 20) as broker:

        async def make() -> None:
            broker.services.topics.update(TopicConfig("orders", 2, 2))
            await broker.services.topics.settled()
            # As if it had said so in a heartbeat: the core serves what it finds for the group.
            broker.services.core.publish_subscription(
                "g", "orders", tags=None, sub_version=1, own=True
            )

        broker.run(make())
        print(broker.port, flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1])
