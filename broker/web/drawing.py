"""What a page draws: the map of a log, and plots of rates. Numbers only; templates make SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.web.rawlog import RawSegment
from pystore.audit import Audit, Finding

__all__ = ["WIDTH", "MapBar", "MapPiece", "PlotLine", "RatePlot", "log_map", "plot_of"]

#: Units of a drawing, from left to right.
WIDTH = 1000.0
#: What is shorter could not be seen.
_NARROWEST = 4.0
_TOP, _BOTTOM = 10.0, 170.0


@dataclass(frozen=True, slots=True)
class MapPiece:
    """A stretch of a bar. kind: whole, empty, missing, or the severity of a finding. start, end:
    in the log, bytes."""

    kind: str
    x: float
    width: float
    start: int
    end: int
    says: str


@dataclass(slots=True)
class MapBar:
    """A segment of the log. name: of its file. bad: findings in it, of any severity."""

    name: str
    start: int
    size: int
    pieces: list[MapPiece] = field(default_factory=list)
    bad: int = 0


def _range_of(finding: Finding, segments: Sequence[RawSegment]) -> tuple[int, int] | None:
    """Returns the part of the log that a finding is about; None: of something else."""
    where = finding.about.where
    start = finding.start
    if start is None or where not in ("log", "file"):
        return None
    end = finding.end if finding.end is not None and finding.end > start else start + 1
    if where == "log":
        return start, end
    for segment in segments:
        if finding.file.endswith(segment.path.name) and "commitlog" in finding.file:
            return segment.start + start, segment.start + end
    return None


def log_map(audit: Audit, segments: Sequence[RawSegment]) -> list[MapBar]:
    """Returns the segments in order, those that are missing among them."""
    spans = [
        (place, finding)
        for finding in audit.findings
        if (place := _range_of(finding, segments)) is not None
    ]
    spans.sort(key=lambda each: each[1].severity)  # the worst is drawn last, over the others
    bars: list[MapBar] = []
    for segment in segments:
        if bars and segment.start > bars[-1].start + bars[-1].size:
            before = bars[-1].start + bars[-1].size
            gap = MapBar("missing", before, segment.start - before, bad=1)
            gap.pieces.append(MapPiece("missing", 0, WIDTH, before, segment.start, "no file"))
            bars.append(gap)
        bars.append(_bar_of(segment, audit, spans))
    return bars


def _bar_of(
    segment: RawSegment, audit: Audit, spans: Sequence[tuple[tuple[int, int], Finding]]
) -> MapBar:
    bar = MapBar(segment.path.name, segment.start, segment.size)
    if not segment.size:
        return bar
    used = min(max(audit.log_max, segment.start), segment.end)
    scale = WIDTH / segment.size

    def add(kind: str, start: int, end: int, says: str) -> None:
        x = (start - segment.start) * scale
        width = max((end - start) * scale, _NARROWEST)
        bar.pieces.append(MapPiece(kind, min(x, WIDTH - width), width, start, end, says))

    if used > segment.start:
        add("whole", segment.start, used, "records")
    if used < segment.end:
        add("empty", used, segment.end, "not written yet")
    for (start, end), finding in spans:
        start, end = max(start, segment.start), min(end, segment.end)
        if start < end:
            add(finding.severity.name.lower(), start, end, f"{finding.kind}: {finding.meaning}")
            bar.bad += 1
    return bar


@dataclass(frozen=True, slots=True)
class PlotLine:
    """name: what it shows. points: of an SVG polyline. last: its newest value."""

    name: str
    points: str
    last: float


@dataclass(frozen=True, slots=True)
class RatePlot:
    """top: the largest value of the axis. seconds: from left to right."""

    lines: tuple[PlotLine, ...]
    top: float
    seconds: float


def _round_up(value: float, *, binary: bool) -> float:
    """Returns 2, 4 or 10 times a power of ten, or a power of two, whose half is round, too; not
    below the value."""
    step = 2.0
    while True:
        for factor in (1,) if binary else (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 2 if binary else 10


def plot_of(
    times: Sequence[float], named: dict[str, Sequence[float]], *, binary: bool = False
) -> RatePlot:
    """Returns a plot. times: seconds, ascending; as many as each of the values. binary: of
    bytes."""
    largest = max((max(values, default=0.0) for values in named.values()), default=0.0)
    top = _round_up(largest, binary=binary)
    first, last = (times[0], times[-1]) if times else (0.0, 0.0)
    span = max(last - first, 1e-9)
    lines = []
    for name, values in named.items():
        points = " ".join(
            f"{(when - first) / span * WIDTH:.1f},{_BOTTOM - value / top * (_BOTTOM - _TOP):.1f}"
            for when, value in zip(times, values, strict=True)
        )
        lines.append(PlotLine(name, points, values[-1] if values else 0.0))
    return RatePlot(tuple(lines), top, last - first)
