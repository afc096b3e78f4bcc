"""The name server: which broker serves which topic. Entry: ``NameServer`` (server.py)."""

from __future__ import annotations

from broker.namesrv.server import NameServer

__all__ = ["NameServer"]
