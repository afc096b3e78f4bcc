"""Tells slaves of ours at once that topics or groups have changed. Upstream's, and those of a
master of Java's, learn it when they next ask: a failover before that loses the change."""

from __future__ import annotations

from collections.abc import Sequence

from broker.services.groups import Groups
from broker.services.topics import Topics
from broker.wire.codes import RequestCode
from broker.wire.command import ONEWAY, Command
from broker.wire.handlers import Peer
from pystore.meta.configfiles import TopicConfig

__all__ = ["ChangeNotices"]

#: Slaves that are told; others learn it when they next ask.
_SLAVES_MAX = 64


class ChangeNotices:
    """Of one master: request 21 without an answer, over the connection on which a slave asks. Who
    was told is told again only after he has asked again."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._asked: set[Peer] = set()
        register, republish = topics.changed, groups.changed

        def topics_changed(configs: Sequence[TopicConfig]) -> None:
            register(configs)
            self._tell()

        def groups_changed(name: str) -> None:
            republish(name)
            self._tell()

        topics.changed, groups.changed = topics_changed, groups_changed

    def expect(self, peer: Peer) -> None:
        """Notes that a slave asks for topics, and then for groups."""
        if len(self._asked) >= _SLAVES_MAX:
            self._asked = {each for each in self._asked if not each.closed}
        if len(self._asked) < _SLAVES_MAX:
            self._asked.add(peer)

    def _tell(self) -> None:
        asked, self._asked = self._asked, set()
        for peer in asked:
            peer.send(Command(RequestCode.GET_ALL_TOPIC_CONFIG, {"pystore": "1"}, flag=ONEWAY))
