"""`pystore broker --secure`: TLS, and one administrator, made at the first start."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import yaml

from broker.client.credentials import credentials_of_file
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings

__all__ = ["ADMIN_FILE", "make_credentials", "random_secret", "secured"]

ADMIN_FILE, _CERT, _KEY = "admin.yml", "broker.crt", "broker.key"
_ADMIN = "admin"


def secured(folder: Path, host: str) -> tuple[TlsSettings, dict[str, str]]:
    """Returns TLS and settings of a broker that lets nobody in without them. folder: certificate,
    key and the administrator's credentials, kept from start to start. host: that clients come to.

    Raises: BadArgument without the package that makes certificates, OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cert, key, admin = (folder / name for name in (_CERT, _KEY, ADMIN_FILE))
    if not (cert.exists() and key.exists()):
        made, secret = self_signed("rocketmq-pystore", ["localhost", "127.0.0.1", host])
        _write(key, secret)
        _write(cert, made)
    if not admin.exists():
        make_credentials(admin, _ADMIN)
    known = credentials_of_file(admin)
    user = {"username": known.access_key, "password": known.secret_key}
    own = {"accessKey": known.access_key, "secretKey": known.secret_key}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(user),
        "innerClientAuthenticationCredentials": json.dumps(own),
    }
    tls = TlsSettings(mode="enforcing", cert_path=os.fspath(cert), key_path=os.fspath(key))
    return tls, settings


def random_secret() -> str:
    """Returns 32 letters that nobody guesses."""
    return secrets.token_urlsafe(24)


def make_credentials(path: Path, user: str) -> None:
    """Makes a file that credentials_of_file reads, with a random secret. Raises: OSError."""
    found = {"accessKey": user, "secretKey": random_secret()}
    _write(path, yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=10_000))


def _write(path: Path, text: str) -> None:
    """Writes a file that is its owner's alone, from the first byte on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "w") as file:
        file.write(text)
