"""Ports for servers that must be told one, because they or their peers cannot ask for any."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["free_port"]

#: Below what the system hands out by itself (net.ipv4.ip_local_port_range), in steps of a claim.
FIRST, LAST, STEP = 12_000, 32_000, 8

#: Lock files of the claims of this process, held as long as it lives.
_claims: list[IO[bytes]] = []


def free_port() -> int:
    """A port that is free, with the two below and the one above it, which a broker takes too.

    It stays claimed until this process ends, so that tests in other processes never get the same
    one: to find a port free and to listen on it are two steps. Raises: RuntimeError.
    """
    folder = Path(tempfile.gettempdir()) / f"pystore-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(FIRST, LAST, STEP), 500):
        claim = (folder / str(port)).open("ab")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for near in (port - 2, port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", near))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError("no free port was found")
