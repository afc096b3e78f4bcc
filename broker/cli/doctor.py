"""``pystore doctor``: what is wrong with a broker, a name server, a folder, a client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.signing import CredentialsFile, TrustFile, context_of, credentials_of
from pystore.cli.verbs import Session, usage

if TYPE_CHECKING:
    from broker.doctor import Diagnosis

__all__ = ["run", "show_findings"]


def run(
    s: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", show_default=False,
            help="HOST:PORT of a broker, a name server or a proxy; the folder of a store. Default:"
            " the environment of a client.",
        ),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv", "-n", metavar="HOST:PORT",
            help="Name servers that should know the broker, or that the proxy asks; for a client:"
            " instead of NAMESRV_ADDR.",
        ),
    ] = None,
    late: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long a message may wait.")
    ] = 60,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
    proxy_conf: Annotated[
        Path | None,
        typer.Option("--proxy-conf", metavar="FILE", help="Settings of a proxy (rmq-proxy.json)."),
    ] = None,
) -> int | None:  # fmt: skip
    """Find what is wrong, and say for each thing why it matters and what mends it.

    TARGET says what is looked at: a running server, ours or Apache's, a folder (with --conf also
    the settings of its broker), or nothing, for the environment of a client. Nothing is changed;
    the disk of a folder is measured with a file that has no name. Exit code 5: something is wrong;
    a note alone leaves it at 0.

    \b
    Examples:
      pystore doctor 127.0.0.1:10911
      pystore doctor 127.0.0.1:9876
      pystore doctor 127.0.0.1:8081 -n 127.0.0.1:9876 --proxy-conf rmq-proxy.json
      pystore doctor /data/rocketmq/store -c broker.conf
      pystore doctor --json | jq -r '.findings[].mend'
    """
    import asyncio

    from broker.doctor import examine_folder, examine_network

    if target is not None and (os.sep in target or Path(target).is_dir() or ":" not in target):
        if any(each is not None for each in (namesrv, credentials, trust, proxy_conf)):
            raise usage("a folder has no server to ask", "leave --namesrv and the like out")
        kind, found = "folder", examine_folder(Path(target), s.conf, s.sets)
    else:
        if s.conf is not None or s.sets:
            given = ", ".join(s.sets) or str(s.conf)
            raise usage(f"--conf and --set are for a folder: {given}", "name its folder")
        try:
            kind, found = asyncio.run(
                examine_network(
                    target, namesrv=namesrv, credentials=credentials_of(credentials),
                    tls=context_of(trust), late_s=late, proxy_conf=proxy_conf,
                )
            )  # fmt: skip
        except ValueError as bad:
            raise usage(str(bad), "name HOST:PORT or a folder") from None
    s.out.facts("looked at", {"what": kind, "where": target or "environment"})
    s.damaged = show_findings(s, found)
    return 0


def show_findings(s: Session, found: list[Diagnosis], *, places: bool = False) -> bool:
    """Shows findings; returns whether any is more than a note. places: also where each is, since
    these are many."""
    from pystore.audit import Severity

    columns = ("severity", "check", "what", "why it matters", "mend it by")
    if s.out.json:
        s.out.objects("findings", [each.as_dict() for each in found])
    elif found:
        s.out.table(
            "findings",
            (*columns[:2], *(("where",) if places else ()), *columns[2:]),
            [
                (
                    e.severity.name.lower(),
                    e.check,
                    *((e.where,) if places else ()),
                    e.text,
                    e.why,
                    e.mend,
                )
                for e in found
            ],
        )
    else:
        s.out.note("nothing is wrong")
    return any(each.severity > Severity.INFO for each in found)
