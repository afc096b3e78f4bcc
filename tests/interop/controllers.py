"""Apache's controller, and brokers of either make under it, as processes that tests start and
end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import launch
from ports import free_port

from broker import Message, Producer
from broker.client.errors import ClientError
from pystore import Reader

__all__ = ["Controller", "Sender", "controller", "member_of"]

SEGMENT = 1 << 20


@dataclass
class Controller:
    """One name server with a controller in it. names: its address; address: the controller's."""

    names: str
    address: str
    server: launch.Server

    def record(self, name: str) -> dict[str, Any]:
        """What it has of a broker name; empty: nothing."""
        asked = json.dumps([name]).encode()
        code, _, body = launch.ask(self.address, 1006, None, asked)
        table = json.loads(body)["replicasInfoTable"] if code == 0 else {}
        return dict(table.get(name) or {})

    def in_sync(self, name: str) -> list[int]:
        return sorted(each["brokerId"] for each in self.record(name).get("inSyncReplicas", ()))

    def master(self, name: str) -> str:
        """The address of the master that is alive; empty: there is none."""
        found = self.record(name)
        rows = found.get("inSyncReplicas", ())
        alive = {each["brokerAddress"] for each in rows if each["alive"]}
        address = found.get("masterAddress") or ""
        return address if address in alive else ""

    def elect(self, name: str, number: int) -> int:
        """As `mqadmin electMaster`: the code of its answer."""
        ext = {
            "clusterName": "DefaultCluster", "brokerName": name, "brokerId": str(number),
            "designateElect": "true", "invokeTime": str(int(time.time() * 1000)),
        }  # fmt: skip
        return launch.ask(self.address, 1002, ext)[0]


@contextmanager
def controller(folder: Path) -> Iterator[Controller]:
    port, own = free_port(), free_port()
    given = [
        "enableControllerInNamesrv=true", "controllerType=DLedger", "controllerDLegerGroup=g",
        f"controllerDLegerPeers=n0-127.0.0.1:{own}", "controllerDLegerSelfId=n0",
        f"controllerStorePath={folder}/controller", "enableElectUncleanMaster=false",
        "notifyBrokerRoleChanged=true",
    ]  # fmt: skip
    words = [str(launch.SCRIPT), "namesrv", str(folder), *given]
    env = {"RMQ_NAMESRV_PORT": str(port), "NAMESRV_HEAP": "192m"}
    made = Controller(
        f"127.0.0.1:{port}", f"127.0.0.1:{own}", launch.Server(words, folder / "names", env)
    )
    made.server.start()
    try:
        wait_leader(made)
        yield made
    finally:
        made.server.stop()


def wait_leader(made: Controller) -> None:
    def leads() -> bool:
        code, ext, _ = launch.ask(made.address, 1005)
        return code == 0 and bool(ext.get("controllerLeaderAddress"))

    launch.wait("the controller's leader", leads)


def member_of(make: str, under: Controller, folder: Path, name: str, **more: Any) -> launch.Peer:
    """A broker that is not started yet."""
    given: dict[str, Any] = {
        "brokerName": name, "enableControllerMode": "true", "controllerAddr": under.address,
        "allAckInSyncStateSet": "true", "brokerId": -1, "brokerRole": "SLAVE",
        "mappedFileSizeCommitLog": SEGMENT, "haListenPort": free_port(), **more,
    }  # fmt: skip
    if make == "java":
        given |= launch.JAVA_SETTINGS | {
            "brokerIP2": "127.0.0.1", "slaveTimeout": 20_000,
            "storePathEpochFile": f"{folder}/store/epochFileCheckpoint",
            "storePathBrokerIdentity": f"{folder}/store/brokerIdentity",
        }  # fmt: skip
    return launch.MAKES[make](folder, given, "5.3.3", under.names)


@dataclass
class Sender:
    """Sends one message after the other from a thread, and remembers where each acknowledged one
    is."""

    names: str
    topic: str = "orders"
    #: (queue, offset) of each acknowledged body.
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def __enter__(self) -> Sender:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        number, last = 0, time.monotonic()
        with Producer("p", self.names, send_timeout_s=3) as producer:
            while not self._stop.is_set():
                body = b"m%d" % number
                number += 1
                try:
                    sent = producer.send(Message(self.topic, body, keys=body.decode()))
                except (ClientError, OSError, TimeoutError, ValueError) as failed:
                    self.problems.append(f"{type(failed).__name__} {failed}"[:300])
                    time.sleep(0.02)
                    continue
                if sent.status.name != "SEND_OK":
                    self.problems.append(sent.status.name)
                    continue
                where = sent.queue.queue, sent.queue_offset
                assert where not in self.acknowledged, f"two messages at {where}"
                self.acknowledged[where] = body
                self.gaps.append(time.monotonic() - last)
                last = time.monotonic()

    def wait(self, more: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        launch.wait(f"{wanted} acknowledged; {self.problems[-1:]}",
                    lambda: len(self.acknowledged) >= wanted)  # fmt: skip

    def check(self, *stores: Path) -> None:
        """All of them are where they were said to be, in each of these stopped stores."""
        for store in stores:
            with Reader(store) as reader:
                found = {
                    (each.queue, each.queue_offset): bytes(each.body)
                    for each in reader.messages() if each.topic == self.topic
                }  # fmt: skip
            lost = {at for at, body in self.acknowledged.items() if found.get(at) != body}
            assert lost == set(), f"{len(lost)} of {len(self.acknowledged)} lost in {store}"
