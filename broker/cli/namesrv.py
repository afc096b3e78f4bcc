"""``pystore namesrv``: a name server, until a signal stops it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

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
from pystore.cli.verbs import Session

__all__ = ["run"]


def run(
    s: Session,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port."),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_file: LogFileOption = None,
    check_conf: CheckConf = False,
    strict: Strict = False,
) -> int | None:
    """Run a RocketMQ name server until SIGTERM or Ctrl-C; print one line when it is ready.

    Settings have upstream's names; pass them in a file or with --set: see docs/namesrv.md. By
    default, kvConfigPath and configStorePath are files in ~/namesrv, as upstream.

    --check-conf and --strict do what they do for pystore broker. SIGHUP has a running name server
    read its --conf and its certificate again; what only a start takes over is logged.

    It has no STORE. With --json the line is an object: ready, address, port, pid. A second
    signal does not wait for requests in progress.

    \b
    Examples:
      pystore namesrv
      pystore namesrv -c namesrv.conf --port 9876
      pystore namesrv --port 0 --json --set orderMessageEnable=true
    """
    from broker.cli.run_server import run_server
    from broker.namesrv.server import NameServer
    from broker.namesrv.settings import NamesrvSettings
    from pystore.configuration.problems import refuse, strictly

    home = Path.home() / "namesrv"
    given: dict[str, object] = dict(s.sets)
    if port is not None:
        given["listenPort"] = port
    under = {
        "bindAddress": "0.0.0.0",
        "kvConfigPath": home / "kvConfig.json",
        "configStorePath": home / "namesrv.properties",
    }
    if check_conf or strict:
        problems = NamesrvSettings.look(s.conf, given, under)
        if check_conf:
            return show_check(s, [], problems, strict=strict)
        refuse(strictly(problems))
    names = NameServer(s.conf, under, **given)

    def ready() -> None:
        facts = {
            "ready": "namesrv",
            "address": f"{names.settings.text('bindAddress')}:{names.port}",
            "port": names.port,
            "pid": os.getpid(),
        }
        s.out.record(facts, lambda: f"The Name Server boot success. address={facts['address']}")
        s.out.flush()

    return run_server(names, ready, LogOptions(log_level, log_format, log_file), names.reload)
