"""Access control of gRPC calls: what the 5.x headers prove, and, in cluster mode, a proxy's own
verdicts (docs/internals/access.md#grpc-and-the-proxy)."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker.access.needs import AccessAction, AccessRequest, Ask, Need, ResourceKind, Verdict
from broker.access.plain import PlainRules
from broker.access.policies import Acl, Malformed, PolicyRules, User, parse_acl, parse_user
from broker.access.signature import ACCESS_KEY, SIGNATURE, Credentials, sign
from broker.grpc.calls import AUTHORIZATION, DATE, Call
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from broker.processors.needs import NeedsOfPolicies, TopicAt
from broker.services.policy_access import NAME_MAX
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused

__all__ = [
    "ALGORITHM", "ProxyAccess", "accept", "credentials_of", "has_signed", "is_known_to", "prove",
    "signature_of", "verdict_on_name", "verdict_on_topic",
]  # fmt: skip

ALGORITHM = "MQv2-HMAC-SHA1"
#: Users and policies are asked for again after this time, as by Apache's proxy.
_KNOWN_S = 20.0
#: Names that are remembered, whether there is such a user or not.
_NAMES_MAX = 10_000


# ---- the headers of a call ----


def credentials_of(metadata: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Returns key, signed date and signature of a call; None: it is anonymous. Raises: Problem."""
    text = metadata.get(AUTHORIZATION, "")
    if not text.strip():
        return None
    algorithm, _, rest = text.partition(" ")
    pairs = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if not equals or algorithm != ALGORITHM:
            raise Problem(
                Code.UNAUTHORIZED,
                f"the header authorization is not '{ALGORITHM} Credential=..., SignedHeaders=...,"
                " Signature=...'",
            )
        pairs[name.strip()] = value.strip()
    key = pairs.get("Credential", "").partition("/")[0]
    if not key:
        return None
    date = metadata.get(DATE, "")
    if not date:
        raise Problem(Code.UNAUTHORIZED, "the header x-mq-date-time, which is signed, is missing")
    return key, date, pairs.get("Signature", "").encode("ascii", "replace").decode()


def has_signed(secret: str, date: str, signature: str) -> bool:
    """Says whether the signature of a date is that of the secret."""
    return hmac.compare_digest(signature_of(secret, date), signature.lower())


def signature_of(secret: str, date: str) -> str:
    """Returns what a client signs the date of a call with, in lower case."""
    return hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()


def prove(call: Call, command: Command, rules: PlainRules | PolicyRules) -> None:
    """Puts the client's name under a request, if its headers prove it; rules that ask for a
    signature refuse it otherwise. Raises: Problem."""
    given = credentials_of(call.metadata)
    if given is None:
        return
    key, date, signature = given
    secret = rules.secret_of(key)
    command.ext[ACCESS_KEY] = key
    command.ext[SIGNATURE] = ""
    if secret is not None and has_signed(secret, date, signature):
        sign(command, Credentials(key, secret))


def verdict_on_topic(
    call: Call, rules: PlainRules | PolicyRules, topic: str, actions: tuple[AccessAction, ...]
) -> Verdict:
    """Says whether a client may do one of these to a topic. Raises: Problem."""
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    prove(call, command, rules)
    for action in actions:
        verdict = rules.decide(command, _asks(topic, action), call.address[0])
        if verdict.allowed:
            break
    return verdict


def verdict_on_name(call: Call, rules: PlainRules | PolicyRules) -> Verdict:
    """Says whether a client is who it says, and may ask at all. Raises: Problem."""
    command = Command(RequestCode.SEND_MESSAGE_V2)
    prove(call, command, rules)
    return rules.decide(command, lambda asked: AccessRequest(asked.code, ()), call.address[0])


def is_known_to(call: Call, rules: PlainRules | PolicyRules) -> bool:
    """Says whether a call has proved the name of its client."""
    try:
        return credentials_of(call.metadata) is not None and verdict_on_name(call, rules).allowed
    except Problem:
        return False


def _asks(topic: str, action: AccessAction) -> Ask:
    """Makes the question of a request that needs to do this to a topic."""
    return lambda command: AccessRequest(
        command.code, (Need(ResourceKind.TOPIC, topic, (action,)),)
    )


# ---- a proxy's own verdicts ----


class ProxyAccess:
    """ask: asks any broker of the cluster, signed by the proxy. Its users and policies count, for
    _KNOWN_S after they were asked for."""

    def __init__(
        self, settings: ProxySettings, ask: Callable[[int, dict[str, str]], Awaitable[Command]]
    ) -> None:
        self._ask = ask
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._rules = PolicyRules(
            self._users, self._acls, settings.authenticate, settings.authorize
        )
        # Calls of gRPC name halves by their topic's group, which brokers compare.
        self._needs = NeedsOfPolicies(settings.cluster, None)
        self._asked: dict[str, float] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}

    @property
    def is_on(self) -> bool:
        return self._rules.authenticate or self._rules.authorize

    async def check(self, call: Call, command: Command) -> None:
        """Checks a call. Raises: Problem with UNAUTHORIZED for what the client may not ask."""
        await self._know(call)
        own = Command(command.code, dict(command.ext), command.body)
        prove(call, own, self._rules)
        accept(self._rules.decide(own, self._needs, call.address[0]))

    async def check_topic(self, call: Call, topic: str, actions: tuple[AccessAction, ...]) -> None:
        """Checks what a call does to a topic. Raises: as check()."""
        await self._know(call)
        accept(verdict_on_topic(call, self._rules, topic, actions))

    async def check_name(self, call: Call) -> None:
        """Checks who calls. Raises: as check()."""
        await self._know(call)
        accept(verdict_on_name(call, self._rules))

    def is_known(self, call: Call) -> bool:
        return is_known_to(call, self._rules)

    async def check_remoting(
        self, command: Command, host: str, look: Callable[[], Awaitable[TopicAt]] | None
    ) -> None:
        """Checks a request of a remoting client. look: finds the record that it names, in the log
        of a broker that may let in whatever its proxy lets in. Raises: Refused, Problem."""
        await self._learn(command.ext.get(ACCESS_KEY, ""))
        self._decide(command, self._needs, host)
        if look is not None and self._rules.authorize:
            self._decide(command, self._needs.looking(await look()), host)

    def _decide(self, command: Command, needs: NeedsOfPolicies, host: str) -> None:
        verdict = self._rules.decide(command, needs, host)
        if not verdict.allowed:
            raise Refused(verdict.code, verdict.remark)

    async def _know(self, call: Call) -> None:
        given = credentials_of(call.metadata)
        if given is not None:
            await self._learn(given[0])

    async def _learn(self, name: str) -> None:
        """Learns who a user is, unless it was asked lately. Raises: Problem."""
        if not 0 < len(name.encode("utf-8", "replace")) <= NAME_MAX:
            return  # nobody has such a name
        at = self._asked.get(name)
        if at is not None and time.monotonic() - at < _KNOWN_S:
            return
        task = self._fetches.get(name)
        if task is None:
            task = self._fetches[name] = asyncio.get_running_loop().create_task(self._fetch(name))
            task.add_done_callback(lambda done: self._fetched(name, done))
        await asyncio.shield(task)  # others may wait for it, too

    def _fetched(self, name: str, task: asyncio.Task[None]) -> None:
        del self._fetches[name]
        if not task.cancelled():
            task.exception()  # whoever waits has it

    async def _fetch(self, name: str) -> None:
        """Asks a broker for a user. Raises: Problem."""
        said = await self._answer(RequestCode.AUTH_GET_USER, {"username": name})
        user = acl = None
        try:
            if said:
                user = parse_user(said, name)
                if self._rules.authorize and not user.superuser:
                    subject = {"subject": f"User:{name}"}
                    found = await self._answer(RequestCode.AUTH_GET_ACL, subject)
                    acl = parse_acl({"policies": (), **found})
        except Malformed as bad:
            raise Problem(
                Code.INTERNAL_SERVER_ERROR,
                f"what the broker says of the user {name:.80} cannot be used: {bad}; the"
                " credentials of a proxy have to be those of a Super",
            ) from None
        if len(self._asked) >= _NAMES_MAX:
            for table in (self._asked, self._users, self._acls):
                table.clear()
        self._asked[name] = time.monotonic()
        _put(self._users, name, user)
        _put(self._acls, name, acl)

    async def _answer(self, code: int, fields: dict[str, str]) -> dict[str, Any]:
        """Returns the object that a broker answers, an empty one for none. Raises: Problem."""
        answer = await self._ask(code, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise Problem(
                Code.INTERNAL_SERVER_ERROR,
                f"the broker does not tell the proxy who {next(iter(fields.values())):.80} is:"
                f" {answer.remark}",
            )
        try:
            found = mqjson.loads(answer.body) if answer.body else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Problem(Code.INTERNAL_SERVER_ERROR, "a malformed answer of the broker")
        return found


def _put(table: dict[str, Any], name: str, value: object | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def accept(verdict: Verdict) -> None:
    """Accepts a verdict. Raises: Problem with UNAUTHORIZED unless it allows."""
    if not verdict.allowed:
        raise Problem(Code.UNAUTHORIZED, verdict.remark)
