"""What the broker asks a client of this service, put into commands of its telemetry stream: checks
of transactions, and questions of tools."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from broker.client.message import ReceivedMessage
from broker.client.progress import QueueProgress
from broker.client.records import BadRecord, received
from broker.grpc.brokers import BROKER
from broker.grpc.clients import Client, GrpcClients
from broker.grpc.messages import incoming, is_compressed
from broker.grpc.schema import pb
from broker.grpc.status import Code, ok
from broker.grpc.transactions import Half, id_of
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import MessageQueue

__all__ = ["TelemetryCommands"]

_quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: ConsumeReturnType by the status of a verified message.
_VERIFIED = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
}


class TelemetryCommands:
    """Handlers of our ends of the clients' connections."""

    def __init__(self, clients: GrpcClients) -> None:
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.CHECK_TRANSACTION_STATE: self.check,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.changed,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE: self.unsubscribed,
        }

    def changed(self, peer: Peer, command: Command) -> None:
        """Does nothing: clients of this service do not divide queues."""

    def unsubscribed(self, peer: Peer, command: Command) -> None:
        """Tells a client that a lite topic is another one's now."""
        client = self._clients.of(peer)
        if client is not None and client.group == command.ext.get("consumerGroup"):
            lost = pb.NotifyUnsubscribeLiteCommand(lite_topic=command.ext.get("liteTopic", ""))
            client.tell(pb.TelemetryCommand(status=ok(), notify_unsubscribe_lite_command=lost))

    # ---- transactions ----

    def check(self, peer: Peer, command: Command) -> Coroutine[Any, Any, None] | None:
        client = self._clients.of(peer)
        try:
            message = _message(command)
        except ValueError as bad:
            _quiet.warning("check", "Cannot read a check of a transaction: %s", bad)
            return None
        if client is None or not client.is_producer:
            return None  # it has just left: the broker asks another one
        half = Half(
            message.message_id,
            int(command.ext.get("tranStateTableOffset", "0")),
            int(command.ext.get("commitLogOffset", "0")),
            peer.state[BROKER],
            checked=True,
        )
        topic = message.properties.get("REAL_TOPIC")
        if is_compressed(message):
            return _check_later(client, half, message, topic)
        _check(client, half, incoming(message, topic))
        return None

    # ---- tools ----

    def running_info(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        return self._running_info(self._client(peer), command)

    async def _running_info(self, client: Client, command: Command) -> Command:
        """Returns ConsumerRunningInfo: what its settings say, and its threads where they are asked
        for."""
        subscription = client.settings.subscription
        body: dict[str, Any] = {
            "properties": {
                "PROP_CLIENT_VERSION": client.call.version,
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUME_ORDERLY": str(subscription.fifo).lower(),
            },
            "subscriptionSet": [
                {
                    "topic": each.topic.name,
                    "subString": each.expression.expression or "*",
                    "expressionType": "TAG",
                    "subVersion": 0,
                    "classFilterMode": False,
                    "tagsSet": [],
                    "codeSet": [],
                }
                for each in subscription.subscriptions
            ],
            "mqTable": {}, "mqPopTable": {}, "statusTable": {}, "userConsumerInfo": {},
        }  # fmt: skip
        if command.flag_of("jstackEnable"):
            nonce = secrets.token_hex(16)
            asked = pb.TelemetryCommand(
                print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce=nonce)
            )
            answer = await self._ask(client, asked, nonce)
            body["jstack"] = answer.thread_stack_trace.thread_stack_trace
        return command.reply(body=mqjson.dumps(body))

    def consume_directly(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        client = self._client(peer)
        try:
            message = _message(command)
        except ValueError as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {bad}") from bad
        return self._consume(client, message, command)

    async def _consume(self, client: Client, message: ReceivedMessage, command: Command) -> Command:
        nonce = secrets.token_hex(16)
        made = await asyncio.to_thread(incoming, message)
        asked = pb.TelemetryCommand(
            verify_message_command=pb.VerifyMessageCommand(nonce=nonce, message=made)
        )
        answer = await self._ask(client, asked, nonce)
        result = _VERIFIED.get(answer.status.code, "CR_THROW_EXCEPTION")
        body = {
            "order": bool(client.settings.subscription.fifo), "autoCommit": True,
            "consumeResult": result, "remark": answer.status.message, "spentTimeMills": 0,
        }  # fmt: skip
        return command.reply(body=mqjson.dumps(body))

    def _client(self, peer: Peer) -> Client:
        client = self._clients.of(peer)
        if client is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the client has no telemetry stream")
        return client

    @staticmethod
    async def _ask(client: Client, command: Any, nonce: str) -> Any:
        try:
            return await client.ask(command, nonce)
        except TimeoutError:
            raise Refused(
                ResponseCode.SYSTEM_BUSY, f"the client {client.client_id:.200} did not answer"
            ) from None


async def _check_later(
    client: Client, half: Half, message: ReceivedMessage, topic: str | None
) -> None:
    """Asks for a check once the body is inflated, beside the event loop."""
    _check(client, half, await asyncio.to_thread(incoming, message, topic))


def _check(client: Client, half: Half, made: Any) -> None:
    client.tell(
        pb.TelemetryCommand(
            recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                message=made, transaction_id=id_of(half)
            )
        )
    )


def _message(command: Command) -> ReceivedMessage:
    """Returns the message that a request has as its body. Raises: ValueError."""
    queue = MessageQueue(command.ext.get("topic", ""), command.ext.get("bname", ""), 0)
    found = received(bytes(command.body), QueueProgress(queue, 0))
    if len(found) != 1:
        raise BadRecord(f"{len(found)} messages where one is expected")
    return found[0]
