"""Writes docs/benchmarks.md from the runs that are kept: benches/results/committed-*.json.

python -m benches.report
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from benches.harness import RESULTS, ROOT, Row, side_by_side
from benches.kept import KEPT

COMMITTED = ROOT / "benches" / "results"
#: With results elsewhere the page is there, too.
PAGE = (ROOT / "docs" if RESULTS == COMMITTED else RESULTS) / "benchmarks.md"

HEAD = """# Benchmarks
"""

ABOUT = """
## How to read it

`make bench-all` runs what stands at the head of each section, one after the other, and makes this
page of it; the raw rounds are in `benches/results`.

A machine is noisy, and a rate from one machine says little about another. So look at the ratios: in
each round the participants take turns, and the ratio is taken round by round. Medians are given,
and the worst and best rounds beside them.

Machine of all runs: {machine}.
"""

NOTES = """
## How it is measured

- **Apache RocketMQ** is its own `DefaultMessageStore`, version above, embedded in a JVM, one thread
  putting, warmed up with a million messages (`tests/reference/reference embedded-put`). Its
  settings are its defaults but for the timer, which is off. `to the last put` leaves out the work
  that its dispatcher still has to do then; `put_many` is always counted to the last queue unit.
- **py-lmdb** puts into one table with ascending keys, a write transaction a thousand messages, no
  sync.
- **SQLite** inserts into one table, `journal_mode=WAL`, `synchronous=NORMAL`, `executemany` of a
  thousand in a transaction.
- None of them waits for the disk: `ASYNC_FLUSH` here, the like there. With `SYNC_FLUSH` the disk is
  what is measured; there the table gives puts a sync.
- The first round of each is left out. Segments are fresh in each round: page faults count. The
  hypervisor of this machine takes back memory that its guest has freed, and giving a page again
  costs many times what clearing one does. Rows that write much feel that, whoever writes.
- The floor of the C append is a memcpy of finished records into such a segment: no CRC, no lock.
"""


def amount(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.2f} {letter}"
    return f"{value:.3g} "


def figure(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.1f} ×" if value >= 1 else f"{value:.2f} ×"
    return f"{amount(value).rstrip()}{unit}" if not unit[:1].isalpha() else f"{amount(value)}{unit}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| what | payload | mode | median | worst to best |", "|---|---|---|---|---|"]
    for row in rows:
        order = sorted(row["rounds"], reverse=row["smaller"])
        unit = row["unit"]
        spread = "" if len(order) == 1 else f"{figure(order[0], unit)} to {figure(order[-1], unit)}"
        middle = figure(median(row["rounds"]), unit)
        cells = (row["bench"], row["payload"], row["mode"], f"**{middle}**", spread)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


@cache
def kept() -> dict[str, dict[str, Any]]:
    """Returns the runs that are there, by kind; those of the repository where there is no other."""
    found = {}
    for kind in (each.kind for each in KEPT):
        paths = (folder / f"committed-{kind}.json" for folder in (RESULTS, COMMITTED))
        if path := next((path for path in paths if path.exists()), None):
            found[kind] = json.loads(path.read_text("utf-8"))
    return found


def common() -> dict[str, str]:
    """What the machine was in all runs."""
    machines = [run["machine"] for run in kept().values()]
    return {k: v for k, v in machines[0].items() if all(m.get(k) == v for m in machines)}


def said(facts: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name} {value}" for name, value in facts)


def day_of(run: dict[str, Any]) -> str:
    when = run["when"]
    return f"{when[:4]}-{when[4:6]}-{when[6:8]}"


def section(kind: str, title: str, text: str, *body: str) -> list[str]:
    """A section of the page: its run, then `text` if there is any, then its tables."""
    run, shared = kept()[kind], common()
    command = next(each.command for each in KEPT if each.kind == kind)
    own = said((k, v) for k, v in run["machine"].items() if k not in shared)
    line = f"`{command}`, {day_of(run)}; {own}."
    return [f"## {title}", "", line, "", *([text, ""] if text else []), *body, ""]


def beside(rows: list[dict[str, Any]]) -> str:
    """The modes of these rows beside each other, with the ratios of each round."""
    found = [Row(**{k: v for k, v in row.items() if k != "median"}) for row in rows]
    return side_by_side(found, list(dict.fromkeys(row.mode for row in found)))


def peers_section(run: dict[str, Any]) -> list[str]:
    ratios = [row for row in run["rows"] if row["unit"] == "x"]
    rates = [row for row in run["rows"] if row["unit"] != "x"]
    behind = ["", "The rates behind the ratios:", "", *table(rates)]
    return section("peers", "Beside its peers", "", *table(ratios), *behind)


def transactions_section(run: dict[str, Any]) -> list[str]:
    rows = run["rows"]
    others = [row for row in rows if row["mode"] == "alone" or row["unit"] == "x"]
    table_of = beside([row for row in rows if row not in others])
    return section("transactions", "Transactions", "", table_of, "", *table(others))


def client_section(run: dict[str, Any]) -> list[str]:
    """The Python client beside Java's, with the ratios of each round."""
    rows = run["rows"]
    ratios = []
    for row in rows:
        same = (r for r in rows if (r["bench"], r["unit"]) == (row["bench"], row["unit"]))
        java = next((r for r in same if r["mode"] == "Java"), None)
        if row["mode"] != "Python" or java is None:
            continue
        pairs = zip(row["rounds"], java["rounds"], strict=True)
        found = [theirs / own if row["smaller"] else own / theirs for own, theirs in pairs]
        what = f"{row['unit']}: how many times better than Java's client"
        ratios.append(row | {"mode": what, "unit": "x", "rounds": found, "smaller": False})
    text = (
        "Both on this broker, in turns. Processor time is that of the"
        " client's process; `in-process` is a producer of a broker in the same process, whose work"
        " counts, too. The JVM warms up for fifteen seconds,"
        " Python for two. On a busy machine (its load is above)"
        " rates by the clock are those of a share of a core: processor time and ratios say more."
        " Send to receipt: both clients are alive and warm all the time and take turns of two"
        " seconds, which are its rounds."
    )
    title = "The Python client beside Java's"
    return section("client", title, text, *table(ratios), "", *table(rows))


class PlainSection(NamedTuple):
    """A section that is its tables, with a text before them. beside: the modes of each row
    stand beside each other."""

    title: str
    text: str = ""
    beside: bool = False


#: The sections of runs that are kept, by kind, in the order of the page.
SECTIONS: dict[str, PlainSection | Callable[[dict[str, Any]], list[str]]] = {
    "peers": peers_section,
    "broker": PlainSection(
        "The broker",
        "Each row warms both virtual machines up, the first three times as long as the others.",
        beside=True,
    ),
    "client": client_section,
    "clients": PlainSection(
        "What Python programs would pick instead",
        "Messages of 128 bytes, 64 of them waiting for an acknowledgement, one process each with"
        " its own server, in turns (`make bench-clients`). All servers keep messages in files"
        " and leave it to the system when they reach the disk; Redis syncs each second. Kafka's"
        " clients gather messages for a request; confluent-kafka is a C library with threads of its"
        " own and no event loop. RocketMQ 5's official client has"
        " threads, too; it speaks to Apache's proxy, which runs its broker in the same process, and"
        " to our gRPC service.",
    ),
    "transactions": transactions_section,
    "grpc": PlainSection(
        "gRPC",
        "Our broker with its gRPC service and Apache's proxy in local mode, which has its broker in"
        " the same process, under the official Java client, in turns; processor time and memory are"
        " of the whole process.",
        beside=True,
    ),
    "grpc_idle": PlainSection(
        "gRPC clients that wait", "The same two, each with a client for a connection.", beside=True
    ),
    "grpc_real": PlainSection(
        "gRPC as it is used",
        "Messages as they are used: half of what is sent is received by tag, half by SQL92, and all"
        " of it by a group that does not acknowledge one in 20 at first, whose rate says when these"
        " came back. Compare within this table alone.",
        beside=True,
    ),
    "grpc_synced": PlainSection(
        "gRPC as it is used, with SYNC_FLUSH",
        "The same, and both answer what they took once it is on the disk.",
        beside=True,
    ),
    "pops": PlainSection(
        "POP as it is used",
        "One raw client of ours asks for eight messages at a time, eight requests at once, and"
        " acknowledges each by a request of its own; each row has brokers of its own. Apache's is"
        " warm: another group has had all of the messages before. The rate is that of first"
        " deliveries, and at most what this client makes; processor time is that of the broker's"
        " process until the timers of all deliveries are over. `lost`: 5 % are not acknowledged at"
        " first. `together`: tags, lost, Chinese texts, compressed bodies, access control, and"
        " `SYNC_FLUSH`.",
        beside=True,
    ),
    "pops_grpc": PlainSection(
        "gRPC as it is used, one thing at a time",
        "The raw client of [POP as it is used](#pop-as-it-is-used) over gRPC: processor time of"
        " the broker's process for each message, beside the plain row of the same run. A message"
        " that a filter passes over is not counted.",
    ),
    "namesrv": PlainSection(
        "The name server",
        "Simulated brokers register on real connections, all at once, then each every 30 s; 16"
        " connections ask for routes, each of which names all brokers, one after the other. In the"
        " quiet part, which is the first, most routes are asked for the first time and are made"
        " then. Apache's has a heap of 4 GB.",
        beside=True,
    ),
    "dedup": PlainSection("Idempotent produce"),
    "signed": PlainSection(
        "Access control",
        "Processor time of the loop's thread for a send whose signature the core checks, beside"
        " one of a broker without access control. Of what signing adds, most is the HMAC of"
        " OpenSSL; the rest sorts the fields, looks the grant up, and reads the two fields more.",
    ),
    "audit": PlainSection(
        "Verify and rebuild",
        "Rates by processor time, so a core's; the log is in the page cache. A rebuild is shown"
        " without the verifications around it. It is one thread; a verification has one for each"
        " core.",
    ),
    "jobs": PlainSection(
        "Spark jobs",
        "Each job beside what it is measured against, in turns. The prepared source yields"
        " batches that are at hand, to Spark's Parquet writer; `archive` writes its files by"
        " pyarrow and compares them with the log, by count, sums and CRC. Rates a core are those"
        " of the clock, for two executors against one process on one core. Of the batch, one"
        " executor has one core of the machine for its virtual machine and its Python processes,"
        " and the driver takes what it needs of the same cores. A control is the same work by one"
        " process and by two at once that share nothing, each on a core of its own: what the"
        " second core of this machine is worth at most. The Kafka broker is of this machine, and"
        " its log is in the page cache, as the store's.",
    ),
    "spark": PlainSection(
        "The Spark source",
        "Beside a source that yields one prepared batch over and over: what the pipe from a Python"
        " worker to Spark carries at most.",
    ),
    "formats": PlainSection(
        "Rows by Spark: a store, Parquet, Kafka",
        "The same messages out of the files of a store, out of the"
        " Parquet files that Spark wrote of them, and out of one Kafka broker of this machine, in"
        " turns; all of it is in the page cache. Processor time is of the driver, the virtual"
        " machine, the Python workers and the broker. Ours is bound by the pipe from the Python"
        " worker to Spark, so by the columns that are filled; Parquet reads the columns of a query"
        " alone, and a `count()` out of its footers; Kafka's source decodes each record, whatever"
        " is asked of it.",
    ),
    "store": PlainSection("The store alone"),
    "replication": PlainSection(
        "Replication",
        "Master, slave and client on this machine, pairs of ours and of Apache's in turns.",
    ),
    "failover": PlainSection(
        "Failover",
        "In turns within one run: while one pair is at work nobody"
        " sends to the others. `controllerHeartBeatTimeoutMills=3000` for all. The official Java"
        " client looks for routes every `pollNameServerInterval`, 30 s by default, and at no other"
        " time; it has 100 ms here, since with 1,000 it waits up to a second whatever the brokers"
        " do. The longest of ours is the first kill of each pair.",
    ),
    "timers": PlainSection(
        "Timers",
        "The broker alone with its store, no clients. The set of pending timers alone, ten"
        " million of them: `make bench-timers`; its figures are in [ADR"
        " 007](adr/007-pending-timers.md).",
    ),
    "lite": PlainSection(
        "Lite topics",
        "One message of 64 bytes in each.",
    ),
    "lite_rocksdb": PlainSection(
        "A hundred thousand lite topics, beside RocketMQ's store of RocksDB",
        "The same. Its file store ends at some twenty thousand.",
    ),
    "tier": PlainSection(
        "Writing out to a cold tier",
        "Into a folder, and sends beside it.",
    ),
    "tier_peers": PlainSection(
        "A tier in a folder, beside Apache's",
        "A broker writes out what it has, and a client reads all of it from there, with"
        " `tieredStorageLevel=FORCE`. Processor time is the broker's.",
        beside=True,
    ),
    "tier_reads": PlainSection(
        "Reading a cold tier without a broker",
        "From its folder, and from a server that answers each request 30 ms later and fails one in"
        " a hundred, beside the local store.",
    ),
    "cold": PlainSection(
        "Sends beside readers of what is not in memory",
        "What one sender waits for, one message at a time, while others pull what lies on the disk"
        " alone, and how often network threads waited for the disk.",
    ),
    "cold_reads": PlainSection(
        "Pulling from a cold tier",
        "Messages that are in the tier alone, whose requests take"
        " 30 ms, and sends beside the readers.",
    ),
    "iceberg": PlainSection(
        "A topic into an Iceberg table",
        "JSON bodies, beside Spark 4.1 with Iceberg's runtime, from files of the same JSON and with"
        " its schema given. Ours finds the schema, and keeps what came with each body.",
    ),
}


#: What the first screen compares: kind, row, its name there.
WORK = (
    ("broker", "send, 64 threads, 128 bytes", "single sends"),
    ("broker", "batches of 16, 64 threads, 128 bytes", "sends in batches of 16"),
    ("broker", "consume a backlog, 20 threads", "consuming a backlog"),
    ("broker", "POP over remoting, each acknowledged, 20 threads", "POP, each acknowledged"),
    ("transactions", "transactions, 32 threads, 128 bytes", "transactions"),
    ("grpc", "send, 128 bytes, 64 in flight", "gRPC, single sends"),
    ("grpc", "receive and acknowledge a backlog", "gRPC, a backlog, each acknowledged"),
    ("replication", "sync, 64 senders", "a slave in sync, our Python client"),
)
#: Processor time, by the kind of the run: how its row is named after that of the rate.
SPENT = {
    "grpc": ": server's processor time each",
    "replication": "",  # its unit tells
}
#: Worse by less than this is noise.
NOISE = 1.05
#: A load of the machine before a run that is more than the bench before it.
BUSY = 4


def median_of(kind: str, bench: str, mode: str, unit: str | None = None) -> float:
    """Returns the median of a row that is kept. Raises: LookupError when there is none."""
    for row in kept()[kind]["rows"]:
        of_it = (row["bench"], row["mode"]) == (bench, mode)
        if of_it and (unit is None or row["unit"].strip() in unit.split(",")):
            return float(median(row["rounds"]))
    raise LookupError(f"{kind}: no row {bench!r} of {mode}")


def worse() -> list[str]:
    """Returns every figure of a kept run that is worse than Apache's or another's, beyond noise."""
    found = []
    for kind, run in kept().items():
        rows = run["rows"]
        for row in rows:
            if kind == "peers" and row["unit"] == "x" and median(row["rounds"]) * NOISE < 1:
                found.append(f"{row['bench']}: {figure(median(row['rounds']), 'x')}")
        theirs = [r for r in rows if r["mode"] in ("5.3.3", "5.5.0", "Java")]
        for row, other in ((r, t) for r in rows if r not in theirs for t in theirs):
            same = all(row[name] == other[name] for name in ("bench", "payload", "unit"))
            a, b = median(row["rounds"]), median(other["rounds"])
            if same and ((a > b * NOISE) if row["smaller"] else (a * NOISE < b)):
                what = f"{row['bench']}, {row['payload']}".strip(", ")
                mine = f"{figure(a, row['unit'])} ({row['mode']})"
                found.append(f"{what}: {mine}, {figure(b, row['unit'])} ({other['mode']})")
    return found


def compared(kind: str, bench: str, name: str) -> str:
    """Returns a row of the first screen."""
    row = bench + SPENT.get(kind, ": broker's processor time a million")
    unit = "both brokers' us a message" if kind == "replication" else None
    try:
        ours, theirs = (median_of(kind, bench, mode, "/s,messages/s") for mode in ("ours", "5.3.3"))
        spent, other = (median_of(kind, row, mode, unit) for mode in ("ours", "5.3.3"))
    except LookupError:  # a broker has given up on it
        return f"| {name} | not measured | | | |"
    cells = (name, f"{amount(ours)}/s", f"{amount(theirs)}/s", f"{ours / theirs:.1f} ×",
             f"{100 * spent / other:.0f} %")  # fmt: skip
    return f"| {' | '.join(cells)} |"


def besides() -> str:
    """Returns what the first screen says of waiting and of memory."""
    late = [median_of("broker", f"send at 10,000/s, {p}", m) for p in ("p50", "p99")
            for m in ("ours", "5.3.3")]  # fmt: skip
    memory = [median_of("broker", "anonymous memory after it", m) for m in ("ours", "5.3.3")]
    return (
        f"at 10,000 sends a second p50 {late[0]:.2f} ms (Apache: {late[1]:.2f} ms),"
        f" p99 {late[2]:.1f} ms ({late[3]:.1f} ms); memory after the sends {memory[0]:.0f} MB"
        f" ({memory[1]:,.0f} MB)"
    )


def first_screen() -> list[str]:
    """Returns what answers how fast, how much of Apache's processor time, under which conditions,
    and what is worse."""
    try:
        more = besides()
    except LookupError:
        more = "not measured"
    runs = kept()
    days = sorted({day_of(run) for run in runs.values()})
    commits = dict.fromkeys(run["machine"]["pystore"].rpartition(" ")[2] for run in runs.values())
    loaded = [k for k, run in runs.items() if float(run["machine"]["load before"]) > BUSY]
    busy = f"; the machine was busy before {', '.join(loaded)}" if loaded else ""
    return [
        "| official Java client, 128-byte bodies | pystore | Apache 5.3.3 | rate |"
        " processor time of the broker |",
        "|---|---|---|---|---|",
        *(compared(*row) for row in WORK),
        "",
        f"**Besides:** {more}. **Conditions:** `ASYNC_FLUSH`, files in the page cache, broker"
        f" and client on one host of {common().get('cpu', 'two cores')}; runs of"
        f" {' to '.join(dict.fromkeys((days[0], days[-1])))} at {', '.join(commits)}{busy}.",
        "",
        f"**What is worse**, of all that is kept: {'; '.join(worse())}.",
    ]  # fmt: skip


def page() -> str:
    """Returns the text of docs/benchmarks.md."""
    lines = [HEAD, *first_screen(), ABOUT.format(machine=said(common().items()))]
    for kind, made in SECTIONS.items():
        if kind not in (runs := kept()):
            continue
        if isinstance(made, PlainSection):
            rows = runs[kind]["rows"]
            tables = [beside(rows)] if made.beside else table(rows)
            lines += section(kind, made.title, made.text, *tables)
        else:
            lines += made(runs[kind])
    return "\n".join(lines) + NOTES


def write() -> str:
    """Writes the page; returns where."""
    PAGE.write_text(page(), encoding="utf-8")
    return str(PAGE)


if __name__ == "__main__":
    print(f"wrote {write()}")
