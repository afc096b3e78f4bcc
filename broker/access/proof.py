"""What a broker says to whom it shares a secret with: proof that it knows the secret, and other
secrets, sealed (docs/internals/access.md#what-an-answer-proves).

Both begin from the signature of the request, which no other request has, since a binding has a
nonce. Whoever does not know the secret can make neither an answer nor anything of one."""

from __future__ import annotations

import base64
import hmac
import secrets
from typing import TYPE_CHECKING

from broker.access.signature import SIGNATURE
from broker.wire.codes import RequestCode
from broker.wire.command import Body, Command
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "ASKS_FOR_PROOF",
    "HA_ADDRESS",
    "PROOF",
    "SEALED",
    "is_proven",
    "prove_answer",
    "seal",
    "unseal",
]

#: What a connection begins with whose other end has to prove who it is: a short answer.
ASKS_FOR_PROOF = int(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
#: The field of an answer with its proof.
PROOF = "pystoreProof"
#: The field that says where who proves it takes slaves.
HA_ADDRESS = "pystoreHaAddress"
#: The member of a user's JSON that has all of it, sealed.
SEALED = "pystoreSealed"
_NONCE = 12


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
    """Returns a text that only whoever signed the request can read: AES-GCM under a key of the
    secret and of this request. Raises: BadArgument when cryptography is not installed."""
    nonce = secrets.token_bytes(_NONCE)
    hidden = _cipher(request, secret).encrypt(nonce, text.encode(), None)
    return base64.b64encode(nonce + hidden).decode()


def unseal(request: Command, secret: str, sealed: str) -> str:
    """Opens what was sealed. Raises: ValueError for what was not sealed for this request with this
    secret, BadArgument (also a ValueError) when cryptography is not installed."""
    cipher = _cipher(request, secret)
    from cryptography.exceptions import InvalidTag

    try:
        data = base64.b64decode(sealed, validate=True)
        plain: bytes = cipher.decrypt(data[:_NONCE], data[_NONCE:], None)
    except (ValueError, InvalidTag):
        raise ValueError(
            "it is not sealed with the secret that the request was signed with"
        ) from None
    return plain.decode()


def _cipher(request: Command, secret: str) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise BadArgument(
            "passwords travel between brokers encrypted: install rocketmq-pystore[tls]"
        ) from None
    return AESGCM(hmac.digest(secret.encode(), b"pystore seal" + _signature_of(request), "sha256"))


def _signature_of(request: Command) -> bytes:
    return request.ext.get(SIGNATURE, "").encode("utf-8", "replace")
