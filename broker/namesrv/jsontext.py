"""Answers as JSON without white space: Go's client looks for fixed letters in it."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["compact", "fastjson"]


def compact(value: Any) -> bytes:
    """Returns valid JSON in ASCII; integer keys are quoted."""
    return json.dumps(value, separators=(",", ":")).encode()


def fastjson(value: Any) -> bytes:
    """Returns the form that clients before 4.9.4 know: integer keys without quotes."""
    return _text(value).encode()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        members = (
            f"{key if type(key) is int else json.dumps(key)}:{_text(each)}"
            for key, each in value.items()
        )
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value)
