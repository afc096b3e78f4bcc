"""The open transactions of one broker. docs/internals/services.md#transactions; upstream
TransactionalMessageService, TransactionalMessageCheckService, TransactionalOpBatchService.

The C core stores halves and carries decisions out against a table of its own; here is what has
time: the table is brought in at the start and into the metadata every second, ops that wait
are written, producers are asked in rounds, halves that nobody decides are discarded.

Policy. A check counts when a connection of the producer's group took it, so that nothing is spent
while nobody could answer. A half is discarded after transactionCheckMax checks, or when its file is
about to be deleted (fileReservedTime); until then it is never written again, however long the
producer stays away. Age is counted from the time of storing, which no client's clock can shift.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from broker.hot.core import Core
from broker.hot.halves import OPEN_MAX, TAKE_MAX, Halves, State
from broker.loop.safe_log import SafeLogger
from broker.services.clients import Channel, Clients
from broker.services.config import Config
from broker.services.duties import BrokerRole
from broker.services.topics import Topics
from broker.services.transaction.metrics import Metrics
from broker.wire.decision import PutDecision, Role
from pystore import Message, Store
from pystore.errors import NotFound, RecordDamaged, StoreError
from pystore.format.names import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from pystore.meta.pending import Decision, Mark, PendingHalf
from pystore.store.pending_log import Pending, find_pending, half_of

__all__ = ["RoundReport", "Transactions"]

log = SafeLogger("broker.transaction")

#: From one tick to the next, in ms: an op that would be too old at the next one is written now.
_TICK_MS = 1000
#: How long one round may take; the next one goes on with what is left.
_ROUND_S = 60.0
_PAUSE_S = 0.005
#: The log grew by so much since the metadata was written: it is written again, so that a start need
#: not read it.
_QUIET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one round of checks did. `asked` counts checks sent, `unheard` half messages that were
    due while no producer of their group was there, `given_up` copies in TRANS_CHECK_MAX_TIME_TOPIC,
    and `lost` records that are no longer in the log. `seconds` is how long it took."""

    asked: int
    unheard: int
    given_up: int
    lost: int
    seconds: float


class Transactions:
    """The transactions of one broker. Everything but persisting happens on the thread of the event
    loop."""

    def __init__(
        self,
        store: Store,
        core: Core,
        config: Config,
        clients: Clients,
        topics: Topics,
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Takes the halves. now_ms: the clock that ages are counted by; tests set it."""
        self.store = store
        self._core = core
        self._config = config
        self._clients = clients
        self._topics = topics
        self._set_clock = now_ms
        self.now_ms = now_ms if now_ms is not None else lambda: time.time_ns() // 1_000_000
        self.halves = Halves(core)
        path = store.path / "config" / "transactionMetrics"
        self.metrics = Metrics(path, self.halves, store.settings.file_mode)
        self._turns: dict[str, int] = {}
        #: Whether a producer may be asked about halves of a topic: whoever may not publish there
        #: is not shown them, whatever group its heartbeat names. None: everybody may.
        self.may_ask: Callable[[Channel, str], bool] | None = None
        #: Topics of the open halves of each group, while there are rules.
        self._group_topics: dict[str, set[str]] = {}
        self._role = BrokerRole.MASTER
        self._anew = False
        self._mark: Mark | None = None
        self._saving: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[RoundReport] | None = None
        self._next_round = 0.0
        #: Decisions that came again, and those that came and were refused.
        self.repeated = 0
        self.refused = 0

    # ---- starting ----

    async def start(self) -> None:
        """Finds what is open. It must have ended before the first half message comes in.

        Raises: what reading the store and its metadata raises."""
        self.configure()
        self._config.changed.append(lambda names: self.configure())
        self._take_over(await asyncio.to_thread(find_pending, self.store))
        if self._anew:
            await self.persist()
        self._later()

    def start_now(self) -> None:
        """Does the same without a loop, for tools that open a store for a moment."""
        self.configure()
        self._take_over(find_pending(self.store))

    def configure(self) -> None:
        """Takes over the settings, and the clock when tests have set one."""
        config = self._config
        self.halves.configure(
            on=self.is_master and not config["rejectTransactionMessage"],
            op_bytes=config["transactionOpMsgMaxSize"],
            timeout_ms=config["transactionTimeOut"],
            broker=config["brokerName"],
            now_ms=self._set_clock() if self._set_clock is not None else 0,
        )

    @property
    def is_master(self) -> bool:
        """Returns whether halves are taken here."""
        return self._role in (BrokerRole.MASTER, BrokerRole.CUT_OFF) and bool(
            self._config["brokerRole"] != "SLAVE"
        )

    @property
    def may_decide(self) -> bool:
        """Returns whether nobody else decides, or asks, what is open here."""
        return self.is_master and self._core.leads

    def change_role(self, role: BrokerRole) -> None:
        """Follows the role: a slave decides nothing and asks nobody."""
        self._role = role
        self.configure()

    def _take_over(self, found: Pending) -> None:
        halves = self.halves
        kept = 0
        for offset in sorted(found.rows):
            try:
                kept += halves.add(found.rows[offset], saved=not found.changed)
            except (StoreError, MemoryError) as failed:
                log.error("Cannot track %d more transactions: %s", len(found.rows) - kept, failed)
                break
        halves.half_seen(found.half_next)
        for op, largest in found.spans:
            halves.op_seen(op, largest)
        halves.op_seen(found.op_next - 1, -1)
        for offset in sorted(set(found.owed)):
            halves.settled(offset, found.decided.get(offset, Decision.FINISHED), op=True)
        self._anew = found.changed or found.from_log
        if found.owed:
            self._write_ops()
        if found.rows or found.owed:
            log.info(
                "%d open transactions%s; wrote %d missing op messages",
                kept, ", read from the log" if found.from_log else "", len(found.owed),
            )  # fmt: skip

    def _later(self) -> None:
        self._next_round = time.monotonic() + self._config["transactionCheckInterval"] / 1000

    # ---- again and again ----

    def tick(self) -> None:
        """Runs once a second."""
        if self._set_clock is not None:
            self.configure()
        state = self.halves.state()
        if state.ops_queued and self._are_old(state):
            self._write_ops()
            state = self.halves.state()
        self._core.commit_offset(TRANSACTION_GROUP, HALF_TOPIC, 0, state.half_progress)
        self._core.commit_offset(TRANSACTION_GROUP, OP_TOPIC, 0, state.op_progress)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self.persist())
        due = time.monotonic() >= self._next_round and self.may_decide
        if due and (self._checking is None or self._checking.done()):
            self._later()
            self._checking = asyncio.get_running_loop().create_task(self.check())

    def _are_old(self, state: State) -> bool:
        age = time.monotonic_ns() // 1_000_000 - state.ops_since_ms
        return bool(age >= self._config["transactionOpBatchInterval"] - _TICK_MS)

    def _write_ops(self) -> None:
        try:
            self.halves.write_ops()
        except StoreError as failed:
            log.error("Cannot write decisions to the op topic; will retry: %s",
                      failed)  # fmt: skip

    async def stop(self) -> None:
        """Writes everything out."""
        if self._checking is not None:
            self._checking.cancel()
        running = {task for task in (self._checking, self._saving) if task is not None}
        if running:
            await asyncio.wait(running)
        self.stop_now()

    def stop_now(self) -> None:
        self._write_ops()
        state = self.halves.state()
        self._core.commit_offset(TRANSACTION_GROUP, HALF_TOPIC, 0, state.half_progress)
        self._core.commit_offset(TRANSACTION_GROUP, OP_TOPIC, 0, state.op_progress)
        try:
            more = True
            while more:
                changed, gone, mark, anew = self._take()
                self.store.metadata.pending.apply(changed, gone, mark, anew=anew)
                self._anew, more = False, len(changed) >= TAKE_MAX
            self.metrics.write()
        except StoreError as failed:
            log.error("Cannot save open transactions; they remain in the log: %s", failed)

    # ---- to the metadata ----

    def _take(self) -> tuple[list[PendingHalf], list[int], Mark, bool]:
        halves, anew = self.halves, self._anew
        gone = [] if anew else halves.take_gone()
        if gone is None or anew:
            halves.untake()
            gone, anew = [], True
        return halves.take_changed(), gone, self._make_mark(), anew

    def _make_mark(self) -> Mark:
        state, end = self.halves.state(), self.store.info().log_max
        last = self.store.units(HALF_TOPIC, 0, state.half_next - 1, 1) if state.half_next else []
        return Mark(
            state.half_next, state.op_next, state.op_progress,
            state.uncovered if state.uncovered >= 0 else end, end,
            last[0][0] if len(last) else -1,
        )  # fmt: skip

    async def persist(self) -> None:
        """Brings what changed to the metadata; what could not be written is tried again."""
        changed, gone, mark, anew = self._take()
        old = self._mark
        quiet = old is not None and mark.log_end - old.log_end < _QUIET_BYTES
        if not (changed or gone or anew) and quiet and self._same(old, mark):
            self.metrics.maybe_write()
            return
        pending = self.store.metadata.pending
        try:
            await asyncio.to_thread(pending.apply, changed, gone, mark, anew=anew)
            self._mark, self._anew = mark, False
            self.metrics.maybe_write()
        except BaseException as failed:
            self._anew = True
            if not isinstance(failed, StoreError):
                raise
            log.error("Cannot save open transactions; they remain in the log: %s", failed)

    @staticmethod
    def _same(old: Mark | None, new: Mark) -> bool:
        return old is not None and (old.half_next, old.op_next, old.op_from) == (
            new.half_next, new.op_next, new.op_from,
        )  # fmt: skip

    # ---- checks ----

    async def check(self) -> RoundReport:
        """Runs one round: asks for every half message that is due, and discards those whose checks
        are used up."""
        config, began = self._config, time.monotonic()
        now = self.now_ms()
        reserved = config["fileReservedTime"] * 3_600_000
        self.halves.begin_round(now, now, reserved, config["transactionCheckMax"])
        given_up = lost = 0
        live: set[str] = set()
        await self._find_topics()
        for group in self.halves.counts():
            self._look(group.name, live)
        while time.monotonic() - began < _ROUND_S:
            await self._until_writable(live)
            part = self.halves.next_part()
            if part is None:
                break
            for check in part.checks:
                self._ask(check.group, check.topic, check.frames)
            for offset in part.spent:
                gone = self._give_up(offset)
                given_up += gone is Decision.DISCARD
                lost += gone is Decision.LOST
            await asyncio.sleep(0)
        asked, unheard = self.halves.round_sums
        if given_up or lost:
            log.warning(
                "Discarded %d transactions (copies in %s); the records of %d are gone",
                given_up, DISCARD_TOPIC, lost,
            )  # fmt: skip
        return RoundReport(asked, unheard, given_up, lost, time.monotonic() - began)

    async def _find_topics(self) -> None:
        """Finds the topics of each group, and which half messages nobody may be asked about: that a
        group is there for one topic, perhaps a stranger's, says nothing of another."""
        found: dict[str, set[str]] = {}
        heard: dict[tuple[str, str], bool] = {}
        if self.may_ask is not None:
            for number, half in enumerate(self.halves.all()):
                found.setdefault(half.group, set()).add(half.topic)
                name = half.group, half.topic
                if name not in heard:
                    heard[name] = self._channel(*name) is not None
                self.halves.heard(half.offset, heard[name])
                if number % 256 == 255:
                    await asyncio.sleep(0)
        self._group_topics = found

    def _look(self, group: str, live: set[str]) -> None:
        is_live = self._channel(group) is not None
        (live.add if is_live else live.discard)(group)
        self.halves.live(group, is_live)

    async def _until_writable(self, live: set[str]) -> None:
        """Waits for a producer that has enough to read, rather than losing a check."""
        for group in list(live):
            for _ in range(int(_ROUND_S / 10 / _PAUSE_S)):
                channel = self._channel(group)
                if channel is None or not channel.peer.busy:
                    break
                await asyncio.sleep(_PAUSE_S)
            self._look(group, live)

    def _channel(self, group: str, topic: str | None = None) -> Channel | None:
        """Returns a member of the group, one that takes more bytes if there is one. topic: that of
        the half messages that it is to be asked about; None stands for any."""
        channels = self._clients.producers.get(group)
        if not channels:
            return None
        there = [channel for channel in channels.values() if not channel.peer.closed]
        if (may_ask := self.may_ask) is not None:
            topics = self._group_topics.get(group, set()) if topic is None else {topic}
            there = [each for each in there if any(may_ask(each, name) for name in topics)]
        ready = [channel for channel in there if not channel.peer.busy] or there
        if not ready:
            return None
        return ready[self._turns.get(group, 0) % len(ready)]

    def _ask(self, group: str, topic: str, frames: bytes) -> None:
        channel = self._channel(group, topic)
        if channel is not None:
            self._turns[group] = self._turns.get(group, 0) + 1
            channel.peer.push(frames)

    def _give_up(self, offset: int) -> Decision | None:
        if DISCARD_TOPIC not in self._topics:
            self._topics.built_in(DISCARD_TOPIC)
        try:
            done = self.halves.decide(offset, Decision.DISCARD)
            return Decision.DISCARD if done is not None else None
        except (NotFound, RecordDamaged) as gone:
            log.error(
                "The half message at %d is lost; its transaction can no longer be decided: %s",
                offset,
                gone,
            )
        except StoreError as failed:
            log.error("Cannot discard the transaction at %d: %s", offset, failed)
            return None
        self.halves.decide(offset, Decision.LOST)
        return Decision.LOST

    @property
    def full(self) -> bool:
        """Returns whether there is no room for more half messages."""
        return self.halves.state().open >= OPEN_MAX

    def close_halves(self, offsets: Collection[int]) -> None:
        """Closes halves that another broker has, which asks their producers. Raises: what putting
        raises."""
        for half in list(self.halves.all()):
            if half.offset in offsets or half.root in offsets:
                self.halves.settled(half.offset, Decision.FINISHED, op=True)
        self.halves.write_ops()

    # ---- by hand ----

    def resume(self, message: Message) -> PendingHalf | None:
        """Has a half message checked from the beginning: a discarded one, given by its copy, or an
        open one. Returns None when the message is neither. Raises: what putting raises."""
        if message.topic == HALF_TOPIC:
            half = self.halves.find(message.queue_offset)
            if half is None:
                return None
            self.halves.settled(half.offset, Decision.FINISHED, op=False)
            half = half._replace(checks=0, asked_ms=0)
            self.halves.add(half)
            return half
        if message.topic != DISCARD_TOPIC or half_of(message) is None:
            return None
        decision = PutDecision(role=Role.HALF, add={"TRANSACTION_CHECK_TIMES": "0"})
        sent = self._core.put_again(message.physical_offset, decision)
        return self.halves.find(sent.offset)
