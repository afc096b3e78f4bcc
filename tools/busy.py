"""Runs a command on a machine made busy, and says how it ended.

busy.py COMMAND...: beside it run four processes that take all the processor time they get and one
that writes and syncs large files, in a temporary folder. The exit code is the command's.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOGS = 4
FILE_BYTES = 256 << 20


def hog() -> None:
    while True:
        pass


def sync_files(folder: str) -> None:
    """Writes a large file and syncs it, again and again."""
    block = os.urandom(1 << 20)
    path = Path(folder) / "large"
    while True:
        with path.open("wb") as file:
            for _ in range(FILE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        load = [multiprocessing.Process(target=hog, daemon=True) for _ in range(HOGS)]
        load.append(multiprocessing.Process(target=sync_files, args=(folder,), daemon=True))
        for process in load:
            process.start()
        try:
            return subprocess.run(sys.argv[1:], check=False).returncode
        finally:
            for process in load:
                process.kill()
                process.join()


if __name__ == "__main__":
    sys.exit(main())
