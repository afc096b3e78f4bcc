"""The command line: what it prints, how it ends, and that its page tells the truth."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from waiting import BOUND_S, until

import pystore
from pystore import settings
from pystore.cli import _progress, main
from pystore.cli._app import EXIT_CODES, command_of, exit_code_of
from pystore.cli._records import _properties_json, hex_dump, java_order, java_string
from pystore.cli._session import holder_of
from pystore.cli._values import Size, iso, parse_time, printable, shown
from pystore.cli._verbs import all_verbs

VERBS = all_verbs()
PROGRAM = [sys.executable, "-c", "import sys; from pystore.cli import main; sys.exit(main())"]
BORN = 1_700_000_000_000


class Result:
    """How one run ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def one(self) -> dict[str, Any]:
        """The only JSON object printed."""
        (found,) = self.lines
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The JSON error on stderr."""
        return json.loads(self.err)["error"]  # type: ignore[no-any-return]


Run = Callable[..., Result]


def remarks(err: str | bytes) -> list[str]:
    """The lines of stderr that are no progress, which work shows that was slow."""
    lines = (err if isinstance(err, str) else err.decode()).splitlines()
    return [s for s in lines if not re.match(r'{"progress":|[a-z ]+: .*, \d+ s$', s)]


@pytest.fixture
def run(
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    small: dict[str, Any],
) -> Run:
    """run(ARGUMENTS...) in this process; no work of it is so slow that it shows its progress, and
    stores are small unless told otherwise: gigabytes to map would be most of it."""
    monkeypatch.setattr(_progress, "_QUIET_S", math.inf)
    for name, size in (small | {"mappedFileSizeCommitLog": 16 << 20}).items():
        monkeypatch.setitem(settings.TABLE, name, replace(settings.TABLE[name], default=size))

    def one(*arguments: object) -> Result:
        code = main([str(a) for a in arguments])
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return one


@pytest.fixture
def store(store_path: Path, small: dict[str, Any]) -> Path:
    """A closed store: queues 0 and 1 of topic t in turn, ten messages with keys and tags."""
    with pystore.open(store_path, **small) as s:
        for i in range(10):
            s.put(
                "t", f"body {i}", queue=i % 2, tags="odd" if i % 2 else "even", keys=f"k{i} all",
                properties={"n": str(i)}, flag=i, born_timestamp=BORN + i,
                born_host="10.0.0.1:4000",
            )  # fmt: skip
    return store_path


def command(name: str) -> Any:
    found: Any = command_of()
    for word in name.split():
        found = found.commands[word]
    return found


# ---- help ----


def options_of(name: str) -> set[str]:
    return {o for p in command(name).params for o in p.opts if o.startswith("--")}


@pytest.mark.parametrize("verb", [v.name for v in VERBS])
def test_help_teaches(run: Run, verb: str) -> None:
    """Each verb's help has examples and the exit codes."""
    result = run(*verb.split(), "--help")
    assert result.code == 0
    assert f"pystore {verb}" in result.out.split("Examples:")[1]
    assert "Exit codes:" in result.out


@pytest.mark.parametrize("verb", [v for v in VERBS if v.writes], ids=lambda v: v.name)
def test_what_writes_has_a_dry_run(verb: Any) -> None:
    """Every verb that changes a store can be tried without changing it."""
    assert "--dry-run" in options_of(verb.name)


def test_every_error_has_an_exit_code() -> None:
    """Each exception of the store ends with a documented code, and the common ones with theirs."""
    for error in pystore.base.store_error.by_code.values():
        assert exit_code_of(error()) in EXIT_CODES
    assert exit_code_of(pystore.TopicIllegal()) == 2
    assert exit_code_of(pystore.NewerLayout()) == 3
    assert exit_code_of(pystore.StoreLocked()) == 4
    assert exit_code_of(pystore.RecordDamaged()) == 5
    assert exit_code_of(pystore.DiskFull()) == 6
    assert exit_code_of(PermissionError()) == 6


# ---- values ----


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795230404619", 1795230404619),
        ("2026-11-21", 1795219200000),
        ("2026-11-21T00:00:00.5Z", 1795219200500),
        ("2026-11-21T01:00:00+01:00", 1795219200000),
    ],
)
def test_times_are_ms_or_iso(text: str, ms: int) -> None:
    """A time without a zone is UTC; what is shown can be read back."""
    assert parse_time(text, "--begin") == ms
    assert parse_time(iso(ms), "--begin") == ms


def test_control_characters_do_not_reach_the_terminal() -> None:
    """An escape sequence in a name is shown, not obeyed; letters of all scripts pass."""
    assert printable("\x1b[2J标签\n") == "\\x1b[2J标签\\n"
    assert shown("\x07") == "\\x07"
    assert shown(Size(2048)) == "2.0 KiB (2048)"


def test_java_strings() -> None:
    """Escapes and order are those of UTF-16 code units, as the reference has them."""
    assert java_string('a"\\\x7f\t标\U0001f680') == '"a\\"\\\\\\u007f\\u0009\\u6807\\ud83d\\ude80"'
    assert _properties_json(b"b\x01x\x01y\x02a\x01\x7f") == '{"a":"\\u007f","b":"x\\u0001y"}'
    assert _properties_json(b"b\x01x\x01y\x02a\x011") == '{"a":"1","b":"x\\u0001y"}'
    assert sorted(["\uffff", "\U0001f680", "a"], key=java_order) == ["a", "\U0001f680", "\uffff"]


def test_hex_dump() -> None:
    """Sixteen bytes a line, with their place and letters."""
    first, second = hex_dump(bytes(range(60, 78))).splitlines()
    assert first == ("00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK")
    assert second.startswith("00000010  4c 4d ") and second.endswith("  LM")


# ---- errors ----


def test_missing_store(run: Run, tmp_path: Path) -> None:
    """A missing path is one sentence with its next step, and exit code 3."""
    result = run("info", tmp_path / "nowhere")
    assert (result.code, result.out) == (3, "")
    assert result.err.count("\n") == 1 and "commitlog/" in result.err
    result = run("info", tmp_path / "nowhere", "--json")
    assert result.error["kind"] == "NotAStore"
    assert result.error["exit"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("get", "STORE"),
        ("get", "STORE", "--at", "1", "--id", "00"),
        ("get", "STORE", "--id", "xyz"),
        ("get", "STORE", "--at", "-4"),
        ("query", "STORE", "t", "k", "--begin", "yesterday"),
        ("info", "STORE", "--set", "noequals"),
        ("info", "STORE", "--set", "maxMessageSiz=1"),
        ("put", "STORE", "t"),
        ("put", "STORE", "t", "b", "--body-file", "x"),
        ("put", "STORE", "bad topic", "b"),
        ("put", "STORE", "t", "b", "--property", "x"),
        ("export", "STORE"),
        ("import", "STORE"),
        ("bench", "STORE"),
        ("dump", "STORE", "--from", "9", "--to", "3"),
    ],
)
def test_bad_usage(run: Run, store: Path, arguments: tuple[str, ...]) -> None:
    """Bad usage is exit code 2, and with --json an error object, and nothing was stored."""
    given = [str(store) if a == "STORE" else a for a in arguments]
    assert run(*given).code == 2
    result = run(*given, "--json")
    assert (result.code, result.out) == (2, "")
    assert result.error["exit"] == 2 and result.error["text"]
    with pystore.Reader(store) as r:
        assert len(list(r.messages())) == 10


def test_locked_store(run: Run, store: Path, small: dict[str, Any]) -> None:
    """A store that is open for writing can be read; a second writer ends with 4 and the pid."""
    with pystore.open(store, **small):
        assert run("put", store, "t", "b", "--json").error["pid"] == os.getpid()
        result = run("put", store, "t", "b", "--dry-run", "--json")
        assert (result.code, result.error["pid"]) == (4, os.getpid())
        facts = run("info", store, "--json").one["store"]
        assert facts["held"] is True
        assert facts["holder_pid"] == os.getpid()
        assert len(run("tail", store, "t", "--json").lines) == 10
    assert not holder_of(store).locked


def test_damage(run: Run, store: Path, tmp_path: Path) -> None:
    """dump shows the place, the units, and ends with 5; export leaves no file; reading goes on."""
    with pystore.Reader(store) as r:
        places = [m.physical_offset for m in r.messages()]
    with next((store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(places[4])
        log.write(b"\xff" * 8)
    result = run("dump", store, "--json")
    assert result.code == 5
    assert [m["phy"] for m in result.lines if m["at"] == "msg"] == places[:4]
    assert {"at": "bad", "phy": places[4]} in result.lines
    assert sum(m["at"] == "cq" for m in result.lines) == 10
    behind = run("dump", store, "--json", "--kind", "msg", "--from", places[4] + 1)
    assert (behind.code, [m["phy"] for m in behind.lines]) == (0, places[5:])
    assert run("get", store, "--at", places[4]).code == 5
    result = run("export", store, "--messages", tmp_path / "all.jsonl")
    assert (result.code, list(tmp_path.glob("*all.jsonl*"))) == (5, [])


# ---- looking ----


def test_readers_write_nothing(run: Run, store: Path, tmp_path: Path) -> None:
    """After all reading verbs every file is as it was, with its times, and none is new."""

    def state() -> dict[Path, tuple[int, int]]:
        about = {p: p.stat() for p in store.rglob("*")}
        return {p: (a.st_size, a.st_mtime_ns) for p, a in about.items()}

    before = state()
    for arguments in (
        ("info", store), ("dump", store), ("get", store, "--at", 0), ("query", store, "t", "k1"),
        ("tail", store, "t"), ("export", store, "--messages", tmp_path / "m", "--metadata",
        tmp_path / "c"), ("put", store, "t", "b", "--dry-run"),
        ("import", store, "--messages", tmp_path / "m", "--dry-run"),
    ):  # fmt: skip
        assert run(*arguments).code == 0, arguments
    assert state() == before


def test_info(run: Run, store: Path) -> None:
    """info tells ends, queues, topics and lag, in both faces."""
    with pystore.open(store) as s:
        s.metadata.offsets.commit("g", "t", 0, 2)
    whole = run("info", store, "--json").one
    assert whole["store"]["log_min"] == 0
    assert whole["store"]["last_stored"] > BORN
    assert whole["store"]["last_stored_iso"].startswith("20")
    assert whole["recovery"]["mode"] == "READ"
    assert {"topic": "t", "queue": 1, "min": 0, "max": 5, "count": 5} in whole["queues"]
    (offset,) = whole["consumer offsets"]
    assert (offset["group"], offset["offset"], offset["lag"]) == ("g", 2, 3)
    text = run("info", store, "--topic", "t").out
    assert "\x1b" not in text and "consumer offsets" in text
    assert run("info", store, "--topic", "nope").code == 1


def test_dump_filters(run: Run, store: Path) -> None:
    """Topic, queue, kind and place choose; nothing chosen is exit code 1."""
    lines = run("dump", store, "--json").lines
    assert [m["at"] for m in lines] == ["store"] + ["msg"] * 10 + ["cq"] * 10
    places = [m["phy"] for m in lines if m["at"] == "msg"]
    some = run("dump", store, "--json", "--kind", "msg", "--from", places[2], "--to", places[5])
    assert [m["phy"] for m in some.lines] == places[2:5]
    inside = run("dump", store, "--json", "--kind", "msg", "--from", places[2] + 1)
    assert inside.lines[0]["phy"] == places[3]
    queue = run("dump", store, "--json", "--kind", "cq", "--queue", 1).lines
    assert [m["offset"] for m in queue] == [0, 1, 2, 3, 4]
    assert run("dump", store, "--kind", "msg", "--topic", "nope").code == 1
    assert "t/1@4  tags=odd  body=6" in run("dump", store).out


def test_get(run: Run, store: Path) -> None:
    """By queue offset, by id, by place: the same message; the raw body is the bytes alone."""
    by_offset = run("get", store, "--topic", "t", "--queue", 1, "--offset", 2, "--json").one
    assert by_offset["body"] == "body 5"
    assert by_offset["props"] == {"KEYS": "k5 all", "TAGS": "odd", "n": "5"}
    by_id = run("get", store, "--id", by_offset["offset_msg_id"].lower(), "--json").one
    by_place = run("get", store, "--at", by_offset["phy"], "--json").one
    assert by_id == by_place == by_offset
    assert run("get", store, "--at", by_offset["phy"], "--body", "raw").out == "body 5"
    assert "62 6f 64 79 20 35" in run("get", store, "--at", by_offset["phy"], "--hex").out
    many = run("get", store, "--topic", "t", "--offset", 0, "--count", 3, "--json").lines
    assert [m["queue_offset"] for m in many] == [0, 1, 2]
    assert run("get", store, "--topic", "t", "--offset", 0, "--tags", "odd").code == 1
    assert run("get", store, "--topic", "t", "--offset", 0, "--sql", "n = 1").code == 1
    assert run("get", store, "--topic", "t", "--offset", 0, "--sql", "n = 2").code == 0
    assert run("get", store, "--topic", "t", "--offset", 99).code == 1
    foreign = "0A0A0A0A" + by_offset["offset_msg_id"][8:]
    assert run("get", store, "--id", foreign).code == 1


def test_query(run: Run, store: Path) -> None:
    """Keys and times choose; nothing found is exit code 1 with a remark on stderr."""
    assert [m["flag"] for m in run("query", store, "t", "all", "--json").lines] == list(range(10))
    assert run("query", store, "t", "k3", "--json").one["body"] == "body 3"
    assert run("query", store, "t", "all", "--max", 1, "--json").one["body"] == "body 9"
    result = run("query", store, "t", "all", "--end", "2001-01-01")
    assert (result.code, result.out) == (1, "")
    assert "has the key" in result.err


def test_tail(run: Run, store: Path) -> None:
    """The last of all queues in the order of storing; from an offset, a time, with tags."""

    def bodies(*more: object) -> list[str]:
        return [m["body"] for m in run("tail", store, "t", "--json", *more).lines]

    assert bodies("-n", 3) == ["body 7", "body 8", "body 9"]
    assert bodies("-n", 2, "--tags", "odd") == ["body 7", "body 9"]
    assert bodies("-n", 2, "--sql", "n > 2 AND TAGS = 'even'") == ["body 6", "body 8"]
    assert run("tail", store, "t", "--sql", "n >").code != 0
    assert run("tail", store, "t", "--sql", "n > 2", "--tags", "odd").code != 0
    assert bodies("--from", "earliest", "-n", 2) == ["body 0", "body 1"]
    assert bodies("--from", 4) == ["body 8", "body 9"]
    assert bodies("--from", "2001-01-01", "--queue", 1) == [f"body {i}" for i in (1, 3, 5, 7, 9)]
    assert bodies("--from", "2199-01-01") == []
    assert run("tail", store, "t", "-n", 0).code == 1
    assert run("tail", store, "nope").code == 1


def test_tail_of_a_lite_topic(run: Run, store: Path) -> None:
    with pystore.open(store) as s:
        s.lights.begin()
        for i in range(5):
            named = {"INNER_MULTI_DISPATCH": f"%LMQ%$t$s{i % 2}", "__LITE_TOPIC": f"s{i % 2}"}
            s.put("t", f"lite {i}", properties=named | {"KEYS": f"lite-k{i}", "UNIQ_KEY": f"U{i}"})
        s.metadata.offsets.commit("g", "%LMQ%$t$s0", 0, 1)
        since = s.lights.last_ms("%LMQ%$t$s0") + 1

    def bodies(*more: object) -> list[str]:
        lines = run("tail", store, "t", "--lite", "s0", "--json", *more).lines
        return [m["body"] for m in lines]

    assert bodies() == ["lite 0", "lite 2", "lite 4"]
    assert bodies("-n", 1) == ["lite 4"]
    assert bodies("--from", 1, "-n", 1) == ["lite 2"]
    assert bodies("--from", since) == []
    assert bodies("--from", "2001-01-01") == ["lite 0", "lite 2", "lite 4"]
    assert run("tail", store, "t", "--lite", "nope").code == 1
    assert run("tail", store, "t", "--lite", "s0", "--tags", "a").code != 0
    info = run("info", store, "--json").one
    assert info["store"]["light_queues"] == 2
    lites = [(each["lite_topic"], each["count"]) for each in info["lite topics"]]
    assert lites == [("s0", 3), ("s1", 2)]
    assert [each["lag"] for each in info["consumer offsets"]] == [2]
    for key in ("lite-k3", "U3"):
        assert [m["body"] for m in run("query", store, "t", key, "--json").lines] == ["lite 3"]
    assert "lite=s1" in run("query", store, "t", "lite-k3").out


def test_tail_follows_a_writer(store: Path, small: dict[str, Any]) -> None:
    """--follow shows what another process stores, also in new queues; Ctrl-C ends it with 0."""
    with (
        pystore.open(store, **small) as s,
        subprocess.Popen(
            [*PROGRAM, "tail", store, "t", "--follow", "-n", "1", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as child,
    ):  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        assert json.loads(child.stdout.readline())["body"] == "body 9"
        for queue in (0, 5):
            s.put("t", f"new {queue}", queue=queue)
            assert json.loads(child.stdout.readline())["body"] == f"new {queue}"
        child.send_signal(signal.SIGINT)
        assert child.wait(BOUND_S) == 0
        assert remarks(child.stderr.read()) == []


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C elsewhere ends with 130 and without a traceback."""
    child = subprocess.Popen(
        [*PROGRAM, "import", tmp_path / "s", "--messages", "-", "--create",
         "--set", "mappedFileSizeCommitLog=1048576"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write('{"topic":"t","queue":0,"body":"b"}\n')
        child.stdin.flush()
        until((tmp_path / "s" / "abort").exists)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        assert child.wait(BOUND_S) == 130
        assert "Traceback" not in child.stderr.read()
    with pystore.Reader(tmp_path / "s") as r:
        assert r.topics() in (["t"], [])


def test_closed_pipe(store: Path, small: dict[str, Any]) -> None:
    """A reader that stops early (`| head`) ends the dump silently."""
    with pystore.open(store, **small) as s:
        s.put_many("t", [b"x" * 50] * 5000)
    child = subprocess.Popen(
        [*PROGRAM, "dump", store, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline().startswith(b'{"at":"store"')
        child.stdout.close()
        assert child.wait(BOUND_S) == 0
        assert remarks(child.stderr.read()) == []


def test_start_stays_light(store: Path) -> None:
    """Neither help nor info loads pyarrow, pandas, numpy, asyncio or, in a pipe, rich."""
    code = (
        "import sys; from pystore.cli import main; main(sys.argv[1:]);"
        "heavy = ('pyarrow', 'pandas', 'numpy', 'rich', 'asyncio');"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    for arguments in (["--help"], ["info", store], ["dump", store, "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert remarks(done.stderr) == ["[]"]


def test_a_verb_loads_no_other_packages_verbs() -> None:
    """Nor does a verb of another package; help and what is not a verb are of the whole program."""
    code = (
        "import sys; from pystore.cli import main; code = main(sys.argv[1:]);"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'broker', 'spark_ext'}), code,"
        "file=sys.stderr)"
    )
    for words, loaded, exit_code in (
        ("info --help", [], 0),
        ("spark topics --help", ["spark_ext"], 0),
        ("tx --help", ["broker"], 0),
        ("--help", ["broker", "spark_ext"], 0),
        ("inf", ["broker", "spark_ext"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True
        )
        assert done.stderr.splitlines()[-1] == f"{loaded} {exit_code}", words


# ---- changing ----


def test_put(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing store needs --create; body from argument, file and stdin; all fields arrive."""
    path, file = tmp_path / "s", tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    assert run("put", path, "t", "b").code == 3
    assert not path.exists()
    args = ("--tags", "a", "--keys", "k1 k2", "--property", "x=1=2", "--queue", 3, "--flag", 7)
    result = run("put", path, "t", "b", *args, "--create", "--count", 2, "--sync", "--json")
    assert [(r["status"], r["queue"], r["queue_offset"]) for r in result.lines] == [
        ("PUT_OK", 3, 0),
        ("PUT_OK", 3, 1),
    ]
    assert run("put", path, "t", "--body-file", file).out.startswith("PUT_OK  t/2@0  at ")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"in")))
    assert run("put", path, "t", "-", "--queue", 1).code == 0
    assert run("put", path, "t", "late", "--delay-level", 3, "--json").one["queue"] == 2
    with pystore.Reader(path) as r:
        first, _, second, third, late = r.messages()
        assert first.properties == {"TAGS": "a", "KEYS": "k1 k2", "x": "1=2"}
        assert first.flag == 7
        assert (second.body, third.body) == (b"\x00\xff", b"in")
        assert late.topic == "SCHEDULE_TOPIC_XXXX"


def test_put_dry_run(run: Run, store: Path, tmp_path: Path) -> None:
    """A dry run prints the plan, refuses what the store would refuse, and makes nothing."""
    result = run("put", tmp_path / "new", "t", "body", "--create", "--count", 3, "--dry-run")
    assert result.code == 0 and "creates the store  yes" in result.out
    assert not (tmp_path / "new").exists()
    assert run("put", store, "t", "b" * 99, "--set", "maxMessageSize=50", "--dry-run").code == 2
    plan = run("put", store, "t", "body", "--count", 3, "--dry-run", "--json").one["plan"]
    assert (plan["messages"], plan["body"], plan["creates_the_store"]) == (3, 4, False)


def fields(path: Path) -> list[tuple[object, ...]]:
    """What a round trip has to keep."""
    with pystore.Reader(path) as r:
        return [
            (
                m.topic, m.queue, m.queue_offset, bytes(m.raw_body), m.flag, m.sys_flag,
                m.properties, m.born_timestamp, m.born_host, m.reconsume_times,
                m.prepared_transaction_offset,
            )
            for m in r.messages()
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_round_trip(run: Run, golden: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Export and import of a Java broker's store keep messages, order and metadata."""
    path, copy = golden(name), tmp_path / "copy"
    file, config = tmp_path / "m.jsonl", tmp_path / "config"
    out = run("export", path, "--messages", file, "--metadata", config, "--json").one["exported"]
    assert oct(file.stat().st_mode & 0o444) == oct(0o444)
    dry = ("import", copy, "--messages", file, "--metadata", config, "--create", "--dry-run")
    assert run(*dry, "--json").one["plan"]["messages"] == out["count"]
    assert not copy.exists()
    assert run(*dry[:-1]).code == 0
    assert fields(copy) == fields(path)
    with pystore.Reader(path) as a, pystore.Reader(copy) as b:
        assert a.metadata.offsets.all() == b.metadata.offsets.all()
        there = b.metadata.topics.list()
        assert all(topic in there for topic in a.metadata.topics.list())


def test_round_trip_of_rare_fields(run: Run, tmp_path: Path) -> None:
    """IPv6 hosts, odd bodies and properties, retries and commits survive."""
    path, file, copy = tmp_path / "s", tmp_path / "m.jsonl", tmp_path / "copy"
    with pystore.open(path) as s:
        s.put("t", b"\xff\x00", born_host="[2001:db8::1]:5", born_timestamp=1, reconsume_times=3)
        s.put("t", "标\u2028\x00", properties={"注": "a\nb", "__CRC": "x"}, flag=-1)
        s.put("t", "", sys_flag=8, prepared_transaction_offset=77, queue=2)
    assert run("export", path, "--messages", file).code == 0
    assert run("import", copy, "--messages", file, "--create").code == 0
    assert fields(copy) == fields(path)


@pytest.mark.parametrize("what", ["--messages", "--metadata"])
def test_export_replaces_nothing_unless_told(
    run: Run, store: Path, tmp_path: Path, what: str
) -> None:
    file = tmp_path / ("m.jsonl" if what == "--messages" else "topics.json")
    file.write_text("mine")
    target = file if what == "--messages" else tmp_path
    refused = run("export", store, what, target, "--json")
    assert (refused.code, refused.error["kind"]) == (2, "BadArgument")
    assert file.read_text() == "mine"
    assert run("export", store, what, target, "--overwrite").code == 0
    assert file.read_text() != "mine"


def test_export_chooses(run: Run, store: Path) -> None:
    """By topic and time, to stdout alone; an empty result is exit code 1."""
    result = run("export", store, "--messages", "-", "--topic", "t")
    assert len(result.lines) == 10
    assert list(result.lines[0])[:3] == ["at", "phy", "size"]
    assert run("export", store, "--messages", "-", "--topic", "no").code == 1
    assert run("export", store, "--messages", "-", "--end", "2001-01-01").code == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "malformed JSON"),
        ("[" * 100_000, "malformed JSON"),
        ("[]", "not a JSON object"),
        ('{"queue":0,"body":""}', "'topic'"),
        ('{"topic":"t","body":""}', "'queue'"),
        ('{"topic":"t","queue":true,"body":""}', "'queue'"),
        ('{"topic":"t","queue":0,"body":"!","body_encoding":"base64"}', "base64"),
        ('{"topic":"t","queue":0,"body":"","body_encoding":"rot13"}', "rot13"),
        ('{"topic":"t","queue":0,"body":"\\ud800"}', "'body'"),
        ('{"topic":"t","queue":0,"body":"","props":{"a":1}}', "'props'"),
        ('{"topic":"t","queue":0,"body":"","props":{"a":"\\ud800"}}', "'props'"),
        ('{"topic":"\\ud800","queue":0,"body":""}', "'topic'"),
        ('{"topic":"t","queue":0,"body":"","props":{"a\\u0001":"b"}}', "separator"),
        ('{"topic":"t","queue":0,"body":"","born_ts":1e9}', "'born_ts'"),
        ('{"topic":"t","queue":0,"body":"","born_host":"here:1"}', "here"),
        ('{"topic":"bad topic","queue":0,"body":""}', "topic"),
        ('{"topic":"t","queue":-1,"body":""}', "queue"),
    ],
)
def test_import_refuses(run: Run, tmp_path: Path, line: str, says: str) -> None:
    """A wrong line is named by its number; what stands before it is stored, and --skip goes on."""
    file, path = tmp_path / "m.jsonl", tmp_path / "s"
    good = '{"topic":"t","queue":0,"body":"good"}'
    file.write_text(f"{good}\n{line}\n{good}\n")
    dry = run("import", path, "--messages", file, "--create", "--dry-run", "--json")
    assert dry.code == 2 and dry.error["text"].startswith("line 2 of ")
    assert not path.exists()
    result = run("import", path, "--messages", file, "--create", "--json")
    assert result.code == 2
    assert says in result.error["text"]
    assert "--skip 1" in result.error["next_step"]
    assert run("import", path, "--messages", file, "--skip", 2).code == 0
    with pystore.Reader(path) as r:
        assert [bytes(m.body) for m in r.messages()] == [b"good", b"good"]


def test_an_error_after_progress_is_the_last_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was slow before it failed has shown its progress: an object a line, then the error."""
    monkeypatch.setattr(_progress, "_QUIET_S", 0.0)
    (tmp_path / "m.jsonl").write_text('{"topic":"t","queue":0,"body":"b"}\nno JSON\n')
    words = ("import", tmp_path / "s", "--messages", tmp_path / "m.jsonl", "--create", "--json")
    *before, last = map(json.loads, run(*words).err.splitlines())
    assert before and all("progress" in line for line in before)
    assert last["error"]["text"].startswith("line 2 of ")


def test_import_checks_metadata_first(run: Run, tmp_path: Path) -> None:
    """A torn config file ends the import before a store is made; so does a folder without any."""
    assert run("import", tmp_path / "s", "--metadata", tmp_path, "--create").code == 2
    (tmp_path / "topics.json").write_text("{")
    assert run("import", tmp_path / "s", "--metadata", tmp_path, "--create").code == 2
    assert not (tmp_path / "s").exists()


def test_bench(run: Run, tmp_path: Path) -> None:
    """All kinds of work are measured, with machine and payload named; a store is never touched."""
    small = ("--messages", 300, "--size", 10, "--threads", 2, "--batch", 50)
    whole = run("bench", *small, "--json").one
    assert [(r["work"], r["messages"]) for r in whole["rates"]] == [
        ("put", 300),
        ("put_many", 300),
        ("read", 600),
        ("query", 300),
    ]
    assert whole["machine"]["cores"] == os.cpu_count()
    assert whole["plan"]["body"] == 10
    assert run("bench", tmp_path / "b", *small, "--dry-run").code == 0
    assert not (tmp_path / "b").exists()
    assert run("bench", tmp_path / "b", *small, "--sync").code == 0
    assert run("bench", tmp_path / "b", *small).code == 2


# ---- faces ----


def test_terminal_shows_tables(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the tables are rich's, and markup in a topic's name is only text."""
    with pystore.open(store) as s:
        s.metadata.groups.put(pystore.SubscriptionGroup("[red]g"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["info", str(store)]) == 0
    out = capsys.readouterr().out
    assert "[red]g" in out and "─" in out


def test_progress_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quick work is quiet; slow work writes a line now and then, with --json an object."""
    monkeypatch.setattr(_progress, "_QUIET_S", math.inf)
    with _progress.ProgressBar("exporting") as bar:
        bar.update(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(_progress, "_LINE_PAUSE_S", math.inf)
    with _progress.ProgressBar("exporting") as bar:
        for done in range(100):
            bar.update(done << 10, 100 << 10)
    assert re.fullmatch(r"exporting: 0 B of 100\.0 KiB \(0 %\), \d+ s\n", capsys.readouterr().err)
    with _progress.ProgressBar("importing", "messages", as_json=True) as bar:
        bar.update(7)
    line = json.loads(capsys.readouterr().err)
    assert (line["progress"], line["done"], line["total"]) == ("importing", 7, None)


# ---- exit codes: one table for every verb ----

#: What each verb needs besides STORE to get as far as opening the store.
MORE = {
    "query": ["t", "k0"], "tail": ["t"], "put": ["t", "x"], "get": ["--at", "0"],
    "export": ["--messages", "-"], "import": ["--messages", os.devnull],
    "send": ["t", "x"], "consume": ["t"], "clone": ["127.0.0.1:1", "/nonexistent/copy"],
    "ha promote": ["/nonexistent/slave"], "ha group": ["h:1", "b"], "ha move": ["h:1", "b", "1"],
    "salvage": ["/nonexistent/out"], "carve": ["/nonexistent/out"], "diff": ["/nonexistent/other"],
    "timers get": ["0"], "timers cancel": ["0"], "timers reschedule": ["0", "+1d"],
    "tx show": ["0"], "tx commit": ["0"], "tx rollback": ["0"], "tx resume": ["0" * 32],
    "acl add": ["u"], "acl remove": ["u"],
    "spark archive": ["/nonexistent/archive"], "spark restore": ["/nonexistent/archive"],
    "spark reconcile": ["/nonexistent/other"], "spark table": ["t", "shop.t"],
    "acl check": ["u", "Pub", "Topic:t", "--from", "127.0.0.1"],
    "admin config set": ["a=b"], "admin topic show": ["t"], "admin topic create": ["t"],
    "admin lite parent": ["t"], "admin lite topic": ["t", "l"],
    "admin lite client": ["t", "g", "c"], "admin lite group": ["t", "g"],
    "admin lite dispatch": ["t", "g"], "admin static show": ["t"], "admin static create": ["t"],
    "admin static remap": ["t"],
    "admin topic delete": ["t"], "admin group show": ["g"], "admin group create": ["g"],
    "admin group delete": ["g"], "admin client list": ["g"], "admin offset lag": ["g"],
    "admin offset reset": ["g", "t", "--to", "first"], "admin offset skip": ["g", "t"],
    "admin message get": ["0"], "admin message trace": ["0"], "admin message find": ["t"],
    "admin dlq list": ["g"],
    "admin dlq get": ["g", "0"], "admin dlq redrive": ["g"],
    "cold push": ["/nonexistent/cold", "--broker", "b"], "cold ls": ["/nonexistent/cold"],
    "cold fetch": ["/nonexistent/cold", "/nonexistent/copy"],
    "cold restore": ["/nonexistent/cold", "/nonexistent/store"],
    "cold verify": ["/nonexistent/cold"], "cold rm": ["/nonexistent/cold", "--orphans"],
    "cold epoch": ["/nonexistent/cold", "1"],
    "cold java": ["/nonexistent/cold", "/nonexistent/store"],
}  # fmt: skip
#: A bench makes its own store, and refuses one that is there.
WITH_STORE = [v for v in VERBS if not v.server and v.name != "bench"]
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


@contextlib.contextmanager
def without_rights_of_root() -> Iterator[None]:
    """Root reads everything; without two capabilities it is bound by the modes of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    before = data[0]
    data[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, data) == 0
    # access(2) asks for the real user, who is root for all that.
    bound = functools.partial(os.access, effective_ids=True)
    try:
        with mock.patch("os.access", bound):
            yield
    finally:
        data[0] = before
        assert libc.capset(header, data) == 0


@pytest.mark.parametrize("verb", WITH_STORE, ids=lambda v: v.name)
def test_every_verb_on_an_unreadable_store_ends_with_6(run: Run, store: Path, verb: Any) -> None:
    """Reads and writes alike; the path is named, and no library speaks for us."""
    (store / "commitlog").chmod(0)
    for folder in (store / "commitlog", store):
        folder.chmod(0)
        try:
            with without_rights_of_root():
                result = run(*verb.name.split(), store, *MORE.get(verb.name, []))
        finally:
            store.chmod(0o755)
        assert result.code == 6, result.err
        assert str(store) in result.err
        assert not re.search("Invalid value|Value error|Errno|Traceback", result.err)
    (store / "commitlog").chmod(0o755)


@pytest.mark.parametrize("verb", WITH_STORE, ids=lambda v: v.name)
def test_every_verb_on_a_missing_store_ends_with_3(run: Run, tmp_path: Path, verb: Any) -> None:
    result = run(*verb.name.split(), tmp_path / "none", *MORE.get(verb.name, []))
    assert result.code == 3, result.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_every_verb_refuses_a_setting_that_is_none_with_2(run: Run, store: Path, verb: Any) -> None:
    """`--set` with an unknown name, whatever the verb."""
    place = [] if verb.server else [store]
    result = run(*verb.name.split(), *place, *MORE.get(verb.name, []), "--set", "noSuchThing=1")
    assert result.code == 2, result.err
    assert "noSuchThing" in result.err


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A store that another process has open, and the process: verbs that are refused leave both as
    they are."""
    path = tmp_path_factory.mktemp("held") / "store"
    code = (
        f"import pystore, sys; s = pystore.open({str(path)!r}, mappedFileSizeCommitLog=1 << 20);"
        " s.put('t', b'x'); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == b"open\n"
        yield path, writer.pid
        writer.stdin.close()
        assert writer.wait(BOUND_S) == 0


@pytest.mark.parametrize("verb", [v for v in WITH_STORE if v.writes], ids=lambda v: v.name)
def test_every_verb_that_writes_ends_with_4_beside_a_writer(
    run: Run, held: tuple[Path, int], verb: Any
) -> None:
    """The hint is one for the shell: it names verbs, not classes."""
    store, writer = held
    result = run(*verb.name.split(), store, *MORE.get(verb.name, []))
    assert result.code == 4, result.err
    assert str(writer) in result.err
    assert "pystore.Reader" not in result.err
    assert "tail" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "STORE", "--messages", "no/such.jsonl"],
        ["put", "STORE", "t", "--body-file", "no/such.body"],
        ["export", "STORE", "--messages", "no/such/folder.jsonl"],
    ],
    ids=lambda a: a[0],
)
def test_a_missing_file_is_named_in_a_sentence(run: Run, store: Path, arguments: list[str]) -> None:
    """Not as the bare text of an errno."""
    result = run(*(store if a == "STORE" else a for a in arguments))
    assert result.code == (6 if arguments[0] == "export" else 2)
    assert "Errno" not in result.err
    assert arguments[-1] in result.err
    assert " — " in result.err


@pytest.mark.parametrize(
    "arguments",
    [["put", "STORE", "t", "x", "--flag", "99999999999"], ["get", "STORE", "--at", "9" * 20]],
    ids=lambda a: a[0],
)
def test_numbers_too_large_are_bad_usage(run: Run, store: Path, arguments: list[str]) -> None:
    result = run(*(store if a == "STORE" else a for a in arguments))
    assert result.code == 2, result.err


def test_put_takes_the_queues_in_turn_from_run_to_run(run: Run, tmp_path: Path) -> None:
    """Each run is a process of its own; its first message is not always of queue 0."""
    queues = []
    for _ in range(5):
        result = run("put", tmp_path / "s", "t", "x", "--create", "--json")
        queues.append(result.one["queue"])
    assert queues == [0, 1, 2, 3, 4]


def test_put_refuses_a_delay_level_that_is_not_there(run: Run, store: Path) -> None:
    result = run("put", store, "t", "x", "--delay-level", "99")
    assert result.code == 2
    assert "18 levels" in result.err
    assert run("put", store, "t", "x", "--delay-level", "18").code == 0


def test_put_says_who_delivers(run: Run) -> None:
    text = " ".join(run("put", "--help").out.split())
    assert "A broker that runs on this store delivers it" in text
    assert "--broker" not in text


def test_version(run: Run) -> None:
    """--version is that of the package."""
    assert run("--version").out == f"pystore {pystore.__version__}\n"


def test_completion_knows_verbs_and_options(tmp_path: Path) -> None:
    """What the script of --show-completion asks: verbs for the first word, then their options."""

    def completed(*words: str) -> list[str]:
        env = os.environ | {
            "_PYSTORE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["pystore", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(PROGRAM, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert {"info", "import"} == set(completed("i"))
    assert {"--topic", "--json"} <= set(completed("info", "--"))


@pytest.mark.parametrize(
    "verb",
    [("info", "--topic", "T"), ("tail", "T"), ("get", "--topic", "T", "--offset", "0")],
)
def test_a_missing_topic_is_suggested(run: Run, store: Path, verb: tuple[str, ...]) -> None:
    result = run(verb[0], store, *verb[1:])
    assert (result.code, "did you mean 't'?" in result.err) == (1, True), result.err
