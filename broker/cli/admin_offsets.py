"""``pystore admin offset`` and ``client``: how far groups are, moving them, who is connected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.admin_verbs import Group, Topic, admin_verb, ms_of
from broker.cli.clients import DryRun
from pystore.cli.verbs import Session, When, usage

if TYPE_CHECKING:
    from broker.client.admin import Admin, OffsetMove, QueueLag
    from broker.client.admin.offsets import Target

__all__ = ["client_list", "lag", "lag_table", "reset", "show_members", "skip"]

_Queue = Annotated[int | None, typer.Option(min=0, help="Only this queue, on each broker.")]


def lag_table(s: Session, rows: Sequence[QueueLag]) -> None:
    """Shows how far a group is with each queue."""
    s.out.table(
        "lag",
        ("topic", "broker", "queue", "committed", "end", "behind", "in flight", "last consumed"),
        [
            (
                each.queue.topic, each.queue.broker, each.queue.queue, each.committed, each.end,
                each.behind, each.in_flight, When(each.last_ms) if each.last_ms else None,
            )
            for each in rows
        ],
    )  # fmt: skip


def show_members(s: Session, admin: Admin, group: str) -> bool:
    """Shows who consumes for a group; returns whether anybody does."""
    members = admin.members(group)
    if members is not None:
        kind = members.kind.removeprefix("CONSUME_").lower()
        facts = {"kind": kind, "model": members.model.lower(), **members.subscriptions}
        s.out.facts("subscriptions", facts)
    client_table(s, "consumers", members.clients if members is not None else ())
    return members is not None


def client_table(s: Session, name: str, clients: Sequence[object]) -> None:
    from dataclasses import astuple

    columns = ("client", "address", "language", "version")
    s.out.table(name, columns, [astuple(each) for each in clients])  # type: ignore[call-overload]


@admin_verb
def lag(
    s: Session,
    admin: Admin,
    group: Group,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
) -> int | None:
    """Show how far a group is with each queue. Exit code 1: it has consumed nothing yet.

    \b
    Examples:
      pystore admin offset lag billing -n 127.0.0.1:9876
      pystore admin offset lag billing --topic orders --json | jq '[.lag[].behind] | add'
    """
    rows = admin.lag(group, topic)
    s.out.facts("group", {"name": group, "behind": sum(each.behind for each in rows)})
    lag_table(s, rows)
    return 0 if rows else 1


@admin_verb
def reset(
    s: Session,
    admin: Admin,
    group: Group,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE",
            help="first, last, a time (ms since 1970, ISO 8601, or 2h for two hours ago).",
        ),
    ],
    queue: _Queue = None,
    dry_run: DryRun = False,
) -> int | None:  # fmt: skip
    """Move a group to another place of a topic.

    A time means the first message stored then or later. Brokers of 4.x tell connected consumers to
    go there; of a group without consumers the offsets are changed in any case.

    \b
    Examples:
      pystore admin offset reset billing orders --to 2h -n 127.0.0.1:9876 --dry-run
      pystore admin offset reset billing orders --to 2026-11-25T06:00:00Z -b 127.0.0.1:10911
      pystore admin offset reset billing orders --to first --queue 3 -b 127.0.0.1:10911
    """
    place: Target = "first" if to == "first" else "last" if to == "last" else ms_of(to, "--to")
    _show_moves(s, dry_run, admin.reset_offsets(group, topic, place, queue=queue, dry_run=dry_run))
    return 0


@admin_verb
def skip(
    s: Session,
    admin: Admin,
    group: Group,
    topic: Topic,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="So many messages of --queue. Default: all."),
    ] = None,
    queue: _Queue = None,
    dry_run: DryRun = False,
) -> int | None:
    """Skip what waits for a group: all of a topic, of a queue, or some messages of a queue.

    \b
    Examples:
      pystore admin offset skip billing orders -n 127.0.0.1:9876 --dry-run
      pystore admin offset skip billing orders --queue 2 --count 1 -b 127.0.0.1:10911
    """
    if count is None:
        moves = admin.reset_offsets(group, topic, "last", queue=queue, dry_run=dry_run)
    elif queue is None:
        raise usage("--count needs --queue", "name the queue whose message stands in the way")
    else:
        moves = [
            admin.seek(group, each.queue, min(each.end, each.committed + count), dry_run=dry_run)
            for each in admin.lag(group, topic)
            if each.queue.queue == queue and each.queue.topic == topic
        ]
    _show_moves(s, dry_run, moves)
    return 0 if moves else 1


def _show_moves(s: Session, dry_run: bool, moves: Sequence[OffsetMove]) -> None:
    s.out.table(
        "plan" if dry_run else "moved",
        ("topic", "broker", "queue", "before", "after"),
        [
            (each.queue.topic, each.queue.broker, each.queue.queue, each.before, each.after)
            for each in moves
        ],
    )


@admin_verb
def client_list(
    s: Session,
    admin: Admin,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Of consumers, or of producers.")],
) -> int | None:
    """List the consumers and producers of a group that are connected. Exit code 1: nobody is.

    \b
    Examples:
      pystore admin client list billing -n 127.0.0.1:9876
    """
    anybody = show_members(s, admin, group)
    producers = admin.producers(group)
    client_table(s, "producers", producers)
    return 0 if anybody or producers else 1
