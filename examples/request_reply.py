"""A question to a topic, and the answer of whoever consumes it."""

import asyncio

from broker import AsyncConsumer, AsyncProducer, Message, ReceivedMessage


async def main() -> None:
    async with AsyncProducer("stock-desk") as desk, AsyncProducer("shop") as shop:

        async def answer(message: ReceivedMessage) -> None:
            await desk.reply(message, b"12 left of " + message.body)

        await shop.send(Message("stock", b"(this makes the topic)"))
        async with AsyncConsumer("stock", "stock", handler=answer):
            reply = await shop.request(Message("stock", b"apples"), timeout_s=10)
            print(reply.body.decode())


asyncio.run(main())
