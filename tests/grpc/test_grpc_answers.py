"""Statuses that only a broker in trouble brings about: one that says what the test wants, before a
proxy. And a look at all tests: no status of the schema is forgotten."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caller import CODE, Caller, message

from broker.grpc import cluster
from broker.grpc.proxy import Proxy
from broker.remoting.server import RemotingServer
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Peer

#: Statuses that nothing brings about: neither here nor at Apache's proxy, whose clients know them.
#: The others say what clients answer (60000, 50502) or belong to methods that are not served.
NEVER = {
    "CODE_UNSPECIFIED", "ILLEGAL_ACCESS_POINT", "NOT_FOUND", "OFFSET_NOT_FOUND",
    "PAYLOAD_TOO_LARGE", "PAYMENT_REQUIRED", "PRECONDITION_FAILED", "REQUEST_TIMEOUT",
    "REQUEST_HEADER_FIELDS_TOO_LARGE", "INTERNAL_ERROR", "UNSUPPORTED", "VERSION_UNSUPPORTED",
    "VERIFY_FIFO_MESSAGE_UNSUPPORTED",
}  # fmt: skip


class InTrouble:
    """A name server that knows one broker, itself. send, config: its answers to a send, and to a
    question for a topic; None: it never answers."""

    def __init__(self, send: int | None = 0, config: int | None = 0) -> None:
        self._send, self._config = send, config
        self.server = RemotingServer(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_TOPIC_CONFIG: self._topic,
                RequestCode.SEND_MESSAGE_V2: self._sent,
                RequestCode.HEART_BEAT: lambda peer, command: command.reply(),
            },
            host="127.0.0.1",
        )

    def _route(self, peer: Peer, command: Command) -> Command:
        queue = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        addresses = {"0": f"127.0.0.1:{self.server.port}"}
        broker = {"cluster": "c", "brokerName": "b", "brokerAddrs": addresses}
        body = {"queueDatas": [queue], "brokerDatas": [broker]}
        return command.reply(body=json.dumps(body).encode())

    def _topic(self, peer: Peer, command: Command) -> Command | None:
        if self._config is None:
            return None
        topic = {"topicName": "Normal", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        return command.reply(self._config, "trouble", body=json.dumps(topic).encode())

    def _sent(self, peer: Peer, command: Command) -> Command | None:
        return command.reply(self._send, "trouble") if self._send is not None else None


def answered(broker: Callable[[], InTrouble]) -> Any:
    """The reply to a send, by a proxy before this broker."""

    async def main() -> Any:
        made = broker()
        async with (
            made.server,
            Proxy(
                f"127.0.0.1:{made.server.port}", grpc_port=0, remoting_port=0, drain_s=0
            ) as front,
        ):
            with Caller(front.address) as caller:
                return await asyncio.to_thread(caller.send, message("Normal"))

    return asyncio.run(main())


@pytest.mark.parametrize(
    "said, code",
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, CODE.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, CODE.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, CODE.HA_NOT_AVAILABLE),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, CODE.NOT_IMPLEMENTED),
        (ResponseCode.SYSTEM_BUSY, CODE.TOO_MANY_REQUESTS),
        (ResponseCode.LMQ_QUOTA_EXCEEDED, CODE.LITE_TOPIC_QUOTA_EXCEEDED),
        (ResponseCode.SYSTEM_ERROR, CODE.INTERNAL_SERVER_ERROR),
    ],
)
def test_what_a_broker_says_of_a_send(said: int, code: int) -> None:
    reply = answered(lambda: InTrouble(send=said))
    assert reply.status.code == code, reply
    assert [each.status.code for each in reply.entries] == [code]
    assert reply.entries[0].status.message == "trouble"


def test_a_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ASKED_S", 0.2)
    reply = answered(lambda: InTrouble(config=None))
    assert reply.status.code == CODE.PROXY_TIMEOUT, reply
    assert "did not answer within 0.2 s" in reply.status.message


def test_every_status_is_met_by_a_test() -> None:
    """By its name, in the files beside this one."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("*.py")]
    own = re.sub(r"NEVER = \{.*?\}", "", Path(__file__).read_text(), flags=re.DOTALL)
    texts = [own if "NEVER = {" in text else text for text in texts]
    words = set(re.findall(r"\b[A-Z][A-Z_]+\b", "\n".join(texts)))
    assert set(vars(CODE)) - words == NEVER
