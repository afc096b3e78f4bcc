"""Why something failed, in a text that is never empty."""

from __future__ import annotations

__all__ = ["reason_of"]


def reason_of(failed: BaseException) -> str:
    """Returns the text of an error, or what kind of error it is when it has none, as a TimeoutError
    has. (``failed or ..`` does not tell: an error is true whatever its text.)"""
    return str(failed) or type(failed).__name__
