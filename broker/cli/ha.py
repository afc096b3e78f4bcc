"""``pystore ha``: who has what of a replicated log, and a slave that becomes the master by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import no_settings
from broker.cli.inquirer import check_address, inquirer
from broker.cli.signing import CredentialsFile, TrustFile
from broker.loop.reasons import NEEDS_RIGHTS, reason_of
from pystore.cli.verbs import Session, Size, When, usage
from pystore.errors import NotFound

if TYPE_CHECKING:
    from broker.cli.inquirer import Inquirer

__all__ = ["BrokerSeen", "SlaveRow", "look_at", "status"]

#: GET_BROKER_HA_STATUS of a broker that does not know it, as 4.9.
_UNKNOWN_REQUEST = 3
#: A slave of Java's does not say that it is cut off; it hears its master every 5 s at least.
_SILENT_MS = 20_000


@dataclass(slots=True)
class SlaveRow:
    """A slave, as its master sees it. behind_s: age of the first message that it lacks; None: not
    known. since: ms since 1970; 0: not known."""

    address: str
    end: int
    behind: int
    behind_s: float | None
    in_sync: bool
    since: int
    rate: int


@dataclass(slots=True)
class BrokerSeen:
    """What a broker says. begin, end: of its log. behind: bytes that its master has more; None: not
    known. master: where a slave follows. heard: ms since 1970, a slave its master; 0: never.
    problem: why it is not as it should be."""

    address: str
    name: str = ""
    id: int = 0
    role: str = ""
    begin: int = 0
    end: int = 0
    behind: int | None = None
    copies: int = 1
    master: str = ""
    heard: int = 0
    problem: str = ""
    slaves: list[SlaveRow] = field(default_factory=list)

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def state(self) -> str:
        if self.problem:
            return self.problem
        if self.is_slave:
            return f"follows {self.master}"
        if self.copies < 2:
            return "waits for no slave"
        return f"waits for {self.copies - 1} of {len(self.slaves)} slaves"


async def look_at(by: Inquirer, address: str) -> BrokerSeen:
    """Asks a broker how far it is. Raises: RefusedByBroker, OSError, TimeoutError, ValueError."""
    from broker.wire import mqjson
    from broker.wire.codes import RequestCode
    from broker.wire.command import Command
    from pystore.files.javaproperties import parse_java_properties

    text = await by.body(address, RequestCode.GET_BROKER_CONFIG, next_step=NEEDS_RIGHTS)
    given = {k: v for k, (_, v) in parse_java_properties(text.decode(errors="replace")).items()}
    runtime = await by.body(address, RequestCode.GET_BROKER_RUNTIME_INFO, next_step=NEEDS_RIGHTS)
    table = mqjson.loads(runtime)["table"]
    seen = BrokerSeen(
        address, given.get("brokerName", ""), int(given.get("brokerId", "0")),
        given.get("brokerRole", ""), int(table["commitLogMinOffset"]),
        int(table["commitLogMaxOffset"]),
    )  # fmt: skip
    if seen.role == "SYNC_MASTER":
        seen.copies = int(given.get("inSyncReplicas", "1"))
    answer = await by.ask(address, Command(RequestCode.GET_BROKER_HA_STATUS))
    if answer.code == _UNKNOWN_REQUEST:
        seen.problem = "this version does not say who follows whom"
        return seen
    if answer.code != 0:
        raise OSError(f"{address} answered {answer.code}: {answer.remark}")
    found = mqjson.loads(bytes(answer.body))
    if seen.is_slave:
        _take_follower(seen, found["haClientRuntimeInfo"])
    for row in found["haConnectionInfo"]:
        seen.slaves.append(await _slave_row(by, address, row))
    return seen


def _take_follower(seen: BrokerSeen, said: dict[str, Any]) -> None:
    seen.master = said.get("masterAddr") or ""
    seen.heard = int(said.get("lastReadTimestamp") or 0)
    seen.problem = said.get("problem") or ""
    silent = time.time() * 1000 - seen.heard > _SILENT_MS
    if not seen.problem and (not seen.master or silent):
        seen.problem = "does not hear its master" if seen.heard else "has not found its master yet"


async def _slave_row(by: Inquirer, address: str, row: dict[str, Any]) -> SlaveRow:
    end, behind = int(row["slaveAckOffset"]), max(0, int(row["diff"]))
    return SlaveRow(
        str(row["addr"]).lstrip("/"), end, behind, await _seconds(by, address, end, behind),
        bool(row["inSync"]), int(row.get("inSyncSince") or 0),
        int(row.get("transferredByteInSecond") or 0),
    )  # fmt: skip


async def _seconds(by: Inquirer, address: str, end: int, behind: int) -> float | None:
    """Returns the age of the record at `end`, by this machine's clock; a slave of Java's may have
    reported a place within one."""
    from broker.wire.codes import RequestCode
    from broker.wire.command import Command
    from pystore.format.records import check_record

    if behind == 0:
        return 0.0
    if end < 0:
        return None
    answer = await by.ask(address, Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(end)}))
    head = check_record(bytes(answer.body)) if answer.code == 0 else None
    return round(max(0.0, time.time() - head.store_ms / 1000), 3) if head is not None else None


async def _brokers_of(
    by: Inquirer, namesrv: str, cluster: str | None, name: str | None
) -> list[str]:
    """Returns addresses of all that the name server knows, masters first. Raises: NotFound,
    OSError."""
    from broker.wire import mqjson
    from broker.wire.codes import RequestCode

    found = mqjson.loads(await by.body(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO))
    clusters = found.get("clusterAddrTable") or {}
    names = {each for of in clusters.values() for each in of}
    if cluster is not None:
        names = set(clusters.get(cluster, ()))
    if name is not None:
        names &= {name}
    if not names:
        known = ", ".join(sorted(clusters)) or "none"
        error = NotFound(f"the name server {namesrv} knows no such broker")
        error.next_step = f"its clusters: {known}"
        raise error
    table = found.get("brokerAddrTable") or {}
    return [
        at
        for each in sorted(names)
        for _, at in sorted(
            (table.get(each) or {}).get("brokerAddrs", {}).items(), key=lambda of: int(of[0])
        )
    ]


async def _seen_or_not(by: Inquirer, address: str) -> BrokerSeen:
    """Looks at one of many: that it does not answer is a finding."""
    try:
        return await look_at(by, address)
    except (OSError, TimeoutError) as failed:
        return BrokerSeen(address, problem=f"does not answer: {reason_of(failed)}")


async def _look(
    broker: str | None, namesrv: str | None, cluster: str | None, name: str | None,
    credentials: Path | None, trust: Path | None,
) -> list[BrokerSeen]:  # fmt: skip
    async with inquirer(credentials, trust) as by:
        if broker is not None:
            return [await look_at(by, broker)]
        assert namesrv is not None
        addresses = await _brokers_of(by, namesrv, cluster, name)
        seen = [await _seen_or_not(by, address) for address in addresses]
    ends = {each.name: each.end for each in seen if each.role and not each.is_slave}
    for each in seen:
        if each.is_slave and each.name in ends:
            each.behind = max(0, ends[each.name] - each.end)
    return seen


def status(
    s: Session,
    broker: Annotated[
        str | None,
        typer.Argument(metavar="[HOST:PORT]", show_default=False, help="A broker's main port."),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Ask all brokers it knows."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="With --namesrv: only brokers of this cluster.")
    ] = None,
    broker_name: Annotated[
        str | None,
        typer.Option("--broker-name", metavar="NAME", help="With --namesrv: only this name."),
    ] = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Show who has what of a replicated log: masters, their slaves, and how far each is behind.

    A master says what each slave has reported: the end of its log, the bytes and seconds that it is
    behind, and since when it is in sync. Seconds are the age of the first message that it lacks, by
    this machine's clock. A slave says whom it follows, or why it does not. Asks brokers of this
    project and of Java.

    With --namesrv, all brokers are asked, and slaves are compared with their master.

    It shows '-' for seconds where a slave of Java's reported a place within a record. Works
    with Java's brokers from 5.0 on; those of 4.9 do not say who follows, and Java's do not say
    since when. It has no STORE. JSON: the members brokers and slaves. See docs/replication.md.

    \b
    Examples:
      pystore ha status 127.0.0.1:10911
      pystore ha status --namesrv 127.0.0.1:9876 --cluster DefaultCluster
      pystore ha status 127.0.0.1:10911 --json | jq '.slaves[] | select(.in_sync | not)'
    """
    import asyncio

    no_settings(s)
    if (broker is None) == (namesrv is None):
        raise usage("say whom to ask, once", "use HOST:PORT of a broker, or --namesrv HOST:PORT")
    check_address(broker or namesrv or "", "HOST:PORT" if broker else "--namesrv")
    seen = asyncio.run(_look(broker, namesrv, cluster, broker_name, credentials, trust))
    s.out.table(
        "brokers",
        ("broker", "id", "role", "address", "log begin", "log end", "behind", "heard", "state"),
        [
            (
                b.name, b.id, b.role, b.address, b.begin, b.end,
                None if b.behind is None else Size(b.behind),
                When(b.heard) if b.heard else None, b.state,
            )
            for b in seen
        ],
    )  # fmt: skip
    rows = [
        (
            b.name, w.address, w.end, Size(w.behind), w.behind_s, w.in_sync,
            When(w.since) if w.since else None, Size(w.rate),
        )
        for b in seen
        for w in b.slaves
    ]  # fmt: skip
    s.out.table(
        "slaves",
        ("master", "slave", "end", "behind", "behind s", "in sync", "since", "bytes a second"),
        rows,
    )
    return 0
