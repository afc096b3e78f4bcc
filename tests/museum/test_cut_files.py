"""A file that another process cuts while it is mapped is an error with its name, not a signal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FILES = {"log": "commitlog/*", "queue": "consumequeue/t/0/*", "index": "index/*"}

#: Reads once, so that all is mapped; cuts; reads again. What ends it otherwise is a signal.
SCRIPT = """
import os, sys
from pathlib import Path
import pystore

root, how, pattern, length = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
writer = pystore.open(root, mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=2000, maxIndexNum=8000)
for i in range(2000):
    writer.put("t", b"%0200d" % i, keys=f"k{i}")
writer.flush()
store = writer if how == "writer" else pystore.Reader(root)
[store.read("t", 0, offset, max_messages=100) for offset in range(0, 500, 100)]
store.query("t", "k7")
for file in root.glob(pattern):
    os.truncate(file, length)
found = []
for work in (
    lambda: [store.read("t", queue, offset, max_messages=100)
             for queue in range(4) for offset in range(0, 500, 100)],
    lambda: [store.query("t", f"k{i}") for i in range(0, 2000, 50)],
    lambda: [message.body for message in store.messages()],
    lambda: [writer.put("t", b"x" * 200) for _ in range(20)],
    lambda: writer.flush(),
    lambda: store.close(),
    lambda: writer.close(),
):
    try:
        work()
    except pystore.StoreError as error:
        found.append(f"{type(error).__name__}: {error}")
print("\\n".join(found))
print("survived")
"""


@pytest.mark.parametrize("length", [0, 4096])
@pytest.mark.parametrize("how", ["reader", "writer"])
@pytest.mark.parametrize("kind", FILES)
def test_a_cut_file_is_named(tmp_path, how, kind, length):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "s"), how, FILES[kind], str(length)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )  # fmt: skip
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stderr)
    assert FILES[kind].split("/")[0] + "/" in done.stdout
    assert "truncated" in done.stdout or "while open" in done.stdout
