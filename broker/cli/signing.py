"""The option with which commands sign what they ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystore.cli.verbs import usage

if TYPE_CHECKING:
    import ssl

    from broker.client.credentials import Credentials

__all__ = ["CredentialsFile", "TrustFile", "credentials_of", "tls_of"]

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
        "--trust", metavar="FILE", help="Use TLS, and trust servers with this certificate."
    ),
]


def tls_of(file: Path | None) -> ssl.SSLContext | bool:
    """Raises: BadArgument."""
    from broker.remoting.tls import client_context

    return client_context(str(file)) if file is not None else False


def credentials_of(file: Path | None) -> Credentials | None:
    """Of the file, else of the environment. Raises: BadArgument."""
    from broker.client.credentials import credentials_of_environment, credentials_of_file
    from broker.client.errors import Misuse

    try:
        return credentials_of_file(file) if file is not None else credentials_of_environment()
    except Misuse as wrong:
        raise usage(str(wrong), "write accessKey: .. and secretKey: .., a line each") from None
