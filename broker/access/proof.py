"""What a broker says to whom it shares a secret with: proof that it knows the secret, and other
secrets, sealed (docs/internals/access.md#what-an-answer-proves).

Both begin from the signature of the request, which no other request has, since a binding has a
nonce. Whoever does not know the secret can make neither an answer nor anything of one."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets

from broker.access.signature import SIGNATURE
from broker.wire.codes import RequestCode
from broker.wire.command import Body, Command

__all__ = ["ASKS_FOR_PROOF", "PROOF", "SEALED", "is_proven", "prove_answer", "seal", "unseal"]

#: What a connection begins with whose other end has to prove who it is: a short answer.
ASKS_FOR_PROOF = int(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
#: The field of an answer with its proof.
PROOF = "pystoreProof"
#: The member of a user's JSON that has all of it, sealed.
SEALED = "pystoreSealed"
_SALT = 16
_SUM = 32


def prove_answer(request: Command, answer: Command, secret: str) -> None:
    """Adds to an answer that whoever gives it knows the secret that the request is signed with."""
    answer.ext[PROOF] = _proof(request, answer, secret)


def is_proven(request: Command, answer: Command, secret: str) -> bool:
    """Says whether an answer is to this request, and of somebody who knows the secret."""
    given = answer.ext.get(PROOF, "").encode("utf-8", "replace")
    return hmac.compare_digest(given, _proof(request, answer, secret).encode())


def _proof(request: Command, answer: Command, secret: str) -> str:
    made = hmac.new(secret.encode(), digestmod="sha256")
    parts: list[Body] = [b"pystore answer", _signature_of(request), str(answer.code).encode()]
    for name in sorted(answer.ext):
        if name != PROOF:
            parts += [name.encode("utf-8", "replace"), answer.ext[name].encode("utf-8", "replace")]
    for part in (*parts, answer.body):
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return base64.b64encode(made.digest()).decode()


def seal(request: Command, secret: str, text: str) -> str:
    """Returns a text that only whoever signed the request can read: encrypted with HMAC-SHA256 in
    counter mode, then authenticated, under keys of this request and a salt."""
    salt = secrets.token_bytes(_SALT)
    hidden = _mixed(request, secret, salt, text.encode())
    return base64.b64encode(salt + hidden + _tag(request, secret, salt, hidden)).decode()


def unseal(request: Command, secret: str, sealed: str) -> str:
    """Raises: ValueError for what was not sealed for this request with this secret."""
    try:
        data = base64.b64decode(sealed, validate=True)
    except binascii.Error:
        data = b""
    salt, hidden, tag = data[:_SALT], data[_SALT:-_SUM], data[-_SUM:]
    if len(data) < _SALT + _SUM or not hmac.compare_digest(
        tag, _tag(request, secret, salt, hidden)
    ):
        raise ValueError("it is not sealed with the secret that the request was signed with")
    return _mixed(request, secret, salt, hidden).decode()


def _signature_of(request: Command) -> bytes:
    return request.ext.get(SIGNATURE, "").encode("utf-8", "replace")


def _key(word: bytes, request: Command, secret: str, salt: bytes) -> bytes:
    return hmac.digest(secret.encode(), word + salt + _signature_of(request), "sha256")


def _tag(request: Command, secret: str, salt: bytes, hidden: bytes) -> bytes:
    return hmac.digest(_key(b"pystore tag", request, secret, salt), hidden, "sha256")


def _mixed(request: Command, secret: str, salt: bytes, data: bytes) -> bytes:
    key, stream, count = _key(b"pystore seal", request, secret, salt), b"", 0
    while len(stream) < len(data):
        stream += hmac.digest(key, count.to_bytes(8, "big"), "sha256")
        count += 1
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))
