"""``pystore ha promote``: a stopped slave becomes the master, by hand and with a plan."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.clients import DryRun
from broker.cli.ha import BrokerSeen, look_at
from broker.cli.inquirer import check_address, inquirer
from broker.cli.signing import CredentialsFile, TrustFile
from pystore import Reader
from pystore.cli.verbs import Session, Size, usage
from pystore.errors import BadArgument, NotFound, RecordDamaged

__all__ = ["LossRefused", "MasterRole", "run"]


class MasterRole(enum.StrEnum):
    """brokerRole of the new master."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"


class LossRefused(BadArgument):
    """Acknowledged messages may be lost, or two masters would run."""


@dataclass(frozen=True, slots=True)
class OwnLog:
    """The slave's. last: where its last record begins, -1: it has none; record: that record."""

    end: int
    last: int
    record: bytes


@dataclass(slots=True)
class Rival:
    """A log that may have more than the slave's. more: bytes after the slave's end. messages: that
    lie there; None: not counted. alike: whether the slave's last record is the same there; None: it
    has none at that place. runs: a master that answers."""

    where: str
    role: str
    end: int
    more: int = 0
    messages: int | None = None
    alike: bool | None = None
    runs: bool = False

    def objection(self) -> str:
        """Returns why the slave should not become the master; empty: nothing speaks against it."""
        if self.alike is False:
            return f"{self.where} has another past: its log differs before this one's end"
        if self.more > 0:
            count = "" if self.messages is None else f", {self.messages} messages"
            return f"{self.where} has {self.more} bytes more than this store{count}"
        return ""


_Compare = Annotated[
    list[str] | None,
    typer.Option(
        "--compare", metavar="DIR|HOST:PORT",
        help="The old master's store, another slave's store, or a running slave. Repeatable.",
    ),
]  # fmt: skip


def run(
    s: Session,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Store of the stopped slave.")],
    compare: _Compare = None,
    role: Annotated[
        MasterRole | None,
        typer.Option(help="Its brokerRole. Default: SYNC_MASTER if inSyncReplicas is above 1."),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Promote it although messages may be lost.")
    ] = False,
    dry_run: DryRun = False,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Make a stopped slave the master: a failover by hand.

    Works on the slave's store and its broker.conf (--conf); no broker of the name may run as
    master. It compares the slave's log with those that --compare names, opens the store once as the
    new master will, and writes brokerRole and brokerId=0 into broker.conf, whose old content
    becomes its .bak. Then start the broker. The other slaves find it through the name server; the
    old master comes back as a slave with an empty store.

    Refuses when another log has more, or another past, or when nothing was compared, since what
    was acknowledged is then unknown: --accept-loss goes on. A synchronous master with one slave
    (inSyncReplicas=2) answered 0 only for what the slave has: then nothing acknowledged is lost.
    Refuses always while a master of the name answers.

    Refuses with exit code 2 and kind LossRefused when another log has more or another past,
    when no log was compared, and while a master among those compared answers. See
    docs/replication.md.

    \b
    Examples:
      pystore ha promote /data/slave -c slave.conf --compare /mnt/old/store --dry-run
      pystore ha promote /data/slave -c slave.conf --compare 10.0.0.3:10911
      pystore ha promote /data/slave -c slave.conf --accept-loss --role SYNC_MASTER
    """
    import asyncio

    from broker.services.config import served, store_alone
    from pystore.settings import edit_conf

    settings = s.settings()
    if s.conf is None:
        raise usage("the slave's broker.conf is needed", "name it with --conf FILE")
    if settings["brokerRole"] != "SLAVE":
        raise usage(
            f"brokerRole of {s.conf} is {settings['brokerRole']}, not SLAVE", "name a slave's file"
        )
    slave = replace(s, path=folder)
    slave.check_target(create=False)
    slave.check_free()
    with slave.reader() as mine:
        own = _own_log(mine)
        rivals = [_stored(mine, own, Path(at)) for at in compare or () if Path(at).is_dir()]
    asked = [check_address(at, "--compare") for at in compare or () if not Path(at).is_dir()]
    if asked:
        rivals += asyncio.run(_asked(own, asked, credentials, trust))
    if role is None:
        waits = settings["inSyncReplicas"] > 1
        role = MasterRole.SYNC_MASTER if waits else MasterRole.ASYNC_MASTER
    changes = {"brokerRole": role.value, "brokerId": "0"}
    served(settings.replaced(**changes))
    _show(s, slave, own, rivals, changes)
    _refuse(rivals, accept_loss)
    if dry_run:
        return 0
    with slave.writer(**store_alone()):
        pass  # whatever stands in its way is said now
    edit_conf(s.conf, changes)
    s.out.note(f"start it with `pystore broker -c {s.conf}`")
    return 0


def _show(
    s: Session, slave: Session, own: OwnLog, rivals: Iterable[Rival], changes: dict[str, str]
) -> None:
    settings = slave.settings()
    needs = int(settings["inSyncReplicas"])
    waits = changes["brokerRole"] == "SYNC_MASTER" and needs > 1
    s.out.plan(
        {
            "store": str(slave.path), "log end": own.end, "broker": settings["brokerName"],
            "broker.conf": str(s.conf),
            **{name: f"{settings[name]} -> {value}" for name, value in changes.items()},
            "sends wait for": f"{needs - 1} slaves, else answer 12" if waits else "no slave",
        }
    )  # fmt: skip
    s.out.table(
        "compared",
        ("log", "role", "end", "more", "messages", "same past", "runs"),
        [(r.where, r.role, r.end, Size(r.more), r.messages, r.alike, r.runs) for r in rivals],
    )


def _refuse(rivals: list[Rival], accept_loss: bool) -> None:
    """Refuses a promotion that may lose messages. Raises: LossRefused."""
    for rival in rivals:
        if rival.runs:
            error = LossRefused(f"the master at {rival.where} answers: two would take messages")
            error.next_step = "stop it first, and name its store with --compare"
            raise error
    reasons = [text for text in (rival.objection() for rival in rivals) if text]
    if not rivals:
        reasons = ["what the master had acknowledged is unknown: no log was compared"]
    if reasons and not accept_loss:
        error = LossRefused("; ".join(reasons))
        error.next_step = "promote the longest log, or accept the loss with --accept-loss"
        raise error


# ---- logs ----


def _own_log(reader: Reader) -> OwnLog:
    last = -1
    for queue in reader.queues():
        if queue.max_offset > queue.min_offset:
            ((at, _, _),) = reader.units(queue.topic, queue.queue, queue.max_offset - 1, 1)
            last = max(last, at)
    record = bytes(reader.message(last).record) if last >= 0 else b""
    return OwnLog(reader.info().log_max, last, record)


def _stored(mine: Reader, own: OwnLog, store: Path) -> Rival:
    """Returns what a stopped store holds. Raises: StoreError."""
    with Reader(store) as reader:
        theirs = _own_log(reader)
        found = Rival(str(store), "stopped", theirs.end, max(0, theirs.end - own.end))
        if min(own.last, theirs.last) >= 0:
            short, other = (own, reader) if own.last < theirs.end else (theirs, mine)
            found.alike = _has(other, short.last, short.record)
        if found.more and found.alike is not False:
            found.messages = _count_from(reader, max(own.end, reader.info().log_min))
    return found


def _has(reader: Reader, at: int, record: bytes) -> bool:
    try:
        return bytes(reader.message(at).record) == record
    except (NotFound, RecordDamaged):
        return False


def _count_from(reader: Reader, at: int) -> int:
    """Returns the number of messages from the record at byte `at` of the log on."""
    count = 0
    while True:
        batch = reader.log(at)
        count, at = count + len(batch), batch.next_offset
        if batch.outcome != 0:
            return count


async def _asked(
    own: OwnLog, addresses: Iterable[str], credentials: Path | None, trust: Path | None
) -> list[Rival]:
    """Returns what the brokers hold. Raises: OSError, TimeoutError, BadArgument."""
    from broker.wire.codes import RequestCode
    from broker.wire.command import Command

    rivals = []
    async with inquirer(credentials, trust) as by:
        for address in addresses:
            seen: BrokerSeen = await look_at(by, address)
            found = Rival(address, seen.role, seen.end, max(0, seen.end - own.end))
            found.runs = not seen.is_slave
            if 0 <= own.last < seen.end:
                view = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(own.last)})
                answer = await by.ask(address, view)
                found.alike = answer.code == 0 and bytes(answer.body) == own.record
            rivals.append(found)
    return rivals
