"""Requests of an administrator to running brokers and name servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker.cli.signing import context_of, credentials_of
from broker.loop.reasons import NOT_A_BROKER
from pystore.cli.verbs import usage
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from broker.client.credentials import Credentials
    from broker.remoting.client import RemotingClient
    from broker.wire.command import Command

__all__ = ["Inquirer", "RefusedByBroker", "ask", "check_address", "inquirer"]

#: REQUEST_CODE_NOT_SUPPORTED, of a name server that is asked what only brokers know.
_NOT_SUPPORTED = 3
#: How long a server has for an answer.
_ASK_S = 3.0


class RefusedByBroker(BadArgument):
    """answered: the code of the answer."""

    def __init__(self, answered: int, remark: str, next_step: str) -> None:
        super().__init__(f"the broker refused the request with code {answered}: {remark}")
        self.answered = answered
        self.next_step = NOT_A_BROKER if answered == _NOT_SUPPORTED else next_step


def check_address(address: str, option: str) -> str:
    """Returns the address. option: what named it. Raises: BadArgument."""
    from broker.remoting.client import parse_address

    try:
        parse_address(address)
    except ValueError as wrong:
        raise usage(f"{option}: {wrong}", f"for example: {option} 127.0.0.1:10911") from None
    return address


class Inquirer:
    """Sends requests to any number of servers, signed if there are credentials."""

    def __init__(self, client: RemotingClient, signer: Credentials | None) -> None:
        self._client, self._signer = client, signer

    async def ask(self, address: str, command: Command) -> Command:
        """Returns the answer, whatever its code. Raises: OSError, TimeoutError."""
        from broker.services.broker_asker import BrokerAsker

        asker = BrokerAsker(self._client, self._signer, trusted="*")  # a person named it
        return await asker.request(address, command, _ASK_S)

    async def body(
        self, address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *,
        next_step: str = "",
    ) -> bytes:  # fmt: skip
        """Returns the body of an answer. body: of the request. next_step: advice for a refusal.
        Raises: RefusedByBroker, OSError, TimeoutError."""
        from broker.wire.command import Command

        answer = await self.ask(address, Command(code, ext or {}, body))
        if answer.code != 0:
            raise RefusedByBroker(answer.code, answer.remark or "", next_step)
        return bytes(answer.body)


@asynccontextmanager
async def inquirer(credentials: Path | None, trust: Path | None) -> AsyncIterator[Inquirer]:
    """Opens what asks brokers. credentials: by default those of the environment, if any. trust:
    None speaks plain text. Raises: BadArgument."""
    from broker.remoting.client import RemotingClient

    signer = credentials_of(credentials)
    async with RemotingClient(tls=context_of(trust)) as client:
        yield Inquirer(client, signer)


def ask(
    broker: str,
    code: int,
    ext: dict[str, object],
    body: bytes = b"",
    *,
    credentials: Path | None = None,
    trust: Path | None = None,
    next_step: str,
) -> bytes:
    """Sends a request and returns the body of the answer. credentials: by default those of the
    environment, if any. trust: None speaks plain text. next_step: advice for a refusal.

    Raises: RefusedByBroker, BadArgument, OSError when the broker does not answer."""
    import asyncio

    from broker.wire.command import texts

    check_address(broker, "--broker")

    async def asked() -> bytes:
        async with inquirer(credentials, trust) as by:
            return await by.body(broker, code, texts(ext), body, next_step=next_step)

    return asyncio.run(asked())
