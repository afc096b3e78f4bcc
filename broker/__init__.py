"""Apache RocketMQ's broker and name server in one small Python process, over :mod:`pystore`."""

from __future__ import annotations
