"""Metrics that are sent or written now and then, instead of scraped: OTLP_GRPC and LOG of
metricsExporterType, by the OpenTelemetry SDK (extra ``otlp``). The same figures as a scrape's,
under upstream's instrument names, which lack the units.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.loop.lifetime import end_tasks
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger, WholeText
from broker.metrics.table import BY_NAME, Metric, MetricKind
from broker.wire.command import Body
from pystore.errors import BadArgument
from pystore.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

__all__ = ["PeriodicExport", "exporter_of", "metrics_data"]

log = SafeLogger("broker.metrics.export")
_quiet = RateLimitedLogger(log)

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SUFFIX = re.compile(r"_(?:milliseconds|seconds|bytes)$")
_PART = re.compile(r"_(bucket|sum|count)$")
_RAW = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_NEEDS = "metricsExporterType={0} needs the OpenTelemetry SDK: pip install 'rocketmq-pystore[otlp]'"

Labels = tuple[tuple[str, str], ...]
Export = Callable[["MetricsData"], object]


class PeriodicExport:
    """Exports a page every so many seconds, from start() to stop()."""

    def __init__(
        self, page: Callable[[], Awaitable[Sequence[Body]]], export: Export, every_s: float
    ) -> None:
        """Takes what exports. export: called in a thread."""
        self._page, self._export, self._every_s = page, export, every_s
        self._began_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                page = await self._page()
                await asyncio.to_thread(self._export_page, page)
            except Exception as failed:  # noqa: BLE001 - the next export may work
                _quiet.error(type(failed), failed, "Metrics are not exported")

    def _export_page(self, page: Sequence[Body]) -> None:
        self._export(metrics_data(b"".join(page).decode(), self._began_ns, time.time_ns()))


def exporter_of(settings: Settings) -> tuple[Export, float] | None:
    """Returns what exports and every how many seconds, as the settings ask; None: nothing does.
    Raises: BadArgument without the extra ``otlp``."""
    kind = settings["metricsExporterType"]
    if kind == "LOG":
        try:
            from opentelemetry.sdk.metrics.export import MetricsData  # noqa: F401
        except ImportError:
            raise BadArgument(_NEEDS.format(kind)) from None
        every_ms = settings["metricLoggingExporterIntervalInMills"]
        return (
            lambda data: log.info("Metrics: %s", WholeText(data.to_json(indent=None)))
        ), every_ms / 1000
    target = str(settings["metricsGrpcExporterTarget"] or "")
    if kind != "OTLP_GRPC" or not target:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise BadArgument(_NEEDS.format(kind)) from None
    exporter = OTLPMetricExporter(
        endpoint=target if target.startswith("http") else f"https://{target}",
        insecure=target.startswith("http:"),
        headers=dict(_headers(settings["metricsGrpcExporterHeader"] or "")),
        timeout=max(1, settings["metricGrpcExporterTimeOutInMills"] // 1000),
    )
    return exporter.export, settings["metricGrpcExporterIntervalInMills"] / 1000


def _headers(text: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition(":")
        yield name.strip().lower(), value.strip()


# ---- from the page to OpenTelemetry's values ----


def metrics_data(page: str, began_ns: int, now_ns: int) -> MetricsData:
    """Returns what a page says as OpenTelemetry has it."""
    from opentelemetry.sdk.metrics.export import (
        MetricsData,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    families: dict[str, dict[Labels, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for family, part, labels, value in _samples(page):
        families[family][labels][part] = value
    metrics = [_metric(BY_NAME[name], rows, began_ns, now_ns) for name, rows in families.items()]
    scope = ScopeMetrics(InstrumentationScope("broker-meter"), metrics, "")
    return MetricsData([ResourceMetrics(Resource({}), [scope], "")])


def _samples(page: str) -> Iterator[tuple[str, str, Labels, float]]:
    """Returns family, part of it (le of a bucket, sum, count, or nothing), labels and value."""
    for line in page.splitlines():
        found = _LINE.match(line) if not line.startswith("#") else None
        if found is None:
            continue
        name, text, value = found.groups()
        labels = {
            key: re.sub(r"\\.", lambda m: _RAW.get(m[0], m[0]), raw)
            for key, raw in _LABEL.findall(text or "")
        }
        labels.pop("otel_scope_name", None)
        part, cut = "", _PART.search(name)
        if cut is not None and name[: cut.start()] in BY_NAME:
            name, part = name[: cut.start()], cut[1]
            part = labels.pop("le") if part == "bucket" else part
        yield name, part, tuple(labels.items()), float(value)


def _metric(
    metric: Metric, rows: Mapping[Labels, Mapping[str, float]], began_ns: int, now_ns: int
) -> Any:
    from opentelemetry.sdk.metrics import export

    sums = export.AggregationTemporality.CUMULATIVE
    data: export.DataT
    if metric.kind is MetricKind.HISTOGRAM:
        points = [_histogram(metric, labels, row, began_ns, now_ns) for labels, row in rows.items()]
        data = export.Histogram(points, sums)
    else:
        numbers = [
            export.NumberDataPoint(dict(labels), began_ns, now_ns, row[""])
            for labels, row in rows.items()
        ]
        is_sum = metric.kind is MetricKind.COUNTER
        data = export.Sum(numbers, sums, True) if is_sum else export.Gauge(numbers)
    name = _SUFFIX.sub("", metric.name) if metric.is_upstream else metric.name
    return export.Metric(name, metric.meaning, metric.unit, data)


def _histogram(
    metric: Metric, labels: Labels, row: Mapping[str, float], began_ns: int, now_ns: int
) -> Any:
    from opentelemetry.sdk.metrics import export

    up_to = [int(row[repr(float(bound))]) for bound in metric.bounds] + [int(row["count"])]
    counts = [after - before for before, after in zip([0, *up_to], up_to, strict=False)]
    return export.HistogramDataPoint(
        dict(labels), began_ns, now_ns, int(row["count"]), row["sum"], counts, metric.bounds,
        float("-inf"), float("inf"),
    )  # fmt: skip
