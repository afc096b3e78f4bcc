"""A worker: takes tasks and streams each answer to the session that asked.

The task of a worker that dies goes to another one. That sends the parts which the ledger has, word
for word, and makes the rest: no answer is mixed of two.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from ledger import Ledger

from broker import AsyncConsumer, AsyncProducer, Message, ReceivedMessage


async def answer(question: str) -> AsyncIterator[str]:
    """Yields the answer, a word at a time: in the place of a model."""
    for word in f"you asked: {question}".split():
        await asyncio.sleep(0.05)
        yield word


async def main(file: str) -> None:
    ledger = Ledger(file)
    async with AsyncProducer("workers") as producer:

        async def work(task: ReceivedMessage) -> None:
            session, request = task.properties["SESSION"], task.keys[0]

            async def send(name: str, text: str) -> None:
                await producer.send(
                    Message("sessions", text.encode(), lite_topic=session, keys=f"{request}/{name}")
                )

            number = 0
            async for text in answer(task.body.decode()):
                ledger.keep(f"{request}/{number}", text)
                await send(str(number), ledger.get(f"{request}/{number}") or "")
                number += 1
            await send("end", "-")

        async with AsyncConsumer("workers", "tasks", handler=work, start="first"):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
