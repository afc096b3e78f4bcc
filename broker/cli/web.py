"""``pystore web``: a store in a browser."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.clients import client_errors, no_settings
from broker.cli.loglevel import LogLevel, LogLevelOption, LogOptions
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of, tls_of
from pystore.cli.verbs import Session, usage
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from broker.web.page_server import PageServer

__all__ = ["run"]

#: HOST:PORT, where there is no such folder.
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^/:\[\]]+):[0-9]{1,5}")


def run(
    s: Session,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 0,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    write: Annotated[
        bool, typer.Option("--write", help="Of a cluster: let visitors change what a form does.")
    ] = False,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> int | None:
    """Look at a store or a cluster in a browser: topics, groups, messages field by field, damage.

    STORE may be stopped, crashed or in use, of this project or of Java; nothing is changed and no
    lock is taken. HOST:PORT in its place, of a name server or a broker, shows what runs; --write
    lets forms of the pages change what runs, each after a look. Open the address that is
    printed: it holds a secret, without which nothing is shown; with credentials visitors sign in
    with that user and secret instead. It ends with Ctrl-C. Needs the extra web.

    \b
    Examples:
      pystore web /data/rocketmq/store
      pystore web ./crashed --port 8088 --json
      pystore web 127.0.0.1:9876 --write
    """
    from broker.cli.run_server import run_server

    try:
        from broker.web.cluster_server import ClusterServer
        from broker.web.server import FolderServer
    except ImportError as missing:
        error = BadArgument(f"pystore web needs a package that is not there: {missing.name}")
        error.next_step = "pip install 'rocketmq-pystore[web]'"
        raise error from missing
    s.settings()  # what is wrong with them is said before a port is opened
    known, target = credentials_of(credentials), str(s.path)
    server: PageServer
    if not s.path.exists() and _ADDRESS.fullmatch(target):
        no_settings(s)
        server = ClusterServer(target, bind, port, known, tls=tls_of(trust), write=write)
    elif write or trust is not None:
        raise usage("a folder is only read", "leave --write and --trust out")
    else:
        server = FolderServer(s.path, s.conf, dict(s.sets), bind, port, known)

    def ready() -> None:
        facts = {"ready": "web", "address": server.address, "port": server.port, "pid": os.getpid()}
        s.out.record(facts, lambda: f"Open {server.address}")
        s.out.flush()

    with client_errors("web"):
        return run_server(server, ready, LogOptions(log_level))
