"""Connections of producers and consumers, by language and version, as the walk over groups counts
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from broker.loop.turns import Pieces
from broker.metrics.page import Page
from broker.services.clients import ConsumerGroup, language_name
from broker.services.context import Services
from broker.services.names import is_system_topic
from pystore.format.names import SYSTEM_GROUP_PREFIX

__all__ = ["add_connections", "is_system_label"]

#: MQVersion.V4_0_0_SNAPSHOT and HIGHER_VERSION.
_V4_0_0, _HIGHER = 212, 612


def is_system_label(topic: str, group: str) -> str:
    """Returns the value of the label is_system."""
    system = is_system_topic(topic) or group.upper().startswith(SYSTEM_GROUP_PREFIX)
    return str(system).lower()


async def add_connections(
    page: Page, s: Services, popping: Mapping[str, bool], turns: Pieces
) -> None:
    """Adds the connections. popping: groups that are connected, and whether they pop."""
    seen: set[object] = set()  # one connection may produce for several groups
    makers: Counter[tuple[int, int]] = Counter()
    for channels in list(s.clients.producers.values()):
        makers.update((c.language, c.version) for peer, c in channels.items() if peer not in seen)
        seen.update(channels)
        await turns.next()
    for spoken, count in _by_version(makers):
        page.add("rocketmq_producer_connections", count, protocol_type="remoting", **spoken)
    for name, group in list(s.clients.consumers.items()):
        mode = _mode(group, popping.get(name, False))
        clients = Counter((c.language, c.version) for c in group.channels.values())
        for spoken, count in _by_version(clients):
            page.add(
                "rocketmq_consumer_connections", count, consume_mode=mode, consumer_group=name,
                is_system=is_system_label("", name), protocol_type="remoting", **spoken,
            )  # fmt: skip
        await turns.next()


def _mode(group: ConsumerGroup, pops: bool) -> str:
    if "ACTIVELY" in group.consume_type:
        return "pull"
    return "pop" if pops or "POP" in group.consume_type else "push"


def _by_version(clients: Counter[tuple[int, int]]) -> Iterator[tuple[dict[str, str], int]]:
    """Returns how many clients there are by language and version, as labels. clients: has the
    numbers of these."""
    counts: Counter[tuple[str, str]] = Counter()
    for (language, number), count in clients.items():
        counts[language_name(language).lower(), _version_name(number)] += count
    for (language_label, version_name), count in counts.items():
        yield {"language": language_label, "version": version_name}, count


def _version_name(number: int) -> str:
    """Returns the name of an MQVersion as upstream's metrics have it: v5_3_3, v5_3_3_snapshot. From
    4.0.0 on each patch has two numbers, each minor version has ten patches."""
    if number >= _HIGHER:
        return "higher_version"
    if number < _V4_0_0:
        return "v3"
    place = number - _V4_0_0
    name = f"v{4 + place // 200}_{place // 20 % 10}_{place % 20 // 2}"
    return name if number % 2 else f"{name}_snapshot"
