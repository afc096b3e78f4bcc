"""Users and policies of RocketMQ 5.3: who somebody is, and what he may do
(docs/internals/access.md#users-and-policies)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker.access.addresses import Pattern, address_of, parse_networks
from broker.access.needs import AccessAction, AccessRequest, Ask, Need, ResourceKind, Verdict
from broker.access.signature import ACCESS_KEY, is_signed_by
from broker.wire.command import Command, Refused

__all__ = [
    "Acl",
    "Malformed",
    "PolicyEntry",
    "PolicyRules",
    "Resource",
    "User",
    "parse_acl",
    "parse_policies",
    "parse_resource",
    "parse_user",
]  # fmt: skip

#: NO_PERMISSION.
_CODE = 16
CUSTOM, DEFAULT = "Custom", "Default"
_KINDS = {kind.lower(): kind for kind in ResourceKind if kind is not ResourceKind.ANY}
_ACTIONS = {action.lower(): action for action in AccessAction}
_DECISIONS = {"allow": True, "deny": False}
#: How closely a name is meant: ranks of Resource.rank.
_EVERY, _PREFIX, _LITERAL = 0, 1, 2


class Malformed(ValueError):
    """A user or policy that cannot be taken: the text is the answer's remark."""


@dataclass(frozen=True, slots=True)
class User:
    """password: signs requests. superuser: needs no policy."""

    name: str
    password: str = field(repr=False)
    superuser: bool = False
    enabled: bool = True

    def as_json(self, *, secret: bool) -> dict[str, Any]:
        """Returns the user for JSON. secret: with the password, for the disk."""
        made = {
            "username": self.name,
            "userType": "Super" if self.superuser else "Normal",
            "userStatus": "enable" if self.enabled else "disable",
        }
        return {**made, "password": self.password} if secret else made


def parse_user(given: Mapping[str, Any], name: str, old: User | None = None) -> User:
    """Reads a user of a request's body; what is absent stays as it was. Raises: Malformed."""
    password = given.get("password") or (old.password if old is not None else "")
    if not isinstance(password, str) or not password.strip():
        raise Malformed("password can not be blank")
    made = replace(old, password=password) if old is not None else User(name, password)
    kind, status = given.get("userType"), given.get("userStatus")
    if kind:
        if str(kind).lower() not in ("super", "normal"):
            raise Malformed(f"userType {kind} is neither Super nor Normal")
        made = replace(made, superuser=str(kind).lower() == "super")
    if status:
        if str(status).lower() not in ("enable", "disable"):
            raise Malformed(f"userStatus {status} is neither enable nor disable")
        made = replace(made, enabled=str(status).lower() == "enable")
    return made


@dataclass(frozen=True, slots=True)
class Resource:
    """kind: ANY for those of every kind. rank: whether `name` is every name, a prefix, a name."""

    kind: ResourceKind
    rank: int
    name: str = ""

    def __str__(self) -> str:
        if self.kind is ResourceKind.ANY:
            return "*"
        return f"{self.kind}:{self.name}{'' if self.rank == _LITERAL else '*'}"

    @property
    def is_name(self) -> bool:
        """Whether it is one name, neither a prefix nor every name."""
        return self.rank == _LITERAL

    def check(self) -> None:
        """Refuses a star within a name: whoever writes it means more than that name. Raises:
        Malformed."""
        if "*" in self.name:
            raise Malformed(
                f"The resource {str(self)[:300]} has a star that is not its last letter, which"
                " stands for nothing: write a name, or a prefix like Topic:orders-*."
            )

    def fits(self, need: Need) -> bool:
        if self.kind not in (ResourceKind.ANY, need.kind):
            return False
        if self.rank == _LITERAL:
            return need.name == self.name
        return need.name.startswith(self.name)


def parse_resource(text: str | None) -> Resource | None:
    """Reads ``Topic:name``, ``Group:begin*``, ``Cluster:*`` or ``*``; returns None for anything
    else. A star that is not the last letter is a letter of the name, as in 5.3.3."""
    if text == "*":
        return Resource(ResourceKind.ANY, _EVERY)
    word, colon, name = (text or "").partition(":")
    kind = _KINDS.get(word.lower())
    if not colon or kind is None or not name:
        return None
    if not name.endswith("*"):
        return Resource(kind, _LITERAL, name)
    begin = name[:-1]
    return Resource(kind, _PREFIX if begin else _EVERY, begin)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """The decision about some actions on a resource. sources: an empty list is every source."""

    resource: Resource
    actions: tuple[AccessAction, ...]
    allow: bool
    sources: tuple[Pattern, ...] = ()

    def fits(self, need: Need, host: str) -> bool:
        if not self.resource.fits(need):
            return False
        if AccessAction.ALL not in self.actions and not set(self.actions) & set(need.actions):
            return False
        if not self.sources:
            return True
        address = address_of(host)
        return any(source.matches(address) for source in self.sources)

    def as_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "resource": str(self.resource),
            "actions": [str(action) for action in self.actions],
            "decision": "Allow" if self.allow else "Deny",
        }
        return {**made, "sourceIps": [s.text for s in self.sources]} if self.sources else made

    def __str__(self) -> str:
        sources = ",".join(s.text for s in self.sources)
        at = f" from {sources}" if sources else ""
        word = "Allow" if self.allow else "Deny"
        return f"{word} {','.join(self.actions)} on {self.resource}{at}"


def parse_entry(given: object) -> PolicyEntry:
    """Reads an entry. Raises: Malformed."""
    if not isinstance(given, dict):
        raise Malformed("The resource is null.")
    text = given.get("resource")
    resource = parse_resource(text if isinstance(text, str) else None)
    if resource is None:
        raise Malformed("The resource is null.")
    named = given.get("actions")
    if not isinstance(named, list) or not named:
        raise Malformed("The actions is empty.")
    unknown = [one for one in named if str(one).lower() not in _ACTIONS]
    if unknown:
        raise Malformed(f"The action {unknown[0]} is unknown.")
    actions = tuple(dict.fromkeys(_ACTIONS[str(one).lower()] for one in named))
    if AccessAction.ANY in actions:
        raise Malformed("The actions can not be Any.")
    sources = given.get("sourceIps") or []
    try:
        if not isinstance(sources, list):
            raise ValueError
        networks = parse_networks([str(one) for one in sources])
    except ValueError:
        raise Malformed("The source ip is invalid.") from None
    decision = _DECISIONS.get(str(given.get("decision")).lower())
    if decision is None:
        raise Malformed("The decision is null or illegal.")
    return PolicyEntry(resource, actions, decision, networks)


@dataclass(frozen=True, slots=True)
class Acl:
    """The entries of one user, in the order in which they were made; one for each resource and
    policy."""

    custom: tuple[PolicyEntry, ...] = ()
    default: tuple[PolicyEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)

    def policy(self, kind: str) -> tuple[PolicyEntry, ...]:
        return self.default if kind == DEFAULT else self.custom

    def changed(self, kind: str, entries: Sequence[PolicyEntry]) -> Acl:
        if kind == DEFAULT:
            return replace(self, default=tuple(entries))
        return replace(self, custom=tuple(entries))

    def starred(self) -> list[Resource]:
        """Returns those of its resources that no new rule may have (Resource.check)."""
        entries = (*self.custom, *self.default)
        return [entry.resource for entry in entries if "*" in entry.resource.name]

    def merged(self, kind: str, entries: Sequence[PolicyEntry]) -> Acl:
        """Adds these entries, each in the place of the one that has its resource."""
        kept = {entry.resource: entry for entry in self.policy(kind)}
        kept.update((entry.resource, entry) for entry in entries)
        return self.changed(kind, tuple(kept.values()))

    def without(self, kind: str, resource: Resource | None) -> Acl:
        """Returns the rights without one. resource: None for all of a policy."""
        left = [e for e in self.policy(kind) if resource is not None and e.resource != resource]
        return self.changed(kind, left)

    def deciding(self, need: Need, host: str) -> PolicyEntry | None:
        """Returns the entry that decides: of those that fit, of Custom if there is one there, the
        closest; a named kind, then a name, then the longer prefix, then Deny."""
        for entries in (self.custom, self.default):
            fitting = [entry for entry in entries if entry.fits(need, host)]
            if fitting:
                return max(fitting, key=_closeness)
        return None

    def as_json(self, name: str) -> dict[str, Any]:
        policies = [
            {"policyType": kind, "entries": [entry.as_json() for entry in entries]}
            for kind, entries in ((CUSTOM, self.custom), (DEFAULT, self.default))
            if entries
        ]
        return {"subject": f"User:{name}", "policies": policies}


def parse_acl(given: Mapping[str, Any]) -> Acl:
    """Reads an ACL as requests and the disk have it. Raises: Malformed, KeyError without
    policies."""
    acl = Acl()
    for kind, entries in parse_policies(given["policies"]):
        acl = acl.merged(kind, entries)
    return acl


def _closeness(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    return resource.kind is not ResourceKind.ANY, resource.rank, len(resource.name), not entry.allow


def parse_policies(given: object) -> list[tuple[str, list[PolicyEntry]]]:
    """Reads the policies of a request's body. Raises: Malformed."""
    made = []
    for policy in given if isinstance(given, list) else ():
        if not isinstance(policy, dict):
            raise Malformed("The resource is null.")
        named = str(policy.get("policyType") or CUSTOM).lower()
        if named not in ("custom", "default"):
            raise Malformed(f"The policy type {policy.get('policyType')} is unknown.")
        entries = policy.get("entries")
        if not isinstance(entries, list) or not entries:
            raise Malformed("The resource is null.")
        made.append((named.capitalize(), [parse_entry(entry) for entry in entries]))
    return made


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """All users and policies at one moment; a change makes another. authenticate, authorize: which
    checks are on. unauthenticated, unauthorized: request codes that are let through."""

    users: Mapping[str, User] = field(default_factory=dict)
    acls: Mapping[str, Acl] = field(default_factory=dict)
    authenticate: bool = True
    authorize: bool = True
    unauthenticated: frozenset[int] = frozenset()
    unauthorized: frozenset[int] = frozenset()

    def decide(self, command: Command, ask: Ask, host: str) -> Verdict:
        """Decides about a request. host: of the client, without its port."""
        name = command.ext.get(ACCESS_KEY)
        if self.authenticate and command.code not in self.unauthenticated:
            refused = self._authenticated(command, name)
            if refused is not None:
                return refused
        if not self.authorize or command.code in self.unauthorized:
            return Verdict(True, "authorization is off for this request")
        try:
            asked = ask(command)
        except Refused as bad:
            return _refused("parse authorization context error.", bad.remark)
        return self.authorized(name, asked, host)

    def decide_super(self, command: Command) -> Verdict:
        """Decides about a request that only a Super may ask, whichever checks are on."""
        name = command.ext.get(ACCESS_KEY)
        refused = self._authenticated(command, name)
        if refused is not None:
            return refused
        assert name is not None
        if self.users[name].superuser:
            return Verdict(True, f"User:{name} is Super")
        return _refused(f"User:{name} is not Super.", f"User:{name} is Normal", name)

    def secret_of(self, key: str) -> str | None:
        user = self.users.get(key)
        return user.password if user is not None else None

    def _user(self, name: str | None, word: str) -> User | Verdict:
        """Returns the user, or a verdict that says why there is none. word: what a missing name is
        called."""
        if not name:
            return _refused(f"{word} cannot be null.", "no credential")
        user = self.users.get(name)
        if user is None:
            return _refused(f"User:{name} is not found.", "no such user")
        if not user.enabled:
            return _refused(f"User:{name} is disabled.", f"User:{name} is disabled")
        return user

    def _authenticated(self, command: Command, name: str | None) -> Verdict | None:
        user = self._user(name, "username")
        if isinstance(user, Verdict):
            return user
        if not is_signed_by(command, user.password):
            return _refused("check signature failed.", f"password of User:{name}")
        return None

    def authorized(self, name: str | None, asked: AccessRequest, host: str) -> Verdict:
        """Decides what a user may do who has proved who he is."""
        user = self._user(name, "subject")
        if isinstance(user, Verdict):
            return user
        name = user.name
        if user.superuser:
            return Verdict(True, f"User:{name} is Super")
        rule = f"User:{name} is known"
        acl = self.acls.get(name, Acl())
        for need in asked.needs:
            entry = acl.deciding(need, host)
            rule = str(entry) if entry is not None else f"User:{name} has no policy for {need}"
            if entry is None or not entry.allow:
                why = "no matched policies." if entry is None else "the decision is deny."
                return _refused(
                    f"User:{name} has no permission to access"
                    f" {need.kind}:{need.shown or need.name} from {host}, {why}",
                    rule,
                    name if self.authenticate else "",
                )
        return Verdict(True, rule)


def _refused(text: str, rule: str, proven: str = "") -> Verdict:
    return Verdict(False, rule, _CODE, text, proven)
