"""Runs a server until a signal tells it to stop. Imported by the verbs when they run."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable
from typing import Protocol

import uvloop

from broker.cli.collecting import put_aside
from broker.cli.loglevel import LogOptions
from broker.cli.notifying import notify, reloading

__all__ = ["run_server"]


class Server(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def run_server(
    server: Server,
    ready: Callable[[], None],
    log: LogOptions | str,
    reload: Callable[[], None] | None = None,
) -> int:
    """Starts a server, calls ready(), and stops it at SIGTERM or SIGINT; a second signal ends it at
    once. SIGHUP calls reload(); without one it does nothing. systemd is told when it is ready, when
    it reads its settings again, and that it stops. log: a level alone, or also
    how and where lines are written. Returns the exit code. Raises: what start() raises."""
    (LogOptions(log) if isinstance(log, str) else log).begin()
    _allow_many_files()
    try:
        uvloop.run(_run(server, ready, reload))
    except asyncio.CancelledError:
        return 130
    return 0


def _allow_many_files() -> None:
    """Raises the limit on open files: a connection is a file, and the usual limit of a shell is
    1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(
    server: Server, ready: Callable[[], None], reload: Callable[[], None] | None
) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if asked.is_set():
            task.cancel()
        asked.set()

    def hang_up() -> None:
        if reload is not None:
            reloading()
            reload()
            notify("READY=1")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await server.start()
    put_aside()
    try:
        ready()
        notify("READY=1")
        await asked.wait()
    finally:
        notify("STOPPING=1")
        await server.stop()
