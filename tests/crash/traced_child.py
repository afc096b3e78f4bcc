"""Requests that store, one at a time, of a broker in this process with flushDiskType=SYNC_FLUSH.

``traced_child.py wire|grpc FOLDER``. What is written into FOLDER/marks says between which system
calls each of them lies (test_traced_syncs.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grpc"))

import calls_that_store as calls
import requests_that_store as wire
from consuming import serving
from loops import Wire

from broker import Broker
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

T = TypeVar("T")


class Marks:
    """Writes between which a request lies."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT)

    async def around(self, name: str, work: Awaitable[T], code: int = 0) -> T:
        os.write(self.fd, f"begin {name} {code}\n".encode())
        done = await work
        os.write(self.fd, f"end {name} {code}\n".encode())
        return done


async def over_the_wire(folder: Path, marks: Marks) -> None:
    for make in wire.STORING + wire.MAKING + wire.SETTING:
        root = folder / make.__name__
        root.mkdir()
        files = wire.files_of(make, root) if make in wire.SETTING else {}
        async with Broker(root / "store", **wire.SETTINGS, **files) as broker:
            broker.services.topics.update(TopicConfig("T", 1, 1))
            broker.services.groups.update(SubscriptionGroup("g"))
            await broker.services.groups.settled()
            async with await Wire.to(broker.port) as client:
                stage = wire.Stage(broker, client)
                if not files:
                    await stage.stored()  # files are made and synced
                code, ext, body = await make(stage)
                answer = await marks.around(make.__name__, stage.ask(code, ext, body), code)
                assert answer.code == wire.ANSWERS.get(make.__name__, 0), answer.remark


async def over_grpc(folder: Path, marks: Marks) -> None:
    for make in calls.CALLS:
        root = folder / make.__name__
        root.mkdir()
        async with serving(root / "store", **calls.SETTINGS) as raw:
            calls.prepare(raw)
            raw.put("first", topic="other")
            call = await make(raw)
            await marks.around(make.__name__, call)


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    marks = Marks(folder / "marks")
    uvloop.run((over_the_wire if how == "wire" else over_grpc)(folder, marks))


if __name__ == "__main__":
    main()
