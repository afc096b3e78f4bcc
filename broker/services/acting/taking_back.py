"""A master that returns takes over what a slave did in its place, before it delivers anything
(docs/internals/ha.md#acting-as-master; upstream BrokerPreOnlineService). What has gone to other
brokers is closed in the log, as a recall, a decision or an acknowledgement closes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker.access.addresses import address_of
from broker.hot.check_points import CheckPoint, Key
from broker.loop.safe_log import SafeLogger
from broker.services.acting.bridge import AskAt, Bridge, NotStored
from broker.services.acting.due_messages import what_was_due
from broker.services.acting.escape_ledger import Origin
from broker.services.acting.said import read_said
from broker.services.context import Services
from broker.services.delivered import close_level
from broker.services.pop import Pop
from broker.services.pop.kept import taken_from
from broker.services.replication.synchronize import OffsetChange, Synchronizer, subscribed
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore.errors import StoreError
from pystore.format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pystore.store.timers import Timers

__all__ = ["TakingBack", "ha_info"]

log = SafeLogger("broker.acting")

#: How long slaves are asked; a broker that is gone is out of the routes by then.
_PATIENCE_S = 30.0
#: How long an unknown group of brokers is asked for.
_NAMES_S = 5.0
_PAUSE_S = 1.0
#: A slave of Java's stops after a tenth of a second; what is on its way arrives meanwhile.
_JAVA_STOPS_S = 2.0
#: Messages that other brokers are asked for at once.
_AT_ONCE = 32
#: Check points and acknowledgements that a slave may tell of.
_POPS_MAX = 4_000_000
#: Offsets that are logged one by one.
_LOGGED = 20


def ha_info(s: Services) -> dict[str, str]:
    """Returns what EXCHANGE_BROKER_HA_INFO (906) says of this broker."""
    return {
        "masterHaAddress": s.registration.ha_address,
        "masterFlushOffset": str(s.store.info().log_flushed),
        "masterAddress": s.address,
    }  # fmt: skip


class TakingBack:
    """One master takes back: at its start, and after it was cut off."""

    def __init__(self, s: Services, ask: AskAt) -> None:
        self._s, self._ask = s, ask

    async def run(self, also: Callable[[], Iterable[str]] = tuple) -> None:
        """Takes back what slaves did. also: addresses of more slaves.

        Returns when each slave that the name server knows has been asked, or has not answered
        for long, and as many as totalReplicas says are there, or brokerNotActiveTimeoutMillis have
        passed. Raises: StoreError."""
        loop = asyncio.get_running_loop()
        end, asked = loop.time() + _PATIENCE_S, set[str]()
        # One that was killed, too, is not registered yet.
        expected = int(self._s.settings["totalReplicas"]) - 1
        soon = loop.time() + int(self._s.settings["brokerNotActiveTimeoutMillis"]) / 1000
        if expected > 0:
            log.info("Waiting for %d slaves to report what they did", expected)
        while True:
            members = await self._members(end - _PATIENCE_S + _NAMES_S)
            slaves = {at for number, at in members.items() if number and self._may_follow(at)}
            slaves |= set(also())
            left = slaves - asked - {self._s.address}
            for address in left:
                try:
                    await self._take(address)
                    asked.add(address)
                except (OSError, TimeoutError, ValueError) as failed:
                    log.warning("The slave at %s does not say what it did: %s", address,
                                failed)  # fmt: skip
            if left <= asked and (len(asked) >= expected or loop.time() >= soon):
                return
            if left - asked and loop.time() >= end:
                log.error("Serving without what %s did while the master was away: messages may"
                          " come twice", ", ".join(sorted(left - asked)))  # fmt: skip
                return
            await asyncio.sleep(_PAUSE_S)

    def _may_follow(self, address: str) -> bool:
        """Says whether a slave is believed: whoever is not let in as one has done nothing in this
        broker's place, whatever he is registered as."""
        host, replication = address.rpartition(":")[0], self._s.replication
        if replication is None or address_of(host) is None or replication.trusts(host):
            return True
        log.warning("The slave at %s is not asked what it did: trustedSlaves does not name it",
                    address)  # fmt: skip
        return False

    async def _members(self, end: float) -> Mapping[int, str]:
        while True:
            try:
                return await self._s.registration.members()
            except (OSError, TimeoutError, ValueError) as failed:
                if asyncio.get_running_loop().time() >= end:
                    log.warning("No name server says whether a slave acts as master: %s", failed)
                    return {}
            await asyncio.sleep(_PAUSE_S)

    async def _take(self, address: str) -> None:
        """Takes back what one slave did. Raises: OSError, TimeoutError, ValueError, StoreError."""
        s = self._s
        answer = await self._exchange(address, {})
        gone: list[Origin] | None = None
        said: Mapping[str, Any] = {}
        if answer.body:
            said = await read_said(bytes(answer.body))
            gone = self._within_the_log(address, said["escaped"])

        async def ask(command: Command) -> Command:
            return await self._ask(address, command)

        if gone is None:
            await self._stop_java()
        moved = await Synchronizer(ask, s.store, s.topics, s.groups, s.offsets).take_back()
        _log_moved(address, moved)
        if gone is None:
            self._close(await self._find_gone(address))
            return
        self._close(gone)
        await self._take_pops(address, said)
        if s.lite is not None and s.lite.is_on:
            clients = (await subscribed(ask))[1]
            await s.lite.take_over(clients or (), all_there_are=False)
        await asyncio.to_thread(s.store.flush)
        await s.offsets.persist()
        end = str(s.store.info().log_max)
        await self._exchange(address, {"escaped": "taken", "logEnd": end})
        _log_gone(address, gone)

    def _within_the_log(self, address: str, gone: Iterable[Origin]) -> list[Origin]:
        """Returns those that are places of this log: it may have lost its end."""
        found = list(gone)
        kept = [each for each in found if each.offset < self._end_of(each)]
        if len(kept) < len(found):
            log.warning("The slave at %s has sent %d messages that are not in the log here: they"
                        " are passed over", address, len(found) - len(kept))  # fmt: skip
        return kept

    def _end_of(self, origin: Origin) -> int:
        try:
            return self._s.store.range(origin.topic, origin.queue)[1]
        except StoreError:  # a name that no topic can have
            return 0

    # ---- a slave of Java's ----

    async def _stop_java(self) -> None:
        """Stops a slave of Java's, which goes on until a name server shows it the master."""
        await self._s.registration.start()
        await asyncio.sleep(_JAVA_STOPS_S)

    async def _find_gone(self, address: str) -> list[Origin]:
        """Asks the other brokers what a slave of Java's has sent, which it does not tell. Raises:
        StoreError."""
        s, found, unknown = self._s, list[Origin](), 0
        bridge = Bridge(s.broker_name, int(s.settings["brokerId"]), s.registration.route, self._ask)
        due = list(what_was_due(s))
        for at in range(0, len(due), _AT_ONCE):
            some = due[at : at + _AT_ONCE]
            asked = [bridge.has_any(copy) for _, copy in some]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for (origin, _), answer in zip(some, answers, strict=True):
                if answer is True:
                    found.append(origin)
                elif not isinstance(answer, bool | NotStored):
                    unknown += 1
        _log_gone(address, found)
        if unknown:
            log.warning("Of %d messages nobody says whether the slave at %s has sent them: they may"
                        " come twice", unknown, address)  # fmt: skip
        return found

    async def _take_pops(self, address: str, said: Mapping[str, Any]) -> None:
        """Takes what was popped at the slave: it is open here from now on, under the same handles,
        and what was acknowledged there is done. Raises: OSError, TimeoutError, ValueError,
        StoreError."""
        pop, count = self._s.pop, 0
        assert pop is not None
        if said.get("order"):
            pop.order.take_back(str(said["order"]).encode())
        while True:
            rows = said.get("pops") or []
            for row in rows:
                try:
                    self._take_pop(pop, *row)
                except (TypeError, IndexError, KeyError) as bad:
                    raise ValueError(f"it tells of a check point {row!r:.200}: {bad}") from None
            count += len(rows)
            if not rows or not said.get("popsMore"):
                break
            if count > _POPS_MAX:
                raise ValueError(f"it tells of more than {_POPS_MAX} check points")
            answer = await self._exchange(address, {"popsFrom": str(count)})
            said = await read_said(bytes(answer.body))
        if count:
            log.info("The slave at %s has reported %d check points", address, count)

    def _take_pop(self, pop: Pop, kind: str, *what: Any) -> None:
        """Takes one check point. Raises: ValueError, StoreError."""
        if kind != "open":
            *key, offsets = what
            ck, done = pop.points.get(Key(*key)), offsets
        else:
            taken = taken_from(what[0])
            if taken.offsets[-1] >= self._s.store.range(taken.topic, taken.queue)[1]:
                return  # the log lost its end
            self._s.groups.find(taken.group)
            pop.log.open(taken)
            ck, open_ones = pop.points.get(taken.key), taken.open_offsets()
            done = [each for each in taken.offsets if each not in open_ones]
        left = [each for each in ck.open_offsets() if each in done] if ck is not None else []
        if ck is not None and left:
            pop.points.put_ack(ck, left)
            pop.points.acknowledge(ck, left)

    async def _exchange(self, address: str, more: Mapping[str, str]) -> Command:
        ext = {**ha_info(self._s), "pystore": "1", **more}
        answer = await self._ask(address, Command(RequestCode.EXCHANGE_BROKER_HA_INFO, ext))
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"it answered {answer.code} {answer.remark}")
        return answer

    # ---- closing ----

    def _close(self, gone: Iterable[Origin]) -> None:
        """Closes what was sent. Raises: StoreError."""
        by_place: dict[tuple[str, str, int], set[int]] = {}
        for topic, group, queue, offset in gone:
            by_place.setdefault((topic, group, queue), set()).add(offset)
        for (topic, group, queue), offsets in by_place.items():
            if group:
                self._close_popped(topic, group, queue, offsets)
            elif topic == SCHEDULE_TOPIC:
                close_level(self._s.store, queue + 1, offsets)
            elif topic == TIMER_TOPIC:
                self._close_timers(offsets)
            elif topic == HALF_TOPIC:
                self._close_halves(offsets)

    def _close_timers(self, offsets: Iterable[int]) -> None:
        schedule, store = self._s.schedule, self._s.store
        if schedule is None or schedule.timers is None:
            return
        timers = schedule.timers.timers
        for offset in sorted(offsets):
            found = store.read(TIMER_TOPIC, 0, offset, max_messages=1)
            if found and found[0].queue_offset == offset:
                self._recall(timers, found[0].properties)
        _read_queue(timers)

    def _recall(self, timers: Timers, said: Mapping[str, str]) -> None:
        topic, key = said.get("REAL_TOPIC", ""), said.get("UNIQ_KEY", "")
        out_ms = said.get("TIMER_OUT_MS", "")
        timer = timers.find(topic, key, int(out_ms)) if key and out_ms.isdigit() else None
        if timer is None:
            return
        mark = {
            "TIMER_DEL_UNIQKEY": f"{topic}+{key}", "UNIQ_KEY": key, "REAL_TOPIC": topic,
            "REAL_QID": said.get("REAL_QID", "0"), "TIMER_OUT_MS": out_ms,
            "TIMER_DELIVER_MS": str(timer.due_ms),
        }  # fmt: skip
        self._s.store.put_message(
            TIMER_TOPIC, b"0", properties=mark, queue=0, wait=False, block=False, as_stored=True
        )

    def _close_halves(self, offsets: set[int]) -> None:
        transactions = self._s.transactions
        assert transactions is not None
        transactions.close_halves(offsets)

    def _close_popped(self, topic: str, group: str, queue: int, offsets: set[int]) -> None:
        pop = self._s.pop
        assert pop is not None
        for ck in [each for each in pop.points if _is_of(each, topic, group, queue)]:
            done = [each for each in ck.open_offsets() if each in offsets]
            if done:
                pop.points.put_ack(ck, done)
                pop.points.acknowledge(ck, done)


def _log_gone(address: str, gone: Iterable[Origin]) -> None:
    """Notes what counts as done from now on, since a slave says that it has sent it."""
    counts = Counter(each.group or each.topic for each in gone)
    if counts:
        log.info(
            "The slave at %s has sent %d messages in this broker's place: %s",
            address,
            counts.total(),
            _some(f"{n} of {what}" for what, n in counts.items()),
        )


def _log_moved(address: str, moved: list[OffsetChange]) -> None:
    """Notes what consumers and delays pass over from now on, since a slave says that it has served
    it."""
    if moved:
        log.info("The slave at %s has served further than this broker, which goes on there: %s",
                 address, _some(map(str, moved)))  # fmt: skip


def _some(texts: Iterable[str]) -> str:
    shown = list(texts)
    more = f", and {len(shown) - _LOGGED} more" if len(shown) > _LOGGED else ""
    return ", ".join(shown[:_LOGGED]) + more


def _is_of(ck: CheckPoint, topic: str, group: str, queue: int) -> bool:
    return (ck.topic, ck.group, ck.queue) == (topic, group, queue)


def _read_queue(timers: Timers) -> None:
    """Reads the queue, before anything is delivered."""
    while timers.run(most=1, now_ms=1).more:
        pass  # nothing is due in 1970
