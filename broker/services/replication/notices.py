"""Tells slaves of ours at once which topics and groups have changed, and waits until they have it.
Upstream's, and those of a master of Java's, learn it when they next ask: a failover before that
loses the change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.services.groups import Groups
from broker.services.topics import Topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Peer, host_text
from broker.wire.mqjson import JsonText
from pystore.meta.configfiles import TopicConfig

__all__ = ["ChangeNotices"]

quiet = RateLimitedLogger(SafeLogger(__name__))

#: Slaves that are told; others learn it when they next ask.
_SLAVES_MAX = 64
#: Topics and groups that one request tells of.
_ROWS_MAX = 256
#: How long a slave has for its answer.
_ANSWERS_S = 3.0


class _Notice:
    """A request to one slave; what changes before it is sent is in it, too. done: whether the slave
    has taken it."""

    __slots__ = ("asks_again", "done", "groups", "is_sent", "topics")

    def __init__(self) -> None:
        self.topics, self.groups = set[str](), set[str]()
        self.asks_again = self.is_sent = False
        self.done: asyncio.Task[bool] | None = None

    @property
    def is_open(self) -> bool:
        return not self.is_sent and len(self.topics) + len(self.groups) < _ROWS_MAX


class ChangeNotices:
    """Requests 21 of one master with what has changed, over the connections on which slaves ask,
    one after the other for each slave."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics, self._groups = topics, groups
        #: By slave, what it was told last; None: nothing has changed since it asked.
        self._last: dict[Peer, _Notice | None] = {}
        register, republish = topics.changed, groups.changed

        def topics_changed(configs: Sequence[TopicConfig]) -> None:
            register(configs)
            names = [each.name for each in configs]
            # What is deleted or mapped has no row that could be told.
            self._note(names, (), asks_again=not names or any(map(topics.is_static, names)))

        def groups_changed(name: str) -> None:
            republish(name)
            self._note((), (name,), asks_again=groups.get(name) is None)

        topics.changed, groups.changed = topics_changed, groups_changed

    def expect(self, peer: Peer) -> None:
        """Notes that a slave asks for topics, and then for groups."""
        if len(self._last) >= _SLAVES_MAX:
            self._last = {each: last for each, last in self._last.items() if not each.closed}
        if len(self._last) < _SLAVES_MAX:
            self._last.setdefault(peer, None)

    def _note(self, topics: Iterable[str], groups: Iterable[str], *, asks_again: bool) -> None:
        for peer, last in self._last.items():
            notice = last
            if notice is None or not notice.is_open:
                notice = self._last[peer] = _Notice()
                work = self._tell(peer, notice, last.done if last is not None else None)
                notice.done = asyncio.get_running_loop().create_task(work)
            notice.topics.update(topics)
            notice.groups.update(groups)
            notice.asks_again |= asks_again

    async def _tell(
        self, peer: Peer, notice: _Notice, before: asyncio.Task[bool] | None
    ) -> bool:  # fmt: skip
        if before is not None:
            await before
            before = None  # nor those before it
        notice.is_sent = True
        if peer not in self._last:  # it has not taken the one before
            return False
        topics = [row for name in notice.topics if (row := self._topics.get(name)) is not None]
        groups = [each for name in notice.groups if (each := self._groups.get(name)) is not None]
        table = JsonText.table
        body = {
            "topicConfigTable": table((row.name, self._topics.text(row)) for row in topics),
            "subscriptionGroupTable": table((row.name, self._groups.text(row)) for row in groups),
        }
        ext = {"pystore": "1", **({"again": "true"} if notice.asks_again else {})}
        command = Command(RequestCode.GET_ALL_TOPIC_CONFIG, ext, mqjson.dumps(body))
        try:
            answer = await peer.request(command, _ANSWERS_S)
            if answer.code == ResponseCode.SUCCESS:
                return True
            why = f"{answer.code} {answer.remark}"
        except (OSError, TimeoutError, ValueError) as failed:
            why = reason_of(failed)
        if self._last.pop(peer, None) is not None and not peer.closed:
            quiet.warning(
                "not taken",
                "The slave at %s has not taken changes of topics and groups, and will ask: %s",
                host_text(peer), why,
            )  # fmt: skip
        return False

    async def told(self, hosts: Iterable[str]) -> None:
        """Waits until the slaves of ours at these hosts have what has changed so far, or have not
        taken it, which is logged."""
        wanted = set(hosts)
        waits = [
            last.done
            for peer, last in self._last.items()
            if last is not None and last.done is not None and peer.address[0] in wanted
        ]
        if waits:
            await asyncio.wait(waits, timeout=_ANSWERS_S)

    def stop(self) -> None:
        """Tells nobody any more."""
        for last in self._last.values():
            if last is not None and last.done is not None:
                last.done.cancel()
        self._last.clear()
