"""``pystore ha group`` and ``pystore ha move``: a group of brokers whose master a controller
names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from broker.cli.clients import no_settings
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of
from broker.loop.reasons import reason_of
from pystore.cli.verbs import Session, Size, usage
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from broker.services.controlled.controller import Controller
    from broker.services.replication.elected_role import ElectionRecord

__all__ = ["group", "move"]

_T = TypeVar("_T")
#: Of the table of members.
_Row = tuple[object, ...]

_Controller = Annotated[
    str, typer.Argument(metavar="CONTROLLER", show_default=False, help="As `controllerAddr`.")
]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, help="The group's `brokerName`.")
]
_Cluster = Annotated[str, typer.Option(help="The brokers' `brokerClusterName`.")]


def group(
    s: Session,
    controller: _Controller,
    name: _Name,
    cluster: _Cluster = "DefaultCluster",
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Show a group: its master, epoch and in-sync set, how far each member is, and why one is not
    in the set.

    The first is what the controller or etcd has, the rest what the master says. A master of Java's
    does not know its slaves by number, and says of none why it is not in sync.

    Of each broker it shows number, end of the log, bytes behind, whether it is in sync, and why
    it is not or may soon be out, such as 'not connected' or 'behind for 9 s; out after 15 s'. A
    broker that has not been in the set or connected since this master was elected is not
    listed. It has no STORE. JSON: the members group and members, the latter empty when the
    master does not answer. See docs/replication.md.

    \b
    Examples:
      pystore ha group 127.0.0.1:9878 broker-a
      pystore ha group etcd://127.0.0.1:2379 broker-a --json
    """
    no_settings(s)
    record = _ask(
        controller, cluster, name, (credentials, trust), lambda controller: controller.look()
    )
    _show(s, record)
    _show_members(s, record, credentials, trust)
    return 0


def move(
    s: Session,
    controller: _Controller,
    name: _Name,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", show_default=False, help="Of the next master.")
    ],
    cluster: _Cluster = "DefaultCluster",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check who is in sync; change nothing.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Under etcd: also to one that may lack messages, if who may have them is gone.",
        ),
    ] = False,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Hand mastership of a group to another of its brokers, for maintenance of the old one.

    NUMBER is of a broker that is in sync: it has all that was acknowledged. The old master follows
    it. Refused for any other broker.

    Under etcd it is refused as well for a broker that may lack messages since its host lost
    power. It has no STORE. JSON: the member group, as it is then. See docs/replication.md.

    \b
    Examples:
      pystore ha move 127.0.0.1:9878 broker-a 2 --dry-run
      pystore ha move etcd://127.0.0.1:2379 broker-a 2
    """
    no_settings(s)
    files = credentials, trust
    before = _ask(controller, cluster, name, files, lambda controller: controller.look())
    if number not in before.in_sync:
        raise usage(
            f"broker {number} is not in sync: {sorted(before.in_sync) or 'nobody'} is",
            "see `pystore ha group`",
        )
    if not dry_run:
        before = _ask(
            controller, cluster, name, (credentials, trust),
            lambda controller: controller.move(number, accept_loss),
        )  # fmt: skip
    _show(s, before)
    return 0


def _show(s: Session, record: ElectionRecord) -> None:
    s.out.table(
        "group",
        ("master", "address", "epoch", "in sync"),
        [(record.master, record.address, record.epoch, " ".join(map(str, sorted(record.in_sync))))],
    )


def _show_members(
    s: Session, record: ElectionRecord, credentials: Path | None, trust: Path | None
) -> None:
    import asyncio

    rows: list[_Row] = []
    if record.master is None:
        s.out.note("members are not known: there is no master")
    else:
        try:
            rows = asyncio.run(_members(record.address, credentials, trust))
        except (OSError, TimeoutError, ValueError) as failed:
            said = reason_of(failed)
            s.out.note(f"members are not known: the master at {record.address}: {said}")
    s.out.table("members", ("number", "address", "log end", "behind", "in sync", "why"), rows)


async def _members(address: str, credentials: Path | None, trust: Path | None) -> list[_Row]:
    """Returns a row for each member. Raises: RefusedByBroker, OSError, TimeoutError, ValueError."""
    from broker.cli.inquirer import inquirer
    from broker.wire import mqjson
    from broker.wire.codes import RequestCode

    async with inquirer(credentials, trust) as by:
        found = mqjson.loads(await by.body(address, RequestCode.GET_BROKER_HA_STATUS))
    log_end = int(found["masterCommitLogMaxOffset"])

    def row(number: int | None, at: str | None, end: int | None, each: Any) -> _Row:
        behind = Size(max(0, log_end - end)) if end is not None else None
        return number, at, end, behind, bool(each["inSync"]), each.get("why") or None

    if "members" in found:
        return [row(e["brokerId"], None, e.get("slaveAckOffset"), e) for e in found["members"]]
    return [
        row(None, str(e["addr"]).lstrip("/"), int(e["slaveAckOffset"]), e)
        for e in found["haConnectionInfo"]
    ]


def _ask(
    address: str, cluster: str, name: str, files: tuple[Path | None, Path | None],
    work: Callable[[Controller], Awaitable[_T]],
) -> _T:  # fmt: skip
    """Asks the controller. files: credentials, and whom TLS trusts. Raises: BadArgument, OSError,
    TimeoutError, ValueError."""
    import asyncio

    from broker.access.recipients import recipients_of
    from broker.access.signature import sign
    from broker.cli.signing import context_of
    from broker.services.controlled.controller import ControllerRefused
    from broker.services.controlled.controller_address import controller_of
    from broker.wire.command import Command

    signer = credentials_of(files[0])
    tls = context_of(files[1])

    def signed(command: Command, address: str) -> None:
        if signer is not None:
            sign(command, signer, *recipients_of(address, None))

    async def ask() -> _T:
        controller = controller_of(address, cluster, name, Path("none"), 0o600, 1000, signed, tls)
        try:
            return await work(controller)
        finally:
            await controller.leave()

    try:
        return asyncio.run(ask())
    except ControllerRefused as refused:
        raise BadArgument(str(refused)) from None
