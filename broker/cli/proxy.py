"""``pystore proxy``: RocketMQ 5's gRPC service before a cluster, until a signal stops it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.checking import CheckConf, Strict, show_check
from broker.cli.loglevel import (
    LogFileOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    LogOptions,
)
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of, tls_of
from pystore.cli.verbs import Session, usage

if TYPE_CHECKING:
    from broker.grpc.proxy import Proxy
    from pystore.configuration.problems import SettingProblem

__all__ = ["run"]


_Namesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        help="Name servers, separated by ';'. Default: namesrvAddr, then NAMESRV_ADDR.",
    ),
]
_GrpcPort = Annotated[
    int | None,
    typer.Option("--grpc-port", min=0, max=65535, help="For gRPC clients; 0: any free port."),
]
_RemotingPort = Annotated[
    int | None,
    typer.Option(
        "--remoting-port",
        min=0,
        max=65535,
        help="For clients of the remoting protocol (8080); 0: any free port.",
    ),
]
_ProxyConf = Annotated[
    Path | None, typer.Option("--proxy-conf", metavar="FILE", help="Settings (rmq-proxy.json).")
]
_Bind = Annotated[str, typer.Option("--bind", metavar="ADDRESS", help="Address to listen on.")]
_Tls = Annotated[
    Path | None, typer.Option("--tls", metavar="FILE", help="TLS settings file (tls.server.*).")
]


def run(
    s: Session,
    namesrv: _Namesrv = None,
    grpc_port: _GrpcPort = None,
    remoting_port: _RemotingPort = None,
    proxy_conf: _ProxyConf = None,
    bind: _Bind = "0.0.0.0",
    tls: _Tls = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_file: LogFileOption = None,
    check_conf: CheckConf = False,
    strict: Strict = False,
) -> int | None:
    """Run a proxy for RocketMQ 5's gRPC clients before the brokers of a cluster, ours or Apache's,
    until SIGTERM or Ctrl-C; print one line when it is ready. Clients of the remoting protocol are
    relayed by it, too: its remoting port is a name server to them, which sends them to itself.

    The proxy keeps no state: run as many as you like before the same brokers, and give clients the
    addresses of all. Clients are told to come back to the hosts that they asked, at the port of
    this proxy; with useEndpointPortFromRequest, at the port that they asked.

    A single broker needs no proxy: pystore broker --grpc serves the same clients by itself.

    --credentials sign what the proxy asks brokers for itself, and for clients that sign with the
    same ones; other clients must not sign, and are let in where brokers let anybody in. With
    authenticationEnabled or authorizationEnabled in --proxy-conf the proxy checks clients by
    itself, by the users and policies of the brokers, and signs for all that it lets in.

    --check-conf and --strict do for --proxy-conf what they do for pystore broker.

    With --json the line is an object: ready, grpc, remoting, port, namesrv, pid. See
    docs/grpc.md.

    \b
    Examples:
      pystore proxy -n 127.0.0.1:9876
      pystore proxy -n '10.0.0.1:9876;10.0.0.2:9876' --grpc-port 8081
      pystore proxy --proxy-conf rmq-proxy.json --tls tls.properties
      pystore proxy -n 127.0.0.1:9876 --grpc-port 0 --json
    """
    from broker.cli.run_server import run_server
    from broker.client.errors import ClientError, Misuse
    from broker.client.options import ClientSettings
    from broker.grpc import what_is_missing
    from broker.remoting.tls import TlsSettings
    from pystore.configuration.problems import refuse, strictly
    from pystore.errors import BadArgument

    try:
        from broker.grpc.proxy import ROUTE_POLL_S, Proxy
    except ImportError as missing:
        raise BadArgument(what_is_missing(missing)) from missing
    if s.conf is not None or s.sets:
        given = ", ".join(s.sets) or str(s.conf)
        raise usage(f"a proxy has no settings of a broker: {given}", "write them to --proxy-conf")
    if check_conf or strict:
        problems = _problems(proxy_conf, is_signed=credentials is not None)
        if check_conf:
            return show_check(s, [], problems, strict=strict)
        refuse(strictly(problems))
    client = ClientSettings(
        tls=tls_of(trust), credentials=credentials_of(credentials), route_poll_s=ROUTE_POLL_S
    )
    chosen = TlsSettings.from_file(tls) if tls is not None else None
    try:
        proxy = Proxy(
            namesrv, conf=proxy_conf, grpc_port=grpc_port, remoting_port=remoting_port, bind=bind,
            client=client, tls=chosen,
        )  # fmt: skip
    except Misuse as wrong:
        raise usage(str(wrong), "for example: -n 127.0.0.1:9876") from None

    try:
        return run_server(
            proxy,
            lambda: _print_ready(s, proxy),
            LogOptions(log_level, log_format, log_file),
            proxy.reload,
        )
    except ClientError as failed:
        raise BadArgument(f"the proxy cannot start: {failed}") from None


def _problems(conf: Path | None, *, is_signed: bool) -> list[SettingProblem]:
    if conf is None:
        return []
    from broker.doctor.proxies import proxy_problems

    return proxy_problems(conf, is_signed=is_signed)[1]


def _print_ready(s: Session, proxy: Proxy) -> None:
    facts = {
        "ready": "proxy",
        "grpc": proxy.address,
        "remoting": proxy.remoting_address,
        "port": proxy.port,
        "namesrv": ";".join(proxy.servers),
        "pid": os.getpid(),
    }
    s.out.record(
        facts,
        lambda: f"The proxy[{facts['grpc']}] boot success. name server is {facts['namesrv']}",
    )
    s.out.flush()
