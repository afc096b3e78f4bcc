"""Labels that a setting gives to every sample."""

from __future__ import annotations

__all__ = ["labels_of"]


def labels_of(text: str | None) -> dict[str, str]:
    """Returns the labels of metricsLabel, ``name:value,name:value``. Raises: ValueError."""
    found = {}
    for pair in filter(None, (part.strip() for part in (text or "").split(","))):
        name, colon, value = pair.partition(":")
        if not colon or not name.isidentifier() or not name.isascii():
            raise ValueError(
                f"'{pair}' is not a label: use name:value, with letters and _ in names"
            )
        found[name] = value
    return found
