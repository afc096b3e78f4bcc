"""Signatures of requests: HMAC-SHA1 over the sorted values of the header's fields, then the body
(docs/internals/access.md#signatures)."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.wire.command import Command

__all__ = [
    "ACCESS_KEY", "BINDING", "SECURITY_TOKEN", "SIGNATURE", "Binding", "Credentials", "binding_of",
    "is_signed_by", "sign",
]  # fmt: skip

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
#: The field that binds a request to its recipient. It sorts before all others, so that what is
#: signed begins with its value, which begins with the word, whatever a field is renamed to.
BINDING, _WORD = "!for", "pystore-for "
_BINDING_MAX = 600
#: A field that some servers sum and others do not.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs with. security_token: sent along and signed, empty: none is.

    >>> from broker import Credentials, Message, Producer
    >>> with Producer("shop", credentials=Credentials("shop", "shop-secret")) as producer:
    ...     producer.send(Message("orders", b"12 apples")).status.name
    'SEND_OK'
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """Whom a request is for, and what it asks. recipients: each ``host:port``; none for a malformed
    binding, which is nobody's. nonce: no other request has it."""

    recipients: tuple[str, ...]
    code: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def text(self) -> str:
        return f"{_WORD}{'|'.join(self.recipients)} {self.code} {self.nonce}\n"


def binding_of(command: Command) -> Binding | None:
    """Returns whom a request was signed for, None when its signature is good for everybody. Only
    what is signed counts, and neither names of fields nor where one ends are."""
    begin = ""
    for part in _signed_parts(command):
        begin += part
        if not begin.startswith(_WORD[: len(begin)]):
            return None
        if "\n" in begin or len(begin) > _BINDING_MAX:
            break
    if not begin.startswith(_WORD):
        return None
    words = begin.partition("\n")[0].split(" ")
    if len(words) != 4 or "\n" not in begin or not words[2].isdecimal() or len(words[2]) > 9:
        return Binding((), -1, "")
    return Binding(tuple(words[1].split("|")), int(words[2]), words[3])


def _signed_parts(command: Command) -> Iterator[str]:
    for name in sorted(command.ext, key=_utf16):
        if name != SIGNATURE:
            yield command.ext[name]
    yield bytes(command.body[:_BINDING_MAX]).decode("utf-8", "replace")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _content(command: Command, without: str = "") -> bytes:
    """Returns the bytes that are signed."""
    ext = command.ext
    names = sorted(ext) if "".join(ext).isascii() else sorted(ext, key=_utf16)
    values = [ext[name] for name in names if name not in (SIGNATURE, without)]
    return "".join(values).encode("utf-8", "replace") + command.body


def _signature(content: bytes, secret: str) -> bytes:
    return base64.b64encode(hmac.digest(secret.encode(), content, "sha1"))


def is_signed_by(command: Command, secret: str) -> bool:
    """Says whether the request's signature is that of the secret. It takes as long whatever the
    signature is. _UNIQUE_KEY_QUERY may be signed or not: clients and servers of 4.x disagree about
    it."""
    given = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    good = hmac.compare_digest(given, _signature(_content(command), secret))
    if _UNIQUE_KEY_QUERY in command.ext:
        content = _content(command, without=_UNIQUE_KEY_QUERY)
        good |= hmac.compare_digest(given, _signature(content, secret))
    return good


def sign(command: Command, credentials: Credentials, *recipients: str) -> None:
    """Adds key, token and signature to a request that is otherwise complete. `recipients` are the
    addresses of the one broker that is to serve it; without any, everybody may who has it."""
    command.ext.pop(BINDING, None)
    if recipients:
        command.ext[BINDING] = Binding(recipients, command.code).text()
    command.ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        command.ext[SECURITY_TOKEN] = credentials.security_token
    command.ext.pop(SIGNATURE, None)
    command.ext[SIGNATURE] = _signature(_content(command), credentials.secret_key).decode()
