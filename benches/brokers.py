"""Brokers beside each other: ours and Apache's as processes, what they use, requests by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benches.harness import ROOT, SCRATCH, anonymous_mb, cpu_s

REFERENCE = ROOT / "tests" / "reference" / "reference"
PYSTORE = Path(sys.executable).parent / "pystore"
HEAP = os.environ.get("HEAP", "2g")
SEND_V2, HEART_BEAT, TOPIC, TOPICS, CLUSTER = 310, 34, 17, 18, 106
REQUEST_MODE = 401


def free_port() -> int:
    """A port that is free, with the two below and the one above it, which a broker takes too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        with suppress(OSError):
            for near in (port - 2, port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", near))
            return port


# ---- requests by hand ----


def frame(code: int, ext: Mapping[str, object], body: bytes = b"", opaque: int = 1) -> bytes:
    fields = {name: str(value) for name, value in ext.items()}
    head = {"code": code, "language": "JAVA", "version": 479, "opaque": opaque, "flag": 0}
    header = json.dumps({**head, "extFields": fields}).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def ask(wire: socket.socket, data: bytes) -> tuple[int, bytes]:
    """Code and body of the answer."""
    wire.sendall(data)
    left = b""
    while len(left) < 8 or len(left) < 4 + struct.unpack_from(">i", left)[0]:
        got = wire.recv(1 << 16)
        if not got:
            raise ConnectionError("closed")
        left += got
    n = struct.unpack_from(">i", left, 4)[0] & 0xFFFFFF
    return json.loads(left[8 : 8 + n])["code"], left[8 + n :]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def send_frame(topic: str, unique: str = "") -> bytes:
    """unique: the UNIQ_KEY that every official client gives its messages."""
    names = "abcdefghijkl"
    now, properties = int(time.time() * 1000), f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    values = ("starter", topic, "TBW102", 4, 0, 0, now, 0, properties, 0, "false", 16)
    return frame(SEND_V2, dict(zip(names, values, strict=True)), b"x" * 128)


def heartbeat(client: str) -> bytes:
    data = {"clientID": client, "consumerDataSet": [], "producerDataSet": [{"groupName": "many"}]}
    return frame(HEART_BEAT, {}, json.dumps(data).encode())


def make_topics(port: int, count: int) -> list[str]:
    """Their names. Through the batch request where there is one, else one after another."""
    names = [f"many-{i}" for i in range(count)]
    one = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    rest = {"topicSysFlag": 0, "order": False, "attributes": {}}
    body = json.dumps({"topicConfigList": [{"topicName": n, **one, **rest} for n in names]})
    with connect(port) as wire:
        if ask(wire, frame(TOPICS, {}, body.encode()))[0] == 0:
            return names
        for name in names:
            ext = {"topic": name, "defaultTopic": "TBW102", **one, "topicSysFlag": 0}
            code, _ = ask(wire, frame(TOPIC, {**ext, "order": "false"}))
            assert code == 0, f"a topic could not be made: {code}"
    return names


def set_pop_mode(port: int, topic: str, group: str) -> None:
    """The broker has clients of the group pop, instead of pulling."""
    said = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with connect(port) as wire:
        code, body = ask(wire, frame(REQUEST_MODE, {}, json.dumps(said).encode()))
        assert code == 0, f"the request mode: {code} {body!r}"


# ---- processes ----


@dataclass
class Peer:
    """ours, or a version of Apache's. Its name server is a process of its own."""

    #: What starts Apache's, of the reference program.
    verb: ClassVar[str] = "broker"
    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    namesrv_port: int = field(default_factory=free_port)
    broker: subprocess.Popen[bytes] | None = None
    names: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def version(self) -> str:
        return "5.3.3" if self.name == "ours" else self.name

    def run(self, what: str, words: list[str]) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "RMQ_VERSION": self.version,
            "RMQ_NAMESRV_PORT": str(self.namesrv_port),
            "RMQ_BROKER_PORT": str(self.port),
            "HEAP": HEAP,
        }
        if self.name == "ours":
            env["HOME"] = str(self.folder)
            # An installed package has its bytecode: a start must not compile all of it again.
            env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{what}.out").open("ab") as out:
            return subprocess.Popen(words, stdout=out, stderr=out, env=env)

    def start_names(self) -> None:
        words = [str(REFERENCE), "namesrv", str(self.folder)]
        if self.name == "ours":
            words = [str(PYSTORE), "namesrv", "--port", str(self.namesrv_port)]
        self.names = self.run("names", words)
        self._until(self.namesrv_port, frame(CLUSTER, {}))

    def launch(self, *more: str, **settings: object) -> float:
        """Starts the process of the broker and waits for nothing; returns when, on the clock
        perf_counter. more: arguments for ours; settings: for either make."""
        given = [f"{name}={value}" for name, value in settings.items()]
        words = [str(REFERENCE), self.verb, str(self.folder), *given]
        if self.name == "ours":
            words = [str(PYSTORE), "broker", "--store", str(self.folder / "store")]
            words += ["--port", str(self.port), "-n", self.namesrv, *more]
            words += [word for each in given for word in ("--set", each)]
        began = time.perf_counter()
        self.broker = self.run("broker", words)
        return began

    def start_broker(self, *more: str) -> float:
        """Seconds from the start of the process to the first accepted message. more: arguments for
        ours."""
        began = self.launch(*more)
        self._until(self.port, send_frame("bench-start"))
        return time.perf_counter() - began

    def _until(self, port: int, data: bytes, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError), connect(port) as wire:
                if ask(wire, data)[0] == 0:
                    return
            time.sleep(0.002)
        said = [x.read_text("utf-8", "replace")[-2000:] for x in self.folder.glob("*.out")]
        raise TimeoutError(f"{self.name} does not answer: {said}")

    def stop_broker(self) -> None:
        _end(self.broker)
        self.broker = None

    def stop(self) -> None:
        self.stop_broker()
        _end(self.names)
        self.names = None

    # ---- what the broker uses ----

    def cpu_s(self) -> float:
        """Processor time of the whole broker process so far."""
        assert self.broker is not None
        return cpu_s(self.broker.pid)

    def anonymous_mb(self) -> float:
        assert self.broker is not None
        return anonymous_mb(self.broker.pid)

    # ---- load ----

    def load(self, mode: str, *words: object) -> dict[str, Any]:
        """The official client (reference load); with broker_cpu_s over the measured window."""
        with self.start_load(mode, *words, stderr=subprocess.PIPE) as run:
            assert run.stderr is not None
            at: dict[str, float] = {}
            for line in run.stderr:
                if line.strip() in ("MEASURE", "MEASURED"):
                    at[line.strip()] = self.cpu_s()
            out = run.communicate()[0]
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said | {"broker_cpu_s": at["MEASURED"] - at["MEASURE"]}

    def start_load(
        self, mode: str, *words: object, stderr: int | None = None
    ) -> subprocess.Popen[str]:
        """The same as a process."""
        env = os.environ | {"RMQ_VERSION": "5.3.3", "JAVA_OPTS": "-Xms1g -Xmx1g"}
        command = [str(REFERENCE), "load", mode, self.namesrv, *map(str, words)]
        return subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            text=True,
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def peer_of(name: str) -> Iterator[Peer]:
    """A peer whose name server runs; its folder is deleted afterwards."""
    folder = SCRATCH / f"broker-{name}-{os.getpid()}"
    made = Peer(name, folder)
    try:
        made.start_names()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
