"""Signs what a client asks, for brokers with access control (upstream's AclClientRPCHook)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.access.signature import ACCESS_KEY, SECURITY_TOKEN, Credentials, sign
from broker.client.errors import Misuse
from broker.wire.command import BINARY, Command
from broker.wire.digests import signer_of

__all__ = ["Credentials", "SigningHook", "credentials_of_environment", "credentials_of_file"]

KEY, SECRET, TOKEN = "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN"
_FILE_MAX = 64 << 10


class SigningHook:
    """Must be the last of the hooks: what they change is signed, too.

    fields: what every signed request has besides its own fields. signer: signs in C what
    ps_client_send encodes; None where this interpreter does not show its library.
    """

    def __init__(
        self,
        credentials: Credentials,
        recipients: Callable[[str], tuple[str, ...]] | None = None,
    ) -> None:
        """Takes the credentials to sign with. recipients: whom a request to this address is signed
        for; None: whoever gets it."""
        self._credentials, self._recipients = credentials, recipients
        self.fields = {ACCESS_KEY: credentials.access_key}
        if credentials.security_token:
            self.fields[SECURITY_TOKEN] = credentials.security_token
        self.signer: Any | None = signer_of(credentials.secret_key)

    def before_request(self, address: str, request: Command) -> None:
        if request.serialize == BINARY:
            # Upstream's brokers sign the word null for an empty value of a binary header.
            request.ext = {name: value for name, value in request.ext.items() if value}
        recipients = self._recipients(address) if self._recipients is not None else ()
        sign(request, self._credentials, *recipients)

    def after_response(self, address: str, request: Command, response: Command) -> None:
        pass


def credentials_of_environment() -> Credentials | None:
    """Reads ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY and ROCKETMQ_SECURITY_TOKEN. Raises: Misuse
    for one of the first two without the other."""
    key, secret = os.environ.get(KEY, ""), os.environ.get(SECRET, "")
    if bool(key) != bool(secret):
        raise Misuse(f"set both {KEY} and {SECRET}, or none of them")
    return Credentials(key, secret, os.environ.get(TOKEN, "")) if key else None


def credentials_of_file(path: Path) -> Credentials:
    """Reads a file with accessKey and secretKey, as mqadmin's tools.yml. Raises: Misuse."""
    import yaml  # some 20 ms, which a start without such a file need not take

    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_MAX).decode()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        pairs: Any = root.value if isinstance(root, yaml.MappingNode) else ()
        # Scalars as written: a secret of digits is its digits.
        found = {key.value: value.value for key, value in pairs}
    except OSError as failed:
        raise Misuse(f"the credentials cannot be read: {path} ({failed.strerror})") from None
    except (ValueError, yaml.YAMLError, AttributeError):
        raise Misuse(f"the credentials are not lines of name: value: {path}") from None
    key, secret = found.get("accessKey"), found.get("secretKey")
    if not isinstance(key, str) or not isinstance(secret, str) or not key or not secret:
        raise Misuse(f"the credentials lack accessKey or secretKey: {path}")
    token = found.get("securityToken")
    return Credentials(key, secret, token if isinstance(token, str) else "")
