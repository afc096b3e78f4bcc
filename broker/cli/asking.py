"""One request of an administrator to a running broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.cli.signing import context_of, credentials_of
from pystore.cli.verbs import usage
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from broker.wire.command import Command

__all__ = ["RefusedByBroker", "ask"]


class RefusedByBroker(BadArgument):
    """answered: the code of the answer."""

    def __init__(self, answered: int, remark: str, next_step: str) -> None:
        super().__init__(f"the broker refused the request with code {answered}: {remark}")
        self.answered = answered
        self.next_step = next_step


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

    from broker.access.signature import sign
    from broker.remoting.client import RemotingClient, parse_address
    from broker.wire.command import Command, texts

    try:
        parse_address(broker)
    except ValueError as wrong:
        raise usage(f"--broker: {wrong}", "for example: --broker 127.0.0.1:10911") from None
    signer = credentials_of(credentials)
    tls = context_of(trust)

    async def asked() -> Command:
        async with RemotingClient(tls=tls) as client:
            command = Command(code, texts(ext), body)
            if signer is not None:
                sign(command, signer)
            return await client.request(broker, command)

    answer = asyncio.run(asked())
    if answer.code != 0:
        raise RefusedByBroker(answer.code, answer.remark or "", next_step)
    return bytes(answer.body)
