"""Access control by tools: the plain list (50 to 54), users and policies (3001 to 3010).

Secrets are taken; one request alone answers them, sealed (`user`).
docs/internals/access.md#admin-requests
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.access.addresses import Pattern, address_of, parse_pattern
from broker.access.plain import Account, parse_right
from broker.access.plain_file import plain_json
from broker.access.policies import User
from broker.access.proof import SEALED, seal
from broker.access.signature import binding_of, is_signed_by
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.bodies import ANY, read
from broker.processors.turns import reply_with
from broker.services.broker_asker import patterns_of
from broker.services.context import Services
from broker.services.plain_access import PlainAccess
from broker.services.policy_access import PolicyAccess, Rejected
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import BadArgument, StoreError

__all__ = ["AccessProcessor"]

quiet = RateLimitedLogger(SafeLogger("broker.access"))

_UPDATE_FAILED, _DELETE_FAILED, _WHITE_FAILED, _UNSUPPORTED = 209, 210, 211, 3
_KEY_MIN = 7
_DEFAULTS = {"defaultTopicPerm": "topic_default", "defaultGroupPerm": "group_default"}
_LISTS = {"topicPerms": "topics", "groupPerms": "groups"}

Work = Coroutine[Any, Any, Command]


class AccessProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            Code.UPDATE_ACL_CONFIG: self.put_account,
            Code.DELETE_ACL_CONFIG: self.remove_account,
            Code.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.set_white,
            Code.GET_ACL_CONFIG: self.accounts,
            Code.AUTH_CREATE_USER: self.create_user,
            Code.AUTH_UPDATE_USER: self.update_user,
            Code.AUTH_DELETE_USER: self.delete_user,
            Code.AUTH_GET_USER: self.user,
            Code.AUTH_LIST_USERS: self.users,
            Code.AUTH_CREATE_ACL: self.merge_acl,
            Code.AUTH_UPDATE_ACL: self.merge_acl,
            Code.AUTH_DELETE_ACL: self.delete_acl,
            Code.AUTH_GET_ACL: self.acl,
            Code.AUTH_LIST_ACL: self.acls,
        }

    def _plain(self, command: Command) -> PlainAccess:
        """Returns the plain list. Raises: Refused when it is off."""
        access = self.s.access
        if access is None or access.plain is None:
            raise Refused(_UNSUPPORTED, f" request type {command.code} not supported")
        return access.plain

    def _policies(self, command: Command) -> PolicyAccess:
        """Returns users and policies. Raises: Refused when they are off."""
        access = self.s.access
        if access is None or access.policies is None:
            raise Refused(_UNSUPPORTED, f" request type {command.code} not supported")
        return access.policies

    # ---- the plain list ----

    def put_account(self, peer: Peer, command: Command) -> Work:
        plain = self._plain(command)

        async def put() -> None:
            await plain.put(await asyncio.to_thread(_changed_account, plain, command))

        return _done(command, put(), _UPDATE_FAILED)

    def remove_account(self, peer: Peer, command: Command) -> Work:
        plain, key = self._plain(command), command.ext.get("accessKey", "")

        async def remove() -> None:
            if not await plain.remove(key):
                raise Refused(
                    _DELETE_FAILED,
                    f"The accesskey[{key}] corresponding to accessConfig has been deleted failed.",
                )

        return _done(command, remove(), _DELETE_FAILED)

    def set_white(self, peer: Peer, command: Command) -> Work:
        plain, given = self._plain(command), command.ext.get("globalWhiteAddrs", "")
        problem = f"The globalWhiteAddresses[{given}] has been updated failed."
        named = command.ext.get("aclFileFullPath")

        def patterns_of() -> list[Pattern]:
            try:
                return [parse_pattern(text) for text in _split(given)]
            except ValueError as bad:
                raise Refused(_WHITE_FAILED, f"{problem} {bad}") from None

        async def change() -> None:
            patterns = await asyncio.to_thread(patterns_of)
            if not await plain.set_white(patterns, Path(named) if named else None):
                raise Refused(_WHITE_FAILED, f"{problem} {named} is not a file of the access list")

        return _done(command, change(), _WHITE_FAILED)

    def versions(self, peer: Peer, command: Command) -> Command:
        plain, versions = self._plain(command), self._plain(command).versions()
        main = versions.get(str(plain.main))
        shown = {path: version.as_json() for path, version in versions.items()}
        ext = {
            "version": json.dumps(main.as_json() if main is not None else {}),
            "allAclFileVersion": json.dumps(shown),
            "brokerName": self.s.broker_name,
            "brokerAddr": self.s.address,
            "clusterName": self.s.cluster,
        }
        return command.reply(ext=ext)

    def accounts(self, peer: Peer, command: Command) -> Work:
        """Lists the accounts; upstream answers their secrets, too."""
        rules = self._plain(command).rules
        return reply_with(
            command,
            lambda: {
                "globalWhiteAddrs": [pattern.text for pattern in rules.white],
                "plainAccessConfigs": [_account_json(each) for each in rules.accounts.values()],
            },
        )

    # ---- users ----

    def _by(self, command: Command) -> User | None:
        access = self.s.access
        assert access is not None and access.policies is not None
        return access.policies.rules.users.get(access.user_of(command))

    def create_user(self, peer: Peer, command: Command) -> Work:
        policies, name = self._policies(command), command.ext.get("username", "")
        return _done(command, policies.create_user(name, _body(command), self._by(command)))

    def update_user(self, peer: Peer, command: Command) -> Work:
        policies, name = self._policies(command), command.ext.get("username", "")
        return _done(command, policies.update_user(name, _body(command), self._by(command)))

    def delete_user(self, peer: Peer, command: Command) -> Work:
        policies, name = self._policies(command), command.ext.get("username", "")
        return _done(command, policies.delete_user(name, self._by(command)))

    def user(self, peer: Peer, command: Command) -> Command:
        """Returns a user. A Super whose signature counts gets the password, too, sealed with its
        own secret: proxies and slaves of ours verify with it what clients have signed. In clear it
        goes to addresses of passwordsFor alone: Apache's proxies know no other."""
        found = self._policies(command).rules.users.get(command.ext.get("username", ""))
        if found is None:
            return command.reply()
        by, row = self._by(command), found.as_json(secret=False)
        if by is not None and by.superuser and is_signed_by(command, by.password):
            whole = found.as_json(secret=True)
            if binding_of(command) is not None:
                try:
                    row[SEALED] = seal(command, by.password, mqjson.dumps(whole).decode())
                except BadArgument as lacking:
                    quiet.warning("seal", "Cannot answer the password of a user: %s", lacking)
            elif self._may_have_passwords(peer):
                row = whole
        return command.reply(body=mqjson.dumps(row))

    def _may_have_passwords(self, peer: Peer) -> bool:
        given = self.s.settings["passwordsFor"]
        host = address_of(peer.address[0])
        return bool(given) and any(
            each.matches(host) for each in patterns_of("passwordsFor", given)
        )

    def users(self, peer: Peer, command: Command) -> Work:
        users, part = self._policies(command).rules.users, command.ext.get("filter", "")
        return reply_with(
            command,
            lambda: [
                user.as_json(secret=False) for name, user in sorted(users.items()) if part in name
            ],
        )

    # ---- policies ----

    def merge_acl(self, peer: Peer, command: Command) -> Work:
        subject = command.ext.get("subject", "")
        return _done(command, self._policies(command).merge_acl(subject, _body(command)))

    def delete_acl(self, peer: Peer, command: Command) -> Work:
        ext, policies = command.ext, self._policies(command)
        kind, resource = ext.get("policyType", ""), ext.get("resource", "")
        return _done(command, policies.delete_acl(ext.get("subject", ""), kind, resource))

    def acl(self, peer: Peer, command: Command) -> Command:
        try:
            found = self._policies(command).acl_of(command.ext.get("subject", ""))
        except Rejected as rejected:
            raise Refused(rejected.code, rejected.remark) from None
        return command.reply(body=mqjson.dumps(found) if found else b"")

    def acls(self, peer: Peer, command: Command) -> Work:
        policies, ext = self._policies(command), command.ext
        wanted = ext.get("subjectFilter", ""), ext.get("resourceFilter", "")
        return reply_with(command, lambda: policies.acls(*wanted))


async def _done(command: Command, work: Awaitable[None], code: int = 1) -> Command:
    """Answers once the change is on the disk. code: that of an error of the disk."""
    try:
        await work
    except Rejected as rejected:
        raise Refused(rejected.code, rejected.remark) from None
    except StoreError as failed:
        raise Refused(code, failed.text) from None
    return command.reply()


def _body(command: Command) -> dict[str, Any]:
    """Reads the body of a request. Raises: Refused, LongBody."""
    return read(command, ANY) if command.body else {}


# ---- an account as a request has it ----


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _changed_account(plain: PlainAccess, command: Command) -> Account:
    """Returns the account after the change; absent fields keep their values. Raises: Refused."""
    ext = command.ext
    key = ext.get("accessKey", "")
    old = plain.rules.accounts.get(key)
    secret = ext.get("secretKey") or (old.secret if old is not None else "")
    if len(key) < _KEY_MIN or len(secret) < _KEY_MIN:
        raise Refused(
            _UPDATE_FAILED,
            f"The accessKey={key} and secretKey=*** cannot be null and length should longer than 6",
        )
    made = old if old is not None else Account(key, secret)
    made = replace(made, secret=secret)
    if "admin" in ext:
        made = replace(made, admin=ext["admin"].lower() == "true")
    if "whiteRemoteAddress" in ext:
        try:
            made = replace(made, white=parse_pattern(ext["whiteRemoteAddress"]))
        except ValueError as bad:
            raise Refused(_UPDATE_FAILED, f"whiteRemoteAddress: {bad}") from None
    changes: dict[str, Any] = {}
    for name, attribute in _DEFAULTS.items():
        if ext.get(name):
            changes[attribute] = _right(ext[name], ext[name])
    for name, attribute in _LISTS.items():
        if ext.get(name):
            changes[attribute] = dict(map(_resource, _split(ext[name])))
    return replace(made, **changes)


def _resource(text: str) -> tuple[str, int]:
    """Reads ``name=PERM``. Raises: Refused."""
    parts = text.split("=")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise Refused(
            _UPDATE_FAILED,
            f"Parse Resource format error for {text}.\nThe expected resource format is 'Res=Perm'."
            " For example: topicA=SUB",
        )
    if "*" in parts[0]:
        raise Refused(
            _UPDATE_FAILED,
            f"Parse Resource format error for {text}.\nA star stands for nothing in a plain list:"
            " name the resource, or use defaultTopicPerm or defaultGroupPerm.",
        )
    return parts[0].strip(), _right(parts[1], text)


def _right(text: str, whole: str) -> int:
    """Reads the bits of a right. Raises: Refused."""
    found = parse_right(text)
    if found is None:
        raise Refused(
            _UPDATE_FAILED,
            f"Parse resource permission error for {whole}.\nThe expected permissions are 'SUB' or"
            " 'PUB' or 'SUB|PUB' or 'PUB|SUB'.",
        )
    return found


def _account_json(account: Account) -> dict[str, object]:
    made = plain_json(account)
    del made["secretKey"]
    return {name: value for name, value in made.items() if value is not None}
