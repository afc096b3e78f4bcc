"""What whoever reaches an HTTP port may hold of it, before anybody knows who it is: one rule for
the metrics (broker/metrics/endpoint.py) and for `pystore web` (broker/web/page_server.py)."""

from __future__ import annotations

__all__ = ["CONNECTIONS_MAX", "HEAD_MAX", "HEAD_S"]

#: Connections at once; bytes of a request's head, and seconds for it.
CONNECTIONS_MAX = 64
HEAD_MAX = 8192
HEAD_S = 10.0
