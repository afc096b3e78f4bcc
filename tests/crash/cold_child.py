"""A broker with a cold tier in a folder that serves until it is killed; prints its port. Segments
are small, and go at once where they may; its collector runs all the time, and takes what is some
seconds old, the last manifests of topics that were deleted, too."""

from __future__ import annotations

import sys
import time
from functools import partial

from broker.broker import Broker
from broker.services.cold import uploads
from pystore.cold import tier as cold_tier
from pystore.cold.upkeep import collect

#: Longer than the writer takes from a segment to its manifest.
GRACE_S = 10.0


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
    uploads._COLLECT_FIRST_S = uploads._COLLECT_S = 0.3
    uploads.collect = partial(collect, grace_s=GRACE_S)  # type: ignore[assignment]
    cold_tier._LOOKED_S = GRACE_S / 4
    main(*sys.argv[1:])
