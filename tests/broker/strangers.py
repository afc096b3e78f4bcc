"""Somebody who reaches the name server, and a port of his own there: he registers as a broker, sees
what brokers, proxies and tools ask him, answers as he likes, and replays it elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from broker.loop.thread import LoopThread
from broker.remoting.client import RemotingClient
from broker.remoting.server import RemotingServer
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from broker.wire.handlers import Peer
from pystore.meta.configfiles import TopicConfig, topic_to_json

__all__ = ["Stranger", "ask_at", "stranger_at"]

#: What he answers whom he relays nothing for.
_EVERY = [int(code) for code in Code]


def ask_at(address: str, command: Command) -> Command:
    """Sends one request as it is, and returns the answer."""

    async def asked() -> Command:
        async with RemotingClient() as client:
            return await client.request(address, command, 60.0)

    return asyncio.run(asked())


class Stranger:
    """answers: bodies by code. relay: `host:port` that everything else is passed on to, with the
    signature that it came with; empty: nothing. seen: what he was asked, and told by the relay."""

    def __init__(self, answers: Mapping[int, Any], relay: str = "") -> None:
        self.answers, self.relay = dict(answers), relay
        self.seen: list[tuple[Command, Command]] = []
        self._server = RemotingServer(dict.fromkeys(_EVERY, self._answer), host="127.0.0.1")
        self._client: RemotingClient | None = None
        self._thread = LoopThread("stranger")

    def __enter__(self) -> Stranger:
        self._thread.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def _start(self) -> None:
        self._client = RemotingClient()
        await self._server.start()

    async def _stop(self) -> None:
        assert self._client is not None
        await self._client.close()
        await self._server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def asked(self, code: int) -> list[Command]:
        return [request for request, _ in self.seen if request.code == code]

    async def _answer(self, peer: Peer, command: Command) -> Command:
        asked = Command(command.code, dict(command.ext), bytes(command.body))
        if command.code in self.answers or not self.relay:
            answer = command.reply(body=mqjson.dumps(self.answers.get(command.code, {})))
        else:
            assert self._client is not None
            passed = Command(command.code, dict(command.ext), bytes(command.body))
            told = await self._client.request(self.relay, passed, 30.0)
            answer = command.reply(told.code, told.remark, told.ext, bytes(told.body))
        self.seen.append((asked, answer))
        return answer

    def register(
        self, names: str, name: str, number: int, ha: str, topics: Iterable[str] = (), **ext: str
    ) -> Command:
        """At a name server, as a broker of this name that has these topics."""
        table = {topic: topic_to_json(TopicConfig(topic, 1, 1)) for topic in topics}
        body = {"topicConfigSerializeWrapper": {"topicConfigTable": table}, "filterServerList": []}
        fields = {
            "brokerName": name, "brokerAddr": self.address, "clusterName": "DefaultCluster",
            "haServerAddr": ha, "brokerId": str(number), "compressed": "false", **ext,
        }  # fmt: skip
        assert self._client is not None
        command = Command(Code.REGISTER_BROKER, fields, mqjson.dumps(body))
        # While this connection is open he stays registered.
        return self._thread.run(self._client.request(names, command, 30.0))


@contextlib.contextmanager
def stranger_at(
    names: str, name: str, number: int, answers: Mapping[int, Any], *, relay: str = "",
    ha: str = "", topics: Iterable[str] = (),
) -> Iterator[Stranger]:  # fmt: skip
    """He is registered: the name server believes whoever came last."""
    with Stranger(answers, relay) as found:
        found.register(names, name, number, ha or found.address, topics)
        yield found
