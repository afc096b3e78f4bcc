"""A master in a network of its own that is cut off from its slave and its name server, or stopped,
and goes on. Run by test_acting_cut.py: ``FOLDER SEED ROUNDS``."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "histories"))

import launch
from test_acting_kill import (
    ACTS,
    SMALL,
    Cluster,
    Popping,
    check,
    count_at,
    delivered_in,
    end_of,
    follows,
    knows_tasks,
    make_topic,
    put,
    send,
)
from waiting import until
from world import NAMES_PORT, Host, run

NOWHERE = "02:00:00:00:00:ff"
#: So that a cut is noticed in seconds.
SOON = {
    "brokerNotActiveTimeoutMillis": 6000, "haHousekeepingInterval": 3000,
    "haSendHeartbeatInterval": 500, "brokerHeartbeatInterval": 500, "messageDelayLevel": "6s 12s",
}  # fmt: skip
NOTICED_S = 3.0
LATE = 60
NAMES_CONF = {
    "supportActingMaster": "true", "notifyMinBrokerIdChanged": "true",
    "scanNotActiveBrokerInterval": 500,
}  # fmt: skip


@dataclass
class Network:
    """here: of the clients and the other broker of the cluster, which stay in reach of all."""

    here: Host
    master: Host
    slave: Host
    names: Host

    @property
    def hosts(self) -> list[Host]:
        return [self.here, self.master, self.slave, self.names]

    def cut(self) -> None:
        """The master, from its slave and from the name server."""
        for other in (self.slave, self.names):
            self.master.sends_to(other, NOWHERE)
            other.sends_to(self.master, NOWHERE)

    def mend(self) -> None:
        for one in self.hosts:
            for other in self.hosts:
                if one is not other:
                    one.sends_to(other, other.mac)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network(Host(1), Host(11), Host(12), Host(13))
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "address", made.here.mac, "type", "bridge")
    run("ip", "address", "add", f"{made.here.address}/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    try:
        for host in made.hosts[1:]:
            host.join("br0")
        made.mend()
        yield made
    finally:
        for host in made.hosts[1:]:
            if host.holder is not None:
                host.holder.kill()
                host.holder.wait()


@contextlib.contextmanager
def broker_at(host: Host, names: str, folder: Path, **settings: Any) -> Iterator[launch.Peer]:
    more = {**SMALL, **SOON, "brokerIP1": host.address, "namesrvAddr": names, **settings}
    made = launch.MAKES["ours"](folder, launch.SETTINGS | more, "", names)
    made.broker_server.words = host.inside(*made.broker_server.words)
    peer = replace(made, namesrv=names, broker=f"{host.address}:{made.broker.rpartition(':')[2]}")
    peer.broker_server.start()
    try:
        peer.wait_ready()
        yield peer
    finally:
        peer.stop()


@contextlib.contextmanager
def cluster(net: Network, folder: Path) -> Iterator[Cluster]:
    (folder / "names").mkdir(parents=True)
    conf = folder / "names" / "namesrv.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in NAMES_CONF.items()))
    words = [str(launch.PYSTORE), "namesrv", "--port", str(NAMES_PORT), "-c", str(conf)]
    server = launch.Server(net.names.inside(*words), folder / "names", {"HOME": str(folder)})
    server.start()
    names = f"{net.names.address}:{NAMES_PORT}"
    slaves = {**ACTS, **SOON, "brokerRole": "SLAVE", "brokerId": 1}
    masters = {**ACTS, **SOON, "brokerRole": "ASYNC_MASTER", "haListenPort": 10912}
    try:
        launch.wait("the name server", lambda: launch.ask(names, launch.CLUSTER)[0] == 0)
        with (
            broker_at(net.here, names, folder / "c", brokerName="broker-c") as other,
            broker_at(net.master, names, folder / "m", **masters) as master,
            broker_at(net.slave, names, folder / "s", **slaves) as slave,
        ):
            for broker in (other, master):
                make_topic(broker)
            yield Cluster(master, slave, other)
    finally:
        server.stop()


def is_registered(pair: Cluster) -> bool:
    return f'"{pair.master.broker}"'.encode() in launch.ask(pair.master.namesrv, launch.CLUSTER)[2]


def one_round(net: Network, pair: Cluster, chance: random.Random) -> None:
    launch.wait("a slave that follows", lambda: follows(pair.master))
    delivered, stays = send(pair.master, chance)
    for number in range(LATE):
        due_ms = time.time_ns() // 10**6 + chance.randrange(4000, 20_000)
        put(pair.master, f"late-{number}", TIMER_DELIVER_MS=str(due_ms))
        delivered.add(f"late-{number}")
    popping = Popping(pair.master, chance)
    popping.some(pair.master)
    launch.wait("the topic and the group at the slave", lambda: knows_tasks(pair.slave))
    until(lambda: end_of(pair.slave) >= end_of(pair.master), "the slave has what was sent")
    time.sleep(chance.uniform(0, 1))
    process = pair.master.broker_server.process
    assert process is not None
    stops = chance.random() < 0.5
    began = time.monotonic()
    if stops:
        process.send_signal(signal.SIGSTOP)
    else:
        net.cut()
    lasts_s = chance.choice((1, 4, 9, 16)) + chance.uniform(0, 3)
    while time.monotonic() - began < lasts_s:
        time.sleep(chance.uniform(0.2, 1))
        popping.some(pair.slave)
        if not stops:
            # What it hands out before it notices is known to it alone.
            if time.monotonic() - began > NOTICED_S:
                popping.some(pair.master)
            put(pair.master, name := f"plain-{time.monotonic()}")
            delivered.add(name)
    unknown = delivered_in(pair.master.store, end_of(pair.slave))
    if stops:
        process.send_signal(signal.SIGCONT)
    else:
        net.mend()
    for _ in range(5):
        popping.some(pair.master)
    launch.wait("the master is registered", lambda: is_registered(pair))
    launch.wait(
        "what is due", lambda: count_at(pair.master) + count_at(pair.other) >= len(delivered)
    )
    launch.wait("a slave that follows", lambda: follows(pair.master))
    launch.wait("the master serves pops", lambda: popping.is_served(pair.master))
    popping.check(pair.master)
    time.sleep(2)
    for broker in (pair.slave, pair.master, pair.other):
        broker.broker_server.stop()
    print(f"{'stopped' if stops else 'cut'} for {lasts_s:.1f} s:", end=" ", flush=True)
    check(pair, delivered, stays, unknown)


def main() -> None:
    folder, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    with network() as net:
        for number in range(rounds):
            with cluster(net, folder / f"round{number}") as pair:
                try:
                    one_round(net, pair, chance)
                except AssertionError:
                    for each in (pair.master, pair.slave):
                        print(each.broker_server.said(), file=sys.stderr)
                    raise
                finally:
                    net.mend()


if __name__ == "__main__":
    main()
