"""``pystore broker``: a broker, until a signal stops it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from pystore.cli.verbs import Session, usage

if TYPE_CHECKING:
    from broker.broker import Broker
    from broker.remoting.tls import TlsSettings
    from pystore.settings import Settings

__all__ = ["run"]

_NAMESRV_PORT = 9876
_GRPC_PORT = 8081


_Folder = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="FOLDER", help="Directory of the store; overrides storePathRootDir."
    ),
]
_Namesrv = Annotated[
    str | None,
    typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers, separated by ';'."),
]
_WithNamesrv = Annotated[
    bool, typer.Option("--with-namesrv", help="Also run a name server in this process.")
]
_NamesrvPort = Annotated[
    int,
    typer.Option(
        "--namesrv-port", min=0, max=65535, help="Port of that name server; 0: any free port."
    ),
]
_Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port."),
]
_Tls = Annotated[
    Path | None,
    typer.Option("--tls", metavar="FILE", help="TLS settings file (tls.server.*, tls.client.*)."),
]
_Grpc = Annotated[
    bool, typer.Option("--grpc", help="Also serve RocketMQ 5's gRPC clients, on port 8081.")
]
_GrpcPort = Annotated[
    int | None, typer.Option("--grpc-port", min=0, max=65535, help="That port; 0: any free port.")
]
_ProxyConf = Annotated[
    Path | None,
    typer.Option("--proxy-conf", metavar="FILE", help="Settings of gRPC (rmq-proxy.json)."),
]
_Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="TLS with a certificate of its own, and an administrator; see below."
    ),
]


def run(
    s: Session,
    folder: _Folder = None,
    namesrv: _Namesrv = None,
    with_namesrv: _WithNamesrv = False,
    namesrv_port: _NamesrvPort = _NAMESRV_PORT,
    port: _Port = None,
    tls: _Tls = None,
    grpc: _Grpc = False,
    grpc_port: _GrpcPort = None,
    proxy_conf: _ProxyConf = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_file: LogFileOption = None,
    secure: _Secure = False,
    check_conf: CheckConf = False,
    strict: Strict = False,
) -> int | None:
    """Run a RocketMQ broker until SIGTERM or Ctrl-C; print one line when it is ready.

    Settings have upstream's names; pass them in a broker.conf or with --set. The store is at
    storePathRootDir, by default ~/store as upstream. Clients reach the broker at brokerIP1, by
    default 127.0.0.1.

    --secure keeps a certificate (broker.crt, for clients to trust), its key and the credentials of
    an administrator (admin.yml, for --credentials) in a folder beside the store, STORE.secure, all
    made at the first start; only signed requests over TLS are then served.

    --check-conf checks the settings as a start does, on this machine, and starts nothing: each
    problem with its line, all at once. A name that another version of RocketMQ knows, or that none
    does, is passed over with a warning, a mistyped one is refused; --strict refuses both, here and
    at a start. SIGHUP has a running broker read its --conf, its --proxy-conf and its certificate
    again; what only a start takes over is logged.

    With --json the line is an object: ready, address, port, namesrv, name, store, pid. A second
    signal does not wait for requests in progress.

    \b
    Examples:
      pystore broker --with-namesrv
      pystore broker --with-namesrv --grpc
      pystore broker --with-namesrv --secure
      pystore broker -c broker.conf -n 192.168.1.10:9876
      pystore broker --store ./store --port 0 --with-namesrv --namesrv-port 0 --json
      pystore broker -c broker.conf --check-conf --strict
      pystore broker -n localhost:9876 --set brokerIP1=192.168.1.20 --set flushDiskType=SYNC_FLUSH
    """
    from broker.broker import Broker
    from broker.cli.run_server import run_server
    from pystore.configuration.problems import refuse, strictly

    given: dict[str, Any] = dict(s.sets)
    given |= {} if namesrv is None else {"namesrvAddr": namesrv}
    given |= {} if port is None else {"listenPort": port}
    if grpc and grpc_port is None and proxy_conf is None:
        grpc_port = _GRPC_PORT
    if secure and tls is not None:
        raise usage("--secure and --tls exclude each other", "leave one of them out")
    check = _Check(s.conf, given, folder, grpc_port, proxy_conf, tls, thorough=check_conf)
    if check_conf:
        return show_check(s, _shown(check.settings), check.problems, strict=strict)
    refuse(strictly(check.problems) if strict else check.problems)
    chosen, settings = check.tls, check.settings
    if secure:
        from broker.cli.secure import secured

        beside = check.store.with_name(f"{check.store.name}.secure")
        chosen, users = secured(beside, settings["brokerIP1"])
        given |= users
    if settings.source("serverSelectorThreads") == "default":
        given["serverSelectorThreads"] = _threads_on(len(os.sched_getaffinity(0)))
    broker = Broker(
        folder, conf=s.conf, with_namesrv=with_namesrv, namesrv_port=namesrv_port, tls=chosen,
        grpc_port=grpc_port, proxy_conf=proxy_conf, **given,
    )  # fmt: skip
    return run_server(
        broker,
        lambda: _print_ready(s, broker),
        LogOptions(log_level, log_format, log_file),
        broker.reload,
    )


class _Check:
    """What a start would say of its settings. problems: all of them; tls: what --tls names, if it
    can be used."""

    def __init__(
        self, conf: Path | None, given: dict[str, Any], folder: Path | None, grpc_port: int | None,
        proxy_conf: Path | None, tls: Path | None, *, thorough: bool,
    ) -> None:  # fmt: skip
        """Raises: BadArgument for a settings file that cannot be read."""
        from broker.remoting.tls import TlsSettings
        from broker.start_checks import Ask, on_this_machine, read_start
        from pystore.cli.verbs import holder_of
        from pystore.configuration.problems import SettingProblem
        from pystore.errors import BadArgument

        self.settings, self.problems = read_start(conf, given)
        self.tls: TlsSettings | None = None
        if tls is not None:
            try:
                self.tls = TlsSettings.from_file(tls)
            except BadArgument as bad:
                self.problems.append(SettingProblem("--tls", bad.where or str(tls), bad.text))
        wrong = frozenset(each.name for each in self.problems if each.is_error)
        ask = Ask(self.settings, conf, folder, grpc_port, proxy_conf)
        self.store = ask.store
        # The ports of a broker that runs are taken by itself.
        runs = self.store.is_dir() and holder_of(self.store).locked
        self.problems += on_this_machine(replace(ask, thorough=thorough and not runs), wrong)


def _shown(settings: Settings) -> list[tuple[str, object, str]]:
    """Returns the settings that are given."""
    from pystore.settings import SECRETS, without_password

    return [
        (name, "***" if name in SECRETS else without_password(settings[name]),
         settings.source(name))
        for name in sorted(settings.explicit)
    ]  # fmt: skip


def _threads_on(cores: int) -> int:
    """Returns the number of network threads of a process that is a broker and nothing else."""
    return 3 if cores > 4 else 1


def _print_ready(s: Session, broker: Broker) -> None:
    facts = {
        "ready": "broker",
        "address": broker.address,
        "port": broker.port,
        "namesrv": broker.namesrv_address,
        "name": broker.settings["brokerName"],
        "store": str(broker.path),
        "pid": os.getpid(),
    }
    if broker.grpc_port:
        facts["grpc"] = broker.grpc_address
    at = f" and name server is {facts['namesrv']}" if facts["namesrv"] else ""
    if broker.grpc_port:
        at += f" Its gRPC service is {facts['grpc']}"
    s.out.record(
        facts, lambda: f"The broker[{facts['name']}, {facts['address']}] boot success.{at}"
    )
    s.out.flush()
