"""The plain access list of RocketMQ 4.x: accounts with secrets, rights and white lists
(docs/internals/access.md#the-plain-list)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.access.addresses import NOBODY, Pattern, address_of
from broker.access.needs import AccessAction, AccessRequest, Ask, Need, ResourceKind, Verdict
from broker.access.signature import ACCESS_KEY, is_signed_by
from broker.wire.command import Command
from pystore.format.names import TRACE_TOPIC

__all__ = ["DENY", "PUB", "PUB_SUB", "SUB", "Account", "PlainRules", "parse_right", "right_text"]

#: Bits of a right; no other value can be given.
DENY, PUB, SUB = 1, 4, 8
PUB_SUB = PUB | SUB
_TEXTS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB_SUB, "SUB|PUB": PUB_SUB}
#: SYSTEM_ERROR, with the name of upstream's exception, which its clients and tools look for.
_CODE, _EXCEPTION = 1, "org.apache.rocketmq.acl.common.AclException: "


def parse_right(text: str | None) -> int | None:
    """Reads the bits of a right; None for a malformed text."""
    return _TEXTS.get((text or "").strip())


def right_text(bits: int) -> str:
    return {DENY: "DENY", PUB: "PUB", SUB: "SUB", PUB_SUB: "PUB|SUB"}[bits]


@dataclass(frozen=True, slots=True)
class Account:
    """key: unique. white: sources that need neither signature nor right. topics, groups: rights by
    name. place: file and line that define it."""

    key: str
    secret: str = field(repr=False)
    white: Pattern = NOBODY
    admin: bool = False
    topic_default: int = DENY
    group_default: int = DENY
    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    place: str = ""

    @property
    def unlimited(self) -> bool:
        """Whether no right limits it: an administrator with rights of its own is held to them."""
        return self.admin and not self.topics and not self.groups

    def right(self, need: Need) -> tuple[int, str]:
        """Returns the right that decides about a topic or group, and where it stands."""
        if need.kind is ResourceKind.GROUP:
            own, default, word = self.groups, self.group_default, "Group"
        else:
            own, default, word = self.topics, self.topic_default, "Topic"
        if need.name in own:
            found, where = own[need.name], f"{word.lower()}Perms {need.name}"
        else:
            found, where = default, f"default{word}Perm"
        return found, f"{self.place}: {self.key}: {where}={right_text(found)}"


@dataclass(frozen=True, slots=True)
class PlainRules:
    """The whole plain list at one moment; a change makes another."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[Pattern, ...] = ()

    def decide(self, command: Command, ask: Ask, host: str) -> Verdict:
        """Checks in upstream's order, but that no body is read before its signature is known to be
        right. host: of the client, without its port. Raises: what ask raises."""
        key = command.ext.get(ACCESS_KEY)
        found = self.known(key, host)
        if isinstance(found, Verdict):
            return found
        if not is_signed_by(command, found.secret):
            return _refused(f"Check signature failed for accessKey={key}", found.place)
        return self.authorize(found, ask(command))

    def secret_of(self, key: str) -> str | None:
        account = self.accounts.get(key)
        return account.secret if account is not None else None

    def known(self, key: str | None, host: str) -> Account | Verdict:
        """Returns the account whose signature and rights matter, or a verdict that needs
        neither."""
        address = address_of(host)
        for pattern in self.white:
            if pattern.matches(address):
                return Verdict(True, f"globalWhiteRemoteAddresses {pattern.text}")
        if not key:
            return _refused("No accessKey is configured", "no credential")
        account = self.accounts.get(key)
        if account is None:
            return _refused(f"No acl config for {key}", "no such account")
        if account.white.matches(address):
            where = f"{account.place}: {key}: whiteRemoteAddress {account.white.text}"
            return Verdict(True, where)
        return account

    def authorize(self, account: Account, asked: AccessRequest) -> Verdict:
        """Decides what an account may do whose signature is right."""
        publish = (AccessAction.PUB,)
        if any(
            need.kind is ResourceKind.TOPIC and need.name == TRACE_TOPIC and need.actions == publish
            for need in asked.needs
        ):
            return Verdict(True, "everybody may publish traces")
        if asked.admin and not account.admin:
            return _refused(
                f"Need admin permission for request code={asked.code}, but"
                f" accessKey={account.key} is not",
                f"{account.place}: {account.key}: admin=false",
                account.key,
            )
        rule = f"{account.place}: {account.key}: valid signature"
        if account.unlimited:
            return Verdict(True, f"{account.place}: {account.key}: admin=true")
        for need in asked.needs:
            bits, rule = account.right(need)
            wanted = PUB if need.actions == (AccessAction.PUB,) else SUB
            if bits & DENY or not bits & wanted:
                return _refused(
                    f"No default permission for {need.kind.lower()}:{need.shown or need.name}"
                    f" (accessKey={account.key} lacks {right_text(wanted)} for request"
                    f" code={asked.code})",
                    rule,
                    account.key,
                )
        return Verdict(True, rule)


def _refused(text: str, rule: str, proven: str = "") -> Verdict:
    return Verdict(False, rule, _CODE, _EXCEPTION + text, proven)
