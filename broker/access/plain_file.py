"""Files of the plain access list: ``plain_acl.yml`` and what lies below ``acl/``, read strictly.

Scalars are taken as they are written: a secret of digits is its digits. The published example, its
accounts not indented, is understood with a warning. docs/internals/access.md#files
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.access import yaml_tree
from broker.access.addresses import Pattern, parse_pattern
from broker.access.plain import DENY, Account, PlainRules, parse_right, right_text
from broker.access.yaml_tree import Node, Scalar
from pystore.errors import BadArgument

__all__ = ["SECRET_MIN", "PlainFile", "Version", "joined", "load", "parse", "plain_json", "written"]

#: Upstream wants more than six characters; a secret of six is taken with a warning, since the
#: published example has one.
SECRET_MIN = 6
_FILE_MAX = 16 << 20
_WHITE, _ACCOUNTS, _VERSION = "globalWhiteRemoteAddresses", "accounts", "dataVersion"
_FIELDS = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
}  # fmt: skip
_Pairs = list[tuple[Node, Node]]


@dataclass(frozen=True, slots=True)
class Version:
    """dataVersion of a file. timestamp: ms."""

    counter: int = 0
    timestamp: int = 0

    def bumped(self) -> Version:
        return Version(self.counter + 1, time.time_ns() // 1_000_000)

    def as_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class PlainFile:
    """One file, read. warnings: lines for the log."""

    path: Path
    accounts: tuple[Account, ...] = ()
    white: tuple[Pattern, ...] = ()
    version: Version = Version()
    warnings: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """Reads the file. Raises: BadArgument."""
    try:
        # A pipe that stands in the place of the file would never end, nor even open.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadArgument("the access list is not a file", os.fspath(path))
            data = file.read(_FILE_MAX + 1)
    except OSError as failed:
        raise BadArgument(
            f"the access list cannot be read ({failed.strerror})", os.fspath(path)
        ) from failed
    if len(data) > _FILE_MAX:
        raise BadArgument(f"the access list is over {_FILE_MAX >> 20} MiB", os.fspath(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        line = data[: bad.start].count(b"\n") + 1
        raise BadArgument("the access list is not UTF-8", f"{path}:{line}") from None


def parse(path: Path, text: str) -> PlainFile:
    """Reads the rules of a text. Raises: BadArgument that names file, line and account."""
    return _PlainFileReader(path).read(text)


def load(path: Path) -> PlainFile:
    """Reads the rules of a file. Raises: BadArgument."""
    return parse(path, read_text(path))


def joined(files: Iterable[PlainFile]) -> tuple[PlainRules, list[str]]:
    """Joins the rules of all files, where the first definition of a key wins; also returns what is
    to be logged."""
    accounts: dict[str, Account] = {}
    white: list[Pattern] = []
    warnings: list[str] = []
    for file in files:
        warnings += file.warnings
        white += file.white
        for account in file.accounts:
            first = accounts.setdefault(account.key, account)
            if first is not account:
                warnings.append(
                    f"{account.place}: the account {account.key} is defined at {first.place}"
                    " already, which holds"
                )
    return PlainRules(accounts, tuple(white)), warnings


# ---- reading ----


@dataclass(slots=True)
class _Draft:
    """An account under way. node: for the place."""

    node: Node
    pairs: _Pairs = field(default_factory=list)


class _PlainFileReader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []

    def fail(self, node: Node, why: str) -> BadArgument:
        return BadArgument(why, self.place(node))

    def place(self, node: Node) -> str:
        return f"{self.path}:{node.line}"

    def read(self, text: str) -> PlainFile:
        try:
            root = yaml_tree.compose(text)
        except yaml_tree.NotYaml as bad:
            where = str(self.path) if bad.line is None else f"{self.path}:{bad.line}"
            raise BadArgument(f"the access list is not YAML: {bad}", where) from None
        if root is None:
            return PlainFile(self.path)
        if not isinstance(root, yaml_tree.Mapping):
            raise self.fail(root, "the access list is not a mapping of names to values")
        return self.file(root)

    def file(self, root: yaml_tree.Mapping) -> PlainFile:
        white: tuple[Pattern, ...] = ()
        version, seen = Version(), set[str]()
        drafts: list[_Draft] = []
        for key, value in root.pairs:
            name = self.scalar(key)
            if name in _FIELDS and drafts:
                drafts += self.unindented(drafts[-1], key, value)
                continue
            if name in seen:
                raise self.fail(key, f"{name} appears twice")
            seen.add(name)
            if name == _WHITE:
                white = tuple(self.pattern(each) for each in self.items(value))
            elif name == _ACCOUNTS:
                drafts += self.drafts(value)
            elif name == _VERSION:
                version = self.version(value)
            else:
                raise self.fail(key, f"{name} is not a field of an access list")
        accounts = [self.account(draft) for draft in drafts]
        known: dict[str, Account] = {}
        for draft, account in zip(drafts, accounts, strict=True):
            if known.setdefault(account.key, account) is not account:
                raise self.fail(draft.node, f"the account {account.key} appears twice in this file")
        return PlainFile(self.path, tuple(accounts), white, version, tuple(self.warnings))

    # ---- the published example ----

    def drafts(self, value: Node) -> list[_Draft]:
        made = []
        for item in self.items(value):
            if not isinstance(item, yaml_tree.Mapping):
                raise self.fail(item, "an account is not a mapping of names to values")
            made.append(_Draft(item, list(item.pairs)))
        return made

    def unindented(self, draft: _Draft, key: Node, value: Node) -> list[_Draft]:
        """Moves a field of an account that stands at the margin: it belongs to the account before
        it. Accounts after that have then become items of its last list."""
        if not self.warnings:
            self.warnings.append(
                f"{self.place(key)}: the fields of the accounts are not indented; they are taken"
                " to belong to the account above them"
            )
        following: list[_Draft] = []
        if isinstance(value, yaml_tree.Sequence):
            own = [item for item in value.items if not isinstance(item, yaml_tree.Mapping)]
            others = [item for item in value.items if isinstance(item, yaml_tree.Mapping)]
            following = [_Draft(item, list(item.pairs)) for item in others]
            value = yaml_tree.Sequence(value.line, own)
        draft.pairs.append((key, value))
        return following

    # ---- parts ----

    def account(self, draft: _Draft) -> Account:
        fields: dict[str, Node] = {}
        for word, value in draft.pairs:
            name = self.scalar(word)
            if name not in _FIELDS:
                raise self.fail(word, f"{self.named(draft)}: {name} is not a field of an account")
            if name in fields:
                raise self.fail(word, f"{self.named(draft)}: {name} appears twice")
            fields[name] = value
        text = {name: self.scalar(node) for name, node in fields.items()
                if name not in ("topicPerms", "groupPerms")}  # fmt: skip
        key = self.checked(draft, fields, "accessKey", text)
        secret = self.checked(draft, fields, "secretKey", text)
        try:
            white = parse_pattern(text.get("whiteRemoteAddress", ""))
        except ValueError as bad:
            where = fields["whiteRemoteAddress"]
            raise self.fail(where, f"account {key}: whiteRemoteAddress: {bad}") from None
        admin = text.get("admin", "").lower()
        if admin not in ("", "true", "false"):
            raise self.fail(fields["admin"], f"account {key}: admin is neither true nor false")
        return Account(
            key, secret, white, admin == "true",
            self.default(key, fields, text, "defaultTopicPerm"),
            self.default(key, fields, text, "defaultGroupPerm"),
            self.rights(key, fields.get("topicPerms"), "topicPerms"),
            self.rights(key, fields.get("groupPerms"), "groupPerms"),
            self.place(draft.node),
        )  # fmt: skip

    def named(self, draft: _Draft) -> str:
        for key, value in draft.pairs:
            if isinstance(value, Scalar) and isinstance(key, Scalar) and key.text == "accessKey":
                return f"account {value.text}"
        return "account without accessKey"

    def checked(
        self, draft: _Draft, fields: Mapping[str, Node], name: str, text: Mapping[str, str]
    ) -> str:
        value = text.get(name, "")
        node = fields.get(name, draft.node)
        if not value:
            raise self.fail(node, f"{self.named(draft)}: {name} is missing")
        if len(value) < SECRET_MIN:
            raise self.fail(
                node,
                f"{self.named(draft)}: {name} is shorter than {SECRET_MIN} characters; use 7 or"
                " more",
            )
        if len(value) == SECRET_MIN:
            self.warnings.append(
                f"{self.place(node)}: {self.named(draft)}: {name} has {SECRET_MIN} characters;"
                " RocketMQ itself wants 7 or more"
            )
        return value

    def default(
        self, key: str, fields: Mapping[str, Node], text: Mapping[str, str], name: str
    ) -> int:
        """Reads a default. Whatever is not a right is DENY, as in upstream, but not silently."""
        given = text.get(name, "")
        found = parse_right(given)
        if given and found is None:
            self.warnings.append(
                f"{self.place(fields[name])}: account {key}: {name} {given} is not a right, taken"
                " as DENY"
            )
        return found or DENY

    def rights(self, key: str, node: Node | None, name: str) -> dict[str, int]:
        made: dict[str, int] = {}
        for item in self.items(node) if node is not None else ():
            text = self.scalar(item)
            parts = text.split("=")
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise self.fail(item, f"account {key}: {name}: '{text}' is not name=PERM")
            resource, right = parts[0].strip(), parse_right(parts[1])
            if resource in made:
                raise self.fail(item, f"account {key}: {name}: {resource} appears twice")
            if right is None:
                self.warnings.append(
                    f"{self.place(item)}: account {key}: {name}: {parts[1].strip()} is not a right,"
                    " taken as DENY"
                )
            if "*" in resource:
                self.warnings.append(
                    f"{self.place(item)}: account {key}: {name}: {resource}: a star stands for"
                    " nothing in a plain list, so that the right fits no other name"
                )
            made[resource] = right or DENY
        return made

    def version(self, node: Node) -> Version:
        items = self.items(node)
        values: dict[str, int] = {}
        for item in items[:1]:
            for key, value in item.pairs if isinstance(item, yaml_tree.Mapping) else ():
                text = self.scalar(value)
                if text.isascii() and text.isdigit():
                    values[self.scalar(key)] = int(text[:18])
        return Version(values.get("counter", 0), values.get("timestamp", 0))

    def pattern(self, node: Node) -> Pattern:
        try:
            return parse_pattern(self.scalar(node))
        except ValueError as bad:
            raise self.fail(node, f"{_WHITE}: {bad}") from None

    def items(self, node: Node) -> list[Node]:
        if isinstance(node, yaml_tree.Sequence):
            return list(node.items)
        if isinstance(node, Scalar) and node.text is None:
            return []
        raise self.fail(node, "a list is wanted here: each item on a line that begins with -")

    def scalar(self, node: Node) -> str:
        """Returns the text as written; empty for null."""
        if not isinstance(node, Scalar):
            raise self.fail(node, "a single value is wanted here, not a list or a mapping")
        text = node.text or ""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.fail(node, "the text holds half of a surrogate pair") from None
        return text


# ---- writing ----


def written(file: PlainFile) -> str:
    """Writes accounts into the file's text as upstream writes them. Comments are lost, as there."""
    made: dict[str, Any] = {}
    if file.white:
        made[_WHITE] = [pattern.text for pattern in file.white]
    made[_ACCOUNTS] = [plain_json(account) for account in file.accounts]
    made[_VERSION] = [file.version.as_json()]
    return yaml_tree.write(made)


def plain_json(account: Account) -> dict[str, Any]:
    """Returns the fields of an account, its secret included, as files and requests have them."""

    def rights(given: Mapping[str, int]) -> Sequence[str]:
        return [f"{name}={right_text(bits)}" for name, bits in given.items()]

    made: dict[str, Any] = {
        "accessKey": account.key,
        "secretKey": account.secret,
        "whiteRemoteAddress": account.white.text or None,
        "admin": account.admin,
        "defaultTopicPerm": right_text(account.topic_default),
        "defaultGroupPerm": right_text(account.group_default),
    }
    if account.topics:
        made["topicPerms"] = rights(account.topics)
    if account.groups:
        made["groupPerms"] = rights(account.groups)
    return made
