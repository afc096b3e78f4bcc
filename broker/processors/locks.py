"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ (41, 42): queues of orderly consumers."""

from __future__ import annotations

from broker.processors.bodies import json_object, message_queues, text
from broker.remoting import mqjson
from broker.remoting.codes import RequestCode
from broker.remoting.command import Command
from broker.remoting.handlers import Handler, Peer
from broker.services.context import Services

__all__ = ["LockProcessor"]


class LockProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, peer: Peer, command: Command) -> Command:
        body = json_object(command)
        held = self.s.locks.lock(
            text(body, "consumerGroup"), text(body, "clientId"), message_queues(body, "mqSet")
        )
        return command.reply(body=mqjson.dumps({"lockOKMQSet": held}))

    def unlock(self, peer: Peer, command: Command) -> Command:
        body = json_object(command)
        self.s.locks.unlock(
            text(body, "consumerGroup"), text(body, "clientId"), message_queues(body, "mqSet")
        )
        return command.reply()
