"""A real etcd of one member or three, as processes of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port
from waiting import until

__all__ = ["PROGRAM", "Etcd", "etcd", "etcd_of_three"]

PROGRAM = shutil.which("etcd")


class Etcd:
    """One member. members: names and addresses for peers of all; None: it is alone. certificate:
    files of certificate and key, for TLS."""

    def __init__(
        self, folder: Path, name: str = "default", members: dict[str, str] | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:  # fmt: skip
        self.client, alone = (f"127.0.0.1:{free_port()}" for _ in range(2))
        members = members or {name: alone}
        scheme, url = ("https", "etcds") if certificate else ("http", "etcd")
        self.address = f"{url}://{self.client}"
        peer = f"http://{members[name]}"
        self._words = [
            PROGRAM or "etcd", "--name", name, "--data-dir", str(folder / name),
            "--unsafe-no-fsync", "--bcrypt-cost", "4",
            "--listen-client-urls", f"{scheme}://{self.client}",
            "--advertise-client-urls", f"{scheme}://{self.client}",
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", ",".join(f"{n}=http://{at}" for n, at in members.items()),
        ]  # fmt: skip
        for option, file in zip(("--cert-file", "--key-file"), certificate or (), strict=False):
            self._words += [option, str(file)]
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
def etcd(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[Etcd]:
    made = Etcd(folder, certificate=certificate)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.kill()


@contextmanager
def etcd_of_three(folder: Path) -> Iterator[list[Etcd]]:
    """The members of one cluster."""
    members = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(3)}
    made = [Etcd(folder, name, members) for name in members]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            if each.process is not None:
                each.kill()
