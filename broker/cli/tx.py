"""``pystore tx``: transactions that wait for their decision, in a store or at a broker.

Reading verbs open the store without a lock. The others decide in the store itself while no broker
holds it, or ask the broker that does (``--broker``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import DryRun
from broker.cli.inquirer import ask
from pystore import Message
from pystore.cli.verbs import Session, When, message_lines, message_record, usage
from pystore.errors import NotFound
from pystore.format.names import DISCARD_TOPIC, HALF_TOPIC
from pystore.meta.pending import Decision, PendingHalf
from pystore.store.pending_log import find_pending

if TYPE_CHECKING:
    from pystore import Reader

__all__ = ["commit", "ls", "resume", "rollback", "show", "stats"]

_Offset = Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset shown by `tx ls`.")]
_Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="HOST:PORT", help="Ask this broker instead of opening the store."
    ),
]


def _age(stored_ms: int) -> float:
    return round(max(0.0, time.time() - stored_ms / 1000), 1)


def _record(half: PendingHalf, message: Message | None) -> dict[str, Any]:
    properties = message.properties if message is not None else {}
    return {
        "offset": half.offset,
        "physical_offset": half.physical,
        "store_timestamp": half.store_ms,
        "age_s": _age(half.store_ms),
        "checks": half.checks,
        "last_check": half.asked_ms or None,
        "immunity_s": half.immunity_s if half.immunity_s >= 0 else None,
        "group": half.group,
        "topic": half.topic,
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
    }


def _message(reader: Reader, half: PendingHalf) -> Message | None:
    try:
        return reader.message(half.physical)
    except NotFound:
        return None


def _wanted(
    halves: Iterable[PendingHalf], topic: str | None, group: str | None, older_s: float
) -> list[PendingHalf]:
    return [
        half
        for half in sorted(halves, key=lambda each: each.store_ms)
        if topic in (None, half.topic)
        and group in (None, half.group)
        and _age(half.store_ms) >= older_s
    ]


def ls(
    s: Session,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this producer group.")] = None,
    older: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Only transactions at least this old.")
    ] = 0,
    max_: Annotated[
        int, typer.Option("--max", min=0, help="Show at most this many, oldest first; 0: all.")
    ] = 0,
    discarded: Annotated[
        bool, typer.Option("--discarded", help="Show discarded transactions instead.")
    ] = False,
) -> int | None:
    """List open transactions with their age and number of checks.

    The store may be in use: transactions decided within the last second may still be listed.

    Shows the half queue offset, age, checks, group, topic and keys. Read without a lock, from
    the metadata and the end of the log, or from the log alone for a store of Java's. JSON: a
    line each. docs/transactions.md says what to do with one that is stuck.

    \b
    Examples:
      pystore tx ls STORE --older 60
      pystore tx ls STORE --topic orders --json
      pystore tx ls STORE --discarded
    """
    with s.reader() as reader:
        if discarded:
            return _ls_discarded(s, reader, max_)
        halves = _wanted(find_pending(reader).rows.values(), topic, group, older)
        for half in halves[: max_ or None]:
            message = _message(reader, half)
            s.out.record(
                _record(half, message),
                lambda h=half, m=message: _line(h, m),  # type: ignore[misc]
            )
        s.out.note(f"open transactions: {len(halves)}")
        return 0


def _line(half: PendingHalf, message: Message | None) -> str:
    keys = message.properties.get("KEYS", "") if message is not None else "(the record is gone)"
    return (
        f"{half.offset:>10}  {_age(half.store_ms):>10.1f} s  {half.checks:>3} checks  {half.group}"
        f"  {half.topic}  {keys}"
    )


def _discarded_line(message: Message) -> Callable[[], str]:
    return lambda: f"{message.offset_message_id}  {message_lines(message)}"


def _ls_discarded(s: Session, reader: Reader, most: int) -> int:
    count = 0
    for queue in reader.queues(DISCARD_TOPIC):
        at = queue.min_offset
        while at < queue.max_offset and (not most or count < most):
            batch = reader.read(DISCARD_TOPIC, queue.queue, at, max_messages=most or 1000)
            for message in batch:
                record = message_record(message) if s.out.json else {}
                s.out.record(record, _discarded_line(message))
                count += 1
            at = batch.next_offset
    s.out.note(f"{count} discarded transactions; `pystore tx resume STORE ID` checks one again")
    return 0


def _found(reader: Reader, offset: int) -> PendingHalf:
    """Returns the half that is meant. Raises: NotFound."""
    for half in find_pending(reader).rows.values():
        if offset in (half.offset, half.root):
            return half
    error = NotFound(f"no open transaction at {offset}", str(reader.path))
    error.next_step = "list open transactions with `pystore tx ls`"
    raise error


def show(s: Session, offset: _Offset) -> int | None:
    """Show one open transaction with its message.

    OFFSET is the one that tx ls shows; its properties are shown, too.

    \b
    Examples:
      pystore tx show STORE 17
    """
    with s.reader() as reader:
        half = _found(reader, offset)
        message = _message(reader, half)
        facts = _record(half, message)
        facts["store_timestamp"] = When(half.store_ms)
        facts["last_check"] = When(half.asked_ms or -1)
        s.out.facts("transaction", facts)
        if message is not None:
            s.out.facts("properties", message.properties)
            s.out.record(message_record(message), lambda: message_lines(message))
        return 0


def stats(s: Session, broker: _Broker = None) -> int | None:
    """Count open transactions by topic and group, with the age of the oldest; of a running
    broker also decisions and commit latencies, under the names of upstream's metrics.

    Says how many were discarded, too. without_op: decisions that the log shows without an op,
    which a Java broker would ask about again.

    \b
    Examples:
      pystore tx stats STORE --json
      pystore tx stats STORE --broker 127.0.0.1:10911
    """
    with s.reader() as reader:
        found = find_pending(reader)
        sums: dict[tuple[str, str], tuple[int, int, int]] = {}
        for half in found.rows.values():
            count, oldest, checks = sums.get((half.topic, half.group), (0, half.store_ms, 0))
            sums[half.topic, half.group] = (
                count + 1, min(oldest, half.store_ms), max(checks, half.checks),
            )  # fmt: skip
        discarded = sum(q.max_offset - q.min_offset for q in reader.queues(DISCARD_TOPIC))
        s.out.facts(
            "transactions",
            {"open": len(found.rows), "halves": found.half_next, "ops": found.op_next,
             "given_up": discarded, "without_op": len(found.owed)},
        )  # fmt: skip
        s.out.table(
            "by topic",
            ("topic", "group", "open", "oldest", "most checks"),
            [
                (t, g, n, When(oldest), checks)
                for (t, g), (n, oldest, checks) in sorted(sums.items())
            ],
        )
        if broker is not None:
            table = json.loads(_ask(broker, 28, {"metrics": "transactions"}))["table"]
            s.out.facts("since the broker's start", table)
        return 0


# ---- changing ----


def commit(
    s: Session, offset: _Offset, broker: _Broker = None, dry_run: DryRun = False
) -> int | None:
    """Commit one open transaction by hand: deliver its message.

    Refused while a broker holds the store, unless the broker is asked.

    \b
    Examples:
      pystore tx commit STORE 17 --dry-run
      pystore tx commit STORE 17 --broker 127.0.0.1:10911
    """
    return _decide(s, offset, Decision.COMMIT, broker, dry_run)


def rollback(
    s: Session, offset: _Offset, broker: _Broker = None, dry_run: DryRun = False
) -> int | None:
    """Roll back one open transaction by hand: discard its message.

    Refused while a broker holds the store, unless the broker is asked.

    \b
    Examples:
      pystore tx rollback STORE 17
    """
    return _decide(s, offset, Decision.ROLLBACK, broker, dry_run)


def _decide(
    s: Session, offset: int, decision: Decision, broker: str | None, dry_run: bool
) -> int | None:
    if broker is None:
        s.check_free()
    with s.reader() as reader:
        half = _found(reader, offset)
        message = _message(reader, half)
    plan = {"decision": decision.name} | _record(half, message)
    if dry_run:
        s.out.plan(plan)
        return 0
    if broker is not None:
        ext = {
            "producerGroup": half.group, "tranStateTableOffset": half.offset,
            "commitLogOffset": half.physical, "commitOrRollback": int(decision),
            # The answer to a check is never too late.
            "fromTransactionCheck": True, "msgId": plan["uniq_key"] or "",
        }  # fmt: skip
        _ask(broker, 37, ext)
    else:
        with _open_transactions(s) as transactions:
            if transactions.halves.decide(half.offset, decision) is None:
                raise NotFound(f"no open transaction at {offset}", str(s.path))
    s.out.facts("decided", plan)
    return 0


def resume(
    s: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Offset message id shown by `tx ls --discarded`.")
    ],
    broker: _Broker = None,
    dry_run: DryRun = False,
) -> int | None:
    """Check a discarded transaction again, starting from zero checks.

    ID is the offset message id that tx ls --discarded shows.

    \b
    Examples:
      pystore tx resume STORE 7F00000100002A9F0000000000001C20 --broker 127.0.0.1:10911
    """
    if broker is None:
        s.check_free()
    with s.reader() as reader:
        message = reader.message_by_id(message_id)
        if message.topic not in (DISCARD_TOPIC, HALF_TOPIC):
            raise usage(
                f"message {message_id} was not discarded: it is in {message.topic}",
                "list discarded transactions with `pystore tx ls STORE --discarded`",
            )
        plan = message_record(message)
    if dry_run:
        s.out.plan(plan)
        return 0
    if broker is not None:
        _ask(broker, 323, {"msgId": message_id})
    else:
        with _open_transactions(s) as transactions:
            if transactions.resume(transactions.store.message_by_id(message_id)) is None:
                raise NotFound("the transaction is no longer open", str(s.path))
    s.out.facts("resumed", plan)
    return 0


def _ask(broker: str, code: int, ext: dict[str, object]) -> bytes:
    return ask(broker, code, ext, next_step="see `pystore tx show`")


def _open_transactions(s: Session) -> Any:
    """Opens the transactions of a store that nobody holds, as a broker would have them."""
    from broker.services.transaction.offline import open_transactions

    return open_transactions(s.writer())
