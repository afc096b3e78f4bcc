"""Users and policies of a running broker: in an LMDB environment of their own, with a copy beside
it (pystore/meta/accessfiles.py), readable by their owner alone. A database that is damaged, or that
is not the one of the copy, goes aside, and the copy counts.
docs/internals/access.md#users-and-policies
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb

from broker.access.needs import AccessAction, ResourceKind
from broker.access.plain import DENY, PUB, SUB, PlainRules
from broker.access.policies import (
    Acl,
    Malformed,
    PolicyEntry,
    PolicyRules,
    Resource,
    User,
    parse_acl,
    parse_policies,
    parse_resource,
    parse_user,
)
from broker.loop.safe_log import SafeLogger
from pystore import files
from pystore.errors import BadArgument, RecordDamaged, StoreError, StoreIOError
from pystore.meta import accessfiles
from pystore.meta.accessfiles import COPY, AccessRows, Changes

__all__ = ["NAME_MAX", "PolicyAccess", "Rejected", "user_of_setting"]

log = SafeLogger("broker.access")

#: LMDB's longest key is 511 bytes.
NAME_MAX = 500


class Rejected(Exception):
    """Raised for an admin request that is refused, with code and remark of the answer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code, self.remark = code, remark


class PolicyAccess:
    """Users and policies. `folder` is that of the database and is made if it is missing; `changed`
    is called on the loop after the rules were replaced; `file_mode` is for folders that are made in
    the store (storeFileMode).

    A change is on the disk before it is answered. Everything happens on the broker's loop; writing
    is done in a thread, one change after the other."""

    def __init__(
        self, folder: Path, changed: Callable[[], None], file_mode: int = files.FILE_MODE
    ) -> None:
        self.folder = folder
        self.rules = PolicyRules()
        self._changed, self._file_mode = changed, file_mode
        self._tables: accessfiles.Tables | None = None
        self._size = 0
        self._lock = asyncio.Lock()

    def open(self, rules: PolicyRules, *, mend: bool = True) -> None:
        """Opens the database. rules: what is on. With `mend` a damaged database is moved aside and
        its copy counts; otherwise it is an error. Raises: StoreError."""
        try:
            self._open(rules, mend)
        except BaseException:
            self.close()
            raise

    def _open(self, rules: PolicyRules, mend: bool) -> None:
        copy, why = self._read_copy()
        try:
            rows = self._open_tables()
            if copy is not None and copy.contradicts(rows):
                raise self._damaged("they are not those of the copy")
            found = self._rules_of(rows, rules)
        except RecordDamaged as damaged:
            if copy is None or not mend:
                raise
            self._put_aside(damaged)
            self._open_tables()
            found = self._rules_of(copy, rules)
            rows = self._write(copy.users, copy.acls, copy.version)
        self.rules = found
        if mend and copy != rows and (copy is not None or why or rows.users or rows.acls):
            if why:
                log.warning("%s: %s: it is written again", self.folder / COPY, why)
            self._write_copy(rows)

    def _damaged(self, why: object) -> RecordDamaged:
        return RecordDamaged(f"the users are damaged ({why})", str(self.folder / "data.mdb"))

    def _rules_of(self, rows: AccessRows, rules: PolicyRules) -> PolicyRules:
        """Makes the rules of rows. Raises: RecordDamaged."""
        try:
            users = {name: _user(row) for name, row in rows.users.items()}
            acls = {name: parse_acl(row) for name, row in rows.acls.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise self._damaged(bad) from None
        for name, acl in acls.items():
            for resource in acl.starred():
                log.warning(
                    "A rule of User:%s is on %s: a star that is not the last letter stands for"
                    " nothing, the rule fits no other name",
                    name, resource,
                )  # fmt: skip
        return replace(rules, users=users, acls=acls)

    def _open_tables(self) -> AccessRows:
        """Opens the database, or takes its copy. Raises: RecordDamaged, StoreIOError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            accessfiles.check_file(self.folder / "data.mdb")
            self._tables = accessfiles.Tables(self.folder)
            self._size = self._tables.size()
            return self._tables.read()
        except lmdb.Error as failed:
            raise StoreIOError(
                f"the users cannot be read ({failed})", os.fspath(self.folder)
            ) from failed
        except (ValueError, RecursionError) as bad:
            raise self._damaged(bad) from None
        except OSError as failed:
            if isinstance(failed, StoreError):
                raise
            raise self._damaged(failed) from failed

    def _read_copy(self) -> tuple[AccessRows | None, str]:
        """Returns the copy, or None and what is wrong with it if it is there."""
        try:
            data = files.read_file(self.folder / COPY)
            return (None, "") if data is None else (AccessRows.from_file(data), "")
        except (OSError, ValueError) as bad:
            return None, f"the copy of the users is damaged ({bad})"

    def _write_copy(self, rows: AccessRows) -> None:
        """Writes the copy. The database holds everything, so a copy that cannot be written
        does no harm."""
        path = self.folder / COPY
        try:
            files.write_whole(path, rows.to_file(), mode=0o600)
        except OSError as failed:
            log.warning("%s: the copy of the users cannot be written: %s", path, failed)

    def _put_aside(self, damaged: RecordDamaged) -> None:
        self.close()
        paths = [self.folder / name for name in ("data.mdb", "lock.mdb")]
        there = [path for path in paths if os.path.lexists(path)]
        with files.named_errors(self.folder):
            where = accessfiles.move_aside(self.folder.parent, there, str(damaged), self._file_mode)
        log.warning("%s; it is in %s, and %s counts", damaged, where, self.folder / COPY)

    def close(self) -> None:
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.close()

    # ---- changes: the disk first, then the rules ----

    def _write(self, users: Changes, acls: Changes, version: int | None = None) -> AccessRows:
        """Writes a change. version: None means one more than the last. Raises: RecordDamaged,
        StoreIOError."""
        assert self._tables is not None
        try:
            accessfiles.check_size(self.folder, self._size)
            rows = self._tables.write(users, acls, version)
            self._size = self._tables.size()
        except (lmdb.Error, ValueError) as failed:
            raise StoreIOError(
                f"the users cannot be written ({failed})", os.fspath(self.folder)
            ) from failed
        self._write_copy(rows)
        return rows

    def _take(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> None:
        rules = self.rules
        merged_users = {**rules.users, **users}
        merged_acls = {**rules.acls, **acls}
        self.rules = replace(
            rules,
            users={name: user for name, user in merged_users.items() if user is not None},
            acls={name: acl for name, acl in merged_acls.items() if acl},
        )
        self._changed()

    async def _put_user(self, user: User) -> None:
        await asyncio.to_thread(self._write, {user.name: user.as_json(secret=True)}, {})
        self._take({user.name: user}, {})

    async def _put_acl(self, name: str, acl: Acl) -> None:
        value = acl.as_json(name) if acl else None
        await asyncio.to_thread(self._write, {}, {name: value})
        self._take({}, {name: acl})

    def make_now(self, user: User) -> None:
        """Makes a user that has to be there at the start, unless it exists. Raises:
        StoreIOError."""
        if user.name in self.rules.users:
            return
        self._write({user.name: user.as_json(secret=True)}, {})
        self._take({user.name: user}, {})

    # ---- admin requests ----

    async def create_user(self, name: str, body: Mapping[str, Any], by: User | None) -> None:
        """Creates a user. by: the user who asks, None for an unknown one. Raises: Rejected,
        StoreError."""
        _check_name(name)
        async with self._lock:
            if name in self.rules.users:
                raise Rejected(16, "The user is existed")
            user = _checked(parse_user, body, name)
            _check_super(user, None, by)
            await self._put_user(user)

    async def update_user(self, name: str, body: Mapping[str, Any], by: User | None) -> None:
        """Changes a user. Raises: Rejected, StoreError."""
        _check_name(name)
        async with self._lock:
            old = self.rules.users.get(name)
            if old is None:
                raise Rejected(16, "The user is not exist")
            _check_super(old, old, by)
            user = _checked(parse_user, body, name, old)
            _check_super(user, old, by)
            await self._put_user(user)

    async def delete_user(self, name: str, by: User | None) -> None:
        """Deletes a user and its policies. Raises: Rejected, StoreError."""
        _check_name(name)
        async with self._lock:
            old = self.rules.users.get(name)
            if old is not None:
                _check_super(old, old, by)
            await asyncio.to_thread(self._write, {name: None}, {name: None})
            self._take({name: None}, {name: None})

    async def merge_acl(self, subject: str, body: Mapping[str, Any]) -> None:
        """Adds entries; each takes the place of the one with its resource. Raises: Rejected,
        StoreError."""
        name = _name_of(subject)
        async with self._lock:
            if name not in self.rules.users:
                raise Rejected(16, f"The subject of {subject} is not exist.")
            policies = _checked(_new_policies, body.get("policies"))
            if not policies:
                raise Rejected(
                    1,
                    "org.apache.rocketmq.auth.authorization.exception.AuthorizationException: The"
                    " body of acl is null, it needs policies",
                )
            acl = self.rules.acls.get(name, Acl())
            for kind, entries in policies:
                acl = acl.merged(kind, entries)
            await self._put_acl(name, acl)

    async def delete_acl(self, subject: str, policy: str, resource: str) -> None:
        """Deletes entries of a policy; an empty `resource` stands for all of them. Raises:
        Rejected, StoreError."""
        name = _name_of(subject)
        kind = (policy or "Custom").capitalize()
        if kind not in ("Custom", "Default"):
            raise Rejected(16, f"The policy type {policy} is unknown.")
        wanted = parse_resource(resource) if resource else None
        if resource and wanted is None:
            raise Rejected(16, "The resource is null.")
        async with self._lock:
            if name not in self.rules.users:
                raise Rejected(16, "The subject is not exist.")
            acl = self.rules.acls.get(name)
            if acl is None:
                raise Rejected(16, "The acl is not exist.")
            await self._put_acl(name, acl.without(kind, wanted))

    def acl_of(self, subject: str) -> dict[str, Any] | None:
        """Returns the rights of a user, as upstream writes them. Raises: Rejected."""
        name = _name_of(subject)
        if name not in self.rules.users:
            raise Rejected(16, "The subject is not exist.")
        acl = self.rules.acls.get(name)
        return acl.as_json(name) if acl is not None else None

    def acls(self, subject: str, resource: str) -> list[dict[str, Any]]:
        """Returns the policies whose subject contains `subject`, with the entries whose resource
        contains `resource`."""
        made = []
        for name, acl in sorted(self.rules.acls.items()):
            if subject not in f"User:{name}":
                continue
            for kind in ("Custom", "Default"):
                fitting = [e for e in acl.policy(kind) if resource in str(e.resource)]
                acl = acl.changed(kind, fitting)
            if acl:
                made.append(acl.as_json(name))
        return made

    async def take_over(self, users: Mapping[str, User], acls: Mapping[str, Acl]) -> None:
        """Replaces all that are here by those of the master, at a slave. None are taken from a
        master without users: nobody could change it back. Raises: StoreError."""
        if not users:
            return
        async with self._lock:
            rules = self.rules
            gone: dict[str, None] = {n: None for n in rules.users if n not in users}
            new = {n: user for n, user in users.items() if rules.users.get(n) != user}
            changed = {n: acl for n, acl in acls.items() if rules.acls.get(n) != acl}
            lost: dict[str, None] = {n: None for n in rules.acls if n not in acls}
            if not (gone or new or changed or lost):
                return
            of_users = {name: user.as_json(secret=True) for name, user in new.items()}
            of_acls = {name: acl.as_json(name) for name, acl in changed.items()}
            await asyncio.to_thread(self._write, {**gone, **of_users}, {**lost, **of_acls})
            self._take({**gone, **new}, {**lost, **changed})

    # ---- from the plain list of 4.x ----

    def migrate(self, plain: PlainRules) -> list[str]:
        """Makes users of the accounts that have none yet, and returns what was lost, for the log.
        Raises: StoreError."""
        lost = [
            f"the global white list entry {each.text} is not taken over" for each in plain.white
        ]
        for account in plain.accounts.values():
            if account.key in self.rules.users:
                continue
            if account.white.text:
                lost.append(
                    f"{account.place}: whiteRemoteAddress of {account.key} is not taken over"
                )
            user = User(account.key, account.secret, account.admin)
            # In a plain list a star is a letter; here it would stand for other names.
            named = [(ResourceKind.TOPIC, name, bits) for name, bits in account.topics.items()]
            named += [(ResourceKind.GROUP, name, bits) for name, bits in account.groups.items()]
            lost += [
                f"{account.place}: the right of {account.key} on {kind}:{name} is not taken over:"
                " a star stands for nothing in a plain list"
                for kind, name, _ in named if "*" in name
            ]  # fmt: skip
            custom = [_entry(*each) for each in named if "*" not in each[1]]
            default = [
                _entry(ResourceKind.TOPIC, None, account.topic_default),
                _entry(ResourceKind.GROUP, None, account.group_default),
            ]
            acl = Acl(tuple(custom), tuple(default))
            self._write({user.name: user.as_json(secret=True)}, {user.name: acl.as_json(user.name)})
            self._take({user.name: user}, {user.name: acl})
        return lost


def _entry(kind: ResourceKind, name: str | None, bits: int) -> PolicyEntry:
    """Returns an entry of a policy. name: None stands for every name."""
    resource = Resource(kind, 2, name) if name is not None else Resource(kind, 0)
    if bits & DENY:
        return PolicyEntry(resource, (AccessAction.ALL,), False)
    named = ((PUB, AccessAction.PUB), (SUB, AccessAction.SUB))
    return PolicyEntry(resource, tuple(action for bit, action in named if bits & bit), True)


def _new_policies(given: object) -> list[tuple[str, list[PolicyEntry]]]:
    """Returns the policies of a request that makes rules. Raises: Malformed."""
    made = parse_policies(given)
    for _, entries in made:
        for entry in entries:
            entry.resource.check()
    return made


def _user(given: dict[str, Any]) -> User:
    return parse_user(given, given["username"])


def _checked(parse: Callable[..., Any], *given: Any) -> Any:
    try:
        return parse(*given)
    except Malformed as bad:
        raise Rejected(16, str(bad)) from None


def _check_name(name: str) -> None:
    if not name.strip():
        raise Rejected(29, "The username is blank")
    if len(name.encode("utf-8", "replace")) > NAME_MAX:
        raise Rejected(29, f"The username is longer than {NAME_MAX} bytes")


def _check_super(user: User, old: User | None, by: User | None) -> None:
    """Checks that only a Super makes, changes or deletes a Super. Raises: Rejected."""
    concerned = user.superuser or (old is not None and old.superuser)
    if concerned and (by is None or not by.superuser):
        # Of a new one 1, as in RocketMQ: nothing is there yet that could be forbidden.
        word, code = ("create", 1) if old is None else ("update", 16)
        raise Rejected(code, f"The super user can only be {word} by super user")


def _name_of(subject: str) -> str:
    """Returns the name of a user. Raises: Rejected."""
    kind, colon, name = subject.partition(":")
    if not colon or kind.lower() != "user" or not name:
        raise Rejected(16, "The subject is not exist.")
    return name


def user_of_setting(name: str, text: str, keys: tuple[str, str]) -> User:
    """Returns the Super that a setting names as JSON. Raises: BadArgument, whose text does not show
    it."""
    try:
        given = json.loads(text)
        user, password = given[keys[0]], given[keys[1]]
        if not isinstance(user, str) or not isinstance(password, str) or not user or not password:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        shown = '{"' + keys[0] + '": "..", "' + keys[1] + '": ".."}'
        raise BadArgument(f"{name} is not JSON like {shown}") from None
    return User(user, password, superuser=True)
