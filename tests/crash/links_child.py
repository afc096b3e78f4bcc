"""A synchronous pair in a network of its own, whose one link is slow, drops what is too much for
it, and is cut again and again. Run by test_bad_links.py: ``FOLDER SEED ROUNDS``."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

from pairs import master_of, slave_of, until_alike
from storeview import everything
from waiting import BOUND_S, until

from broker import Broker, Message, NameServer

SYNC: dict[str, Any] = {
    "inSyncReplicas": 2, "slaveTimeout": 500, "haSendHeartbeatInterval": 200,
    "haHousekeepingInterval": 1500,
}  # fmt: skip
BEATS = {name: SYNC[name] for name in ("haSendHeartbeatInterval", "haHousekeepingInterval")}


def link(*words: str) -> None:
    subprocess.run(words, check=True)


@dataclass
class Load:
    """Sends without a pause, beside the test."""

    broker: Broker
    acknowledged: set[bytes] = field(default_factory=set)
    unsure: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        with self.broker.producer(send_timeout_s=BOUND_S) as producer:
            while not self._over.is_set():
                number += 1
                body = b"%d " % number * 200
                if producer.send(Message("orders", body)).status.name == "SEND_OK":
                    self.acknowledged.add(body)
                else:
                    self.unsure += 1

    def until_acknowledged(self) -> None:
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 1, "an acknowledged message")


def bodies(broker: Broker) -> set[bytes]:
    return {bytes(message.body) for message in everything(broker.store, "orders")}


def main(folder: Path, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    link("ip", "link", "set", "lo", "up")
    shape = "tc qdisc add dev lo root tbf rate 20mbit burst 64k latency 30ms"
    link(*shape.split())
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1", kvConfigPath="") as server:
        names = f"127.0.0.1:{server.port}"
        with (
            master_of(folder / "m", names, "SYNC_MASTER", **SYNC) as master,
            slave_of(folder / "s", names, **BEATS) as slave,
        ):
            master.create_topic("orders", 4)
            replication = master.services.replication
            until(lambda: replication.master.slaves, "the slave")
            with Load(master) as load:
                for _ in range(rounds):
                    load.until_acknowledged()
                    time.sleep(chance.uniform(0, 0.2))
                    link("ip", "link", "set", "lo", "down")
                    time.sleep(chance.choice((0.1, 0.5, 2.5)))
                    link("ip", "link", "set", "lo", "up")
                load.until_acknowledged()
            until_alike(master, slave)
            for broker in (master, slave):
                assert load.acknowledged <= bodies(broker)
    print(f"{rounds} cuts, {len(load.acknowledged)} acknowledged, {load.unsure} of 12")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
