"""END_TRANSACTION (37) where the core did not carry it out: refusals, repeats, and decisions that
wait for the disk; RESUME_CHECK_HALF (323). docs/internals/services.md#deciding."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.hot.halves import DecisionRecord
from broker.processors.durable import once_durable
from broker.processors.refusals import check_leads, put_refusal
from broker.services.context import Services
from broker.services.transaction import Transactions
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore import Message
from pystore.errors import BadArgument, StoreError
from pystore.format.names import HALF_TOPIC
from pystore.meta.pending import Decision, PendingHalf, immunity_of

__all__ = ["TransactionProcessor"]


class TransactionProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    @property
    def _transactions(self) -> Transactions:
        assert self.s.transactions is not None
        return self.s.transactions

    def _master_only(self) -> None:
        if not self._transactions.is_master:
            raise Refused(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "Transactions are decided at the master; this broker is a slave.",
            )
        check_leads(self.s)

    # ---- END_TRANSACTION ----

    def end(
        self, peer: Peer, command: Command
    ) -> Command | Coroutine[Any, Any, Command | None] | None:
        self._master_only()
        wanted = command.number("commitOrRollback")
        if wanted not in (0, Decision.COMMIT, Decision.ROLLBACK):
            raise Refused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        group = command.text("producerGroup")
        offset, place = command.number("tranStateTableOffset"), command.number("commitLogOffset")
        if wanted == 0:
            return None  # not known yet: upstream answers nothing, and the checks go on
        try:
            return self._end(command, Decision(wanted), group, offset, place)
        except Refused:
            self._transactions.refused += 1
            raise

    def _end(
        self, command: Command, wanted: Decision, group: str, offset: int, place: int
    ) -> Command | Coroutine[Any, Any, Command | None]:
        message = self._message(place)
        self._check(command, message, group, offset)
        half = self._transactions.halves.find(offset)
        if half is None:
            return self._repeat(command, wanted, offset)
        if place not in (half.physical, half.root_physical):
            raise Refused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        done = self._decide(half, wanted)
        return once_durable(self.s, done.end, command.reply())

    def _message(self, place: int) -> Message:
        try:
            return self.s.store.message(place)
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"Find prepared transaction message failed: {failed.text}",
            ) from failed

    def _check(self, command: Command, message: Message, group: str, offset: int) -> None:
        """Checks in upstream's order, and then what upstream does not look at. Raises: Refused."""
        properties = message.properties
        if not command.flag_of("fromTransactionCheck"):
            self._refuse_late(message, properties)
        if properties.get("PGROUP") != group:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if message.queue_offset != offset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if message.topic != HALF_TOPIC or properties.get("TRAN_MSG", "").lower() != "true":
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The message at {message.physical_offset} is not a half message",
            )
        _refuse_another_topic(message, command)

    def _refuse_late(self, message: Message, properties: dict[str, str]) -> None:
        immunity = immunity_of(properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS"))
        if immunity == -2:
            return
        most = max(immunity * 1000, self.s.settings["transactionTimeOut"])
        age = self._transactions.now_ms() - message.store_timestamp
        if age > most:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"The decision comes {age} ms after the half message, which allows {most};"
                " the answer to a check decides it.",
            )

    def _repeat(
        self, command: Command, wanted: Decision, offset: int
    ) -> Command | Coroutine[Any, Any, Command | None]:
        before = self._transactions.halves.decided(offset)
        if before is wanted:
            self._transactions.repeated += 1
            # What the first request stored may still be on its way to the disk.
            return once_durable(self.s, self.s.store.info().log_max, command.reply())
        how = "before" if before is Decision.FINISHED else f"before: {before.name}"
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"The transaction at {offset} was decided {how}; the first decision counts.",
        )

    def _decide(self, half: PendingHalf, wanted: Decision) -> DecisionRecord:
        try:
            done = self._transactions.halves.decide(half.offset, wanted)
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed
        assert done is not None  # it was open a moment ago
        return done

    # ---- RESUME_CHECK_HALF ----

    def resume(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command | None]:
        self._master_only()
        try:
            message = self.s.store.message_by_id(command.text("msgId"))
            _refuse_another_topic(message, command)
            half = self._transactions.resume(message)
        except BadArgument as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, bad.text) from bad
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"Put message back to {HALF_TOPIC} failed: {failed.text}",
            ) from failed
        if half is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: the message is neither one"
                " that was discarded nor an open half message.",
            )
        end = half.physical + self.s.store.message(half.physical).size
        return once_durable(self.s, end, command.reply())


def _refuse_another_topic(message: Message, command: Command) -> None:
    """Compares the topic that the request names, which access control has looked at, with that of
    the transaction, and with where its message is stored. Raises: Refused for any other."""
    topic = command.ext.get("topic")
    if topic and topic not in (message.properties.get("REAL_TOPIC"), message.topic):
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"The transaction is not one of topic[{topic:.255}]"
        )
