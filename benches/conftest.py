"""The benches as tests: each adds rows; table and raw rounds come at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import harness
from benches.harness import Row

_ROWS: list[Row] = []
_FACTS: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_quiet = True  # our table says the rate, the payload and the mode
    _FACTS.update(harness.machine())


@pytest.fixture
def measure(benchmark: Any) -> Iterator[Callable[..., Row]]:
    """measure(work, count, ...) times `work` and adds a row of count / seconds.

    setup gives the arguments of each round. rate(seconds) may be given instead of count.
    """

    def run(
        work: Callable[..., Any],
        count: float,
        *,
        bench: str,
        payload: str,
        mode: str,
        unit: str = "/s",
        target: float | None = None,
        rounds: int = 5,
        warmup: int = 1,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
    ) -> Row:
        benchmark.pedantic(
            work, setup=setup, teardown=teardown, rounds=rounds, warmup_rounds=warmup
        )
        times = list(benchmark.stats.stats.data)
        row = Row(bench, payload, mode, unit, [count / t for t in times], target)
        return add(row)

    def add(row: Row) -> Row:
        benchmark.extra_info.update(payload=row.payload, mode=row.mode, rate=row.median)
        _ROWS.append(row)
        return row

    run.add = add  # type: ignore[attr-defined]
    run.benchmark = benchmark  # type: ignore[attr-defined]
    yield run


@pytest.fixture(scope="session")
def scratch() -> Path:
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    return harness.SCRATCH


def pytest_terminal_summary() -> None:
    if _ROWS:
        harness.show(_ROWS, _FACTS, "rocketmq-pystore")
        harness.save(_ROWS, _FACTS, "bench")
