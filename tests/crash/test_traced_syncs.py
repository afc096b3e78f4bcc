"""Under SYNC_FLUSH, seen from outside: a sync of the log begins after the request was read and ends
before its answer is written, for each request and each call that stores.

The system calls of a broker are traced by strace; no hook of ours is in between.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("traced_child.py")
CALLS = "read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,fsync,fdatasync,msync,syncfs"
READS = ("read", "readv", "recvfrom", "recvmsg")
SYNCS = ("fsync", "fdatasync", "msync", "syncfs")
#: What no record of the log holds lies in a database, or in a file of the configuration.
OF_TOOLS = ("/meta/", "/config/", "/access/", "/plain_acl.yml", "/broker.conf")
PAGE = Path(__file__).parents[2] / "docs" / "durability.md"
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_DONE = re.compile(r"(\w+)\((.*)\) += +(-?\d+)[^<]*<(\d+\.\d+)>$", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A system call. begin, end: seconds."""

    name: str
    given: str
    result: int
    begin: float
    end: float


def calls_of(trace: Path) -> Iterator[Call]:
    """In the order of their ends."""
    open_: dict[str, tuple[float, str]] = {}
    for line in trace.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        process, at, text = found[1], float(found[2]), found[3]
        begin = at
        if text.endswith(" <unfinished ...>"):
            open_[process] = at, text.removesuffix(" <unfinished ...>")
            continue
        if (rest := _RESUMED.match(text)) and process in open_:
            begin, head = open_.pop(process)
            text = head + rest[2]
        if done := _DONE.match(text):
            yield Call(done[1], done[2], int(done[3]), begin, begin + float(done[4]))


def windows(trace: Path) -> Iterator[tuple[str, int, list[Call]]]:
    """The system calls around each request: its name, its code, the calls."""
    inside: list[Call] = []
    for call in calls_of(trace):
        mark = re.search(r'/marks>, "(begin|end) (\w+) (\d+)', call.given)
        if mark and mark[1] == "end":
            yield mark[2], int(mark[3]), inside
        if mark:
            inside = []
        else:
            inside.append(call)


def of_broker(call: Call, port: str) -> bool:
    return f"]:{port}->" in call.given or f":{port}->" in call.given.split(",")[0]


def port_of(inside: list[Call]) -> str:
    """Of the socket that is first written to in a window: the client asks."""
    first = next(c for c in inside if c.name not in READS + SYNCS and "<TCP" in c.given)
    found = re.search(r"->\[?[^>]*?:(\d+)\]?>", first.given)
    assert found, first
    return found[1]


def listed(line: str) -> set[int]:
    """The codes of a list in the page."""
    (found,) = re.findall(rf"^- {line}: (.*?)(?=^-|^$)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return {int(code) for code in re.findall(r"\b\d+\b", re.split(r";\s+gRPC", found)[0])}


def late(name: str, of_tools: bool, inside: list[Call]) -> str:
    """What is wrong with the sync of a request; empty: nothing is."""
    port = port_of(inside)
    reads = [c for c in inside if c.name in READS and c.result > 0 and of_broker(c, port)]
    writes = [c for c in inside
              if c.name not in READS + SYNCS and c.result > 0 and of_broker(c, port)]  # fmt: skip
    if not reads or not writes:
        return f"{name}: not seen at the broker's port {port}"
    asked, answered = min(c.end for c in reads), max(c.begin for c in writes)
    folders = OF_TOOLS if of_tools else ("/commitlog/",)
    syncs = [c for c in inside if c.name in SYNCS and c.result == 0
             and any(folder in c.given for folder in folders)]  # fmt: skip
    good = [c for c in syncs if c.begin >= asked and c.end <= answered]
    if good:
        return ""
    told = ", ".join(f"{c.name} {c.begin - asked:+.4f} to {c.end - asked:+.4f}" for c in syncs)
    return f"{name}: answered at {answered - asked:+.4f} s; syncs: {told or 'none'}"


@pytest.mark.long
@pytest.mark.parametrize("how", ["wire", "grpc"])
def test_a_sync_lies_between_each_request_that_stores_and_its_answer(
    how: str, tmp_path: Path
) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    trace = tmp_path / "trace"
    command = [strace, "-f", "-yy", "-ttt", "-T", "-s", "64", "-e", f"trace={CALLS}", "-o",
               str(trace), sys.executable, str(CHILD), how, str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = list(windows(trace))
    records, tools = listed("Records"), listed("Tools")
    if how == "wire":
        assert {code for _, code, _ in seen} == records | tools
    else:
        assert len(seen) >= 10
    given = [late(name, code in tools, inside) for name, code, inside in seen]
    assert [text for text in given if text] == []
