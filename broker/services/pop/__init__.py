"""POP consumption: see README.md."""

from __future__ import annotations

from broker.services.pop.pop import Pop

__all__ = ["Pop"]
