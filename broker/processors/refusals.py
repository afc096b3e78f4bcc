"""What a message that could not be put is answered with
(docs/internals/services.md#errors-by-code)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import wraps

from broker.services.context import Services
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result
from pystore.errors import (
    CreateMappedFileFailed,
    DiskFull,
    FlushFailed,
    InSyncReplicasNotEnough,
    MessageIllegal,
    NotWriteable,
    StoreError,
    TimerIllegal,
    TimersOff,
)
from pystore.meta.configfiles import TopicConfig

__all__ = [
    "always", "check_hands_out", "check_leads", "ended", "illegal_queue", "put_refusal",
]  # fmt: skip


async def ended(end: asyncio.Task[None]) -> None:
    """Waits for the end of what was popped of a deleted topic or group, so that it does not come
    back. Raises: Refused."""
    try:
        await asyncio.shield(end)  # it goes on when who asked goes
    except StoreError as failed:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "deleted, but what was popped of it may come back after a restart if the name is used"
            f" again: {failed.text}",
        ) from failed


def always(fields: Mapping[str, object], handler: Handler) -> Handler:
    """Returns the handler with these fields in its refusals, too: clients read them whatever the
    code is. They are what upstream's header of the answer has without being set."""

    async def later(command: Command, answer: Awaitable[Command | None]) -> Command | None:
        try:
            return await answer
        except Refused as refused:
            return command.reply(refused.code, refused.remark, fields)

    @wraps(handler)
    def handle(peer: Peer, command: Command) -> Result:
        try:
            answer = handler(peer, command)
        except Refused as refused:
            return command.reply(refused.code, refused.remark, fields)
        return answer if answer is None or isinstance(answer, Command) else later(command, answer)

    return handle


def check_hands_out(s: Services) -> None:
    """Checks that messages may be popped and acknowledged here: at a slave they may while it acts
    as master. Raises: Refused."""
    acts = s.acting is not None and s.acting.pops.is_on
    if s.settings["brokerRole"] == "SLAVE" and not acts:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "this broker is a slave: what is popped is written by its master",
        )
    check_leads(s)


def check_leads(s: Services) -> None:
    """Checks that this broker leads: a slave may be doing the same in this master's place. Raises:
    Refused."""
    if not s.core.leads:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "this master is cut off from name servers and slaves: a slave may act in its place",
        )


def illegal_queue(code: int, config: TopicConfig, queue: int, consumer: str) -> Refused:
    """Returns the refusal of a queue that a topic does not have, in upstream's words."""
    return Refused(
        code,
        f"queueId[{queue}] is illegal, topic:[{config.name}] topicConfig.readQueueNums:"
        f"[{config.read_queue_nums}] consumer:[{consumer}]",
    )


def put_refusal(error: StoreError, s: Services) -> Refused:
    if isinstance(error, TimerIllegal):
        return Refused(ResponseCode.MESSAGE_ILLEGAL, error.text)
    if isinstance(error, TimersOff):
        return Refused(ResponseCode.SYSTEM_ERROR, error.text)
    if isinstance(error, MessageIllegal):
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {s.settings['maxMessageSize']}B: {error.text}",
        )
    if isinstance(error, DiskFull | NotWriteable | FlushFailed):
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: the"
            f" broker's disk is full, the store has been shut down: {error.text}",
        )
    if isinstance(error, InSyncReplicasNotEnough):
        return Refused(ResponseCode.SYSTEM_ERROR, error.text)
    if isinstance(error, CreateMappedFileFailed):
        return Refused(
            ResponseCode.SYSTEM_ERROR,
            f"create mapped file failed, server is busy or broken: {error.text}",
        )
    return Refused(ResponseCode.SYSTEM_ERROR, f"the message could not be stored: {error}")
