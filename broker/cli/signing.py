"""The option with which commands sign what they ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystore.cli.verbs import usage

if TYPE_CHECKING:
    import ssl

    from broker.client.credentials import Credentials

__all__ = ["CredentialsFile", "TrustFile", "context_of", "credentials_of", "tls_of"]

CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        help="accessKey and secretKey, as mqadmin's tools.yml. Default: ROCKETMQ_ACCESS_KEY and"
        " ROCKETMQ_SECRET_KEY.",
    ),
]


TrustFile = Annotated[
    Path | None,
    typer.Option(
        "--trust", metavar="FILE",
        help="Use TLS, and trust servers with this certificate, which names the address that is"
        " asked; ROCKETMQ_TLS_VERIFY_HOST=false: any address.",
    ),
]  # fmt: skip


def tls_of(file: Path | None) -> ssl.SSLContext | bool:
    """Returns what a client of the package takes as `tls`. Raises: BadArgument."""
    return context_of(file) or False


def context_of(file: Path | None) -> ssl.SSLContext | None:
    """Returns the context of TLS. None: plain text. Raises: BadArgument."""
    from broker.remoting.tls import client_context

    if file is None:
        return None
    any_host = os.environ.get("ROCKETMQ_TLS_VERIFY_HOST", "").strip().lower() == "false"
    return client_context(str(file), verify_host=not any_host)


def credentials_of(file: Path | None) -> Credentials | None:
    """Reads the credentials of the file, else of the environment. Raises: BadArgument."""
    from broker.client.credentials import credentials_of_environment, credentials_of_file
    from broker.client.errors import Misuse

    try:
        return credentials_of_file(file) if file is not None else credentials_of_environment()
    except Misuse as wrong:
        raise usage(str(wrong), "write accessKey: .. and secretKey: .., a line each") from None
