"""The official admin tool, in one Java process that runs many command lines."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import launch
from waiting import BOUND_S, until

__all__ = ["Admin"]

END = "\x04\n"
#: The tool gives a server five seconds, and no setting changes that: on a busy machine it is asked
#: again.
IMPATIENT = re.compile(r"RemotingTimeoutException|wait response on the channel <[^>]*> timeout")


class Admin:
    """mqadmin, and a few things of the clients' beside it (tests/reference/src/AdminShell.java)."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        """namesrv: its address. folder: consumerStatus writes what it finds into the current
        one."""
        self.namesrv = namesrv
        self.process = subprocess.Popen(
            [str(launch.SCRIPT), "admin-shell"],
            cwd=folder,
            env=os.environ | {"JAVA_OPTS": "-Xmx256m"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, verb: str, *words: object) -> str:
        """Runs one command line; what it printed. Options that begin with + are ours."""
        return self.run(verb, *([] if verb.startswith("+") else ["-n"]), self.namesrv, *words)

    def run(self, *words: object) -> str:
        """The same without a name server: to some verbs -n says something else."""
        line = [str(word) for word in words]

        def answered() -> list[str]:
            said = self._run_once(line)
            return [] if IMPATIENT.search(said) else [said]

        return until(answered, f"an answer in time to {line}")[0]

    def _run_once(self, line: list[str]) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(line) + "\n")
        self.process.stdin.flush()
        said = []
        while (got := self.process.stdout.readline()) != END:
            if not got:
                raise AssertionError(f"the tool ended in {line}: {''.join(said)}")
            said.append(got)
        return "".join(said).rstrip("\n")

    def until(self, holds: Callable[[str], object], verb: str, *words: object) -> str:
        """The same again and again until it holds; what it printed last."""
        said = ""

        def asked() -> object:
            nonlocal said
            said = self(verb, *words)
            return holds(said)

        until(asked, f"{verb} says it", 0.05)
        return said

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
