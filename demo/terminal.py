"""What the parts of the demo print with."""

from __future__ import annotations

from rich.console import Console

# A pipe gets lines as wide as a terminal's, so that tables keep their shape.
console = Console(highlight=False, soft_wrap=False)
if not console.is_terminal:
    console = Console(highlight=False, width=100)


def rate(count: float, seconds: float, unit: str = " messages") -> str:
    """``12.3 M messages/s``, in the largest unit that leaves a whole number."""
    per_s = count / seconds if seconds > 0 else float("inf")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= size:
            return f"{per_s / size:.1f} {letter}{unit.strip() if unit == 'B' else unit}/s"
    return f"{per_s:.0f}{unit if unit != 'B' else ' B'}/s"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
