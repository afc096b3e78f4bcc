"""``pystore web``: a store in a browser."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from broker.cli.loglevel import LogLevel, LogLevelOption, LogOptions
from broker.cli.signing import CredentialsFile, credentials_of
from pystore.cli.verbs import Session
from pystore.errors import BadArgument

__all__ = ["run"]


def run(
    s: Session,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 0,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    credentials: CredentialsFile = None,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> int | None:
    """Look at a store in a browser: topics, messages, records field by field, findings of verify.

    The store may be stopped, crashed or in use, of this project or of Java. Nothing is changed and
    no lock is taken. Open the address that is printed: it holds a secret, without which nothing is
    shown; with credentials visitors sign in with that user and secret instead. It ends with
    Ctrl-C. Needs rocketmq-pystore[web].

    \b
    Examples:
      pystore web /data/rocketmq/store
      pystore web ./crashed --port 8088 --json
    """
    from broker.cli.serve import serve

    try:
        from broker.web.server import FolderServer
    except ImportError as missing:
        error = BadArgument(f"pystore web needs a package that is not there: {missing.name}")
        error.next_step = "pip install 'rocketmq-pystore[web]'"
        raise error from missing
    s.settings()  # what is wrong with them is said before a port is opened
    server = FolderServer(s.path, s.conf, dict(s.sets), bind, port, credentials_of(credentials))

    def ready() -> None:
        facts = {"ready": "web", "address": server.address, "port": server.port, "pid": os.getpid()}
        s.out.record(facts, lambda: f"Open {server.address}")
        s.out.flush()

    return serve(server, ready, LogOptions(log_level))
