"""How long puts take, as GET_BROKER_RUNTIME_INFO reports it; upstream: StoreStatsService.

The core counts puts by milliseconds. Upstream reports the last full minute, and nothing before the
first has passed; here the first is reported while it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from broker.hot.core import Core

__all__ = ["PutTimes"]

#: Places of the core's table: a millisecond each up to this one, then a second each.
_EXACT_MS = 1000
#: Upstream's names, and up to which place (excluded) each goes.
_RANGES = (
    ("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200),
    ("200~500ms", 500), ("500ms~1s", 1000), ("1~2s", 1002), ("2~3s", 1003), ("3~4s", 1004),
    ("4~5s", 1005), ("5~10s", 1010), ("10s~", 1011),
)  # fmt: skip
_MINUTE_S = 60.0


class PutTimes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._marks: list[tuple[float, Sequence[int]]] = []

    def _now(self) -> Sequence[int]:
        return self._core.times().puts

    def sample(self, now_s: float) -> None:
        """Takes a sample. It is called now and then; each minute begins another one."""
        if not self._marks or now_s - self._marks[-1][0] >= _MINUTE_S * 0.99:
            self._marks = [*self._marks[-1:], (now_s, self._now())]

    def _minute(self) -> Sequence[int]:
        """Returns messages by place: those of the last full minute, or of the present one if it is
        the first."""
        if not self._marks:
            return self._now()
        last = self._marks[1][1] if len(self._marks) > 1 else self._now()
        return [after - before for before, after in zip(self._marks[0][1], last, strict=True)]

    @property
    def put_max_ms(self) -> int:
        return self._core.times().put_max_ms

    @property
    def get_max_ms(self) -> int:
        return self._core.times().get_max_ms

    def distribution(self) -> str:
        """Returns ``[<=0ms]:n [0~10ms]:n ``, with a blank after each as upstream has it."""
        counts, text, at = self._minute(), "", 0
        for name, end in _RANGES:
            text += f"[{name}]:{sum(counts[at:end])} "
            at = end
        return text

    def within_ms(self, part: float) -> float:
        """Returns in how many milliseconds that part of the messages was put."""
        counts = self._minute()
        wanted = sum(counts) * part
        for place, so_far in enumerate(itertools.accumulate(counts)):
            if so_far >= wanted:
                return float(place if place <= _EXACT_MS else (place - _EXACT_MS) * 1000)
        return 0.0
