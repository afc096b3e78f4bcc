"""Questions that tools put to a client through its broker: 307, 309, 223 by way of 221."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.processors.bodies import CONSUMER_STATUS
from broker.services.clients import Channel
from broker.services.context import Services
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import StoreError

__all__ = ["RelayProcessor"]

#: MQVersion.V3_1_8_SNAPSHOT and V3_0_7_SNAPSHOT.
_V3_1_8, _V3_0_7 = 62, 28
_ANSWER_S = 10.0


class RelayProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    def _channel(self, group: str, client: str) -> Channel:
        found = self.s.clients.consumers.get(group)
        channel = found.channel_of(client) if found is not None else None
        if channel is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client:.200}> not online"
            )
        if channel.version < _V3_1_8:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client:.200}> Version <{channel.version}> too low to finish,"
                " please upgrade it to V3_1_8_SNAPSHOT",
            )
        return channel

    def running_info(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        group, client = command.text("consumerGroup"), command.text("clientId")
        channel = self._channel(group, client)
        asked = Command(command.code, dict(command.ext), bytes(command.body))
        return self._relay(command, channel, asked)

    def consume_directly(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        group, client = command.text("consumerGroup"), command.text("clientId")
        channel = self._channel(group, client)
        ext = command.ext | {"brokerName": self.s.broker_name}
        body = b""
        if command.ext.get("msgId"):
            try:
                body = bytes(self.s.store.message_by_id(command.ext["msgId"]).record)
            except StoreError as failed:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"no message with this id: {failed.text}"
                ) from failed
        topic = self.s.topics.get(command.ext.get("topic", ""))
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        config = self.s.groups.get(group)
        if config is not None:
            ext["groupSysFlag"] = str(config.group_sys_flag)
        return self._relay(command, channel, Command(command.code, ext, body))

    async def _relay(self, command: Command, channel: Channel, asked: Command) -> Command:
        try:
            answer = await channel.peer.request(asked, _ANSWER_S)
        except TimeoutError as late:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{channel.client_id}> Timeout: {late}",
            ) from late
        except OSError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{channel.client_id}> Exception: {failed}",
            ) from failed
        return command.reply(answer.code, answer.remark, answer.ext, bytes(answer.body))

    # ---- where a group's clients are ----

    def status(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        topic, group = command.text("topic"), command.text("group")
        only = command.text("clientAddr", "")
        found = self.s.clients.online(group)
        if found is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{group}]",
            )
        channels = list(found.channels.values())
        for channel in channels:
            if channel.version < _V3_0_7:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client {channel.client_id} is too old to be asked for its status",
                )
        asked = [c for c in channels if only in ("", c.client_id, c.address)]
        return self._status(command, topic, group, asked)

    async def _status(
        self, command: Command, topic: str, group: str, channels: list[Channel]
    ) -> Command:
        ext = {"topic": topic, "group": group}
        answers = await asyncio.gather(
            *(
                c.peer.request(
                    Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(ext)), _ANSWER_S
                )
                for c in channels
            ),
            return_exceptions=True,
        )
        table: dict[str, Any] = {}
        for channel, answer in zip(channels, answers, strict=True):
            if not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS:
                continue
            try:
                table[channel.client_id] = CONSUMER_STATUS.loads(answer.body)["messageQueueTable"]
            except ValueError:
                continue  # its answer cannot be read; the others count
        return command.reply(body=mqjson.dumps({"consumerTable": table}))
