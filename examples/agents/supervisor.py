"""A supervisor: hands a question to the workers and streams the answer out of its session.

One that died is started again with the same session and request: it shows what the session had got,
and continues after that.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from ledger import Ledger

from broker import AsyncLiteConsumer, AsyncProducer, Message


async def ask(ledger: Ledger, session: str, request: str, question: str) -> AsyncIterator[str]:
    """Yields the parts of the answer, each once; one question of a session at a time."""
    if ledger.get(f"{request}/asked") is None:
        async with AsyncProducer("supervisors") as producer:
            named = {"SESSION": session}
            await producer.send(Message("tasks", question.encode(), keys=request, properties=named))
        ledger.keep(f"{request}/asked", question)  # after it: a question is rather asked twice
    number = 0
    while (text := ledger.get(f"{request}/{number}")) is not None:
        yield text
        number += 1
    if ledger.get(f"{request}/end") is not None:
        return
    async with AsyncLiteConsumer("supervisors", "sessions", invisible_s=2) as consumer:
        await consumer.subscribe(session)
        async for part in consumer:  # it is acknowledged when the next one is asked for
            key, text = part.keys[0], part.body.decode()
            if not ledger.keep(key, text) or not key.startswith(f"{request}/"):
                continue
            if key == f"{request}/end":
                return
            yield text


async def main(file: str, session: str, request: str, question: str) -> None:
    async for text in ask(Ledger(file), session, request, question):
        print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
