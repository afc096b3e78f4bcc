"""Signatures of requests: HMAC-SHA1 over the sorted values of the header's fields, then the body
(docs/internals/access.md#signatures)."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field

from broker.wire.command import Command

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "Credentials", "is_signed_by", "sign"]

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
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


def sign(command: Command, credentials: Credentials) -> None:
    """Adds key, token and signature to a request that is otherwise complete."""
    command.ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        command.ext[SECURITY_TOKEN] = credentials.security_token
    command.ext.pop(SIGNATURE, None)
    command.ext[SIGNATURE] = _signature(_content(command), credentials.secret_key).decode()
