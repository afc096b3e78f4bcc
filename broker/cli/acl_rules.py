"""Where `pystore acl` finds rules: the files of a plain list, the users of a store, a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from broker.access.addresses import Pattern, parse_pattern
from broker.access.needs import AccessAction, ResourceKind
from broker.access.plain import DENY, PUB, SUB, Account, PlainRules, parse_right
from broker.access.plain_file import plain_json
from broker.access.policies import (
    Acl,
    Malformed,
    PolicyRules,
    Resource,
    User,
    parse_acl,
    parse_user,
)
from broker.cli.inquirer import RefusedByBroker, ask
from broker.services.plain_access import PlainAccess
from broker.services.policy_access import PolicyAccess, Rejected
from broker.wire.codes import RequestCode as Code
from pystore.cli.verbs import usage
from pystore.errors import NotAStore, NotFound

__all__ = ["Right", "Rules", "UserChange", "rules_at", "rules_of_broker"]

_MAIN, _FOLDER, _USERS = "plain_acl.yml", "acl", "access"
_UNSUPPORTED = 3
_NEXT = "see `pystore acl list`"
#: Policy and resource of an entry.
_Entry = tuple[str, str]
_NONE: _Entry = ("", "")


@dataclass(frozen=True, slots=True)
class Right:
    """What a user may do with a resource, or with allow=False may not do."""

    resource: Resource
    actions: tuple[AccessAction, ...]
    allow: bool = True


@dataclass(frozen=True, slots=True)
class UserChange:
    """What to add. secret: None keeps the user's own. admin, white: None keeps them as they are.
    sources: addresses and networks that the rights are for; none: every source."""

    user: str
    secret: str | None = field(default=None, repr=False)
    admin: bool | None = None
    white: str | None = None
    rights: tuple[Right, ...] = ()
    sources: tuple[str, ...] = ()


class Rules(Protocol):
    """The rules of one kind at one place. where: names the place, for people."""

    where: str

    def now(self) -> PlainRules | PolicyRules: ...

    def add(self, change: UserChange, dry: bool) -> None:
        """Makes or changes a user. dry: only checks. Raises: StoreError."""

    def remove(self, user: str, resource: Resource | None, dry: bool) -> None:
        """Removes rights. resource: None for the user itself. Raises: StoreError."""


def rules_at(path: Path, check_free: Callable[[Path], None]) -> Rules:
    """Returns the rules at a place. check_free: called with a store that is about to be changed.
    Raises: StoreError."""
    if not path.exists():
        raise NotAStore("the path does not exist", str(path))
    if path.is_file():
        if path.name != _MAIN:
            raise usage(f"{path} is not a {_MAIN}", f"name {_MAIN}, its folder or a store")
        return _PlainFiles(path.parent)
    plain, users = (path / _MAIN).exists(), (path / _USERS).is_dir()
    if plain and users:
        step = f"name {path / _MAIN} or {path / _USERS}"
        raise usage(f"{path} holds a plain list and users", step)
    if plain:
        return _PlainFiles(path)
    if users or (path / "commitlog").is_dir():
        return _UsersOfStore(path, check_free)
    if path.name == _USERS and (path / "data.mdb").exists():
        return _UsersOfStore(path.parent, check_free)
    if path.name == _FOLDER and (path.parent / _MAIN).exists():
        return _PlainFiles(path.parent)
    error = NotAStore("neither an access list nor a store is at this path", str(path))
    error.next_step = f"name {_MAIN}, its folder, or a folder with commitlog/"
    raise error


def rules_of_broker(broker: str, credentials: Path | None, trust: Path | None) -> Rules:
    """Returns the rules of a running broker. Raises: StoreError, OSError."""

    def asked(code: int, ext: dict[str, object], body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        answer = ask(broker, code, ext, data, credentials=credentials, trust=trust, next_step=_NEXT)
        try:
            return json.loads(answer) if answer else []
        except ValueError:
            raise ConnectionError(f"{broker} answered request {code} with no JSON") from None

    try:
        asked(Code.AUTH_LIST_USERS, {})
        return _UsersOfBroker(broker, asked)
    except RefusedByBroker as refused:
        if refused.answered != _UNSUPPORTED:
            raise
    return _PlainOfBroker(broker, asked)


# ---- the plain list ----


def _bits(right: Right) -> int:
    """Returns the bits of rights. Raises: BadArgument for what a plain list cannot say."""
    try:
        right.resource.check()
    except Malformed as bad:
        raise usage(str(bad), "see pystore acl add --help") from None
    if right.resource.kind not in (ResourceKind.TOPIC, ResourceKind.GROUP) or not (
        right.resource.is_name or not right.resource.name
    ):
        raise usage(
            f"a plain list has no rights on {right.resource}",
            "name Topic:NAME, Group:NAME, or Topic:* and Group:* for the defaults",
        )
    if not right.allow:
        if right.actions != (AccessAction.ALL,):
            raise usage("a plain list denies all of a resource", f"use --deny {right.resource}")
        return DENY
    known = {AccessAction.PUB: PUB, AccessAction.SUB: SUB, AccessAction.ALL: PUB | SUB}
    bits = 0
    for action in right.actions:
        if action not in known:
            raise usage(f"a plain list does not know the action {action}", "use Pub, Sub or All")
        bits |= known[action]
    return bits


def _changed(account: Account | None, change: UserChange) -> Account:
    """Returns an account with another right. Raises: BadArgument."""
    if change.sources:
        raise usage(
            "rights of a plain list hold from everywhere",
            "leave --from out; --white names a source that needs neither secret nor right",
        )
    made = account if account is not None else Account(change.user, change.secret or "")
    if change.secret is not None:
        made = replace(made, secret=change.secret)
    if change.admin is not None:
        made = replace(made, admin=change.admin)
    if change.white is not None:
        made = replace(made, white=_pattern(change.white))
    for right in change.rights:
        bits, name = _bits(right), right.resource.name
        if right.resource.kind is ResourceKind.TOPIC:
            made = (
                replace(made, topics={**made.topics, name: bits})
                if name
                else replace(made, topic_default=bits)
            )
        else:
            made = (
                replace(made, groups={**made.groups, name: bits})
                if name
                else replace(made, group_default=bits)
            )
    return made


def _pattern(text: str) -> Pattern:
    try:
        return parse_pattern(text)
    except ValueError as bad:
        raise usage(f"--white: {bad}", "for example: --white 10.10.3.*") from None


def _without(account: Account, resource: Resource) -> Account:
    """Returns an account without a right. Raises: NotFound."""
    name = resource.name
    topic, group = resource.kind is ResourceKind.TOPIC, resource.kind is ResourceKind.GROUP
    if topic and name in account.topics:
        return replace(account, topics={n: b for n, b in account.topics.items() if n != name})
    if group and name in account.groups:
        return replace(account, groups={n: b for n, b in account.groups.items() if n != name})
    if not name and (topic or group):
        if topic:
            return replace(account, topic_default=DENY)
        return replace(account, group_default=DENY)
    raise NotFound(f"{account.key} has no right on {resource}", account.place)


def _account(rules: PlainRules, user: str, where: str) -> Account:
    """Returns the account of a user. Raises: NotFound."""
    found = rules.accounts.get(user)
    if found is None:
        raise NotFound(f"there is no account {user}", where)
    return found


class _PlainFiles:
    def __init__(self, conf: Path) -> None:
        self._access = PlainAccess(conf, lambda: None)
        self._access.load()
        self.where = str(self._access.main)

    def now(self) -> PlainRules:
        return self._access.rules

    def add(self, change: UserChange, dry: bool) -> None:
        made = _changed(self.now().accounts.get(change.user), change)
        self._access.check(made)
        if not dry:
            asyncio.run(self._access.put(made))

    def remove(self, user: str, resource: Resource | None, dry: bool) -> None:
        account = _account(self.now(), user, self.where)
        left = _without(account, resource) if resource is not None else None
        if not dry:
            work = self._access.put(left) if left is not None else self._access.remove(user)
            asyncio.run(work)


class _PlainOfBroker:
    def __init__(self, broker: str, ask: Callable[..., Any]) -> None:
        self.where = broker
        self._ask = ask

    def now(self) -> PlainRules:
        """Returns the rules without secrets, which a broker does not tell."""
        found = self._ask(Code.GET_ACL_CONFIG, {})
        accounts = [self._read(each) for each in found.get("plainAccessConfigs") or ()]
        white = tuple(_pattern(text) for text in found.get("globalWhiteAddrs") or ())
        return PlainRules({each.key: each for each in accounts}, white)

    def _read(self, given: Mapping[str, Any]) -> Account:
        def rights(name: str) -> dict[str, int]:
            pairs = (text.partition("=") for text in given.get(name) or ())
            return {resource: parse_right(right) or DENY for resource, _, right in pairs}

        return Account(
            given["accessKey"], "", _pattern(given.get("whiteRemoteAddress") or ""),
            bool(given.get("admin")),
            parse_right(given.get("defaultTopicPerm")) or DENY,
            parse_right(given.get("defaultGroupPerm")) or DENY,
            rights("topicPerms"), rights("groupPerms"), self.where,
        )  # fmt: skip

    def add(self, change: UserChange, dry: bool) -> None:
        self._put(_changed(self.now().accounts.get(change.user), change), dry)

    def _put(self, account: Account, dry: bool) -> None:
        fields: dict[str, object] = {}
        for name, value in plain_json(account).items():
            if isinstance(value, list):
                fields[name] = ",".join(value)
            elif value not in (None, ""):
                fields[name] = value
        if not dry:
            self._ask(Code.UPDATE_ACL_CONFIG, fields)

    def remove(self, user: str, resource: Resource | None, dry: bool) -> None:
        account = _account(self.now(), user, self.where)
        if resource is not None:
            left = _without(account, resource)
            if (account.topics and not left.topics) or (account.groups and not left.groups):
                raise usage(
                    f"no request takes the last right by name from {user}",
                    f"deny it: pystore acl add {user} --deny {resource}",
                )
            self._put(left, dry)
        elif not dry:
            self._ask(Code.DELETE_ACL_CONFIG, {"accessKey": user})


# ---- users and policies ----


def _user_body(change: UserChange) -> dict[str, Any]:
    body: dict[str, Any] = {"username": change.user}
    if change.secret is not None:
        body["password"] = change.secret
    if change.admin is not None:
        body["userType"] = "Super" if change.admin else "Normal"
    return body


def _acl_body(change: UserChange) -> dict[str, Any]:
    entries = []
    for right in change.rights:
        entry: dict[str, Any] = {
            "resource": str(right.resource),
            "actions": [str(action) for action in right.actions],
            "decision": "Allow" if right.allow else "Deny",
        }
        if change.sources:
            entry["sourceIps"] = list(change.sources)
        entries.append(entry)
    policies = [{"policyType": "Custom", "entries": entries}]
    return {"subject": f"User:{change.user}", "policies": policies}


class _Users:
    """What both places of users have in common: the order of changes. where: names the place, for
    people."""

    where = ""

    def now(self) -> PolicyRules:
        raise NotImplementedError

    def change(self, code: Code, user: str, body: dict[str, Any], entry: _Entry = _NONE) -> None:
        raise NotImplementedError

    def add(self, change: UserChange, dry: bool) -> None:
        if change.white is not None:
            raise usage("users have no white list", "leave --white out; see docs/access.md")
        old = self.now().users.get(change.user)
        user, acl = _user_body(change), _acl_body(change)
        try:
            parse_user(user, change.user, old)
            parse_acl(acl if change.rights else {"policies": []})
            for right in change.rights:
                right.resource.check()
        except Malformed as bad:
            raise usage(str(bad), "see pystore acl add --help") from None
        if dry:
            return
        if old is None:
            self.change(Code.AUTH_CREATE_USER, change.user, user)
        elif len(user) > 1:
            self.change(Code.AUTH_UPDATE_USER, change.user, user)
        if change.rights:
            self.change(Code.AUTH_CREATE_ACL, change.user, acl)

    def remove(self, user: str, resource: Resource | None, dry: bool) -> None:
        rules = self.now()
        if user not in rules.users:
            raise NotFound(f"there is no user {user}", self.where)
        if resource is None:
            if not dry:
                self.change(Code.AUTH_DELETE_USER, user, {})
            return
        acl = rules.acls.get(user, Acl())
        for kind in ("Custom", "Default"):
            if any(entry.resource == resource for entry in acl.policy(kind)):
                break
        else:
            raise NotFound(f"{user} has no right on {resource}", self.where)
        if not dry:
            self.change(Code.AUTH_DELETE_ACL, user, {}, (kind, str(resource)))


class _UsersOfStore(_Users):
    def __init__(self, store: Path, check_free: Callable[[Path], None]) -> None:
        self.where = str(store / _USERS)
        self._store = store
        self._check_free = check_free

    def _open_policies(self, *, mend: bool = True) -> PolicyAccess:
        access = PolicyAccess(Path(self.where), lambda: None)
        access.open(PolicyRules(), mend=mend)
        return access

    def now(self) -> PolicyRules:
        if not (Path(self.where) / "data.mdb").exists():
            return PolicyRules()
        access = self._open_policies(mend=False)  # a broker may be using it
        access.close()
        return access.rules

    def add(self, change: UserChange, dry: bool) -> None:
        self._check_free(self._store)
        super().add(change, dry)

    def remove(self, user: str, resource: Resource | None, dry: bool) -> None:
        self._check_free(self._store)
        super().remove(user, resource, dry)

    def change(self, code: Code, user: str, body: dict[str, Any], entry: _Entry = _NONE) -> None:
        # Who may write the files may do everything.
        root = User("root", "", superuser=True)
        access, subject = self._open_policies(), f"User:{user}"
        work: dict[int, Callable[[], Coroutine[Any, Any, None]]] = {
            Code.AUTH_CREATE_USER: lambda: access.create_user(user, body, root),
            Code.AUTH_UPDATE_USER: lambda: access.update_user(user, body, root),
            Code.AUTH_DELETE_USER: lambda: access.delete_user(user, root),
            Code.AUTH_CREATE_ACL: lambda: access.merge_acl(subject, body),
            Code.AUTH_DELETE_ACL: lambda: access.delete_acl(subject, *entry),
        }
        try:
            asyncio.run(work[code]())
        except Rejected as rejected:
            raise usage(rejected.remark, _NEXT) from None
        finally:
            access.close()


class _UsersOfBroker(_Users):
    def __init__(self, broker: str, ask: Callable[..., Any]) -> None:
        self.where = broker
        self._ask = ask

    def now(self) -> PolicyRules:
        """Returns the rules without passwords, which a broker does not tell."""
        users = [
            parse_user({**each, "password": "untold"}, each["username"])
            for each in self._ask(Code.AUTH_LIST_USERS, {})
        ]
        acls = {
            each["subject"].removeprefix("User:"): parse_acl(each)
            for each in self._ask(Code.AUTH_LIST_ACL, {})
        }
        return PolicyRules({user.name: user for user in users}, acls)

    def change(self, code: Code, user: str, body: dict[str, Any], entry: _Entry = _NONE) -> None:
        ext: dict[str, object] = {"username": user, "subject": f"User:{user}"}
        if entry != _NONE:
            ext |= {"policyType": entry[0], "resource": entry[1]}
        self._ask(code, ext, body or None)
