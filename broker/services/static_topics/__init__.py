"""Static topics: see README.md."""

from __future__ import annotations
