"""Our broker as a process: ours.py CONF [NAMESRV_PORT]; with a port it brings its name server."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys

import uvloop

from broker.broker import Broker


async def main(conf: str, namesrv_port: str | None = None) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    port = int(namesrv_port or 0)
    async with Broker(conf, with_namesrv=namesrv_port is not None, namesrv_port=port) as broker:
        print(f"boot success {broker.address}", flush=True)
        await ended.wait()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(main(*sys.argv[1:]))
