"""A real etcd of one member, as a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port
from waiting import until

__all__ = ["Etcd", "etcd"]

PROGRAM = shutil.which("etcd")


class Etcd:
    def __init__(self, folder: Path) -> None:
        self.client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.address = f"etcd://{self.client}"
        self._words = [
            PROGRAM or "etcd", "--data-dir", str(folder), "--unsafe-no-fsync",
            "--listen-client-urls", f"http://{self.client}",
            "--advertise-client-urls", f"http://{self.client}",
            "--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls",
            f"http://{peer}", "--initial-cluster", f"default=http://{peer}",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(self._words, stdin=null, stdout=null, stderr=null)
        host, _, port = self.client.rpartition(":")

        def answers() -> bool:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                return False
            return True

        until(answers, "etcd")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None


@contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    made = Etcd(folder)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.kill()
