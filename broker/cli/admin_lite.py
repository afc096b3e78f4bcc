"""``pystore admin lite``: lite topics of running brokers, as mqadmin's sub-commands of 5.5.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.admin_verbs import Group, Topic, admin_verb
from pystore.cli.verbs import Session, When

if TYPE_CHECKING:
    from broker.client.admin import Admin, LiteGroupFacts

__all__ = ["broker", "client", "dispatch", "group", "parent", "topic"]

_Lite = Annotated[str, typer.Argument(metavar="LITE_TOPIC", help="Name of a lite topic.")]


def _when(ms: int) -> When | None:
    return When(ms) if ms > 0 else None


@admin_verb
def broker(s: Session, admin: Admin) -> int | None:
    """Show how many lite topics brokers have, their topics, and the groups bound to these.

    \b
    Examples:
      pystore admin lite broker -n 127.0.0.1:9876
      pystore admin lite broker -b 127.0.0.1:10911 --json
    """
    found = admin.lite_brokers()
    s.out.table(
        "brokers",
        (
            "broker", "store", "lite topics", "limit", "subscriptions", "batches out", "offsets",
            "clients with events",
        ),
        [
            (
                each.address, each.store, each.topics,
                each.topics_max if each.topics_max >= 0 else None, each.subscriptions,
                each.batches, each.offsets, each.waiting,
            )
            for each in found
        ],
    )  # fmt: skip
    s.out.table(
        "topics",
        ("broker", "topic", "minutes", "groups"),
        [
            (each.address, name, ttl if ttl > 0 else None, list(each.groups.get(name, ())))
            for each in found
            for name, ttl in sorted(each.ttl_minutes.items())
        ],
    )
    return 0


@admin_verb
def parent(s: Session, admin: Admin, topic: Topic) -> int | None:
    """Show a topic of type LITE: its lite topics, when they expire, the groups bound to it.

    \b
    Examples:
      pystore admin lite parent sessions -n 127.0.0.1:9876
    """
    s.out.table(
        "brokers",
        ("broker", "minutes", "lite topics", "of all topics", "groups"),
        [
            (
                each.address, each.ttl_minutes if each.ttl_minutes > 0 else None,
                each.lite_topics, each.all_lite_topics, list(each.groups),
            )
            for each in admin.lite_parent(topic)
        ],
    )  # fmt: skip
    return 0


@admin_verb
def topic(s: Session, admin: Admin, topic: Topic, lite_topic: _Lite) -> int | None:
    """Show a lite topic: its messages, and who subscribes to it. Exit code 1: no broker has it.

    \b
    Examples:
      pystore admin lite topic sessions session-42 -n 127.0.0.1:9876
    """
    found = admin.lite_topic(topic, lite_topic)
    s.out.table(
        "brokers",
        ("broker", "min offset", "max offset", "messages", "last stored", "new ones come here"),
        [
            (
                each.address, each.min_offset, each.max_offset,
                each.max_offset - each.min_offset, _when(each.last_ms), each.is_here,
            )
            for each in found
        ],
    )  # fmt: skip
    s.out.table(
        "subscribers",
        ("broker", "group", "client"),
        [(each.address, *who) for each in found for who in each.subscribers],
    )
    return 0 if any(each.max_offset > 0 for each in found) else 1


@admin_verb
def client(
    s: Session,
    admin: Admin,
    topic: Topic,
    group: Group,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Id of a client.")],
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Names to show at most.")] = 1000,
) -> int | None:
    """Show what a client of lite topics subscribes to. Exit code 1: no broker knows it.

    \b
    Examples:
      pystore admin lite client sessions agents 10.0.0.7@4711 -n 127.0.0.1:9876
    """
    found = admin.lite_client(topic, group, client_id, most=most)
    s.out.table(
        "brokers",
        ("broker", "lite topics", "last pop"),
        [
            (each.address, each.count if each.count >= 0 else None, _when(each.polled_ms))
            for each in found
        ],
    )
    s.out.table(
        "subscribed",
        ("broker", "lite topic"),
        [(each.address, name) for each in found for name in each.lite_topics],
    )
    return 0 if any(each.count >= 0 for each in found) else 1


@admin_verb
def group(
    s: Session,
    admin: Admin,
    topic: Topic,
    group: Group,
    lite_topic: Annotated[
        str | None, typer.Option("--lite-topic", "-l", help="Only this lite topic.")
    ] = None,
    most: Annotated[
        int, typer.Option("--top", "-k", min=1, max=10_000, help="Lite topics to show at most.")
    ] = 20,
) -> int | None:
    """Show how far a group is behind, and in which lite topics most.

    \b
    Examples:
      pystore admin lite group sessions agents -n 127.0.0.1:9876
      pystore admin lite group sessions agents -l session-42 -n 127.0.0.1:9876 --json
    """
    found = admin.lite_group(topic, group, lite_topic, most=most)
    s.out.table(
        "brokers",
        ("broker", "behind", "since", "offset", "end"),
        [
            (
                each.address, each.behind if each.behind >= 0 else None, _when(each.since_ms),
                each.committed, each.end,
            )
            for each in found
        ],
    )  # fmt: skip
    if lite_topic is None:
        _tops(s, found)
    return 0


def _tops(s: Session, found: list[LiteGroupFacts]) -> None:
    for name, rows in (
        ("most", [(each, row) for each in found for row in each.most]),
        ("oldest", [(each, row) for each in found for row in each.oldest]),
    ):
        s.out.table(
            name,
            ("broker", "lite topic", "behind", "since"),
            [(each.address, row.lite_topic, row.behind, _when(row.since_ms)) for each, row in rows],
        )


@admin_verb
def dispatch(
    s: Session,
    admin: Admin,
    topic: Topic,
    group: Group,
    client_id: Annotated[str | None, typer.Option("--client", help="Only for this client.")] = None,
) -> int | None:
    """Have brokers look at once for lite topics in which a group has something to read.

    For brokers of Apache, which may lose an event; ours look by themselves.

    \b
    Examples:
      pystore admin lite dispatch sessions agents -n 127.0.0.1:9876
    """
    where = admin.lite_dispatch(topic, group, client_id)
    s.out.facts("dispatched", {"group": group, "client": client_id, "brokers": where})
    return 0
