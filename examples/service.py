"""An asyncio service: works on messages until SIGTERM or Ctrl-C, then finishes and commits."""

import asyncio
import signal

from broker import AsyncConsumer, ReceivedMessage, RetryLater


async def handle(message: ReceivedMessage) -> None:
    if message.attempt == 1 and message.tags == "slow-start":
        raise RetryLater(delay_level=1)  # a second later, to whichever member is free
    print("worked on", message.body.decode(), flush=True)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncConsumer("service", "jobs", handler=handle, concurrency=10, start="first"):
        print("ready", flush=True)
        await stop.wait()
    print("stopped", flush=True)


asyncio.run(main())
