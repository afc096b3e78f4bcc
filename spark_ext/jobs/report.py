"""A job's report: facts and tables, shown as text or JSON, and as one HTML page with plots.

A plot draws columns of a table, so that the page never shows what the JSON does not hold. The page
needs no network: style and pictures (SVG) are in it.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pystore.cli.verbs import When, iso, shown, usage
from pystore.files import write_whole

__all__ = ["Plot", "Report"]

_ROWS_SHOWN = 500
_BARS_SHOWN = 30
_LEGEND_MAX = 10
#: Numbers from which on an axis says 10k, 5M.
_LARGE = 10_000
#: Least width of an axis of time.
_HOURS_SHOWN_MS = 6 * 3_600_000

#: How plots are drawn. Names come from the store: a dollar sign in one must not begin a formula.
_DRAWN: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "pystore", "text.parse_math": False, "font.size": 9,
}  # fmt: skip
#: A picture says neither which release of matplotlib drew it, nor when.
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1d2733; margin: 2rem auto; max-width: 62rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p.when { color: #66727f; margin-top: .2rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #e3e8ee;
         vertical-align: top; overflow-wrap: anywhere; }
th { color: #66727f; font-weight: 600; } td.n, th.n { text-align: right; }
svg { max-width: 100%; height: auto; }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """How a table is drawn. x: the column along the axis, times where its values are When. y: its
    column of heights. series: the column that tells one line from another, or None. kind: ``bar``
    or ``line``. label: of the axis of heights."""

    x: str
    y: str
    series: str | None = None
    kind: str = "bar"
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    columns: Sequence[str]
    rows: Sequence[Any]
    plot: Plot | None


class Report:
    """The blocks of a report, in order."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._blocks: list[_Block] = []

    def facts(self, name: str, facts: Mapping[str, Any]) -> None:
        """Adds named values."""
        self._blocks.append(_Block(name, (), list(facts.items()), None))

    def table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        plot: Plot | None = None,
    ) -> None:
        """Adds rows under columns."""
        self._blocks.append(_Block(name, columns, list(rows), plot))

    def show(self, out: Any) -> None:
        """Shows the report on the command line's output, be it text or JSON."""
        for block in self._blocks:
            if block.columns:
                out.table(block.name, block.columns, block.rows)
            else:
                out.facts(block.name, dict(block.rows))

    def write(self, path: Path) -> None:
        """Writes the HTML page, whole or not at all. Raises: OSError, BadArgument without
        matplotlib."""
        write_whole(path, self.html().encode("utf-8", "backslashreplace"))

    def html(self) -> str:
        """Returns the page. Raises: BadArgument without matplotlib."""
        title = html.escape(f"RocketMQ store: {self.title}")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        parts = [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
            f'<p class="when">Made {now}; times are UTC.</p>',
        ]
        for block in self._blocks:
            parts.append(f"<h2>{html.escape(shown(block.name))}</h2>")
            if block.plot is not None and block.rows:
                parts.append(_svg(block, block.plot))
            parts.append(_table(block))
        return "\n".join([*parts, "</body></html>\n"])


def _table(block: _Block) -> str:
    numbers = [
        bool(block.rows) and all(type(row[i]) in (int, float) for row in block.rows)
        for i in range(len(block.rows[0]) if block.rows else len(block.columns))
    ]
    marks = [' class="n"' if number else "" for number in numbers]
    lines = ['<div class="wide"><table>']
    if block.columns:
        heads = zip(block.columns, marks, strict=True)
        lines.append("<tr>" + "".join(f"<th{m}>{html.escape(c)}</th>" for c, m in heads) + "</tr>")
    for row in block.rows[:_ROWS_SHOWN]:
        cells = zip(row, marks, strict=True)
        lines.append(
            "<tr>" + "".join(f"<td{m}>{html.escape(_cell(v))}</td>" for v, m in cells) + "</tr>"
        )
    lines.append("</table></div>")
    left = len(block.rows) - _ROWS_SHOWN
    if left > 0:
        lines.append(f"<p>{left:,} more rows: --json has all of them.</p>")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, When):
        return iso(value) if value >= 0 else "-"
    return f"{value:,}" if type(value) is int else shown(value)


# ---- plots ----


def _svg(block: _Block, plot: Plot) -> str:
    """Draws a table as SVG to stand in the page. Raises: BadArgument."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as missing:
        raise usage(
            f"--report draws with matplotlib, which cannot be imported ({missing})",
            "pip install 'rocketmq-pystore[spark]', or take --json",
        ) from None
    at = {name: i for i, name in enumerate(block.columns)}
    series: dict[str, list[tuple[Any, float]]] = {}
    for row in block.rows:
        name = shown(row[at[plot.series]]) if plot.series is not None else ""
        if row[at[plot.y]] is not None:
            series.setdefault(name, []).append((row[at[plot.x]], float(row[at[plot.y]])))
    with mpl.rc_context(_DRAWN):
        figure = Figure(figsize=(9.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        (_bars if plot.kind == "bar" else _lines)(axes, series)
        axes.set_ylabel(plot.label or plot.y)
        axes.set_ylim(bottom=0)
        if axes.get_ylim()[1] >= _LARGE:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.spines[["top", "right"]].set_visible(False)
        if plot.series is not None and series:
            axes.legend(fontsize=8, frameon=False, ncols=2)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _bars(axes: Any, series: Mapping[str, Sequence[tuple[Any, float]]]) -> None:
    """Draws bars, the series stacked; the largest ones where there are too many to read."""
    sums: dict[Any, float] = {}
    for points in series.values():
        for x, y in points:
            sums[x] = sums.get(x, 0.0) + y
    names = list(sums)
    if len(names) > _BARS_SHOWN:
        kept = set(sorted(names, key=lambda x: -sums[x])[:_BARS_SHOWN])
        names = [x for x in names if x in kept]
    base = dict.fromkeys(names, 0.0)
    for name, points in series.items():
        heights = dict.fromkeys(names, 0.0)
        for x, y in points:
            if x in heights:
                heights[x] += y
        places = range(len(names))
        axes.bar(places, [heights[x] for x in names], bottom=[base[x] for x in names], label=name)
        base = {x: base[x] + heights[x] for x in names}
    labels = [iso(x)[:16] if isinstance(x, When) else shown(x) for x in names]
    short = [text if len(text) <= 28 else f"{text[:27]}\u2026" for text in labels]
    slant = 35 if sum(map(len, short)) > 90 else 0
    axes.set_xticks(range(len(names)), short, rotation=slant, ha="right" if slant else "center")


def _lines(axes: Any, series: Mapping[str, Sequence[tuple[Any, float]]]) -> None:
    """Draws a line for each of the series with the largest sums."""
    largest = sorted(series, key=lambda name: -sum(y for _, y in series[name]))[:_LEGEND_MAX]
    for name in (n for n in series if n in largest):
        points = sorted(series[name])
        xs = [datetime.fromtimestamp(x / 1000, UTC) if isinstance(x, When) else x
              for x, _ in points]  # fmt: skip
        axes.plot(xs, [y for _, y in points], marker="o", markersize=2.5, label=name)
    times = [x for name in largest for x, _ in series[name] if isinstance(x, When)]
    if times and max(times) - min(times) < _HOURS_SHOWN_MS:
        # Around points that are so close, the axis would span years.
        middle = (max(times) + min(times)) / 2
        axes.set_xlim(*(datetime.fromtimestamp((middle + side * _HOURS_SHOWN_MS / 2) / 1000, UTC)
                        for side in (-1, 1)))  # fmt: skip
