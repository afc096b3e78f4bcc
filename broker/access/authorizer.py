"""Stands before the handlers of a server: nothing is served that the rules refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from broker.access.addresses import address_of
from broker.access.needs import Verdict
from broker.access.proof import ASKS_FOR_PROOF, prove_answer
from broker.access.recipients import without_scope
from broker.access.signature import ACCESS_KEY, Binding, binding_of
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result

__all__ = ["Authorizer", "Decide", "host_of", "is_loopback", "subject_of"]

#: They name topic and group.
_CONSUMES = frozenset(
    {
        RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE, RequestCode.POP_LITE_MESSAGE,
    }
)  # fmt: skip
_quiet = RateLimitedLogger(SafeLogger("broker.access"))

#: As upstream's code of a request whose signature is not right.
_NO_PERMISSION = 16

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


class Authorizer:
    """Lets the rules decide before a handler is asked. refused: requests refused since the start.
    granted: is called with each request that was let in. secret_of: of an access key, None for
    nobody's. own: addresses of this broker beside the one that a client came to, each
    ``host:port``. What is signed for one broker is refused by others."""

    def __init__(
        self,
        decide: Decide,
        granted: Callable[[Peer, Command], None],
        secret_of: Callable[[str], str | None],
        own: Callable[[], frozenset[str]],
    ) -> None:
        self._decide = decide
        self._granted = granted
        self._secret_of, self._own = secret_of, own
        self.refused = 0

    def before(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Wraps the handlers, so that each is asked only if the rules allow it."""
        made = {code: self._authorized(handler) for code, handler in handlers.items()}
        if ASKS_FOR_PROOF in made:
            made[ASKS_FOR_PROOF] = self._proving(made[ASKS_FOR_PROOF])
        return made

    def _authorized(self, handler: Handler) -> Handler:
        def checked(peer: Peer, command: Command) -> Result:
            self.check(peer, command)
            return handler(peer, command)

        return checked

    def _proving(self, handler: Handler) -> Handler:
        """Adds a proof: whoever has signed for this broker is shown that it knows the secret."""

        def answer(peer: Peer, command: Command) -> Result:
            result = handler(peer, command)
            secret = self._secret_of(command.ext.get(ACCESS_KEY, ""))
            if secret is None or result is None or binding_of(command) is None:
                return result
            if not isinstance(result, Command):
                return _prove_later(command, result, secret)
            prove_answer(command, result, secret)
            return result

        return answer

    def _recipients(self, peer: Peer) -> frozenset[str]:
        return self._own() | {without_scope(peer.local)}

    def _is_for_us(self, peer: Peer, command: Command, binding: Binding) -> bool:
        return binding.code == command.code and not self._recipients(peer).isdisjoint(
            binding.recipients
        )

    def check(self, peer: Peer, command: Command) -> None:
        """Checks one request. Raises: Refused."""
        host = host_of(peer)
        binding = binding_of(command)
        if binding is None or self._is_for_us(peer, command, binding):
            verdict = self._decide(command, host)
        else:
            remark = (
                f"request {binding.code} was signed for the broker at"
                f" {' or '.join(binding.recipients)[:200]}, and this is request {command.code} at"
                f" {' or '.join(sorted(self._recipients(peer)))[:400]}: where clients reach this"
                " broker at that address, its ownAddresses has to name it"
            )
            verdict = Verdict(False, "signed for another broker", _NO_PERMISSION, remark)
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


async def _prove_later(
    command: Command, work: Awaitable[Command | None], secret: str
) -> Command | None:
    answer = await work
    if answer is not None:
        prove_answer(command, answer, secret)
    return answer
