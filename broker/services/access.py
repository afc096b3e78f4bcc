"""Access control of one broker: which kind is on, where its rules come from, who hears of changes.

docs/internals/access.md
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from broker.access.authorizer import Authorizer, subject_of
from broker.access.needs import AccessAction, AccessRequest, Ask, Verdict, topic_need
from broker.access.plain import PlainRules
from broker.access.policies import PolicyRules, User
from broker.access.proof import ASKS_FOR_PROOF
from broker.access.signature import ACCESS_KEY, BINDING, Credentials, binding_of
from broker.loop.safe_log import SafeLogger
from broker.services.plain_access import PlainAccess
from broker.services.policy_access import PolicyAccess, user_of_setting
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer
from pystore.configuration.problems import SettingProblem, refuse
from pystore.errors import BadArgument
from pystore.settings import Settings

__all__ = ["Access", "access_forms", "conf_folder", "inner_credentials"]

log = SafeLogger("broker.access")

#: Address, code, key, secret, topic, group and binding of a request that may be served: see
#: Core.grant.
Grant = Callable[[tuple[str, int], int, str, str, str, str, str], None]
_PACKAGE = "org.apache.rocketmq.auth."
_INNER = "innerClientAuthenticationCredentials"
#: The setting by which a broker keeps users and policies, though it checks nobody itself.
_KEEPS = "authenticationMetadataProvider"
_LOCAL_USERS = f"{_PACKAGE}authentication.provider.LocalAuthenticationMetadataProvider"
#: What such a broker lets nobody ask but a Super: all about users and policies.
_OF_SUPERS = frozenset(range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1))
#: Settings that only a broker with users and policies reads.
_OF_USERS = frozenset(
    {
        "authenticationMetadataProvider", "authenticationProvider", "authenticationStrategy",
        "authenticationWhitelist", "authorizationMetadataProvider", "authorizationProvider",
        "authorizationStrategy", "authorizationWhitelist", "initAuthenticationUser",
        "migrateAuthFromV1Enabled",
    }
)  # fmt: skip
#: Those of them that a broker reads that only keeps users.
_OF_KEEPERS = frozenset(
    {
        _KEEPS, "authorizationMetadataProvider", "initAuthenticationUser",
        "migrateAuthFromV1Enabled",
    }
)  # fmt: skip
#: Settings that name a user as JSON, by what the JSON has.
_USERS = {
    "initAuthenticationUser": ("username", "password"),
    _INNER: ("accessKey", "secretKey"),
}


class Access:
    """Access control of one broker, with the `settings` of the broker, the broker.conf `conf` (None
    when none was given) and the store's folder `root`.

    `plain` or `policies` is the one of the two that is on. When access control is off `plain` is
    None, and so is `policies`, unless the broker keeps them for proxies, which ask for them."""

    def __init__(self, settings: Settings, conf: Path | None, root: Path) -> None:
        """Raises: BadArgument for settings that contradict each other."""
        self._settings = settings
        self.plain: PlainAccess | None = None
        self.policies: PolicyAccess | None = None
        #: Called on the loop after each change of the rules.
        self.changed: list[Callable[[], None]] = []
        self._folder = conf_folder(settings, conf, root)
        refuse(access_forms(settings))
        if settings["aclEnable"]:
            self.plain = PlainAccess(self._folder, self._tell)
        elif _has_users(settings) or _keeps_users(settings):
            self.policies = PolicyAccess(root / "access", self._tell, settings.file_mode)

    @property
    def is_on(self) -> bool:
        """Whether this broker checks who asks."""
        return self.plain is not None or (self.policies is not None and _has_users(self._settings))

    async def start(self) -> None:
        """Reads the rules. Raises: StoreError when they cannot be read: nobody is let in by such
        rules."""
        if self.plain is not None:
            await asyncio.to_thread(self.plain.load)
            self.plain.start()
        if self.policies is not None:
            self._open(self.policies)

    def _open(self, policies: PolicyAccess) -> None:
        settings = self._settings
        policies.open(
            PolicyRules(
                authenticate=settings["authenticationEnabled"],
                authorize=settings["authorizationEnabled"],
                unauthenticated=_codes(settings["authenticationWhitelist"]),
                unauthorized=_codes(settings["authorizationWhitelist"]),
            )
        )
        first = settings["initAuthenticationUser"]
        if first:
            keys = _USERS["initAuthenticationUser"]
            policies.make_now(user_of_setting("initAuthenticationUser", first, keys))
        inner = inner_credentials(settings)
        if inner is not None:
            policies.make_now(User(inner.access_key, inner.secret_key, superuser=True))
        if settings["migrateAuthFromV1Enabled"]:
            plain = PlainAccess(self._folder, lambda: None)
            plain.load()
            for line in policies.migrate(plain.rules):
                log.warning("%s", line)
        if not policies.rules.users:
            kind = "every request" if self.is_on else "every request about users"
            log.warning("There is no user yet, and %s is refused: set initAuthenticationUser", kind)

    async def stop(self) -> None:
        if self.plain is not None:
            await self.plain.stop()
        if self.policies is not None:
            self.policies.close()

    @property
    def rules(self) -> PlainRules | PolicyRules:
        """Returns the rules as they are now. It may be called only when access control is on."""
        source = self.plain if self.plain is not None else self.policies
        assert source is not None
        return source.rules

    def authorizer(
        self, ask_plain: Ask, ask_policies: Ask, grant: Grant, own: Callable[[], frozenset[str]]
    ) -> Authorizer:
        """Returns what stands before the handlers, given what requests need by either kind of
        rules. `grant` tells the core what it may serve by itself. own: has addresses of this
        broker."""
        ask = ask_plain if self.plain is not None else ask_policies

        def decide(command: Command, host: str) -> Verdict:
            rules = self.rules
            if self.is_on or not isinstance(rules, PolicyRules):
                return rules.decide(command, ask, host)
            if command.code == ASKS_FOR_PROOF and binding_of(command) is None:
                return Verdict(True, "no proof is asked for")
            return rules.decide_super(command)

        def granted(peer: Peer, command: Command) -> None:
            key = command.ext.get(ACCESS_KEY)
            secret = self.rules.secret_of(key) if key else None
            asked = subject_of(command)
            if secret or self.plain is not None:
                peer.know()
            if key and secret and asked is not None:
                binding = command.ext.get(BINDING, "").rpartition(" ")[0]  # without its nonce
                grant(peer.address, command.code, key, secret, *asked, binding)

        def secret_of(key: str) -> str | None:
            return self.rules.secret_of(key) if key else None

        return Authorizer(decide, granted, secret_of, own)

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Returns those of the handlers that an authorizer stands before."""
        if self.is_on:
            return dict(handlers)
        kept = _OF_SUPERS | {ASKS_FOR_PROOF} if self.policies is not None else frozenset()
        return {code: handler for code, handler in handlers.items() if code in kept}

    def may_publish(self, user: str, host: str, topic: str) -> bool:
        """Returns whether a user who has proved who it is may publish to a topic, by the present
        rules."""
        asked = AccessRequest(RequestCode.SEND_MESSAGE_V2, (topic_need(topic, AccessAction.PUB),))
        rules = self.rules
        if isinstance(rules, PolicyRules):
            return not rules.authorize or rules.authorized(user, asked, host).allowed
        found = rules.known(user, host)
        verdict = found if isinstance(found, Verdict) else rules.authorize(found, asked)
        return verdict.allowed

    def user_of(self, command: Command) -> str:
        """Returns the user of a request that was let in, or an empty text when it names nobody."""
        return command.ext.get(ACCESS_KEY, "")

    def _tell(self) -> None:
        for listener in self.changed:
            listener()


def conf_folder(settings: Settings, conf: Path | None, root: Path) -> Path:
    """Returns the folder with plain_acl.yml and acl/: conf below rocketmqHome or ROCKETMQ_HOME,
    else beside the broker.conf, else beside the store."""
    home = settings["rocketmqHome"] or os.environ.get("ROCKETMQ_HOME")
    if home:
        return Path(home) / "conf"
    return conf.parent if conf is not None else root.parent


def inner_credentials(settings: Settings) -> Credentials | None:
    """Returns what the broker signs its own requests with. Raises: BadArgument."""
    given = settings[_INNER]
    if not given:
        return None
    user = user_of_setting(_INNER, given, _USERS[_INNER])
    return Credentials(user.name, user.password)


def _has_users(settings: Settings) -> bool:
    return bool(settings["authenticationEnabled"] or settings["authorizationEnabled"])


def _keeps_users(settings: Settings) -> bool:
    return bool(settings[_KEEPS] == _LOCAL_USERS)


def access_forms(settings: Settings) -> Iterator[SettingProblem]:
    """Yields settings of access control that contradict each other or cannot be read. No I/O."""
    if settings["aclEnable"] and _has_users(settings):
        yield SettingProblem(
            "aclEnable", settings.source("aclEnable"),
            "aclEnable and authenticationEnabled exclude each other: users and policies take"
            " the place of the plain list, migrateAuthFromV1Enabled=true takes it over",
        )  # fmt: skip
    for name, keys in _USERS.items():
        try:
            reads = _has_users(settings) or _keeps_users(settings) or name == _INNER
            if settings[name] and reads:
                user_of_setting(name, settings[name], keys)
        except BadArgument as bad:
            yield SettingProblem(name, settings.source(name), bad.text)
    if settings["aclEnable"] or not _has_users(settings):
        yield from _without_users(settings)
        return
    yield from _foreign_classes(settings)
    for name in ("authenticationWhitelist", "authorizationWhitelist"):
        for word in _words(settings[name]):
            if not (word.isascii() and word.isdigit() and len(word) < 7):
                text = f"{name}: '{word[:40]}' is not a request code"
                yield SettingProblem(name, settings.source(name), text)


def _without_users(settings: Settings) -> Iterator[SettingProblem]:
    """Yields settings of users and policies in a broker that checks nobody by them. Upstream passes
    over them, too, so that a file with its switches off starts; but it looks protected, and is
    not."""
    idle = _OF_USERS
    if _keeps_users(settings) and not settings["aclEnable"]:
        idle -= _OF_KEEPERS
        yield SettingProblem(
            _KEEPS, settings.source(_KEEPS),
            f"{_KEEPS} has this broker keep users for proxies that ask for them: it checks nobody"
            " itself",
            False, "no-effect", "set authenticationEnabled=true to have it check them, too",
        )  # fmt: skip
    for name in sorted(idle & settings.explicit):
        if settings[name]:
            yield SettingProblem(
                name, settings.source(name),
                f"{name} has no effect without authenticationEnabled or authorizationEnabled",
                False, "no-effect", "set authenticationEnabled=true, or delete the line",
            )  # fmt: skip


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _codes(text: str | None) -> frozenset[int]:
    return frozenset(map(int, _words(text)))


def _foreign_classes(settings: Settings) -> Iterator[SettingProblem]:
    """Yields classes that are not upstream's, since those would have no effect."""
    one, two = "authentication", "authorization"
    known: list[tuple[str, str | None, str]] = [
        (f"{one}Provider", settings["authenticationProvider"], "provider.DefaultA#Provider"),
        (f"{two}Provider", settings["authorizationProvider"], "provider.DefaultA#Provider"),
        (
            f"{one}MetadataProvider",
            settings["authenticationMetadataProvider"],
            "provider.LocalA#MetadataProvider",
        ),
        (
            f"{two}MetadataProvider",
            settings["authorizationMetadataProvider"],
            "provider.LocalA#MetadataProvider",
        ),
        (f"{one}Strategy", settings["authenticationStrategy"], "strategy.State*A#Strategy"),
        (f"{two}Strategy", settings["authorizationStrategy"], "strategy.State*A#Strategy"),
    ]
    for name, given, tail in known:
        word = one if name.startswith(one) else two
        full = f"{_PACKAGE}{word}.{tail.replace('A#', word.capitalize())}"
        allowed = [full.replace("State*", kind) for kind in ("Stateless", "Stateful")]
        if given and given not in allowed:
            text = f"{name}: the class {given} is unknown; leave it out, or name {allowed[0]}"
            yield SettingProblem(name, settings.source(name), text)
