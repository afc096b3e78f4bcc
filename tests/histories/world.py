"""Hosts as network namespaces on one bridge, which needs root, and what runs on them: three brokers
of one name, each on a small disk of its own, the three members of a controller, a name server. Made
to be used in a network namespace of its own (``unshare -n``), which takes everything along at its
end.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))

import launch
from waiting import until

__all__ = ["BROKER_PORT", "NAME", "NAMES", "Broker", "ControllerMember", "Host", "World"]

NAME, CLUSTER = "broker-a", "DefaultCluster"
NAMES_PORT, BROKER_PORT, HA_PORT, CONTROLLER_PORT, ETCD_PORT = 9876, 10911, 10912, 9878, 2379
NAMES = f"10.77.0.1:{NAMES_PORT}"
#: Nobody's: what is sent there is lost in silence.
_NOWHERE = "02:00:00:00:00:ff"
_FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
             "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")  # fmt: skip
#: Of a disk. What is left when it is full, is nothing.
_DISK_MB = 400
LIFE_MS = 3000


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL)


@dataclass
class Host:
    """number: of its address, 10.77.0.number. The host of clients and the name server is 1."""

    number: int
    holder: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def mac(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    @property
    def device(self) -> str:
        return "eth0" if self.holder else "br0"

    def inside(self, *words: object) -> list[str]:
        """These words as a command in its network; the process is the command itself."""
        if self.holder is None:
            return [str(word) for word in words]
        return ["nsenter", "-t", str(self.holder.pid), "-n", *(str(word) for word in words)]

    def sends_to(self, other: Host, mac: str) -> None:
        run(*self.inside("ip", "neigh", "replace", other.address, "lladdr", mac,
                         "dev", self.device, "nud", "permanent"))  # fmt: skip

    def join(self, bridge: str) -> None:
        """A network of its own with one link to the bridge."""
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        pid, link = self.holder.pid, f"v{self.number}"
        mine = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != mine, "a namespace")
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", link, "master", bridge, "up")
        run(*self.inside("ip", "link", "set", "lo", "up"))
        run(*self.inside("ip", "link", "set", "eth0", "address", self.mac, "up"))
        run(*self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0"))


@dataclass
class Process:
    """On a host; started again after its end."""

    host: Host
    server: launch.Server
    paused: bool = False

    @property
    def runs(self) -> bool:
        return self.server.process is not None and self.server.process.poll() is None

    def kill(self) -> None:
        if self.server.process is not None:
            self.server.kill()
        self.paused = False

    def start(self) -> None:
        if self.server.process is not None and self.server.process.poll() is not None:
            self.server.process = None
        if self.server.process is None:
            self.server.start()

    def pause(self) -> None:
        if self.runs:
            self.server.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
            self.paused = True

    def go_on(self) -> None:
        if self.paused and self.runs:
            self.server.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        self.paused = False


@dataclass
class Broker(Process):
    folder: Path = Path()

    @property
    def address(self) -> str:
        return f"{self.host.address}:{BROKER_PORT}"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def set_clock(self, seconds: int) -> None:
        """How far it is off."""
        (self.folder / "clock").write_text(f"{seconds:+d}\n")

    def fill_disk(self) -> None:
        with (self.disk / "ballast").open("ab", 0) as ballast:
            for size in (1 << 20, 4096):
                while True:
                    try:
                        ballast.write(bytes(size))
                    except OSError:
                        break

    def empty_disk(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)


@dataclass
class ControllerMember(Process):
    pass


@dataclass
class World:
    """kind: ``etcd`` or ``apache``, of the controller. make: ``ours`` or ``java``, of the brokers;
    or one of each broker, with commas between. more: settings of theirs."""

    folder: Path
    kind: str
    make: str = "ours"
    more: dict[str, Any] = field(default_factory=dict)
    clients: Host = field(default_factory=lambda: Host(1))
    brokers: list[Broker] = field(default_factory=list)
    controller: list[ControllerMember] = field(default_factory=list)
    names: launch.Server | None = None
    fakes_clocks: bool = False

    @property
    def makes(self) -> list[str]:
        """Of each broker."""
        given = self.make.split(",")
        return given if len(given) == 3 else given * 3

    @property
    def controller_address(self) -> str:
        hosts = [each.host.address for each in self.controller]
        if self.kind == "etcd":
            return "etcd://" + ",".join(f"{host}:{ETCD_PORT}" for host in hosts)
        return ";".join(f"{host}:{CONTROLLER_PORT}" for host in hosts)

    @property
    def hosts(self) -> list[Host]:
        return [self.clients, *(each.host for each in (*self.brokers, *self.controller))]

    # ---- links ----

    def cut(self, one: Host, other: Host, *, both: bool = True) -> None:
        """What one sends does not reach the other any more; both: nor the other way round."""
        one.sends_to(other, _NOWHERE)
        if both:
            other.sends_to(one, _NOWHERE)

    def mend(self) -> None:
        """All links."""
        for one in self.hosts:
            for other in self.hosts:
                if one is not other:
                    one.sends_to(other, other.mac)

    # ---- beginning and end ----

    def __enter__(self) -> World:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "address", self.clients.mac, "type", "bridge")
        run("ip", "address", "add", f"{self.clients.address}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        words = [str(launch.PYSTORE), "namesrv", "--port", str(NAMES_PORT)]
        home = self.folder / "names"
        self.names = launch.Server(words, home, {"HOME": str(home)})
        self.names.start()
        hosts = [Host(21 + number) for number in range(3)]
        for number, host in enumerate(hosts):
            host.join("br0")
            make = self._etcd if self.kind == "etcd" else self._controller
            self.controller.append(ControllerMember(host, make(number, hosts)))
        for each in self.controller:
            each.start()
        for number in range(3):
            self.brokers.append(self._broker(number))
        self.mend()
        for broker in self.brokers:
            broker.start()

    def __exit__(self, *_: object) -> None:
        for each in (*self.brokers, *self.controller):
            each.kill()
        if self.names is not None:
            self.names.stop()
        for broker in self.brokers:
            subprocess.run(["umount", "-l", str(broker.disk)], check=False)
        for host in self.hosts:
            if host.holder is not None:
                host.holder.kill()
                host.holder.wait()

    def stop(self) -> list[int]:
        """A clean end of the brokers: their exit codes."""
        return [broker.server.stop() for broker in self.brokers]

    # ---- what runs ----

    def _etcd(self, number: int, hosts: Sequence[Host]) -> launch.Server:
        own, folder = hosts[number].address, self.folder / f"etcd{number}"
        members = ",".join(f"n{n}=http://{host.address}:2380" for n, host in enumerate(hosts))
        words = hosts[number].inside(
            shutil.which("etcd"), "--name", f"n{number}", "--data-dir", folder / "data",
            "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", f"http://{own}:{ETCD_PORT}",
            "--advertise-client-urls", f"http://{own}:{ETCD_PORT}",
            "--listen-peer-urls", f"http://{own}:2380",
            "--initial-advertise-peer-urls", f"http://{own}:2380", "--initial-cluster", members,
        )  # fmt: skip
        return launch.Server(words, folder)

    def _controller(self, number: int, hosts: Sequence[Host]) -> launch.Server:
        folder = self.folder / f"controller{number}"
        members = ";".join(f"n{n}-{host.address}:{CONTROLLER_PORT}" for n, host in enumerate(hosts))
        words = hosts[number].inside(
            launch.SCRIPT, "namesrv", folder, "enableControllerInNamesrv=true",
            "controllerType=DLedger", "controllerDLegerGroup=g",
            f"controllerDLegerPeers={members}", f"controllerDLegerSelfId=n{number}",
            f"controllerStorePath={folder}/controller", "enableElectUncleanMaster=false",
            "notifyBrokerRoleChanged=true",
        )  # fmt: skip
        env = {"RMQ_NAMESRV_PORT": str(NAMES_PORT), "NAMESRV_HEAP": "192m"}
        return launch.Server(words, folder, env)

    def _broker(self, number: int) -> Broker:
        host, folder = Host(11 + number), self.folder / f"m{number}"
        host.join("br0")
        disk = folder / "disk"
        disk.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", disk)
        conf: dict[str, Any] = {
            "brokerClusterName": CLUSTER, "brokerName": NAME, "brokerIP1": host.address,
            "listenPort": BROKER_PORT, "haListenPort": HA_PORT, "namesrvAddr": NAMES,
            "storePathRootDir": disk / "store", "enableControllerMode": "true",
            "controllerAddr": self.controller_address, "controllerHeartBeatTimeoutMills": LIFE_MS,
            "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000, "maxIndexNum": 4000, "fileReservedTime": 100_000,
            "cleanFileForciblyEnable": "false", "haSendHeartbeatInterval": 500,
            "haHousekeepingInterval": 3000, "haMaxTimeSlaveNotCatchup": 5000,
            "slaveReadEnable": "true", **self.more,
        }  # fmt: skip
        if self.makes[number] == "java":
            return Broker(host, _java_server(host, folder, conf), folder=folder)
        file = folder / "broker.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in conf.items()), "utf-8")
        env = {"HOME": str(folder)}
        if library := next((each for each in _FAKETIME if Path(each).exists()), None):
            self.fakes_clocks = True
            env |= {
                "LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
                "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        words = host.inside("env", *(f"{name}={value}" for name, value in env.items()),
                            launch.PYSTORE, "broker", "-c", file)  # fmt: skip
        broker = Broker(host, launch.Server(words, folder), folder=folder)
        broker.set_clock(0)
        return broker


def _java_server(host: Host, folder: Path, conf: dict[str, Any]) -> launch.Server:
    store = conf["storePathRootDir"]
    given = {
        **launch.JAVA_SETTINGS, **conf, "brokerId": -1, "brokerRole": "SLAVE",
        "brokerIP2": host.address, "storePathCommitLog": f"{store}/commitlog",
        "storePathEpochFile": f"{store}/epochFileCheckpoint", "allAckInSyncStateSet": "true",
        "storePathBrokerIdentity": f"{store}/brokerIdentity",
    }  # fmt: skip
    env = {"RMQ_BROKER_PORT": str(BROKER_PORT), "HEAP": "384m", "DIRECT": "256m"}
    words = host.inside(launch.SCRIPT, "broker", folder, *(f"{k}={v}" for k, v in given.items()))
    return launch.Server(words, folder, env)


def now_ns() -> int:
    """Of one clock for all clients."""
    return time.monotonic_ns()
