"""`pystore spark archive` that kills itself before its n-th step in the archive's folder: a file
that is opened, made, renamed or removed. 0: it is not killed."""

from __future__ import annotations

import os
import signal
import sys

from pystore.cli import main

_STEPS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "shutil.rmtree"}


def kill_at(step: int, folder: str) -> None:
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event in _STEPS and args and str(args[0]).startswith(folder):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    tier, archive, at = sys.argv[1:]
    kill_at(int(at), archive)
    sys.exit(main(["spark", "archive", tier, archive, "--json"]))
