"""What a scrape answers: families of samples in Prometheus' text format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.metrics.table import BY_NAME, MetricKind
from pystore.native import ffi, lib

__all__ = ["Entries", "MetricSample", "Page", "buckets", "escaped", "labels_text", "named"]


class MetricSample(NamedTuple):
    """One value. name: of the sample, with _bucket and its like; labels: without those that all
    samples of a page have."""

    name: str
    labels: Mapping[str, str]
    value: float


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def escaped(value: str) -> str:
    """Returns the value of a label as it stands between quotes; what has no UTF-8 becomes ?."""
    return value.translate(_ESCAPES).encode("utf-8", "replace").decode()


def labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def named(samples: Iterable[MetricSample]) -> dict[str, float]:
    """Returns samples by name and labels, as a line of a scrape begins."""
    return {
        f"{s.name}{{{labels_text(s.labels)}}}" if s.labels else s.name: s.value for s in samples
    }


def _bounds(name: str) -> list[str]:
    return [repr(float(bound)) for bound in BY_NAME[name].bounds] + ["+Inf"]


def buckets(
    name: str, labels: Mapping[str, str], counts: Sequence[int], sum_of: float
) -> Iterator[MetricSample]:
    """Returns the samples of a histogram. counts: by bucket, each by itself, and the last is of
    what is beyond all bounds."""
    so_far = 0
    for bound, count in zip(_bounds(name), counts, strict=True):
        so_far += count
        yield MetricSample(f"{name}_bucket", {**labels, "le": bound}, so_far)
    yield MetricSample(f"{name}_sum", labels, sum_of)
    yield MetricSample(f"{name}_count", labels, so_far)


def _number(value: float) -> str:
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    return repr(value)


def _series(labels: Mapping[str, str]) -> str:
    return labels_text({name: value for name, value in labels.items() if name != "le"})


class _Family:
    """The lines of a metric. `last`: the series that came last; `fits`: whether it is shown."""

    __slots__ = ("bound", "fits", "last", "lines")

    def __init__(self, name: str, most: int) -> None:
        metric = BY_NAME[name]
        # An info is a gauge in the old text format.
        kind = MetricKind.GAUGE if metric.kind == MetricKind.INFO else metric.kind
        self.lines = [f"# HELP {name} {metric.meaning.translate(_ESCAPES)}\n# TYPE {name} {kind}"]
        self.bound = ffi.new("ps_series_bound *", {"most": most})
        self.last: str | None = None
        self.fits = True


class Page:
    """A page under construction. `common` are labels of every sample; `most` is how many series a
    family may have: those beyond are left out, and counted in `left_out`."""

    def __init__(self, common: Mapping[str, str], most: int = 50_000) -> None:
        self.common = labels_text(common)
        self._most = most
        self._families: dict[str, _Family] = {}

    @property
    def left_out(self) -> int:
        return sum(family.bound.left_out for family in self._families.values())

    def add(self, name: str, value: float, **labels: str) -> None:
        """Adds a sample of a gauge or a counter. Raises: KeyError for a name the table lacks."""
        self._put(name, name, value, labels)

    def extend(self, samples: Iterable[MetricSample], **more: str) -> None:
        """Adds samples that are named already, those of histograms too; `more` are labels that each
        of them has."""
        for name, labels, value in samples:
            family = name
            for suffix in ("_bucket", "_count", "_sum"):
                if family.endswith(suffix) and family.removesuffix(suffix) in BY_NAME:
                    family = family.removesuffix(suffix)
            self._put(family, name, value, {**labels, **more})

    def _put(self, name: str, sample: str, value: float, labels: Mapping[str, str]) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(name, self._most)
        text = labels_text(labels)
        # The samples of a histogram come one after another and are one series.
        series = text if sample == name else _series(labels)
        if series != family.last or sample == name:
            family.last, family.fits = series, bool(lib.ps_series_fits(family.bound))
        if family.fits:
            both = ",".join(filter(None, (self.common, text)))
            head = f"{sample}{{{both}}}" if both else sample
            family.lines.append(f"{head} {_number(value)}")

    def text(self) -> bytes:
        parts = ["\n".join(family.lines) for family in self._families.values()]
        return ("\n".join(parts) + "\n").encode() if parts else b""


class Entries(Page):
    """A page that keeps only the values that request 28 has, too, under their names there."""

    def __init__(self) -> None:
        super().__init__({})
        self.values: dict[str, float] = {}

    def _put(self, name: str, sample: str, value: float, labels: Mapping[str, str]) -> None:
        entry = BY_NAME[name].entry
        if entry:
            self.values[entry] = value
