"""``pystore top``: rates and lags of a running cluster, refreshed in place."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.admin_verbs import admin_verb
from broker.client.rates import SORTS, Look, TopRow, rows_between
from broker.loop.reasons import reason_of
from broker.services.names import is_system_group
from pystore.cli.verbs import Session, aligned, shown, usage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from broker.client.admin import Admin
    from broker.client.admin.facts import BrokerFacts, TierFigures

__all__ = ["run"]

_COLUMNS = ("group", "topic", "lag", "in/s", "out/s", "empty in")
_BROKER_COLUMNS = (
    "broker", "version", "in/s", "out/s", "log", "disk", "undispatched", "not in tier",
    "tier late s", "p99 ms",
)  # fmt: skip


def look_at(admin: Admin, seen: dict[str, str]) -> Look:
    """Asks all masters. One that does not answer is a problem and not the end, and so is one that
    the name server has forgotten. seen: addresses by name of those that were there before."""
    from broker.client.errors import ClientError

    look = Look(time.monotonic())
    try:
        places = [place for place in admin.cluster() if place.id == 0]
    except ClientError as failed:
        look.problems.append(reason_of(failed))
        return look
    there = {place.name: place.address for place in places}
    look.problems += [
        f"{name} at {seen[name]}: the name server no longer knows it"
        for name in sorted(seen.keys() - there)
    ]
    if not there and not seen:
        look.problems.append("the name server knows no master")
    seen |= there
    for place in places:
        try:
            facts, lags = admin.broker(place.address), admin.all_lags(place.address)
        except ClientError as failed:
            look.problems.append(f"{place.name}: {reason_of(failed)}")
        else:
            look.brokers.append(facts)
            tier = _tier_of(facts)
            if tier is not None and tier.problem:
                look.problems.append(f"{place.name}: {tier.problem}")
            look.lags += [lag for lag in lags if not is_system_group(lag.group)]
            _add_lite(admin, place.address, look)
    return look


def _add_lite(admin: Admin, address: str, look: Look) -> None:
    """Adds what waits in lite topics, at a broker that says it."""
    from broker.client.errors import ClientError

    with contextlib.suppress(ClientError):
        for group, lag in admin.lite_brokers(address)[0].lags.items():
            key = group, lag.topic
            look.lite[key] = look.lite.get(key, 0) + lag.messages


@admin_verb
def run(
    s: Session,
    admin: Admin,
    sort: Annotated[
        str, typer.Option(metavar="COLUMN", help="lag, in, out, group or topic.")
    ] = "lag",
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")
    ] = 2.0,
    count: Annotated[
        int, typer.Option(min=0, help="End after so many looks; 0: with q or Ctrl-C.")
    ] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Show at most so many groups.")] = 30,
) -> int | None:
    """Show rates and lags live: what goes into topics, what groups take, and who falls behind.

    Keys on a terminal: l, i, o sort by lag, by what comes in, by what goes out; g and t by name;
    q ends. In a pipe each look is printed after the other: a table of brokers, one of groups, whose
    cells have no blanks, problems, and an empty line; with --json a line of JSON. Rates are those
    between two looks, so the first has none. A topic that no group consumes is not
    listed, and neither are groups of the brokers' own; the brokers' rates have all. Of a group of
    lite topics the lag is shown, at brokers of this project.

    \b
    Examples:
      pystore top -n 127.0.0.1:9876
      pystore top -b 127.0.0.1:10911 --sort in --interval 5
      pystore top -n 127.0.0.1:9876 --count 2 --json
    """
    if sort not in SORTS.values():
        raise usage(f"--sort {shown(sort)} is not a column", f"use {', '.join(SORTS.values())}")
    before: Look | None = None
    seen: dict[str, str] = {}
    looks = 0
    live = sys.stdout.isatty() and not s.out.json
    with _screen(live) as show, contextlib.suppress(KeyboardInterrupt):
        while True:
            now = look_at(admin, seen)
            looks += 1
            while True:
                found = rows_between(before, now, sort)[:rows]
                if show is not None:
                    show(_drawn(now, found, sort))
                else:
                    _print(s, now, found)
                if count and looks >= count:
                    return 6 if now.problems else 0
                key = _key(now.when + interval, live)
                if key == "q":
                    return 0
                if key is None:
                    break
                sort = SORTS.get(key, sort)
            before = now
    return 0


# ---- in a pipe ----


def _print(s: Session, look: Look, rows: list[TopRow]) -> None:
    facts = {
        "ts": time.time_ns() // 1_000_000,
        "brokers": [dict(zip(_BROKER_COLUMNS, _broker_row(b), strict=True)) for b in look.brokers],
        "groups": [dict(zip(_COLUMNS, _row(row), strict=True)) for row in rows],
        "problems": look.problems,
    }

    def text() -> str:
        lines = _aligned([_BROKER_COLUMNS, *map(_broker_row, look.brokers)])
        lines += _aligned([_COLUMNS, *map(_row, rows)])
        return "\n".join([*lines, *(f"problem: {shown(each)}" for each in look.problems), ""])

    s.out.record(facts, text)
    s.out.flush()


def _aligned(table: list[tuple[Any, ...]]) -> list[str]:
    """Returns lines of cells without blanks, which a person and a program can read."""
    return aligned([[_cell(value) for value in row] for row in table])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.2f}" if isinstance(value, float) else shown(str(value))
    return "_".join(text.split()) or "-"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _row(row: TopRow) -> tuple[Any, ...]:
    return (row.group, row.topic, row.lag, row.came, row.went, row.seconds_left)


def _tier_of(facts: BrokerFacts) -> TierFigures | None:
    from broker.client.admin.facts import tier_figures

    return tier_figures(facts.entries)


def _broker_row(facts: Any) -> tuple[Any, ...]:
    latency = facts.entries.get("putLatency99")
    tier = _tier_of(facts)
    return (
        facts.address, facts.version, facts.put_rate, facts.get_rate,
        facts.log_max - facts.log_min, facts.disk_used, facts.undispatched,
        tier.behind if tier is not None else None, tier.late_s if tier is not None else None,
        float(latency) if latency is not None else None,
    )  # fmt: skip


# ---- on a terminal ----


@contextlib.contextmanager
def _screen(live: bool) -> Iterator[Any]:
    """Gives a function that draws, and keys one by one; None in a pipe."""
    if not live:
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    with _keys(), Live(console=Console(), screen=True, auto_refresh=False) as drawing:
        yield lambda made: drawing.update(made, refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Sets the terminal so that keys come when they are pressed, and are not echoed."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(until: float, live: bool) -> str | None:
    """Waits for a key until a moment of the steady clock; None when none came."""
    left = max(0.0, until - time.monotonic())
    if not live or not sys.stdin.isatty():
        time.sleep(left)
        return None
    ready, _, _ = select.select([sys.stdin], [], [], left)
    return sys.stdin.read(1) if ready else None


def _drawn(look: Look, rows: list[TopRow], sort: str) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    brokers = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _BROKER_COLUMNS:
        brokers.add_column(name, justify="left" if name in ("broker", "version") else "right")
    for facts in look.brokers:
        address, version, came, went, log, disk, behind, tier, late, p99 = _broker_row(facts)
        brokers.add_row(
            Text(shown(address)), Text(shown(version)), _rate(came), _rate(went),
            f"{log / (1 << 20):,.0f} MiB", Text(f"{disk:.0%}", "red" if disk > 0.75 else ""),
            f"{behind:,}", "-" if tier is None else f"{tier / (1 << 20):,.0f} MiB",
            "-" if late is None else f"{late:,.0f}", "-" if p99 is None else f"{p99:.2f}",
        )  # fmt: skip
    groups = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        mark = " ▼" if name.removesuffix("/s") == sort else ""
        groups.add_column(name + mark, justify="left" if name in ("group", "topic") else "right")
    for row in rows:
        falls = row.came is not None and row.went is not None and row.lag and row.went < row.came
        left = row.seconds_left
        groups.add_row(
            Text(shown(row.group)), Text(shown(row.topic)),
            Text(f"{row.lag:,}", "red" if falls else ""), _rate(row.came), _rate(row.went),
            "-" if left is None else f"{left:,.0f} s",
        )  # fmt: skip
    problems = [Text(shown(problem), "bold red") for problem in look.problems]
    keys = Text("l lag  i in  o out  g group  t topic  q quit", "dim")
    return Group(brokers, groups, *problems, keys)
