"""Progress of long work, on stderr: a bar on a terminal, a line now and then in a pipe.

Nothing is shown for work that is over at once, so quick runs stay quiet and do not import rich.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pystore.base.closing import ClosedByWith
from pystore.cli._values import human_size

__all__ = ["ProgressBar"]

_QUIET_S = 0.7  # work that is done sooner shows nothing
_LINE_PAUSE_S = 5.0
_BAR_PAUSE_S = 0.1


class ProgressBar(ClosedByWith):
    """A context manager; ``update`` may be called as often as one likes.

    label: what is being done. unit: ``bytes``, or the plural of what is counted. as_json: lines are
    JSON objects, so that a program which reads stderr can tell them from an error.
    """

    def __init__(self, label: str, unit: str = "bytes", *, as_json: bool = False) -> None:
        self._label = label
        self._unit = unit
        self._json = as_json
        self._bar: Any = None
        self._task: Any = None
        self._started = time.monotonic()
        self._next = self._started + _QUIET_S

    def update(self, done: int, total: int | None = None, label: str | None = None) -> None:
        """Shows how far it is. total: None when nobody knows."""
        now = time.monotonic()
        if now < self._next:
            return
        name = self._label if label is None else label
        if sys.stderr.isatty() and not self._json:
            self._next = now + _BAR_PAUSE_S
            self._draw(name, done, total)
        else:
            self._next = now + _LINE_PAUSE_S
            self._write(name, done, total, now - self._started)

    def _draw(self, name: str, done: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"),
                TimeElapsedColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, amount="")
        self._bar.update(
            self._task, description=name, completed=done, total=total,
            amount=self._amount(done, total),
        )  # fmt: skip

    def _amount(self, done: int, total: int | None) -> str:
        if self._unit == "bytes":
            return human_size(done) + (f" of {human_size(total)}" if total else "")
        return f"{done:,}" + (f" of {total:,}" if total else "") + f" {self._unit}"

    def _write(self, name: str, done: int, total: int | None, seconds: float) -> None:
        if self._json:
            line = {"progress": name, "done": done, "total": total, "unit": self._unit}
            text = json.dumps({**line, "seconds": round(seconds, 1)}, separators=(",", ":"))
        else:
            percent = f" ({100 * done // total} %)" if total else ""
            text = f"{name}: {self._amount(done, total)}{percent}, {seconds:.0f} s"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
