"""A Java client among Python ones: tests/reference/src/Member.java in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable

import launch

__all__ = ["JavaMember"]

ACKNOWLEDGED = "acknowledged "


class JavaMember:
    """The official push consumer, with a producer group the official producer, too.

    lines: bodies that the consumer got, and what else it prints. acknowledged: bodies that the
    producer sent. got: called with each line, in a thread of its own.
    """

    def __init__(self, *args: str, got: Callable[[str], object] = lambda line: None) -> None:
        self.process = subprocess.Popen(
            [str(launch.SCRIPT), "member", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.acknowledged: set[str] = set()
        self._got = got
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            said = line.strip()
            if said.startswith(ACKNOWLEDGED):
                self.acknowledged.add(said.removeprefix(ACKNOWLEDGED))
            else:
                self.lines.append(said)
                self._got(said)

    def say(self) -> None:
        """The line that ends its sends, or all."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    async def stop(self) -> None:
        self.say()
        await asyncio.to_thread(self.process.wait)
        self.process.stdin.close()
        await asyncio.to_thread(self._reader.join)
        self.process.stdout.close()

    def kill(self) -> None:
        """Whatever it does; harmless after stop()."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
