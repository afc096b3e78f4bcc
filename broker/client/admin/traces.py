"""Records of a message's way, as clients trace it (upstream's TraceDataEncoder). No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["STEPS", "TraceStep", "steps_in"]

#: Kinds of steps, in the order in which they come.
STEPS = ("sent", "undecided", "rolled back", "committed", "begun", "done")

#: What a producer has said of a transaction (upstream's LocalTransactionState).
_DECISIONS = {
    "UNKNOW": "undecided", "ROLLBACK_MESSAGE": "rolled back", "COMMIT_MESSAGE": "committed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a message's way. kind: one of STEPS: sent; what its producer said of the
    transaction; begun (a consumer has it) or done. when_ms: ms since 1970. group: of the producer
    or consumer. host: where it went, or who had it; empty: the record does not say. cost_ms: how
    long it took, of sent and done. attempt: the number of the delivery that has begun, from 1; 0
    for the other kinds."""

    kind: str
    when_ms: int
    group: str
    host: str
    cost_ms: int | None
    ok: bool
    attempt: int = 0


def steps_in(body: bytes, message_id: str) -> Iterator[TraceStep]:
    """Yields the steps of one message among the records of a trace message; malformed ones are
    passed over."""
    for record in body.decode("utf-8", "replace").split("\x02"):
        fields = record.split("\x01")
        try:
            step = _step(fields, message_id)
        except (IndexError, ValueError):
            continue
        if step is not None:
            yield step


def _step(fields: list[str], message_id: str) -> TraceStep | None:
    """Returns the step of a record when it is one of this message. Raises: IndexError, ValueError
    for a malformed record."""
    kind = fields[0]
    if kind == "Pub" and fields[5] == message_id:
        # The last but one says whether it went well in newer versions, the last in older ones.
        ok = "true" in fields[13:15]
        return TraceStep("sent", int(fields[1]), fields[3], fields[8], int(fields[10]), ok)
    if kind == "EndTransaction" and fields[5] == message_id and fields[11] in _DECISIONS:
        said = _DECISIONS[fields[11]]
        return TraceStep(said, int(fields[1]), fields[3], fields[8], None, True)
    if kind == "SubBefore" and fields[5] == message_id:
        host = fields[8] if len(fields) > 8 else ""
        return TraceStep("begun", int(fields[1]), fields[3], host, None, True, int(fields[6]) + 1)
    if kind == "SubAfter" and fields[2] == message_id:
        when, group = (int(fields[7]), fields[8]) if len(fields) > 8 else (0, "")
        return TraceStep("done", when, group, "", int(fields[3]), fields[4] == "true")
    return None
