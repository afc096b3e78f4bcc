"""SendMessage and RecallMessage."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from broker.access.needs import AccessAction
from broker.client.ids import offset_id_of
from broker.client.records import encode_batch
from broker.grpc._http2 import Sends
from broker.grpc.brokers import Brokers, InProcess, Put, TopicPlace, accepted
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import check_message, check_topics_equal, topic_of
from broker.grpc.messages import (
    Kind,
    Outgoing,
    outgoing,
    plain_sends,
)
from broker.grpc.routes import accepted_types
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response, ok, overall, status
from broker.grpc.transactions import Half, id_of
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore.errors import BadArgument
from pystore.format.javahash import bucket_of
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC
from pystore.format.properties import encode_properties
from pystore.meta.configfiles import TopicConfig
from pystore.store.timers import RecallHandle

__all__ = ["Sending", "check_type"]

#: Messages that are looked at in one turn of the event loop.
_A_TURN = 64
#: Messages of one call.
_MESSAGES_MAX = 4096
#: A send waits so long for a master that is being elected, if its client waits longer than
#: that and what the send itself may take.
_MASTER_S, _SEND_S = 3.0, 0.5
_KINDS = {number: name for name, number in vars(Kind).items()}
_KINDS[Kind.MESSAGE_TYPE_UNSPECIFIED] = "UNSPECIFIED"


class Sending:
    def __init__(self, broker: Brokers, settings: ProxySettings) -> None:
        self._broker = broker
        self._settings = settings
        self._turn = itertools.count()
        self._unturned = 0
        self._plain = plain_sends(settings)

    @property
    def plain(self) -> Sends:
        """What plain messages are."""
        return self._plain

    def handlers(self) -> Handlers:
        return {"SendMessage": self.send, "RecallMessage": self.recall}

    # ---- SendMessage ----

    async def send(self, call: Call, request: Any) -> Any:
        messages = request.messages
        if len(messages) > _MESSAGES_MAX:
            raise Problem(
                Code.BAD_REQUEST, f"{len(messages)} messages to send, {_MESSAGES_MAX} are allowed"
            )
        topic = check_topics_equal(messages)
        await self._broker.check_topic(call, topic, AccessAction.PUB)
        made = [await self._taken(call, each) for each in messages]
        places = await self._broker.writable(topic, _wait_of(call))
        config = places[0].config if places else None
        for each in made:
            self._check_type(config, each)
        if config is None:
            raise Problem(Code.TOPIC_NOT_FOUND, f"topic[{topic}] not exist")
        self._let_threads_put(topic, config)
        writable = [each for each in places if each.writes]
        if not writable:
            raise Problem(Code.FORBIDDEN, "no writable queue")
        entries: list[Any] = []
        for together in _together(made):
            entries += await self._put(call, writable, together)
        return pb.SendMessageResponse(
            status=overall(each.status for each in entries), entries=entries
        )

    def _let_threads_put(self, topic: str, config: TopicConfig) -> None:
        """Lets network threads put further messages of the kinds that the topic takes."""
        if isinstance(self._broker, InProcess) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            all_kinds = not self._settings.check_type
            self._broker.takes(topic, _KINDS if all_kinds else accepted_types(config))

    async def _taken(self, call: Call, message: Any) -> Outgoing:
        """Returns a message as the broker takes it. Others have their turn beside large ones, and
        after some small ones. Raises: Problem."""
        check_message(message, self._settings)
        system, host, most = message.system_properties, call.address[0], self._settings.body_max
        if system.message_type == Kind.TRANSACTION and system.HasField("delivery_timestamp"):
            raise Problem(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a message in a transaction cannot have a delivery time",
            )
        if system.body_encoding == pb.Encoding.GZIP:
            return await asyncio.to_thread(outgoing, self._plain, message, host, most)
        self._unturned += 1
        if self._unturned % _A_TURN == 0:
            await asyncio.sleep(0)
        return outgoing(self._plain, message, host, most)

    def _check_type(self, config: TopicConfig | None, message: Outgoing) -> None:
        """Checks the type of messages. Raises: Problem when the topic takes messages of another
        type. Upstream looks at the first one alone."""
        if self._settings.check_type and not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            check_type(config, message.kind)

    async def _put(
        self, call: Call, places: Sequence[TopicPlace], messages: Sequence[Outgoing]
    ) -> list[Any]:
        """Puts messages. Returns the entries of the reply for messages that go in one request."""
        first = messages[0]
        broker, queue = self._queue(places, first.key)
        answer = await self._broker.request(call, _command(messages, broker, queue), broker)
        code = of_response(answer.code)
        if answer.code != ResponseCode.SUCCESS:
            refused = status(code, answer.remark or "")
            return [pb.SendResultEntry(status=refused) for _ in messages]
        ext = answer.ext
        offset = int(ext.get("queueOffset", "-1"))
        put = Put(offset, ext.get("msgId", ""))
        transaction = _transaction_of(first.message_id, first.kind, broker, put)
        return [
            pb.SendResultEntry(
                status=ok(), message_id=each.message_id, offset=offset + number,
                transaction_id=transaction if len(messages) == 1 else each.message_id,
                recall_handle=ext.get("recallHandle", ""),
            )
            for number, each in enumerate(messages)
        ]  # fmt: skip

    def _queue(self, places: Sequence[TopicPlace], key: str) -> tuple[str, int]:
        """Returns the broker and its queue. A key always has the same one; others take turns
        among the brokers that answer. Logical queues keep their order, whoever leads them."""
        if places[0].led is not None:
            led = sorted((queue, each.broker) for each in places for queue in each.led or ())
            at = bucket_of(key, len(led)) if key else next(self._turn) % len(led)
            queue, broker = led[at]
            return broker, queue
        if not key:
            places = [each for each in places if self._broker.is_available(each.broker)] or places
        count = sum(each.writes for each in places)
        number = bucket_of(key, count) if key else next(self._turn) % count
        for each in places:
            if number < each.writes:
                break
            number -= each.writes
        return each.broker, number

    # ---- RecallMessage ----

    async def recall(self, call: Call, request: Any) -> Any:
        topic = topic_of(request.topic)
        await self._broker.check_topic(call, topic, AccessAction.PUB)
        places = await self._broker.places(topic)
        if self._settings.check_type:
            check_type(places[0].config if places else None, Kind.DELAY)
        try:
            handle = RecallHandle.parse(request.recall_handle)
        except BadArgument as bad:
            raise Problem(Code.BAD_REQUEST, bad.text) from None
        ext = {
            "topic": topic, "recallHandle": request.recall_handle, "producerGroup": topic,
            "bname": handle.broker,
        }  # fmt: skip
        command = Command(RequestCode.RECALL_MESSAGE, ext)
        answer = await self._broker.request(call, command, handle.broker)
        ahead_ms = handle.out_ms - time.time() * 1000
        is_to_come = handle.topic == topic and 0 < ahead_ms < self._settings.delay_max_ms
        if answer.code == ResponseCode.ILLEGAL_OPERATION and is_to_come:
            # It does not wait although its time is still to come: it was recalled before. A recall
            # that comes again is OK, as at Apache's.
            return pb.RecallMessageResponse(status=ok(), message_id=handle.key)
        accepted(answer)
        return pb.RecallMessageResponse(status=ok(), message_id=answer.ext.get("msgId", ""))


def check_type(config: TopicConfig | None, kind: int) -> None:
    """Checks that the topic takes messages of this kind (of Kind). config: None when there is no
    such topic. Raises: Problem when it does not."""
    wanted = "UNSPECIFIED"
    if config is not None:
        if kind in accepted_types(config):
            return
        wanted = config.attributes.get("message.type", "NORMAL")
    raise Problem(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is"
        f" {_KINDS[kind]}",
    )


def _wait_of(call: Call) -> float:
    """Returns the seconds that a send may wait for a master."""
    left = call.remaining_s
    return _MASTER_S if left is None else min(_MASTER_S, left - _SEND_S)


def _command(messages: Sequence[Outgoing], broker: str, queue: int) -> Command:
    first, batch = messages[0], len(messages) > 1
    body, own = first.body, first.properties
    if batch:
        properties = [each.properties for each in messages]
        body = encode_batch([0] * len(messages), [each.body for each in messages], properties)
        own = encode_properties({"UNIQ_KEY": first.message_id})
    ext = _fixed(first.topic, queue, broker, batch) | {
        "f": str(first.sys_flag), "g": str(first.born_ms), "h": "0",
        "i": own.decode(),
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return Command(code, ext, body)


def _fixed(topic: str, queue: int, broker: str, batch: bool) -> dict[str, str]:
    """Returns the fields that are the same for all messages to a queue."""
    return {
        "a": topic, "b": topic, "c": TEMPLATE_TOPIC, "d": "4", "e": str(queue), "j": "0",
        "k": "false", "m": "true" if batch else "false", "n": broker,
    }  # fmt: skip


def _transaction_of(message_id: str, kind: int, broker: str, put: Put) -> str:
    """Returns the transaction's id; that of the message, when it is in none."""
    if kind != Kind.TRANSACTION:
        return message_id
    return id_of(Half(message_id, put.offset, offset_id_of(put.ids).offset, broker))


def _together(messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """Yields messages that one request can carry. A batch of the broker's has neither delays nor
    transactions, and all of it goes to one queue."""
    plain = all(each.kind in (Kind.NORMAL, Kind.FIFO) for each in messages)
    if plain and len({each.key for each in messages}) == 1:
        yield messages
    else:
        yield from ([each] for each in messages)
