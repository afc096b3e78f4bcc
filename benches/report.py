"""Writes docs/benchmarks.md from the runs that are kept: benches/results/committed-*.json.

python -m benches.report            write the page
python -m benches.report --keep     first keep the newest runs of both kinds
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benches.harness import Row, side_by_side

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

HEAD = """# Benchmarks
"""

ABOUT = """
## How to read it

Made by `python -m benches.report` from the runs kept in `benches/results`; the raw rounds are
there. `make bench` and `make bench-peers` do the same on your machine.

A machine is noisy, and a rate from one machine says little about another. So look at the ratios: in
each round the participants take turns, and the ratio is taken round by round. Medians are given,
and the worst and best rounds beside them.
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


def run_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"committed-{kind}.json").read_text("utf-8"))
    return found


def section(title: str, run: dict[str, Any], text: str, *body: str) -> list[str]:
    """A section of the page: its machine, then `text` if there is any, then its tables."""
    return [f"## {title}", "", machine_line(run), "", *([text, ""] if text else []), *body, ""]


def beside(rows: list[dict[str, Any]]) -> str:
    """The modes of these rows beside each other, with the ratios of each round."""
    found = [Row(**{k: v for k, v in row.items() if k != "median"}) for row in rows]
    return side_by_side(found, list(dict.fromkeys(row.mode for row in found)))


def transactions_section(run: dict[str, Any]) -> list[str]:
    rows = run["rows"]
    others = [row for row in rows if row["mode"] == "alone" or row["unit"] == "x"]
    table_of = beside([row for row in rows if row not in others])
    return section("Transactions", run, "", table_of, "", *table(others))


def grpc_section(run: dict[str, Any]) -> list[str]:
    idle = RESULTS / "committed-grpc_idle.json"
    runs = [run, run_of("grpc_idle")] if idle.exists() else [run]
    text = (
        "Our broker with its gRPC service and Apache's proxy in local mode, which has its broker in"
        " the same process, under the official Java client, in turns (`python -m"
        " benches grpc_work`, `python -m benches grpc_idle`); processor time and memory are of the"
        " whole process."
    )
    return section("gRPC", run, text, beside([row for one in runs for row in one["rows"]]))


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
        "Both on this broker, in turns (`python -m benches client`). Processor time is that of the"
        " client's process; `in-process` is a producer of a broker in the same process, whose work"
        " counts, too. The JVM warms up for fifteen seconds,"
        " Python for two. On a busy machine (its load is above)"
        " rates by the clock are those of a share of a core: processor time and ratios say more."
        " Send to receipt: both clients are alive and warm all the time and take turns of two"
        " seconds, which are its rounds."
    )
    title = "The Python client beside Java's"
    return section(title, run, text, *table(ratios), "", *table(rows))


class PlainSection(NamedTuple):
    """A section that is its tables, with a text before them. beside: the modes of each row
    stand beside each other."""

    title: str
    text: str = ""
    beside: bool = False

    def __call__(self, run: dict[str, Any]) -> list[str]:
        rows = run["rows"]
        return section(
            self.title, run, self.text, *([beside(rows)] if self.beside else table(rows))
        )


#: The sections of runs that are kept, in the order of the page.
SECTIONS: dict[str, PlainSection | Callable[[dict[str, Any]], list[str]]] = {
    "broker": PlainSection(
        "The broker",
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
    "grpc": grpc_section,
    "grpc_real": PlainSection(
        "gRPC as it is used",
        "The same with messages as they are used"
        " (`python -m benches grpc_work --rounds 2 --count 20000`): half of what is sent is"
        " received by tag, half by SQL92, and all of it by a group that does not acknowledge one"
        " in 20 at first, whose rate says when these came back. Compare within this table alone.",
        beside=True,
    ),
    "grpc_synced": PlainSection(
        "gRPC as it is used, with SYNC_FLUSH",
        "The same, and both answer what they took once it is on the disk (`python -m"
        " benches grpc_work --only real --rounds 1 --count 20000 --synced`).",
        beside=True,
    ),
    "pop": PlainSection(
        "POP over remoting",
        beside=True,
    ),
    "pops": PlainSection(
        "POP as it is used",
        "One raw client of ours asks for eight messages at a time, eight requests at once, and"
        " acknowledges each by a request of its own (`python -m benches pops --ways pop --peers"
        " ours,5.3.3 --rounds 1`); each row has brokers of its own. Apache's is warm: another"
        " group has had all of the messages before. The rate is that of first deliveries, and at"
        " most what this client makes; processor time is that of the broker's process until the"
        " timers of all deliveries are over. `lost`: 5 % are not acknowledged at first."
        " `together`: tags, lost, Chinese texts, compressed bodies, access control, and"
        " `SYNC_FLUSH`.",
        beside=True,
    ),
    "pops_grpc": PlainSection(
        "gRPC as it is used, one thing at a time",
        "The raw client of [POP as it is used](#pop-as-it-is-used) over gRPC (`python -m"
        " benches pops --ways take,send --rounds 1`): processor time of the broker's process for"
        " each message, beside the plain row of the same run. A message that a filter passes over"
        " is not counted.",
    ),
    "namesrv": PlainSection(
        "The name server",
        "Simulated brokers register on real connections, all at once, then each every 30 s; 16"
        " connections ask for routes, each of which names all brokers, one after the other"
        " (`python -m benches namesrv`). In the quiet part, which is the"
        " first, most routes are asked for the first time and are made then. Apache's has a heap of"
        " 4 GB.",
        beside=True,
    ),
    "dedup": PlainSection(
        "Idempotent produce",
    ),
    "signed": PlainSection(
        "Access control",
        "Processor time of the loop's thread for a send whose signature the core checks, beside one"
        " of a broker without access control (`python -m benches signed`). Of what signing adds,"
        " most is the HMAC of OpenSSL; the rest sorts the fields, looks the grant up, and reads the"
        " two fields more.",
    ),
    "audit": PlainSection(
        "Verify and rebuild",
        "Rates by processor time, so a core's; the log is in the page cache"
        " (`python -m benches audit`). A rebuild is shown without the verifications around it. It"
        " is one thread; a verification has one for each core.",
    ),
    "jobs": PlainSection(
        "Spark jobs",
        "`python -m benches jobs`, each job beside what it is measured against, in turns. The"
        " prepared source yields batches that are at hand, to Spark's Parquet writer;"
        " `archive` writes its files by pyarrow and compares them with the log, by count, sums and"
        " CRC. Rates a core are those"
        " of the clock, for two executors against one process on one core. Of the batch, one"
        " executor has one core of the machine for its virtual machine and its Python processes,"
        " and the driver takes what it needs of the same cores. A control is the same work by one"
        " process and by two at once that share nothing, each on a core of its own: what the"
        " second core of this machine is worth at most. The Kafka broker is of"
        " this machine, and its log is in the page cache, as the store's.",
    ),
    "formats": PlainSection(
        "Rows by Spark: a store, Parquet, Kafka",
        "`python -m benches formats`: the same messages out of the files of a store, out of the"
        " Parquet files that Spark wrote of them, and out of one Kafka broker of this machine, in"
        " turns; all of it is in the page cache. Processor time is of the driver, the virtual"
        " machine, the Python workers and the broker. Ours is bound by the pipe from the Python"
        " worker to Spark, so by the columns that are filled; Parquet reads the columns of a query"
        " alone, and a `count()` out of its footers; Kafka's source decodes each record, whatever"
        " is asked of it.",
    ),
    "formats_idle": PlainSection(
        "An idle query over many short queues",
        "`python -m benches formats --only queues`: what a poll costs the source, which has read"
        " all, and what the query takes of a processor with Spark's machine and workers; the"
        " offset of 20,000 queues goes through JSON with each poll. The machine was busy.",
    ),
    "store": PlainSection("The store alone", "`python -m benches store`."),
    "replication": PlainSection(
        "Replication",
        "`python -m benches replication`: master, slave and client on this machine, pairs of ours"
        " and of Apache's in turns.",
    ),
    "failover": PlainSection(
        "Failover",
        "`python -m benches failover`, in turns within one run: while one pair is at work nobody"
        " sends to the others. `controllerHeartBeatTimeoutMills=3000` for all. The official Java"
        " client looks for routes every `pollNameServerInterval`, 30 s by default, and at no other"
        " time; it has 100 ms here, since with 1,000 it waits up to a second whatever the brokers"
        " do. The longest of ours is the first kill of each pair.",
    ),
    "timers_alone": PlainSection(
        "Timers",
        "`python -m benches timers`: the broker alone with its store, no clients. The set of"
        " pending timers alone, ten million of them: `make bench-timers`; its figures are in"
        " [ADR 007](adr/007-pending-timers.md).",
    ),
    "lite": PlainSection(
        "Lite topics",
        "`python -m benches lite`: one message of 64 bytes in each.",
    ),
    "tier": PlainSection(
        "Writing out to a cold tier",
        "`python -m benches tier`: into a folder, and sends beside it.",
    ),
    "cold_reads": PlainSection(
        "Reading a cold tier",
        "`python -m benches cold_reads`: messages that are in the tier alone, whose requests take"
        " 30 ms, and sends beside the readers.",
    ),
    "iceberg": PlainSection(
        "A topic into an Iceberg table",
        "`python -m benches iceberg`: JSON bodies, beside Spark 4.1 with Iceberg's runtime, from"
        " files of the same JSON and with its schema given. Ours finds the schema, and keeps what"
        " came with each body.",
    ),
}


def machine_line(run: dict[str, Any]) -> str:
    when = run["when"]
    facts = "; ".join(f"{name} {value}" for name, value in run["machine"].items())
    scale = "" if run["scale"] == 1 else f" Scale {run['scale']}."
    return f"Run of {when[:4]}-{when[4:6]}-{when[6:8]}. Machine: {facts}.{scale}"


#: What kept runs say side by side: the kind of the run, its rows of a rate, and of processor time.
WORK = (
    ("broker", "send, 64 threads, 128 bytes", "single messages"),
    ("broker", "batches of 16, 64 threads, 128 bytes", "batches of 16"),
    ("broker", "consume a backlog, 20 threads", "a backlog consumed"),
    ("broker", "transactions, 32 threads, 128 bytes", "transactions"),
    ("grpc", "send, 128 bytes, 64 in flight", "single messages over gRPC"),
    ("grpc", "receive and acknowledge a backlog", "a backlog over gRPC"),
    ("pop", "POP over remoting, each acknowledged, 20 threads", "POP"),
)
#: Worse by less than this is noise.
NOISE = 1.05
#: A load of the machine before a run that is more than the bench before it.
BUSY = 4


def median_of(kind: str, bench: str, mode: str, unit: str | None = None) -> float:
    """The median of a row that is kept. Raises: StopIteration when there is none."""
    rows = (r for r in run_of(kind)["rows"] if (r["bench"], r["mode"]) == (bench, mode))
    found: list[float] = next(
        r["rounds"] for r in rows if unit is None or r["unit"].strip() == unit
    )
    return median(found)


def dates_of(*kinds: str) -> str:
    days = sorted({run_of(kind)["when"][:8] for kind in kinds})
    return " to ".join(f"{d[:4]}-{d[4:6]}-{d[6:]}" for d in dict.fromkeys((days[0], days[-1])))


def worse() -> list[str]:
    """Every figure of a kept run that is worse than Apache's or another's, beyond noise."""
    found = []
    for kind in sorted(path.stem.partition("-")[2] for path in RESULTS.glob("committed-*.json")):
        run = run_of(kind)
        rows = run["rows"] if isinstance(run, dict) else []
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


def first_screen() -> list[str]:
    """Ten lines: how fast, how much of Apache's processor time, under which conditions, what is
    worse."""
    rates, shares = [], []
    for kind, bench, what in WORK:
        ours, theirs = (median_of(kind, bench, mode, "/s") for mode in ("ours", "5.3.3"))
        rates.append(f"{what} {amount(ours)}/s ({ours / theirs:.1f} ×)")
        whose = "server's processor time each" if kind == "grpc" else (
            "broker's processor time a million"
        )  # fmt: skip
        spent, other = (median_of(kind, f"{bench}: {whose}", mode) for mode in ("ours", "5.3.3"))
        shares.append(f"{what} {100 * spent / other:.0f} %")
    late = [median_of("broker", f"send at 10,000/s, {p}", m) for p in ("p50", "p99")
            for m in ("ours", "5.3.3")]  # fmt: skip
    memory = [median_of("broker", "anonymous memory after it", m) for m in ("ours", "5.3.3")]
    pair = [
        median_of("replication", "sync, 64 senders", m, "messages/s") for m in ("ours", "5.3.3")
    ]
    pairs_us = [median_of("replication", "sync, 64 senders", m, "both brokers' us a message")
                for m in ("ours", "5.3.3")]  # fmt: skip
    put = [median_of("peers", f"pystore {name}", "to the last queue unit", "/s")
           for name in ("put_many", "put")]  # fmt: skip
    kinds = sorted({kind for kind, _, _ in WORK} | {"replication", "peers"})
    loaded = [k for k in kinds if float(run_of(k)["machine"]["load before"]) > BUSY]
    busy = f", busy with other work during those of: {', '.join(loaded)}" if loaded else ""
    days = dates_of(*kinds)
    return [
        "- **How fast**, beside Apache 5.3.3 under the same official Java client (in brackets how"
        f" many times its rate): {'; '.join(rates)}.",
        f"- **How much of Apache's processor time** the broker takes for it: {'; '.join(shares)}.",
        f"- **How late** at 10,000 sends a second: p50 {late[0]:.2f} ms (5.3.3: {late[1]:.2f} ms),"
        f" p99 {late[2]:.1f} ms ({late[3]:.1f} ms).",
        f"- **Memory** after a load of sends: {memory[0]:.0f} MB (5.3.3: {memory[1]:,.0f} MB).",
        f"- **With a slave in sync**, 64 senders: {amount(pair[0])}/s (5.3.3: {amount(pair[1])}/s);"
        f" both brokers take {pairs_us[0]:.1f} µs a message ({pairs_us[1]:.1f} µs).",
        f"- **The store in a process**, without a broker: {amount(put[0])}/s with `put_many`,"
        f" {amount(put[1])}/s with `put`.",
        "- **Under which conditions:** 128-byte bodies, `ASYNC_FLUSH`, files in the page cache,"
        f" broker and client on one host of two cores; runs of {days}, on the machines that each"
        f" section names{busy}.",
        "- **What is worse**, of everything that is kept: " + "; ".join(worse()) + ".",
    ]  # fmt: skip


def page() -> str:
    """The text of docs/benchmarks.md."""
    peers = run_of("peers")
    ratios = [row for row in peers["rows"] if row["unit"] == "x"]
    rates = [row for row in peers["rows"] if row["unit"] != "x"]
    lines = [HEAD, *first_screen(), ABOUT]
    lines += ["## Beside its peers", "", machine_line(peers), "", *table(ratios), ""]
    lines += ["The rates behind the ratios:", "", *table(rates), ""]
    for kind, section_of in SECTIONS.items():
        if (RESULTS / f"committed-{kind}.json").exists():
            lines += section_of(run_of(kind))
    return "\n".join(lines) + NOTES


def keep(files: list[str]) -> None:
    for file in map(Path, files):
        kind = file.name.partition("-")[0]
        (RESULTS / f"committed-{kind}.json").write_text(file.read_text("utf-8"), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--keep"]:
        keep(sys.argv[2:])
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
