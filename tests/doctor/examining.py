"""What the tests of the doctor share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import until

from broker import Broker, NameServer
from broker.doctor import Diagnosis, examine_network

__all__ = ["SMALL", "examined", "found", "names", "running"]

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 512,
    "maxIndexNum": 1024, "diskSpaceWarningLevelRatio": 98, "listenPort": 0,
    "bindAddress": "127.0.0.1", "drain_s": 0.1,
}  # fmt: skip


@contextlib.contextmanager
def names() -> Iterator[str]:
    """A name server that knows nobody yet."""
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


@contextlib.contextmanager
def running(folder: Path, **more: Any) -> Iterator[Broker]:
    """A broker, with a name server of its own unless it gets others."""
    settings = SMALL | {"with_namesrv": "namesrvAddr" not in more} | more
    with Broker(folder, **settings) as broker:
        yield broker


def examined(address: str | None, **options: Any) -> dict[str, Diagnosis]:
    """What the doctor finds at an address, by the name of the check."""
    options = {"pause_s": 0.05} | options
    _, diagnoses = asyncio.run(examine_network(address, **options))
    return {each.check: each for each in diagnoses}


def found(address: str | None, check: str, **options: Any) -> Diagnosis:
    """The finding of one check; waits until it is there, since registrations take a moment."""
    seen: dict[str, Diagnosis] = {}

    def there() -> Diagnosis | None:
        nonlocal seen
        seen = examined(address, **options)
        return seen.get(check)

    diagnosis = until(there, check)
    assert diagnosis.why and diagnosis.mend and "{" not in diagnosis.mend
    return diagnosis
