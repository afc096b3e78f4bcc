"""What settings say of the tier: asked again in each round, since they may change."""

from __future__ import annotations

from typing import NamedTuple

from broker.services.config import Config

__all__ = ["LEVELS", "TierLimits", "limits_of", "passes_over", "storage_level"]

#: Values of tieredStorageLevel, by upstream's numbers of them.
LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
_HOUR_MS = 3_600_000


class TierLimits(NamedTuple):
    """How much and how long. wait_s: of a queue with little. puts: of small objects an hour. rate:
    bytes/s, 0 for any. lets_go: whether a full disk may take what is not out. reserved_ms: how long
    messages stay in the tier, -1 for ever. deletes: whether anything is deleted there at all.
    delete_pause_s: between looks for what is older."""

    wait_s: float
    puts: int
    rate: int
    lets_go: bool
    reserved_ms: int
    deletes: bool
    delete_pause_s: float


def limits_of(s: Config) -> TierLimits:
    hours: int = s["tieredStoreFileReservedTime"]
    return TierLimits(
        wait_s=s["tieredUploadWaitMillis"] / 1000,
        puts=s["tieredPutsPerHour"],
        rate=s["tieredUploadRateMax"] * 1_000_000,
        lets_go=s["tieredWhenFull"] == "LET_GO",
        reserved_ms=hours * _HOUR_MS if hours >= 0 else -1,
        deletes=bool(s["tieredStoreDeleteFileEnable"]),
        delete_pause_s=s["tieredStoreDeleteFileInterval"] / 1000,
    )


def passes_over(s: Config) -> bool:
    """Says whether consumers go on after what comes wrong from the tier, again and again."""
    return bool(s["tieredWhenDamaged"] == "PASS_OVER")


def storage_level(s: Config) -> str:
    """Returns tieredStorageLevel, one of LEVELS, which upstream takes by its number as well."""
    text: str = s["tieredStorageLevel"]
    return LEVELS[int(text)] if text.isdecimal() else text
