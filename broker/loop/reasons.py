"""Why something failed, in a text that is never empty, and what tools say next of a refusal."""

from __future__ import annotations

__all__ = ["NEEDS_RIGHTS", "NOT_A_BROKER", "reason_of"]

#: Of a server that does not know a request that brokers know.
NOT_A_BROKER = "it is not a broker of that kind: give a broker's listenPort, 10911 by default"
NEEDS_RIGHTS = "it takes the rights of an administrator: --credentials"


def reason_of(failed: BaseException) -> str:
    """Returns the text of an error, or what kind of error it is when it has none, as a TimeoutError
    has. (``failed or ..`` does not tell: an error is true whatever its text.)"""
    return str(failed) or type(failed).__name__
