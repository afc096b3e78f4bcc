"""Tells systemd how a server is: sd_notify(3), for units of ``Type=notify``."""

from __future__ import annotations

import contextlib
import os
import socket
import time

__all__ = ["notify", "reloading"]


def notify(*lines: str) -> None:
    """Sends lines such as ``READY=1`` to whom NOTIFY_SOCKET names; without one does nothing. That
    nobody listens there does not stop a server."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract name
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.connect(address)
        to.sendall("\n".join(lines).encode())


def reloading() -> None:
    """Says that settings are read again; READY=1 follows when they hold."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
