"""Hosts that are not there: network namespaces of Linux, each with an address of its own.

They hang on a bridge that the test makes, with private addresses; the driver and the test stay
where they are, at the bridge's address. Namespaces and bridge are named by the process that made
them, so that the next run removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["HERE", "Host", "hosts"]

_OURS = re.compile(r"psk(\d+)(?:-\w+)?")


class Host(NamedTuple):
    """address: where the others reach it. inside: what a command begins with to run there."""

    address: str
    inside: tuple[str, ...] = ()


#: The loopback, where there is no other network.
HERE = Host("127.0.0.1")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _remove(name: str) -> None:
    for words in (("netns", "del", name), ("link", "del", name)):
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(*words)


def _sweep() -> None:
    """Removes what runs that are over have left."""
    for name in {p.name for d in ("/run/netns", "/sys/class/net") for p in Path(d).glob("psk*")}:
        found = _OURS.fullmatch(name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove(name)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[tuple[Host, dict[str, Host]]]:
    """The test's own host, at its new address, and one for each name. Raises: OSError where this
    user may not make them."""
    _sweep()
    own = os.getpid()
    bridge, net = f"psk{own}", f"10.213.{own % 250}"
    made: list[str] = [bridge]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        found = {}
        for number, name in enumerate(names, 2):
            space, end = f"psk{own}-{name}", f"psk{own}x{number}"
            _ip("netns", "add", space)
            made.insert(0, space)
            _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", end, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{net}.{number}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", space, "link", "set", link, "up")
            found[name] = Host(f"{net}.{number}", ("ip", "netns", "exec", space))
        yield Host(f"{net}.1"), found
    except subprocess.CalledProcessError as failed:
        raise OSError(failed.stderr.strip() or str(failed)) from None
    finally:
        for name in made:
            _remove(name)
