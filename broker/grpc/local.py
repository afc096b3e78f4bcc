"""The broker of the same process, as the service asks it: requests of the remoting protocol over a
connection in memory, so that what is let in, stored and answered is decided where it is for every
other client.

Each gRPC client has such a connection of its own, with the client's address: records name it, rules
of access control look at it, and what the broker asks its clients (checks of transactions,
questions of tools) goes there.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Mapping

from broker.access.guard import Guard
from broker.access.needs import Action, Ask, Asked, Kind, Need
from broker.access.signature import ACCESS_KEY, SIGNATURE, Credentials, sign
from broker.grpc.calls import Call
from broker.grpc.status import Code, Problem, of_response
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import BINARY, JSON, Command, Refused
from broker.remoting.connection import Connection, Limits, Shared
from broker.remoting.framer import FramerFactory
from broker.remoting.handlers import Handlers
from broker.remoting.memory import join
from broker.services.context import Services

__all__ = ["Link", "LocalBroker", "credentials_of"]

log = logging.getLogger("broker.grpc")

#: Clients of one connection: official libraries have one.
_LINKS_MAX = 256
_STORED = frozenset(
    (
        ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)  # fmt: skip
_ALGORITHM = "MQv2-HMAC-SHA1"
_REQUEST_S = 30.0
_BINARY_MAX = 0x7FFF
#: Address of the service itself.
_NOBODY = "127.0.0.1"


class Link:
    """One client's connection to the broker. near: our end. far: the broker's, a Peer there."""

    def __init__(self, near: Connection, far: Connection) -> None:
        self.near = near
        self.far = far

    @property
    def open(self) -> bool:
        return self.near.open

    def close(self) -> None:
        self.near.close()


class LocalBroker:
    """handlers: of the broker's requests, without access control before them, which is asked here.
    asked: serves what the broker asks its clients. framer: of the broker's ends."""

    def __init__(
        self,
        services: Services,
        handlers: Handlers,
        asked: Handlers,
        framer: FramerFactory,
        limits: Limits,
        closed: Callable[[Connection], None],
    ) -> None:
        self.services = services
        self._far = Shared(handlers, limits, framer, on_close=closed, watchdog=services.watchdog)
        self._near = Shared(asked, Limits(idle_s=0), None, on_close=self._ended)
        #: By the client's address, then by client id.
        self.links: dict[tuple[str, int], dict[str, Link]] = {}
        self._own: Link | None = None

    # ---- connections ----

    def link(self, call: Call) -> Link:
        """The connection of the client that calls. Raises: Problem."""
        links = self.links.setdefault(call.address, {})
        found = links.get(call.client_id)
        if found is not None and found.open:
            return found
        if len(links) >= _LINKS_MAX:
            raise Problem(
                Code.TOO_MANY_REQUESTS, f"{_LINKS_MAX} clients use this connection already"
            )
        made = links[call.client_id] = self._join(call.address)
        made.near.state["of"] = call.address, call.client_id
        return made

    def _ended(self, near: Connection) -> None:
        """One of them is closed, because it was idle or its client is gone."""
        address, client_id = near.state.get("of", (None, ""))
        links = self.links.get(address, {}) if address is not None else {}
        if client_id in links and links[client_id].near is near:
            del links[client_id]
            if not links:
                del self.links[address]

    def _join(self, address: tuple[str, int]) -> Link:
        near, far = Connection(self._near), Connection(self._far)
        host = self.services.settings["brokerIP1"].strip("[]")
        join(near, far, (host, int(self.services.settings["listenPort"])), address)
        return Link(near, far)

    def gone(self, address: tuple[str, int]) -> list[str]:
        """The connection at this address is closed: the ids of its clients that have no other."""
        links = self.links.pop(address, {})
        for link in links.values():
            link.close()
        rest = self.links.values()
        return [name for name in links if not any(name in other for other in rest)]

    def now_ms(self) -> int:
        """The clock of invisible times."""
        pop = self.services.pop
        return pop.now_ms() if pop is not None else time.time_ns() // 1_000_000

    def close(self) -> None:
        for address in list(self.links):
            self.gone(address)
        if self._own is not None:
            self._own.close()
        self._far.wheel.close()
        self._near.wheel.close()

    # ---- requests ----

    async def request(
        self,
        call: Call,
        command: Command,
        *,
        link: Link | None = None,
        timeout_s: float = _REQUEST_S,
    ) -> Command:
        """The broker's answer, whatever its code. link: of another call of the same client.

        Raises: Problem: UNAUTHORIZED, PROXY_TIMEOUT.
        """
        if link is None:
            link = self.link(call)
        self.let_in(call, link, command)
        return await self._answer(link, command, timeout_s)

    async def request_own(self, command: Command) -> Command:
        """The broker's answer to a request of the service itself, for a client that was let in
        before. Raises: Problem."""
        if self._own is None or not self._own.open:
            self._own = self._join((_NOBODY, 0))
        return await self._answer(self._own, command, _REQUEST_S)

    @staticmethod
    async def _answer(link: Link, command: Command, timeout_s: float) -> Command:
        # A binary header has two bytes for the code.
        command.serialize = BINARY if command.code <= _BINARY_MAX else JSON
        try:
            return await link.near.request(command, timeout_s)
        except TimeoutError:
            raise Problem(
                Code.PROXY_TIMEOUT, f"the broker did not answer within {timeout_s:g} s"
            ) from None
        except ConnectionError as failed:
            raise Problem(Code.INTERNAL_SERVER_ERROR, f"the broker is gone: {failed}") from None

    async def ask(self, call: Call, command: Command) -> Command:
        """The same; an answer that is an error is raised. Raises: Problem."""
        answer = await self.request(call, command)
        if answer.code not in _STORED:
            raise Problem(of_response(answer.code), answer.remark or "")
        return answer

    # ---- access control ----

    @property
    def _guard(self) -> Guard | None:
        return self.services.guard

    def let_in(self, call: Call, link: Link, command: Command) -> None:
        """Raises: Problem with UNAUTHORIZED for what the rules refuse."""
        guard = self._guard
        if guard is None:
            return
        self._sign(call, command)
        try:
            guard.check(link.far, command)
        except Refused as refused:
            raise Problem(Code.UNAUTHORIZED, refused.remark) from None

    def check_topic(self, call: Call, topic: str, *actions: Action) -> None:
        """Whether the client may do one of these to a topic. Raises: Problem."""
        access = self.services.access
        if access is None or not access.is_on:
            return
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        self._sign(call, command)
        for action in actions:
            verdict = access.rules.decide(command, _asks(topic, action), call.address[0])
            if verdict.allowed:
                return
        raise Problem(Code.UNAUTHORIZED, verdict.remark)

    def _sign(self, call: Call, command: Command) -> None:
        """Puts the client's name under a request, if its headers prove it; rules that ask for a
        signature refuse it otherwise."""
        access = self.services.access
        given = credentials_of(call.metadata)
        if given is None or access is None:
            return
        key, date, signature = given
        secret = access.rules.secret_of(key)
        command.ext[ACCESS_KEY] = key
        command.ext[SIGNATURE] = ""
        if secret is not None:
            good = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()
            if hmac.compare_digest(good, signature.lower()):
                sign(command, Credentials(key, secret))


def credentials_of(metadata: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Key, signed date and signature of a call; None: it is anonymous. Raises: Problem."""
    text = metadata.get("authorization", "")
    if not text.strip():
        return None
    algorithm, _, rest = text.partition(" ")
    pairs = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if not equals or algorithm != _ALGORITHM:
            raise Problem(
                Code.UNAUTHORIZED,
                f"the header authorization is not '{_ALGORITHM} Credential=..., SignedHeaders=...,"
                " Signature=...'",
            )
        pairs[name.strip()] = value.strip()
    key = pairs.get("Credential", "").partition("/")[0]
    if not key:
        return None
    date = metadata.get("x-mq-date-time", "")
    if not date:
        raise Problem(Code.UNAUTHORIZED, "the header x-mq-date-time, which is signed, is missing")
    return key, date, pairs.get("Signature", "").encode("ascii", "replace").decode()


def _asks(topic: str, action: Action) -> Ask:
    """For a request that needs to do this to a topic."""
    return lambda command: Asked(command.code, (Need(Kind.TOPIC, topic, (action,)),))
