"""The check points that were open at a clean stop, so that the next start need not read the records
of all that is under way (docs/internals/pop.md#recovery). Not upstream's. The file is good for a
log that nothing was put into since; otherwise, and without it, the log says what is open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.hot.check_points import BATCH_MAX, CheckPoint
from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.jsonbody import LONG, OBJECT, TEXT, JsonMember, Shape, listed, required
from pystore import files

__all__ = ["keep", "row_of", "take", "taken_from"]

log = SafeLogger("broker.pop")

_FILE = Shape(log=required(LONG), open=listed(OBJECT))
_OPEN = Shape(
    t=required(TEXT), c=required(TEXT), q=required(LONG), so=required(LONG), pt=required(LONG),
    it=required(LONG), rq=required(LONG), a=JsonMember(LONG, 0), o=listed(LONG, BATCH_MAX),
)  # fmt: skip


def keep(path: Path, points: Iterable[CheckPoint], end: int, mode: int) -> None:
    """Writes the file. end: of the log. Raises: OSError."""
    rows = [row_of(ck) for ck in points]
    files.make_folders(path.parent, mode)
    files.write_whole(path, mqjson.dumps({"log": end, "open": rows}), durable=False, mode=mode)


def take(path: Path, end: int) -> list[CheckPoint] | None:
    """Returns what was open, or None when the log has to be asked. The file is removed. Raises:
    OSError."""
    data = files.read_file(path)
    path.unlink(missing_ok=True)
    if data is None:
        return None
    try:
        said = _FILE.loads(data)
        if said["log"] == end:
            return [taken_from(each) for each in said["open"]]
        log.info(
            "%s is of a log up to %d, this one ends at %d, so the log is asked: it named %d open"
            " check points", path, said["log"], end, len(said["open"]),
        )  # fmt: skip
        return None
    except (ValueError, TypeError) as bad:
        log.warning("%s cannot be read, so the log is asked: %s", path, bad)
        return None


def row_of(ck: CheckPoint) -> dict[str, Any]:
    return {
        "t": ck.topic, "c": ck.group, "q": ck.queue, "so": ck.start, "pt": ck.pop_ms,
        "it": ck.invisible_ms, "rq": ck.revive_queue, "a": ck.acked, "o": list(ck.offsets),
    }  # fmt: skip


def taken_from(row: object) -> CheckPoint:
    """Makes a check point of a row. Raises: ValueError."""
    said = _OPEN(row)
    return CheckPoint(
        said["t"], said["c"], said["q"], said["so"], said["pt"], said["it"], said["rq"],
        tuple(said["o"]), said["a"],
    )  # fmt: skip
