"""``pystore admin``: brokers, settings, topics and groups of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.admin_offsets import lag_table, show_members
from broker.cli.admin_verbs import Group, Topic, admin_verb
from broker.cli.clients import DryRun
from pystore.cli.verbs import Session, Size, When, usage
from pystore.errors import NotFound
from pystore.format.names import is_internal_topic

if TYPE_CHECKING:
    from broker.client.admin import Admin, BrokerPlace
    from broker.client.errors import ClientError

__all__ = [
    "broker", "certificates", "cluster", "config_get", "config_set", "group_create",
    "group_delete", "group_list", "group_show", "topic_create", "topic_delete", "topic_list",
    "topic_show",
]  # fmt: skip

_Queues = Annotated[int, typer.Option(min=1, help="Queues on each broker.")]


# ---- brokers ----


@admin_verb
def cluster(s: Session, admin: Admin) -> int | None:
    """List the brokers with their rates, their log and their disk.

    A broker that does not answer is shown with the reason; the exit code is 6 then.

    \b
    Examples:
      pystore admin cluster -n 127.0.0.1:9876
      pystore admin cluster --json | jq '.brokers[] | select(.disk > 80)'
    """
    from broker.client.errors import ClientError

    rows, failed = [], False
    for place in admin.cluster():
        try:
            facts = admin.broker(place.address)
        except ClientError as silent:
            failed = True
            rows.append(_silent(place, silent))
            continue
        rows.append((
            place.cluster, place.name, place.id, place.address, facts.version,
            round(facts.put_rate, 1), round(facts.get_rate, 1), facts.puts, facts.gets,
            Size(facts.log_max - facts.log_min), round(facts.disk_used * 100), "",
        ))  # fmt: skip
    s.out.table(
        "brokers",
        (
            "cluster", "broker", "id", "address", "version", "puts a second", "gets a second",
            "puts today", "gets today", "log", "disk", "problem",
        ),
        rows,
    )  # fmt: skip
    return 6 if failed else 0


def _silent(place: BrokerPlace, why: ClientError) -> tuple[object, ...]:
    return (place.cluster, place.name, place.id, place.address, *[None] * 7, str(why))


@admin_verb
def broker(
    s: Session,
    admin: Admin,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[HOST:PORT]", show_default=False, help="Default: all masters."),
    ] = None,
) -> int | None:
    """Show everything that brokers say of themselves, under upstream's names.

    \b
    Examples:
      pystore admin broker -b 127.0.0.1:10911
      pystore admin broker 10.0.0.7:10911 -n 127.0.0.1:9876 --json
    """
    for place in admin.cluster() if address is None else [None]:
        facts = admin.broker(address if place is None else place.address)
        s.out.facts(facts.address, {"started": When(facts.started_ms), **facts.entries})
    return 0


@admin_verb
def config_get(
    s: Session,
    admin: Admin,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", show_default=False, help="Default: all settings."),
    ] = None,
) -> int | None:
    """Show settings of running brokers. Exit code 1: there is no such setting.

    \b
    Examples:
      pystore admin config get -b 127.0.0.1:10911
      pystore admin config get fileReservedTime deleteWhen -n 127.0.0.1:9876
    """
    missing = []
    for place in admin.cluster():
        found = admin.configuration(place.address)
        missing += [name for name in names or () if name not in found]
        chosen = names or sorted(found)
        s.out.facts(place.address, {name: found[name] for name in chosen if name in found})
    if missing:
        raise NotFound(f"no broker has the setting {missing[0]}")
    return 0


@admin_verb
def config_set(
    s: Session,
    admin: Admin,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings, and their new values.")
    ],
    dry_run: DryRun = False,
) -> int | None:
    """Change settings of running brokers, of all that are asked.

    A broker of this project refuses what it does not know, and what only a start applies.

    \b
    Examples:
      pystore admin config set fileReservedTime=48 -b 127.0.0.1:10911
      pystore admin config set slowLogMs=50 -n 127.0.0.1:9876 --cluster DefaultCluster --dry-run
    """
    wanted = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name.strip():
            raise usage(f"'{change}' is not NAME=VALUE", "for example: fileReservedTime=48")
        wanted[name.strip()] = value
    rows = []
    for place in admin.cluster():
        before = admin.configuration(place.address)
        if unknown := [name for name in wanted if name not in before]:
            error = NotFound(f"{place.address} has no setting {unknown[0]}")
            error.next_step = "see `pystore admin config get`"
            raise error
        if not dry_run:
            admin.configure(wanted, place.address)
        rows += [(place.address, name, before.get(name), wanted[name]) for name in wanted]
    s.out.table("plan" if dry_run else "settings", ("broker", "name", "before", "after"), rows)
    return 0


@admin_verb
def certificates(
    s: Session,
    admin: Admin,
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST:PORT]...", show_default=False,
            help="Default: all brokers and name servers.",
        ),
    ] = None,
) -> int | None:  # fmt: skip
    """Have servers read the files of their certificates again, as they do by themselves within
    seconds of a change; new connections get the new ones. A proxy is asked at its remoting port.

    Where the files cannot be used, the certificate of before stays, the reason is shown, and the
    exit code is 6. Brokers of Apache look at their files by themselves, and pass this over.

    \b
    Examples:
      pystore admin certificates -n 127.0.0.1:9876
      pystore admin certificates 10.0.0.8:8080 10.0.0.9:8080 -n 127.0.0.1:9876
    """
    from broker.client.errors import ClientError

    rows = []
    for address in servers or admin.servers():
        try:
            admin.renew_certificate(address)
            rows.append((address, ""))
        except ClientError as why:
            rows.append((address, str(why)))
    s.out.table("certificates", ("server", "problem"), rows)
    return 6 if any(problem for _, problem in rows) else 0


# ---- topics ----


@admin_verb
def topic_list(
    s: Session,
    admin: Admin,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="With those of the system, retries, dead letters.")
    ] = False,
) -> int | None:
    """List topics. Exit code 1: there is none.

    \b
    Examples:
      pystore admin topic list -n 127.0.0.1:9876
      pystore admin topic list -b 127.0.0.1:10911 --all --json
    """
    from broker.client.admin.facts import letters_of

    own = {name for place in admin.cluster() for name in (place.cluster, place.name)}
    found = [
        each
        for each in admin.topics()
        if all_ or not (each.name in own or is_internal_topic(each.name))
    ]
    s.out.table(
        "topics",
        ("topic", "read queues", "write queues", "perm", "ordered", "type"),
        [
            (
                each.name, each.read_queue_nums, each.write_queue_nums, letters_of(each.perm),
                each.order, each.attributes.get("message.type"),
            )
            for each in found
        ],
    )  # fmt: skip
    return 0 if found else 1


@admin_verb
def topic_show(s: Session, admin: Admin, topic: Topic) -> int | None:
    """Show a topic: how each broker has it, its queues, and the groups that consume it.

    \b
    Examples:
      pystore admin topic show orders -n 127.0.0.1:9876
    """
    from broker.client.admin.facts import letters_of

    found = admin.topic(topic)
    s.out.facts("topic", {"name": topic, "messages": found.messages})
    s.out.table(
        "brokers",
        ("broker", "read queues", "write queues", "perm", "ordered", "attributes"),
        [
            (
                name, each.read_queue_nums, each.write_queue_nums, letters_of(each.perm),
                each.order, dict(each.attributes),
            )
            for name, each in found.configs.items()
        ],
    )  # fmt: skip
    s.out.table(
        "queues",
        ("broker", "queue", "min offset", "max offset", "messages", "last stored"),
        [
            (
                each.queue.broker, each.queue.queue, each.min_offset, each.max_offset,
                each.max_offset - each.min_offset, When(each.last_ms) if each.last_ms else None,
            )
            for each in found.queues
        ],
    )  # fmt: skip
    s.out.table("groups", ("group",), [(group,) for group in admin.groups_of(topic)])
    return 0


@admin_verb
def topic_create(
    s: Session,
    admin: Admin,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    queues: _Queues = 8,
    perm: Annotated[str, typer.Option(help="What may be done: rw, r or w.")] = "rw",
    order: Annotated[bool, typer.Option("--order", help="Mark it as a topic in order.")] = False,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE",
            help="What RocketMQ 5's clients may send: NORMAL, FIFO, DELAY, TRANSACTION,"
            " PRIORITY, LITE.",
        ),
    ] = None,
    lite_minutes: Annotated[
        int | None,
        typer.Option(min=1, help="A lite topic ends so long after its last message."),
    ] = None,
    dry_run: DryRun = False,
) -> int | None:  # fmt: skip
    """Make a topic on every master, or change the one that is there.

    \b
    Examples:
      pystore admin topic create orders --queues 16 -n 127.0.0.1:9876
      pystore admin topic create payments --type FIFO -b 127.0.0.1:10911 --dry-run
      pystore admin topic create sessions --type LITE --lite-minutes 60 -n 127.0.0.1:9876
    """
    attributes = {"message.type": type_.upper()} if type_ else {}
    if lite_minutes is not None:
        attributes["lite.topic.expiration"] = str(lite_minutes)
    where = admin.create_topic(
        topic, queues=queues, perm=perm, order=order, attributes=attributes, dry_run=dry_run
    )
    facts = {"topic": topic, "queues": queues, "perm": perm, "brokers": where}
    s.out.facts("plan" if dry_run else "made", facts)
    return 0


@admin_verb
def topic_delete(s: Session, admin: Admin, topic: Topic, dry_run: DryRun = False) -> int | None:
    """Delete a topic with its messages, from brokers and name servers.

    \b
    Examples:
      pystore admin topic delete orders -n 127.0.0.1:9876 --dry-run
    """
    found = admin.topic(topic)
    where = admin.delete_topic(topic, dry_run=dry_run)
    facts = {"topic": topic, "messages": found.messages, "brokers": where}
    s.out.facts("plan" if dry_run else "deleted", facts)
    return 0


# ---- groups ----


@admin_verb
def group_list(
    s: Session,
    admin: Admin,
    all_: Annotated[bool, typer.Option("--all", "-a", help="With those of the system.")] = False,
) -> int | None:
    """List consumer groups with what waits for them. Exit code 1: there is none.

    \b
    Examples:
      pystore admin group list -n 127.0.0.1:9876
      pystore admin group list --json | jq -r '.groups[] | select(.behind > 1000) | .group'
    """
    from broker.services.names import is_system_group

    behind: dict[str, int] = {}
    for each in admin.all_lags():
        behind[each.group] = behind.get(each.group, 0) + each.behind
    found = [each for each in admin.groups() if all_ or not is_system_group(each.name)]
    s.out.table(
        "groups",
        ("group", "behind", "may consume", "retries", "ordered"),
        [
            (
                each.name, behind.get(each.name, 0), each.consume_enable, each.retry_max_times,
                each.consume_message_orderly,
            )
            for each in found
        ],
    )  # fmt: skip
    return 0 if found else 1


@admin_verb
def group_show(s: Session, admin: Admin, group: Group) -> int | None:
    """Show a group: its settings, who consumes for it, and how far it is with each queue.

    \b
    Examples:
      pystore admin group show billing -n 127.0.0.1:9876
    """
    config = next((each for each in admin.groups() if each.name == group), None)
    if config is None:
        raise NotFound(f"there is no group {group}")
    s.out.facts(
        "group",
        {
            "name": group, "may consume": config.consume_enable,
            "may broadcast": config.consume_broadcast_enable, "retries": config.retry_max_times,
            "retry queues": config.retry_queue_nums, "ordered": config.consume_message_orderly,
        },
    )  # fmt: skip
    show_members(s, admin, group)
    lag_table(s, admin.lag(group))
    return 0


@admin_verb
def group_create(
    s: Session,
    admin: Admin,
    group: Group,
    retries: Annotated[int, typer.Option(min=0, help="Until a message is a dead letter.")] = 16,
    enabled: Annotated[
        bool, typer.Option("--enable/--disable", help="It may consume, or not (disable).")
    ] = True,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="RocketMQ 5's consumers get messages in order.")
    ] = False,
    lite_of: Annotated[
        str | None, typer.Option("--lite-of", help="It reads the lite topics of this topic.")
    ] = None,
    dry_run: DryRun = False,
) -> int | None:
    """Make a consumer group on every master, or change the one that is there.

    \b
    Examples:
      pystore admin group create billing --retries 3 -n 127.0.0.1:9876
      pystore admin group create billing --disable -b 127.0.0.1:10911 --dry-run
      pystore admin group create agents --lite-of sessions -n 127.0.0.1:9876
    """
    where = admin.create_group(
        group, retries=retries, enabled=enabled, ordered=ordered, dry_run=dry_run,
        attributes={"lite.bind.topic": lite_of} if lite_of else None,
    )  # fmt: skip
    facts = {"group": group, "retries": retries, "may consume": enabled, "brokers": where}
    s.out.facts("plan" if dry_run else "made", facts)
    return 0


@admin_verb
def group_delete(
    s: Session,
    admin: Admin,
    group: Group,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Remember where the group was.")
    ] = False,
    dry_run: DryRun = False,
) -> int | None:
    """Delete a consumer group, and where it was. Its retries and dead letters stay,
    and how far it has read its retries.

    \b
    Examples:
      pystore admin group delete billing -n 127.0.0.1:9876 --dry-run
    """
    if all(each.name != group for each in admin.groups()):
        raise NotFound(f"there is no group {group}")
    where = admin.delete_group(group, offsets=not keep_offsets, dry_run=dry_run)
    s.out.facts("plan" if dry_run else "deleted", {"group": group, "brokers": where})
    return 0
