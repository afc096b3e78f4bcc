"""Stands before the handlers of a server: nothing is served that the rules refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.access.addresses import address_of
from broker.access.needs import Verdict
from broker.access.signature import ACCESS_KEY
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer

__all__ = ["Decide", "Guard", "host_of", "is_loopback", "subject_of"]

#: They name topic and group.
_CONSUMES = frozenset(
    {
        RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
    }
)  # fmt: skip
_quiet = RateLimitedLogger(SafeLogger("broker.access"))

#: A verdict on a request from a host. Raises: Refused for a request that cannot be read.
Decide = Callable[[Command, str], Verdict]


def host_of(peer: Peer) -> str:
    """Returns the address of a client as rules and remarks name it."""
    host = peer.address[0]
    found = address_of(host)
    return host if found is None else str(found)


def subject_of(command: Command) -> tuple[str, str] | None:
    """Returns topic and group that a verdict on a hot request depends on, beside who asks and from
    where; None for other requests."""
    ext = command.ext
    if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        found = ext.get("b", ""), ""
    elif command.code in (RequestCode.SEND_MESSAGE, RequestCode.END_TRANSACTION):
        found = ext.get("topic", ""), ""
    elif command.code in _CONSUMES:
        found = ext.get("topic", ""), ext.get("consumerGroup", "")
    else:
        return None
    return found if found[0] else None


def is_loopback(peer: Peer) -> bool:
    """Says whether a client is on the broker's own host."""
    found = address_of(peer.address[0])
    return found is not None and found.is_loopback


class Guard:
    """Lets the rules decide before a handler is asked. refused: requests refused since the start.
    granted: is called with each request that was let in."""

    def __init__(self, decide: Decide, granted: Callable[[Peer, Command], None]) -> None:
        self._decide = decide
        self._granted = granted
        self.refused = 0

    def before(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Wraps the handlers, so that each is asked only if the rules allow it."""
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def checked(peer: Peer, command: Command) -> object:
            self.check(peer, command)
            return handler(peer, command)

        return checked  # type: ignore[return-value]

    def check(self, peer: Peer, command: Command) -> None:
        """Raises: Refused."""
        host = host_of(peer)
        verdict = self._decide(command, host)
        if verdict.allowed:
            self._granted(peer, command)
            return
        self.refused += 1
        key = command.ext.get(ACCESS_KEY, "")[:64]
        _quiet.warning(
            # Of somebody who is who he says by name and code; of others all are one kind.
            ("refused", verdict.proven, command.code if verdict.proven else 0),
            "Refused request %d of '%s' from %s: %s",
            command.code,
            key,
            host,
            verdict.remark,
        )
        raise Refused(verdict.code, verdict.remark)
