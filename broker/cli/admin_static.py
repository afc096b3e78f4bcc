"""``pystore admin static``: topics whose logical queues may move from broker to broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.admin_verbs import Topic, admin_verb
from broker.cli.clients import DryRun
from pystore.cli.verbs import Session

if TYPE_CHECKING:
    from broker.client.admin import Admin, StaticTopicFacts

__all__ = ["create", "remap", "show"]

_To = Annotated[
    list[str] | None,
    typer.Option(
        "--to", metavar="BROKER", show_default=False,
        help="Name of a broker that leads queues; may be repeated. Default: all.",
    ),
]  # fmt: skip


def _tell(s: Session, facts: StaticTopicFacts, dry_run: bool) -> None:
    said = {
        "topic": facts.name, "queues": facts.total, "epoch": facts.epoch,
        "moved": {str(queue): broker for queue, broker in facts.moved.items()},
    }  # fmt: skip
    if dry_run:
        s.out.plan(said)
        return
    s.out.facts("static topic", said)
    s.out.table(
        "parts",
        ("queue", "part", "broker", "its queue", "logical offset", "leads"),
        [
            (
                queue, part.generation, part.broker, part.queue,
                part.logical if part.is_decided else None, part is parts[-1],
            )
            for queue, parts in sorted(facts.queues.items())
            for part in parts
        ],
    )  # fmt: skip


@admin_verb
def show(s: Session, admin: Admin, topic: Topic) -> int | None:
    """Show a static topic: which queues of which brokers its logical queues consist of.

    \b
    Examples:
      pystore admin static show orders -n 127.0.0.1:9876
    """
    _tell(s, admin.static_topic(topic), dry_run=False)
    return 0


@admin_verb
def create(
    s: Session,
    admin: Admin,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    queues: Annotated[int, typer.Option(min=1, help="Logical queues, in all.")] = 8,
    to: _To = None,
    dry_run: DryRun = False,
) -> int | None:
    """Make a static topic, or give one that is there more queues; as updateStaticTopic.

    \b
    Examples:
      pystore admin static create orders --queues 16 -n 127.0.0.1:9876
      pystore admin static create orders --queues 32 --to broker-b -n 127.0.0.1:9876 --dry-run
    """
    made = admin.create_static_topic(topic, queues=queues, brokers=to or (), dry_run=dry_run)
    _tell(s, made, dry_run)
    return 0


@admin_verb
def remap(
    s: Session, admin: Admin, topic: Topic, to: _To = None, dry_run: DryRun = False
) -> int | None:
    """Give the queues of a static topic to other brokers; as remappingStaticTopic.

    What was sent stays where it is, and is consumed before what comes. A remapping that ended half
    way is brought to its end first.

    \b
    Examples:
      pystore admin static remap orders --to broker-b --to broker-c -n 127.0.0.1:9876
    """
    _tell(s, admin.remap_static_topic(topic, brokers=to or (), dry_run=dry_run), dry_run)
    return 0
