"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ (41, 42): queues of orderly consumers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.processors.bodies import QUEUES_OF_CLIENT, read
from broker.processors.turns import reply_with
from broker.services.context import Services
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer

__all__ = ["LockProcessor"]


class LockProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        body = read(command, QUEUES_OF_CLIENT)
        held = self.s.locks.lock(body["consumerGroup"], body["clientId"], body["mqSet"])
        return reply_with(command, lambda: {"lockOKMQSet": held})

    def unlock(self, peer: Peer, command: Command) -> Command:
        body = read(command, QUEUES_OF_CLIENT)
        self.s.locks.unlock(body["consumerGroup"], body["clientId"], body["mqSet"])
        return command.reply()
