"""Makes the tables of what a cold tier costs, in docs/cold.md, from benches/tier_year.json.

    python tools/gen_cold_costs.py           writes them
    python tools/gen_cold_costs.py --check   changes nothing, exits 1 when they are stale

`make year-cold ARGS=--write` simulates again, and ends with this.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import generated

FIGURES = generated.ROOT / "benches" / "tier_year.json"
PAGE = generated.ROOT / "docs" / "cold.md"
_MIB = 1 << 20


def cents(puts: int, price: float) -> str:
    """Returns what PUTs cost at a price in dollars for a million of them."""
    value = puts * price / 1e4
    return f"{value:.1f} cents" if value < 2 else f"{value:.0f} cents"


def size(value: int) -> str:
    return "below 0.1 MiB" if value < _MIB / 10 else f"{value / _MIB:.1f} MiB"


def of_queues(figures: dict[str, Any]) -> list[str]:
    lines = ["| | segments | PUTs | manifests and pages, written in all | the largest manifest |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, each in zip(
        ("a segment a day", "180 segments of 16 MiB a day, 8 a manifest: 1 TiB"),
        figures["queues"], strict=True,
    ):  # fmt: skip
        lines.append(
            f"| {name} | {each['segments']:,} | {each['puts']:,}:"
            f" {cents(each['puts'], figures['put price'])} | {each['written'] / 1e6:,.1f} MB |"
            f" {each['largest'] / 1024:.0f} KiB |"
        )
    return lines


def of_days(year: dict[str, Any]) -> list[str]:
    lines = ["| day | PUTs | manifests and pages, written that day | LISTs | objects | kept |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {day['day']} | {day['puts']:,} | {size(day['written'])} | {day['lists']:,} |"
        f" {day['objects']:,} | {size(day['kept'])} |"
        for day in year["days"]
    ]
    return [
        *lines,
        "",
        f"No hour had more than {year['most in an hour']:,} PUTs of the {year['puts an hour']:,} it"
        f" may have. At the end the largest manifest had {year['largest manifest']:,} bytes, a",
        f"restart took {year['restart gets']:,} GETs, one a queue, and a query by key over the"
        f" {year['query segments']:,} segments of a topic {year['query gets']:,}.",
    ]


def of_scale(figures: dict[str, Any]) -> list[str]:
    """Returns the first day of all queues beside that of the few, as many times over."""
    few, whole = figures["year"], figures["whole"]
    times = whole["topics"] // few["topics"]
    first, day = few["days"][0], whole["days"][0]
    lines = [f"| the first day | {whole['topics']:,} queues, simulated |"
             f" {few['topics']} queues, times {times} |", "|---|---|---|"]  # fmt: skip
    for name in "puts", "objects":
        title = "PUTs" if name == "puts" else name
        lines.append(f"| {title} | {day[name]:,} | {first[name] * times:,} |")
    for name, title in (("written", "manifests and pages, written"), ("kept", "kept")):
        lines.append(f"| {title} | {size(day[name])} | {size(first[name] * times)} |")
    lines.append(f"| LISTs | {day['lists']:,} | |")
    lines.append(f"| PUTs in an hour, at most | {whole['most in an hour']:,} | |")
    return lines


def of_many(figures: dict[str, Any]) -> list[str]:
    """Returns what the brokers of one object store have of a day."""
    many = figures["many"]
    every, most = many["all"], many["most"]
    lines = [f"| day {many['day']} | the {many['brokers']} together | the busiest of them |",
             "|---|---|---|"]  # fmt: skip
    for name, title in (("puts", "PUTs"), ("lists", "LISTs"), ("objects", "objects")):
        lines.append(f"| {title} | {every[name]:,} | {most[name]:,} |")
    for name, title in (("written", "manifests and pages, written"), ("kept", "kept")):
        lines.append(f"| {title} | {size(every[name])} | {size(most[name])} |")
    lines += ["", f"Who asks which brokers there are, as `pystore cold ls` of the root, makes"
                  f" {many['root lists']} LISTs."]  # fmt: skip
    return lines


def main() -> int:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    tables = {
        "cost of a queue": of_queues(figures), "cost of a year": of_days(figures["year"]),
        "cost of a day": of_scale(figures), "cost of brokers": of_many(figures),
    }  # fmt: skip
    page = generated.with_tables(PAGE, tables)
    return generated.main({PAGE: page}, __doc__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
