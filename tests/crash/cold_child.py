"""A broker with a cold tier in a folder that serves until it is killed; prints its port. Segments
are small, and go at once where they may."""

from __future__ import annotations

import sys
import time

from broker.broker import Broker


def main(path: str, tier: str) -> None:
    with Broker(
        path,
        listenPort=0,
        mappedFileSizeCommitLog=256 << 10,
        cleanResourceInterval=50,
        flushIntervalConsumeQueue=50,
        fileReservedTime=0,
        deleteWhen=";".join(f"{hour:02}" for hour in range(24)),
        brokerName="broker-a",
        tieredStoreFilePath=tier,
        tieredUploadWaitMillis=100,
        tieredPutsPerHour=100_000_000,
    ) as broker:
        print(broker.port, flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
