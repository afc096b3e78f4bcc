"""``pystore timers``: messages that wait for their time, in a store or at a broker.

Reading verbs open the store without a lock. The others write to the store while no broker holds it,
or ask the broker that does (``--broker``).
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import UNITS_S, DryRun, delay_of
from broker.cli.inquirer import ask
from pystore import Reader
from pystore.cli.verbs import (
    Session,
    When,
    iso,
    message_lines,
    message_record,
    parse_time,
    usage,
)
from pystore.errors import NotFound
from pystore.format.names import TEMPLATE_TOPIC
from pystore.store.timer_edit import Editor, TimerMessage, count_of, find_timer, plain_properties
from pystore.store.timers import RecallHandle, Timer, Timers, slot_of

if TYPE_CHECKING:
    from pystore import Message

__all__ = ["cancel", "get", "ls", "reschedule", "stats"]

_FOREVER = (1 << 63) - 1
#: Upstream's bounds of rocketmq_timer_message_snapshot, seconds, and longer ones.
_BOUNDS_S = (5, 60, 300, 900, 3600, 14400, 28800, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
_BAR = 40

_Id = Annotated[
    str, typer.Argument(metavar="ID", help="Offset shown by `timers ls`, or a recall handle.")
]
_Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="HOST:PORT", help="Ask this broker, which has the store open."
    ),
]


@contextmanager
def _read(s: Session) -> Iterator[tuple[Reader, Timers]]:
    with s.reader() as reader, closing(Timers(reader)) as timers:
        yield reader, timers


def _now() -> int:
    return time.time_ns() // 1_000_000


def _record(timer: Timer, message: Message | None) -> dict[str, Any]:
    properties = message.properties if message is not None else {}
    return {
        "offset": timer.offset,
        "physical_offset": timer.physical if message is not None else None,
        "due": timer.due_ms,
        "due_iso": iso(timer.due_ms),
        "in_s": round((timer.due_ms - _now()) / 1000, 3),
        "timer_out_ms": timer.out_ms,
        "topic": properties.get("REAL_TOPIC"),
        "queue": properties.get("REAL_QID"),
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
        "rolls": count_of(properties.get("TIMER_ROLL_TIMES")),
        "store_timestamp": message.store_timestamp if message is not None else None,
    }


def _message(reader: Reader, timer: Timer) -> Message | None:
    if timer.physical < 0:
        return None
    try:
        return reader.message(timer.physical)
    except NotFound:
        return None


def _ahead(seconds: float) -> str:
    """Returns a text such as ``in 2 d 3 h``, of the two largest units."""
    parts: list[str] = []
    left = abs(seconds)
    for name, unit in reversed(UNITS_S.items()):
        if left >= unit or (name == "s" and not parts):
            parts.append(f"{left / unit:.1f} s" if name == "s" else f"{int(left // unit)} {name}")
            left %= unit
    text = " ".join(parts[:2])
    return f"in {text}" if seconds >= 0 else f"{text} late"


def _line(timer: Timer, message: Message | None) -> str:
    at = f"{timer.offset:>10}  {iso(timer.due_ms)}  {_ahead((timer.due_ms - _now()) / 1000):>14}"
    if message is None:
        return f"{at}  (the record is gone)"
    said = message.properties
    return f"{at}  {said.get('REAL_TOPIC')}  {said.get('KEYS', '-')}  {said.get('UNIQ_KEY', '-')}"


def ls(
    s: Session,
    topic: Annotated[str | None, typer.Option(help="Only those that go to this topic.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Due at this time or later.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Due at this time or earlier.")
    ] = None,
    max_: Annotated[
        int, typer.Option("--max", min=0, help="Show at most this many, first due first; 0: all.")
    ] = 100,
) -> int | None:
    """List messages that wait for their time, the first due first.

    The store may be in use: what was sent or delivered meanwhile shows at the next call.
    TIME is milliseconds since 1970, ISO 8601 (default zone UTC), or ahead of now, as +90s or +2h.

    Shows the offset in the queue of rmq_sys_wheel_timer, time, how far ahead, topic, keys and
    UNIQ_KEY. Read without a lock, from the saved set and the end of the log, or from the log
    alone for a store of Java's. JSON: a line each. Exit code 1: none waits. See
    docs/internals/timers.md.

    \b
    Examples:
      pystore timers ls STORE
      pystore timers ls STORE --topic reminders --to +1d
      pystore timers ls STORE --from 2027-01-01 --max 0 --json
    """
    low = 0 if from_ is None else _moment(from_, "--from") - 1
    high = _FOREVER if to is None else _moment(to, "--to")
    shown = 0
    with _read(s) as (reader, timers):
        for timer in timers.each(low, high):
            message = _message(reader, timer)
            if topic is not None and (
                message is None or message.properties.get("REAL_TOPIC") != topic
            ):
                continue
            if max_ and shown == max_:
                s.out.note(f"more than {max_} wait; --max 0 shows all")
                break
            shown += 1
            record = _record(timer, message) if s.out.json else {}
            s.out.record(record, lambda t=timer, m=message: _line(t, m))  # type: ignore[misc]
        else:
            s.out.note(f"{shown} timer{'s' * (shown != 1)}")
    return 0 if shown else 1


def _moment(text: str, name: str) -> int:
    """Reads a moment. Raises: BadArgument."""
    ahead = delay_of(text, name) if text.startswith("+") else None
    if isinstance(ahead, timedelta):
        return _now() + ahead // timedelta(milliseconds=1)
    return parse_time(text, name)


# ---- stats ----


def stats(s: Session, broker: _Broker = None) -> int | None:
    """Count messages that wait by topic and by how far ahead they are.

    With --broker also what it has delivered since its start, under the names of upstream's metrics.

    Says how many are overdue, too, and shows a histogram of how far ahead they are.

    \b
    Examples:
      pystore timers stats STORE
      pystore timers stats STORE --broker 127.0.0.1:10911 --json
    """
    with _read(s) as (reader, timers):
        now = _now()
        topics: Counter[str] = Counter()
        first: dict[str, int] = {}
        last = -1
        with s.progress("counting", "timers") as bar:
            for n, timer in enumerate(timers.each()):
                message = _message(reader, timer)
                name = message.properties.get("REAL_TOPIC", "") if message is not None else ""
                topics[name] += 1
                first.setdefault(name, timer.due_ms)
                last = timer.due_ms
                bar.update(n + 1, 0)
        s.out.facts(
            "timers",
            {
                "pending": sum(topics.values()),
                "overdue": timers.count(0, now),
                "first": When(min(first.values(), default=-1)),
                "last": When(last),
            },
        )
        _histogram(s, [*_due_counts(timers, now)])
        s.out.table(
            "by topic",
            ("topic", "pending", "first"),
            [(name or "(unreadable)", n, When(first[name])) for name, n in topics.most_common()],
        )
        if broker is not None:
            table = json.loads(_ask(broker, 28, {"metrics": "timers"}))["table"]
            s.out.facts("since the broker's start", table)
    return 0


def _due_counts(timers: Timers, now: int) -> Iterator[tuple[str, int]]:
    yield "overdue", timers.count(0, now)
    for low, high in pairwise((0, *_BOUNDS_S)):
        yield _within(high), timers.count(now + low * 1000, now + high * 1000)
    yield "later", timers.count(now + _BOUNDS_S[-1] * 1000)


def _within(seconds: int) -> str:
    for name, unit in reversed(UNITS_S.items()):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _histogram(s: Session, counts: list[tuple[str, int]]) -> None:
    """Prints bars beside the numbers, for people."""
    if s.out.json:
        s.out.table("due within", ("within", "timers"), counts)
        return
    most = max(n for _, n in counts) or 1
    s.out.table(
        "due within",
        ("within", "timers", ""),
        [(name, n, "#" * -(-n * _BAR // most)) for name, n in counts],
    )


# ---- one ----


def _offset_of(timers: Timers, text: str) -> int:
    """Reads an offset or a recall handle. Raises: BadArgument for what is neither an offset nor a
    handle; NotFound."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    handle = RecallHandle.parse(text)
    timer = timers.find(handle.topic, handle.key, handle.out_ms)
    if timer is None:
        raise _missing(text)
    return timer.offset


def _missing(text: str) -> NotFound:
    error = NotFound(f"no timer waits at {text}: it was delivered, recalled or never there")
    error.next_step = "list those that wait with `pystore timers ls`"
    return error


def _found(store: Any, timers: Timers, text: str) -> TimerMessage:
    found = find_timer(store, timers, _offset_of(timers, text))
    if found is None:
        raise _missing(text)
    return found


def get(s: Session, id_: _Id) -> int | None:
    """Show one message that waits, with its properties and body.

    ID is the offset that timers ls shows, or a recall handle.

    \b
    Examples:
      pystore timers get STORE 17
    """
    with _read(s) as (reader, timers):
        found = _found(reader, timers, id_)
        facts = _record(found.timer, found.message)
        del facts["due_iso"]
        facts["due"] = When(found.timer.due_ms)
        facts["store_timestamp"] = When(found.message.store_timestamp)
        s.out.facts("timer", facts)
        s.out.facts("properties", found.message.properties)
        s.out.record(message_record(found.message), lambda: message_lines(found.message))
    return 0


# ---- changing ----


def cancel(s: Session, id_: _Id, broker: _Broker = None, dry_run: DryRun = False) -> int | None:
    """Cancel a message that waits: it is not delivered.

    With --broker it is a recall, which the broker must allow (recallMessageEnable=true).

    It is not delivered even if its time passed while the store was stopped. Refused while a
    broker holds the store, unless the broker is asked. A message without UNIQ_KEY cannot be
    recalled, and says so.

    \b
    Examples:
      pystore timers cancel STORE 17 --dry-run
      pystore timers cancel STORE 17 --broker 127.0.0.1:10911
    """
    if broker is None:
        s.check_free()
    with _read(s) as (reader, timers):
        found = _found(reader, timers, id_)
        plan = {"change": "cancel"} | _record(found.timer, found.message)
        if dry_run:
            s.out.plan(plan)
            return 0
        if broker is not None:
            _recall(broker, found)
    if broker is None:
        with s.writer() as store, Editor.on(store) as editor:
            editor.cancel(_found(store, editor.timers, str(found.timer.offset)))
    s.out.facts("cancelled", plan)
    return 0


def reschedule(
    s: Session,
    id_: _Id,
    when: Annotated[
        str,
        typer.Argument(metavar="TIME", help="ms since 1970, ISO 8601, or from now: +90s, +2h."),
    ],
    broker: _Broker = None,
    dry_run: DryRun = False,
) -> int | None:
    """Deliver a message that waits at another time: it is stored again, then cancelled.

    A crash in between leaves both times, never none. The horizon is timerMaxDelaySec of the broker,
    or of --set and --conf.

    TIME is as for timers ls; it has to be ahead.

    \b
    Examples:
      pystore timers reschedule STORE 17 +2h
      pystore timers reschedule STORE 17 2027-01-01T08:00:00+01:00 --broker 127.0.0.1:10911
    """
    due = _moment(when, "TIME")
    if due <= _now():
        raise usage(f"TIME '{when}' has passed", "name a time ahead, for example +60s")
    if broker is None:
        s.check_free()
    with _read(s) as (reader, timers):
        found = _found(reader, timers, id_)
        plan = {"change": "reschedule", "to": When(due)} | _record(found.timer, found.message)
        if dry_run:
            s.out.plan(plan)
            return 0
        if broker is not None:
            _send_again(s, broker, found, due)
    if broker is None:
        with s.writer() as store, Editor.on(store) as editor:
            editor.reschedule(_found(store, editor.timers, str(found.timer.offset)), due)
    s.out.facts("rescheduled", plan)
    return 0


def _send_again(s: Session, broker: str, found: TimerMessage, due: int) -> None:
    """Sends a timer again. Raises: BadArgument for a time in the same slot, where the broker cannot
    tell the two."""
    if slot_of(due, s.settings()["timerPrecisionMs"]) == found.timer.out_ms:
        raise usage(
            "a running broker cannot tell the two apart: both are due in the same second",
            "choose a time in another second, or stop the broker",
        )
    from pystore.format.properties import encode_properties

    m = found.message
    properties = plain_properties(m) | {"TIMER_DELIVER_MS": str(due)}
    ext = {
        "a": properties.get("PGROUP", "pystore-timers"), "b": found.topic,
        "c": TEMPLATE_TOPIC, "d": 4, "e": found.queue, "f": m.sys_flag, "g": m.born_timestamp,
        "h": m.flag, "i": encode_properties(properties).decode(), "j": m.reconsume_times,
        "k": "false", "m": "false",
    }  # fmt: skip
    _ask(broker, 310, ext, bytes(m.raw_body))
    _recall(broker, found)


def _recall(broker: str, found: TimerMessage) -> None:
    config = _ask(broker, 26, {}).decode().splitlines()
    name = next((x.partition("=")[2] for x in config if x.startswith("brokerName=")), "")
    handle = RecallHandle(found.topic, name, found.timer.out_ms, found.key)
    _ask(broker, 370, {"topic": found.topic, "recallHandle": handle.text})


def _ask(broker: str, code: int, ext: dict[str, object], body: bytes = b"") -> bytes:
    step = "see `pystore timers ls`; recalls need recallMessageEnable=true at the broker"
    return ask(broker, code, ext, body, next_step=step)
