"""``pystore cold``: messages in cheap storage (docs/cold.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli._session import Session
from pystore.cli._values import Size, When, parse_time, usage
from pystore.cli.verbs import Verb
from pystore.store._reading import Reader

if TYPE_CHECKING:
    from pystore.cold.reader import ColdReader
    from pystore.cold.tier import Tier

__all__ = ["VERBS", "cold_of", "show_tier"]

#: Rows of a table that may be of a million queues.
_SHOWN = 10_000
_Address = Annotated[
    str,
    typer.Argument(metavar="TIER", help="Folder, or address such as s3://bucket/cold."),
]
_Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic. Repeatable.")]
_Cluster = Annotated[
    str | None, typer.Option(help="Name of the cluster. Default: brokerClusterName.")
]
_Broker = Annotated[str | None, typer.Option(help="Name of the broker. Default: brokerName.")]
_NewCluster = Annotated[
    str | None,
    typer.Option("--cluster", help="Name of the cluster in TARGET. Default: as in TIER."),
]
_NewBroker = Annotated[
    str | None, typer.Option("--broker", help="Name of the broker in TARGET. Default: as in TIER.")
]


def _names(s: Session, cluster: str | None, broker: str | None) -> tuple[str, str]:
    settings = s.settings()
    if broker is None:
        if "brokerName" not in settings.explicit:
            raise usage("the broker has no name", "pass --broker NAME, or --conf broker.conf")
        broker = str(settings["brokerName"])
    return cluster or str(settings["brokerClusterName"]), broker


def cold_of(reader: Reader) -> ColdReader | None:
    """Returns the reader as one of a tier; None of a store."""
    if not reader.is_cold:
        return None
    from pystore.cold.reader import ColdReader

    assert isinstance(reader, ColdReader)
    return reader


def _own(s: Session, address: str) -> Tier:
    """Opens a tier of ours. Raises: BadArgument for one that upstream has written."""
    from pystore.cold.tier import Tier, open_tier

    s.settings()  # so that wrong ones are refused
    tier = open_tier(address)
    if not isinstance(tier, Tier):
        raise usage(
            "RocketMQ wrote this tier, which has no manifests",
            "take it over: pystore cold fetch TIER TARGET",
        )
    return tier


def push(
    s: Session,
    address: Annotated[
        str,
        typer.Argument(metavar="TIER", help="Root of tiers: a folder, or s3://bucket/prefix."),
    ],
    topic: _Topics = None,
    cluster: _Cluster = None,
    broker: _Broker = None,
    segment: Annotated[
        int, typer.Option(min=1024, help="Bytes of records in one object, at most.")
    ] = 16 << 20,
) -> int | None:
    """Write out what a store has and its tier does not have yet.

    Takes no lock on the store, which may be a live broker's. Topics of the system stay at home, as
    RocketMQ's do. A run that is killed is run again: nothing comes twice.

    Exit code 1: there was nothing to write out.

    \b
    Examples:
      pystore cold push STORE s3://bucket/cold --broker broker-a
      pystore cold push STORE /mnt/cold --broker broker-a --topic orders
    """
    from pystore.cold.push import push as push_all
    from pystore.cold.tier import new_tier

    names = _names(s, cluster, broker)
    with s.reader() as reader, s.progress("writing out", "queues") as bar:
        tier = new_tier(address, *names)
        done = push_all(
            reader, tier, topics=topic or (), segment_bytes=segment,
            progress=lambda at, total: bar.update(at, total),
        )  # fmt: skip
    s.out.facts("pushed", {
        "tier": tier.objects.address, "queues": done.queues, "messages": done.messages,
        "bytes": Size(done.bytes), "objects": done.objects, "holes": done.holes,
    })  # fmt: skip
    return 0 if done.messages else 1


def ls(s: Session, address: _Address, topic: _Topics = None) -> int | None:
    """Show the brokers' tiers at an address, or the queues of one.

    \b
    Examples:
      pystore cold ls s3://bucket/cold
      pystore cold ls s3://bucket/cold/212d6b50_DefaultCluster/broker-a --topic orders
    """
    from pystore.cold.objects import open_objects
    from pystore.cold.reader import ColdReader
    from pystore.cold.tier import brokers_at

    s.settings()  # so that wrong ones are refused
    found = brokers_at(open_objects(address))
    if len(found) != 1:
        rows = [(each.cluster, each.broker, each.folder) for each in found]
        s.out.table("brokers", ("cluster", "broker", "folder"), rows)
        return 0
    with ColdReader(address) as reader:
        return show_tier(s, reader, topic)


def show_tier(s: Session, reader: ColdReader, topics: list[str] | None) -> int:
    """Shows what a tier holds, as ``cold ls`` and ``info`` do: of very many queues the first, and
    all of them in the sums."""
    from pystore.cold.failures import TierDamaged

    names, queues, messages, segments, size = set(), 0, 0, 0, 0
    times: list[int] = []
    rows: list[tuple[object, ...]] = []
    wrong: list[tuple[str]] = []
    damaged = 0
    for span in reader.tier.each_span(topics or ()):
        if isinstance(span, TierDamaged):
            damaged += 1
            wrong += [(span.text,)][: _SHOWN - len(wrong)]
            continue
        names.add(span.topic)
        queues, messages = queues + 1, messages + span.end - span.start
        segments, size = segments + span.segments, size + span.size
        if span.time_max >= 0:
            times = [min([span.time_min, *times]), max([span.time_max, *times])]
        if len(rows) < _SHOWN:
            row = span.topic, span.queue, span.start, span.end, span.segments, Size(span.size)
            rows.append(row)
    s.out.facts("tier", {
        "address": reader.tier.objects.address, "cluster": reader.tier.cluster or None,
        "broker": reader.tier.broker or None,
        "topics": len(names), "queues": queues, "messages": messages, "segments": segments,
        "bytes": Size(size), "first stored": When(times[0] if times else -1),
        "last stored": When(times[1] if times else -1), "damaged": damaged,
        "not listed": queues - len(rows) + damaged - len(wrong),
    })  # fmt: skip
    s.out.table("queues", ("topic", "queue", "min", "max", "segments", "bytes"), rows)
    if wrong:
        s.out.table("wrong", ("what",), wrong)
    s.damaged = bool(damaged)
    return 0 if queues else 1


def fetch(
    s: Session,
    address: _Address,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Root of tiers to copy to.")],
    topic: _Topics = None,
    cluster: _NewCluster = None,
    broker: _NewBroker = None,
) -> int | None:
    """Copy a tier into another one, such as a folder of this host.

    It may be one that RocketMQ wrote. The new one has manifests and objects as `push` makes them,
    and right CRCs of properties. A run that is killed is run again.

    \b
    Examples:
      pystore cold fetch s3://bucket/cold ./cold --topic orders
      pystore cold fetch /data/rocketmq/tier s3://bucket/cold
    """
    from pystore.cold.reader import ColdReader
    from pystore.cold.restore import fetch as fetch_all

    s.settings()  # so that wrong ones are refused
    with ColdReader(address) as reader, s.progress("copying") as bar:
        done = fetch_all(reader, target, topics=topic or (), cluster=cluster or "",
                         broker=broker or "")  # fmt: skip
        bar.update(1, 1)
    s.out.facts("fetched", {"queues": done.queues, "messages": done.messages,
                            "bytes": Size(done.bytes)})  # fmt: skip
    return 0 if done.messages else 1


def restore(
    s: Session,
    address: _Address,
    target: Annotated[Path, typer.Argument(metavar="STORE", help="Folder for the new store.")],
    topic: _Topics = None,
    segment: Annotated[
        int, typer.Option(min=4096, help="mappedFileSizeCommitLog of the store.")
    ] = 1 << 30,
) -> int | None:
    """Make a store of a tier's messages.

    Queue offsets stay, physical offsets and the order over queues do not. STORE must not exist. It
    is made beside its place and renamed when it is whole.

    \b
    Examples:
      pystore cold restore s3://bucket/cold ./store --topic orders
    """
    from pystore.cold.reader import ColdReader
    from pystore.cold.restore import restore as restore_all

    s.settings()  # so that wrong ones are refused
    with ColdReader(address) as reader:
        count = restore_all(reader, target, topics=topic or (), segment_bytes=segment)
    s.out.facts("restored", {"store": str(target), "messages": count})
    return 0 if count else 1


def verify(
    s: Session,
    address: _Address,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only names and sizes: one listing, no reads.")
    ] = False,
) -> int | None:
    """Check a tier: its manifests, its segments, each record.

    A segment is checked by its CRC, a record by its unit and its own CRCs.

    Exit code 5: something is wrong; text and JSON say what is lost. Orphans are objects that no
    manifest names; `pystore cold rm TIER --orphans` deletes those that are a day old.

    \b
    Examples:
      pystore cold verify s3://bucket/cold
      pystore cold verify ./cold --quick --json
    """
    from pystore.cold.reader import ColdReader
    from pystore.cold.tier import Tier
    from pystore.cold.upkeep import verify as verify_all
    from pystore.cold.upkeep import verify_units

    s.settings()  # so that wrong ones are refused
    with ColdReader(address) as reader, s.progress("checking", "queues") as bar:
        tier, told = reader.tier, lambda at, total: bar.update(at, total)
        if isinstance(tier, Tier):
            audit = verify_all(tier, quick=quick, progress=told)
        elif quick:
            raise usage("RocketMQ wrote this tier, which has no sizes to compare", "leave --quick")
        else:
            audit = verify_units(reader, told)
    s.out.facts("tier", {
        "sound": not audit.wrong, "queues": audit.queues, "segments": audit.segments,
        "messages": audit.messages, "bytes": Size(audit.bytes), "orphans": audit.orphans,
        "orphan bytes": Size(audit.orphan_bytes), "not listed": audit.more,
    })  # fmt: skip
    if audit.wrong or s.out.json:
        s.out.table("wrong", ("what",), [(each,) for each in audit.wrong])
    s.damaged = bool(audit.wrong)
    return 0


def rm(
    s: Session,
    address: _Address,
    topic: Annotated[str | None, typer.Option(help="Take this topic away.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, max=65535, help="Only this queue.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Only segments whose messages are all older.")
    ] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Delete what no manifest has named for a day.")
    ] = False,
) -> int | None:
    """Take a topic or old messages out of a tier, or delete orphans.

    Messages are gone for readers at once; their objects go with --orphans a day later, since a
    reader may still know an older manifest.

    \b
    Examples:
      pystore cold rm s3://bucket/cold --topic orders --before 2026-01-01
      pystore cold rm s3://bucket/cold --orphans
    """
    from pystore.cold.upkeep import collect, remove

    if (topic is None) == (not orphans):
        raise usage("give either --topic or --orphans", "see --help")
    if topic is None and (queue is not None or before is not None):
        raise usage("--queue and --before go with --topic", "see --help")
    tier = _own(s, address)
    facts: dict[str, Any] = {}
    if topic is not None:
        moment = None if before is None else parse_time(before, "--before")
        facts["segments"] = remove(tier, topic, queue, before=moment)
    else:
        count, size = collect(tier)
        facts |= {"objects": count, "bytes": Size(size)}
    s.out.facts("removed", facts)
    return 0 if any(facts.values()) else 1


def epoch(
    s: Session,
    address: _Address,
    number: Annotated[
        int, typer.Argument(metavar="EPOCH", min=0, help="Of the master; 0 without a controller.")
    ],
) -> int | None:
    """Let a master of this epoch write to a tier that a later one has written to.

    For where no later master is left: all disks of the controllers were lost, so that epochs began
    anew; the broker has no controller any more; or somebody else wrote there. A later master that
    still runs is no longer told apart from this one.

    Exit code 1: no queue was of a later epoch.

    \b
    Examples:
      pystore cold epoch s3://bucket/cold/212d6b50_DefaultCluster/broker-a 3
    """
    from pystore.cold.upkeep import set_epoch

    count = set_epoch(_own(s, address), number)
    s.out.facts("epoch", {"epoch": number, "queues": count})
    return 0 if count else 1


def java(
    s: Session,
    address: _Address,
    root: Annotated[
        Path, typer.Argument(metavar="STORE", help="storePathRootDir of the RocketMQ broker.")
    ],
) -> int | None:
    """Make the metadata with which RocketMQ 5.5.0 serves a tier.

    The tier lies in a folder. This writes files of units beside the segments, and
    STORE/config/tieredStoreMetadata.json. Run it while the broker is stopped, on a tier that
    nothing of ours writes to any more: RocketMQ appends its own segments.

    \b
    Examples:
      pystore cold fetch s3://bucket/cold /data/tier && pystore cold java /data/tier /data/store
    """
    from pystore.cold.java import hand_over

    segments, messages = hand_over(_own(s, address), root)
    s.out.facts("handed over", {"segments": segments, "messages": messages})
    return 0 if segments else 1


VERBS = (
    Verb("cold push", push, group="Keep messages in cheap storage."),
    Verb("cold ls", ls, server=True),
    Verb("cold fetch", fetch, server=True),
    Verb("cold restore", restore, server=True),
    Verb("cold verify", verify, server=True),
    Verb("cold rm", rm, server=True),
    Verb("cold epoch", epoch, server=True),
    Verb("cold java", java, server=True),
)
