"""``pystore admin message`` and ``dlq``: messages found, dead letters listed and redriven."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.admin_verbs import Group, Topic, admin_verb, ms_of
from broker.cli.clients import DryRun, message_facts, message_line
from pystore.cli.verbs import Session, When, shown, usage
from pystore.errors import NotFound
from pystore.format.names import TRACE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.client.admin import Admin
    from broker.client.message import ReceivedMessage

__all__ = ["dlq_get", "dlq_list", "dlq_redrive", "message_find", "message_get", "message_trace"]

_From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Stored then or later: ms, ISO 8601, 2h ago as 2h."
    ),
]
_To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored then or earlier.")]
_Max = Annotated[int, typer.Option("--max", min=0, help="Show at most so many; 0: all.")]
_Key = Annotated[str | None, typer.Option("--key", help="Only those with this key.")]
_Tag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
_Grep = Annotated[
    str | None, typer.Option("--grep", metavar="REGEX", help="Only bodies where this is found.")
]


def _whole(message: ReceivedMessage) -> dict[str, object]:
    """Returns all of a message, with what the protocol adds."""
    return {
        **message_facts(message),
        "offset_msg_id": message.offset_message_id,
        "physical_offset": message.physical_offset,
        "stored_ts": When(message.store_timestamp),
        "all_properties": dict(message.properties),
    }


def _show_whole(s: Session, message: ReceivedMessage) -> None:
    facts = _whole(message)
    if s.out.json:
        s.out.record(facts, str)
    else:
        s.out.facts("message", facts)


@admin_verb
def message_get(
    s: Session,
    admin: Admin,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Offset id, or a client's id.")],
    topic: Annotated[str | None, typer.Option(help="Needed for a client's id.")] = None,
) -> int | None:
    """Show one message by its id, whole. Exit code 1: there is none.

    \b
    Examples:
      pystore admin message get 7F0000010000C8AF7B1C5A3D0A5C0000 --topic orders -n 127.0.0.1:9876
      pystore admin message get 7F00000100002A9F00000000000003E8 -b 127.0.0.1:10911 --json
    """
    found = admin.message(id_, topic)
    if found is None:
        raise NotFound(f"there is no message {shown(id_)}")
    _show_whole(s, found)
    return 0


@admin_verb
def message_find(
    s: Session,
    admin: Admin,
    topic: Topic,
    key: _Key = None,
    tag: _Tag = None,
    grep: _Grep = None,
    from_: _From = None,
    to: _To = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.")] = None,
    max_: _Max = 100,
) -> int | None:
    """Find messages of a topic by key, or by the time at which they were stored.

    With --key the index answers, with at most 64 messages of each broker; else queues are read, one
    after the other. Exit code 1: there is none.

    \b
    Examples:
      pystore admin message find orders --key order-17 -n 127.0.0.1:9876
      pystore admin message find orders --from 2h --tag paid --grep apples -b 127.0.0.1:10911
    """
    begin, end = ms_of(from_, "--from", 0), ms_of(to, "--to")
    wanted = _filter(None, tag, grep)
    messages: Iterable[ReceivedMessage]
    if key is not None:
        found = admin.messages_by_key(topic, key, begin_ms=begin, end_ms=end, most=64)
        messages = [m for m in found if key in m.keys or m.message_id == key]
    else:
        messages = admin.messages(topic, begin_ms=begin, end_ms=end, queue=queue)
    return _list(s, filter(wanted, messages), max_, message_line)


def _list(
    s: Session, messages: Iterable[ReceivedMessage], most: int,
    line: Callable[[ReceivedMessage], str],
) -> int:  # fmt: skip
    """Shows messages. most: 0: all of them. Returns the exit code."""
    count = 0
    for message in messages:
        s.out.record(_whole(message), partial(line, message))
        count += 1
        if count == most:
            s.out.note(f"the first {count}; --max shows more")
            break
    return 0 if count else 1


def _filter(
    key: str | None, tag: str | None, grep: str | None
) -> Callable[[ReceivedMessage], bool]:
    """Makes the filter of messages. Raises: BadArgument."""
    try:
        pattern = re.compile(grep.encode()) if grep is not None else None
    except re.error as bad:
        raise usage(f"--grep '{grep}' is not a regular expression: {bad}", "see --help") from None

    def wanted(message: ReceivedMessage) -> bool:
        return (
            (key is None or key in message.keys)
            and (tag is None or message.tags == tag)
            and (pattern is None or pattern.search(message.body) is not None)
        )

    return wanted


@admin_verb
def message_trace(
    s: Session,
    admin: Admin,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The client's id of a message.")],
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Where clients write it.")
    ] = TRACE_TOPIC,
) -> int | None:
    """Show the way of a message, as its producer and consumers trace it.

    Clients write it when they are told to: trace=True in Python, enableMsgTrace in Java. Exit code
    1: nobody has.

    \b
    Examples:
      pystore admin message trace 7F0000010000C8AF7B1C5A3D0A5C0000 -n 127.0.0.1:9876
    """
    from broker.client.errors import NoRoute

    try:
        steps = admin.trace(id_, trace_topic=trace_topic)
    except NoRoute:
        error = NotFound(f"nobody has traced anything: no broker has the topic {trace_topic}")
        error.next_step = (
            "have clients trace (trace=True, enableMsgTrace), and brokers take it:"
            " traceTopicEnable=true"
        )
        raise error from None
    s.out.table(
        "trace",
        ("when", "step", "group", "host", "cost ms", "ok", "attempt"),
        [
            (
                When(step.when_ms), step.kind, step.group, step.host or None, step.cost_ms, step.ok,
                step.attempt or None,
            )
            for step in steps
        ],
    )  # fmt: skip
    return 0 if steps else 1


# ---- dead letters ----


@admin_verb
def dlq_list(
    s: Session,
    admin: Admin,
    group: Group,
    key: _Key = None,
    tag: _Tag = None,
    grep: _Grep = None,
    from_: _From = None,
    to: _To = None,
    max_: _Max = 100,
) -> int | None:
    """List the dead letters of a group. Exit code 1: there is none.

    \b
    Examples:
      pystore admin dlq list billing -n 127.0.0.1:9876
      pystore admin dlq list billing --from 1d --json | jq -r .all_properties.RETRY_TOPIC
    """
    begin, end = ms_of(from_, "--from", 0), ms_of(to, "--to")
    letters = admin.dead_letters(group, begin_ms=begin, end_ms=end)
    return _list(s, filter(_filter(key, tag, grep), letters), max_, _letter_line)


def _letter_line(letter: ReceivedMessage) -> str:
    origin = letter.properties.get("RETRY_TOPIC", "-")
    return shown(f"{letter.offset_message_id}  {origin}  ") + message_line(letter)


@admin_verb
def dlq_get(
    s: Session,
    admin: Admin,
    group: Group,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Shown first by `dlq list`.")],
) -> int | None:
    """Show one dead letter, whole. Exit code 1: there is none.

    \b
    Examples:
      pystore admin dlq get billing 7F00000100002A9F00000000000003E8 -n 127.0.0.1:9876
    """
    for letter in admin.dead_letters(group):
        if id_.upper() in (letter.offset_message_id, letter.message_id.upper()):
            _show_whole(s, letter)
            return 0
    raise NotFound(f"{group} has no dead letter {shown(id_)}")


@admin_verb
def dlq_redrive(
    s: Session,
    admin: Admin,
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TARGET",
            help="retry: this group alone; topic: where each came from, all groups; or a topic.",
        ),
    ] = "retry",
    key: _Key = None,
    tag: _Tag = None,
    grep: _Grep = None,
    from_: _From = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stored then or earlier.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: no bound.")] = 0,
    max_: Annotated[int, typer.Option("--max", min=0, help="Send at most so many; 0: all.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Also those that were redriven before.")
    ] = False,
    dry_run: DryRun = False,
) -> int | None:  # fmt: skip
    """Send the dead letters of a group again. They stay where they are.

    Each redriven message names its dead letter (property REDRIVEN_FROM), and one that is found in
    the target is not sent again: so a run that was interrupted can be repeated. What was sent
    before is listed. Consumers in order take nothing from retries: use --to topic for them. Exit
    code 1: there was no dead letter to send.

    \b
    Examples:
      pystore admin dlq redrive billing -n 127.0.0.1:9876 --dry-run
      pystore admin dlq redrive billing --tag paid --from 1d --rate 200 -n 127.0.0.1:9876
      pystore admin dlq redrive billing --to topic --max 1 -b 127.0.0.1:10911 --json
    """
    bar = s.progress("redriving", "messages")
    seen = 0

    def told(letter: ReceivedMessage, outcome: str) -> None:
        nonlocal seen
        seen += 1
        bar.update(seen, 0)
        if outcome != "sent":
            facts = {"outcome": outcome, "id": letter.offset_message_id, **message_facts(letter)}
            s.out.record(facts, lambda: f"{outcome}  {message_line(letter)}")

    with bar:
        report = admin.redrive(
            group, to=to, wanted=_filter(key, tag, grep), begin_ms=ms_of(from_, "--from", 0),
            end_ms=ms_of(until, "--until"), most=max_, rate=rate, dry_run=dry_run, again=again,
            told=told,
        )  # fmt: skip
    facts = {
        "group": group, "to": report.target or "the topic of each", "dead letters": report.seen,
        "chosen": report.chosen, "sent": report.taken, "sent before": report.already,
    }  # fmt: skip
    s.out.facts("plan" if dry_run else "redriven", facts)
    return 0 if report.chosen else 1
