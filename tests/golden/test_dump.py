"""`pystore dump --json` prints what Apache's own store prints of the same folder."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

import pystore
from pystore.cli import main
from pystore.cli._records import FIELDS, msg_line

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_dump_equals_the_reference(
    name: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line and letter by letter, without recovering the store: the dump only reads.

    The reference was told the file sizes; here they are taken from the files.
    """
    with lzma.open(HERE / f"{name}.records.jsonl.xz", "rt", encoding="ascii") as text:
        expected = [line.rstrip("\n") for line in text if not line.startswith('{"at":"key"')]
    store = golden(name)
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    assert main(["dump", str(store), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for number, (want, got) in enumerate(zip(expected, printed, strict=False), 1):
        assert want == got, f"line {number}"
    assert len(expected) == len(printed)
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_quick_lines_have_the_fields_of_messages(name: str, golden: Callable[[str], Path]) -> None:
    """A dump takes records apart by itself; every field is what the message's attribute says."""
    with pystore.Reader(golden(name)) as reader:
        for message in reader.messages():
            line = json.loads(msg_line(message))
            assert line.pop("at") == "msg"
            assert list(line.items()) == [(f, get(message)) for f, get in FIELDS.items()]


def test_quick_lines_of_rare_records(tmp_path: Path) -> None:
    """The same for long topics (layout V2), IPv6 hosts and letters to escape."""
    with pystore.open(tmp_path / "s", brokerIP1="2001:db8::2") as store:
        store.put("%RETRY%" + "g" * 200, b"x", properties={"a": '"', "b\\": "\t", "c": "\x7f"})
        store.put("t", b"\x00", born_host="[2001:db8::1]:5", sys_flag=8, reconsume_times=2)
        store.put("t", b"", born_host="1.2.3.4:5", properties={"\uffff": "1", "\U0001f680": "2"})
        for message in store.messages():
            line = json.loads(msg_line(message))
            assert line.pop("at") == "msg"
            assert list(line.items()) == [(f, get(message)) for f, get in FIELDS.items()]
            assert list(line["props"]) == list(FIELDS["props"](message))
            assert msg_line(message).isascii() and msg_line(message).isprintable()
