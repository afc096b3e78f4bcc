"""A master and its slave, both ours, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from listening import Listener
from waiting import BOUND_S, until

from broker import Broker, Message

__all__ = [
    "SMALL", "Answer", "JavaLikePort", "Link", "lose_power", "master_of", "send", "slave_of",
    "until_alike",
]  # fmt: skip

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 100,
    "maxIndexNum": 400, "bindAddress": "127.0.0.1", "listenPort": 0, "brokerName": "b",
}  # fmt: skip
#: Of a command with --json: exit code, what was found, the error.
Answer = tuple[int, dict[str, Any], dict[str, Any]]


class JavaLikePort:
    """Serves the log of a store as Java's master does: whoever reports 0 gets the last segment
    alone, and a place that is not there heartbeats for ever."""

    def __init__(self, broker: Broker) -> None:
        self._folder = Path(broker.store.path) / "commitlog"
        self._ends = broker.store.info
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self.asked: list[int] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> JavaLikePort:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._sock.accept()[0] as slave, contextlib.suppress(OSError):
                    self._send(slave)

    def _send(self, slave: socket.socket) -> None:
        at = struct.unpack(">q", slave.recv(8))[0]
        slave.settimeout(0.01)
        size = SMALL["mappedFileSizeCommitLog"]
        self.asked.append(at)
        if at == 0:
            at = self._ends().log_max // size * size
        while self._sock.fileno() >= 0:
            info, data = self._ends(), b""
            file = self._folder / f"{at // size * size:020d}"
            if info.log_min <= at < info.log_max:
                with file.open("rb") as log:
                    log.seek(at % size)
                    data = log.read(min(32_768, size - at % size, info.log_max - at))
            slave.sendall(struct.pack(">qi", at, len(data)) + data)
            at += len(data)
            with contextlib.suppress(TimeoutError):
                if not slave.recv(4096):
                    return


class Link:
    """A port that passes bytes on to another one of this host. While it is cut nobody gets through,
    and nobody is let in. silent: the far end is not told that the near one is gone, as nobody is of
    a host that loses its power."""

    def __init__(self, port: int, silent: bool = False) -> None:
        self._to, self._listener = port, Listener(self._pass_all)
        self._passes_until = asyncio.ALL_COMPLETED if silent else asyncio.FIRST_COMPLETED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Link:
        self._thread.start()
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def mend(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listener.close(), self._loop).result()

    async def _listen(self) -> None:
        self.port = int((await self._listener.open(port=self.port)).rpartition(":")[2])

    async def _pass_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            ways = (reader, back), (there, writer)
            passing = {asyncio.create_task(_pass(*way)) for way in ways}
            try:
                await asyncio.wait(passing, return_when=self._passes_until)
            finally:
                for each in passing:
                    each.cancel()
                for end in (writer, back):
                    end.transport.abort()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


@contextlib.contextmanager
def master_of(
    folder: Path, names: str, role: str = "ASYNC_MASTER", **more: Any
) -> Iterator[Broker]:
    with Broker(folder, namesrvAddr=names, brokerRole=role, **SMALL, **more) as broker:
        yield broker


@contextlib.contextmanager
def slave_of(folder: Path, names: str, **more: Any) -> Iterator[Broker]:
    with Broker(
        folder, namesrvAddr=names, brokerRole="SLAVE", **SMALL | {"brokerId": 1} | more
    ) as broker:
        yield broker


def send(broker: Broker, count: int, topic: str = "orders") -> None:
    with broker.producer(send_timeout_s=BOUND_S) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number * 50, keys=f"k{number}"))


def lose_power(store: Path, end: int, lost: int) -> None:
    """The host of a broker that was killed starts again without the last bytes of its log, which
    ends at `end`, in the first segment."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end - lost)
        file.write(bytes(lost))
    kept = store / "brokerBoot"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"boot": "the one before"}))


def until_alike(master: Broker, slave: Broker) -> None:
    """The logs are equal byte for byte, and so are the ends of the queues."""
    end = master.store.info().log_max
    until(lambda: slave.store.info().log_max == end, "the end of the master's log")
    for file in sorted((Path(master.store.path) / "commitlog").iterdir()):
        base = int(file.name)
        if base >= end:  # made ahead
            continue
        copy = Path(slave.store.path) / "commitlog" / file.name
        assert file.read_bytes()[: end - base] == copy.read_bytes()[: end - base]
    for queue in range(4):
        until(
            lambda queue=queue: (
                slave.store.range("orders", queue) == master.store.range("orders", queue)
            ),
            "the master's queue",
        )
