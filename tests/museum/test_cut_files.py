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


#: What was read before the cut is looked at after it, and the calls that give no batch are made.
LATER = """
import os, sys
from pathlib import Path
import pystore

root, pattern = Path(sys.argv[1]), sys.argv[2]
with pystore.open(root, mappedFileSizeCommitLog=1 << 20) as store:
    store.put_many("t", [b"%0200d" % i for i in range(2000)], queue=0)
reader = pystore.Reader(root)
batch = reader.read("t", 0, 1000, max_messages=500)
whole = bytes(batch[0].body)
assert whole == b"%0200d" % 1000
reader.units("t", 0), reader.offset_at("t", 0, 1 << 41)
for file in root.glob(pattern):
    os.truncate(file, 4096)
for work in (
    lambda: bytes(batch[0].body),
    lambda: batch[7].topic,
    lambda: batch.raw_bodies(),
    lambda: batch.bodies(),
    lambda: reader.units("t", 0, 1000),
    lambda: reader.offset_at("t", 0, 1),
    lambda: reader.offset_at("t", 0, 1 << 41),
):
    try:
        print("found" if work() else "nothing")
    except pystore.FileSizeMismatch as error:
        print("named" if pattern[:4] in str(error) else error)
"""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("commitlog/*", ["named"] * 4 + ["found", "named", "named"]),
        ("consumequeue/t/0/*", ["found"] * 4 + ["named"] * 3),
    ],
)
def test_what_was_read_before_the_cut_is_an_error_after_it(tmp_path, pattern, expected):
    done = subprocess.run(
        [sys.executable, "-c", LATER, str(tmp_path / "s"), pattern],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == expected, (done.returncode, done.stdout, done.stderr)


#: A delayed message is due after its queue, or the log, was cut: it must wait, not be lost.
DUE = """
import os, sys, time
from pathlib import Path
import pystore
from pystore.store import hosting

root, pattern = Path(sys.argv[1]), sys.argv[2]
store = pystore.open(root, mappedFileSizeCommitLog=1 << 20, messageDelayLevel="1s")
store.put_many("other", [b"x" * 100] * 100)
store.put("t", b"later", delay_level=1)
store.flush()
for file in root.glob(pattern):
    os.truncate(file, 0)
try:
    print(hosting.deliver_due(store, 1, 0, now_ms=int(time.time() * 1000) + 60_000))
except pystore.FileSizeMismatch as error:
    print("named" if pattern[:4] in str(error) else error)
os._exit(0)
"""


@pytest.mark.parametrize("pattern", ["commitlog/*", "consumequeue/SCHEDULE_TOPIC_XXXX/*/*"])
def test_a_delayed_message_waits(tmp_path, pattern):
    done = subprocess.run(
        [sys.executable, "-uc", DUE, str(tmp_path / "s"), pattern],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "named\n", (done.returncode, done.stdout, done.stderr)
