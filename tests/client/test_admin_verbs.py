"""`pystore admin` and `pystore top`, against a broker of ours."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waiting import BOUND_S, until

from broker import Broker, Consumer, LiteConsumer, Message, NameServer, Producer
from broker.client.admin import QueueLag
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.rates import Look, TopRow, rows_between
from broker.services.names import is_system_group
from pystore.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("admin")
    with Broker(
        folder / "store", listenPort=0, with_namesrv=True, drain_s=0.1, brokerName="broker-a",
        mappedFileSizeCommitLog=64 << 20,
    ) as broker:  # fmt: skip
        yield broker


@dataclass
class Result:
    code: int
    lines: list[dict[str, Any]]
    out: str
    err: str

    @property
    def whole(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


@pytest.fixture
def run(made: Broker, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """A verb with --json, asked of the name server."""

    def one(*words: object, text: bool = False) -> Result:
        given = [*map(str, words), "-n", made.namesrv_address, *([] if text else ["--json"])]
        code = main(given)
        out, err = (each.decode() for each in capsysbinary.readouterr())
        lines = [] if text else [json.loads(line) for line in out.splitlines()]
        return Result(code, lines, out, err)

    return one


def send(made: Broker, topic: str, *bodies: bytes, **more: Any) -> list[str]:
    with Producer("admin-verbs", made.namesrv_address) as producer:
        return [producer.send(Message(topic, body, **more)).message_id for body in bodies]


def bury(made: Broker, group: str, topic: str, count: int) -> None:
    """So many dead letters."""
    with Consumer(group, topic, namesrv=made.namesrv_address, start="first") as consumer:
        left = count
        while left:
            for message in consumer.poll(1.0):
                consumer.nack(message, -1)
                left -= 1


def test_a_topic_from_the_shell(run: Callable[..., Result]) -> None:
    planned = run("admin", "topic", "create", "plums", "--queues", 3, "--dry-run")
    assert planned.whole["plan"]["queues"] == 3
    assert run("admin", "topic", "show", "plums").code == 1, "a dry run makes nothing"
    assert run("admin", "topic", "create", "plums", "--queues", 3, "--type", "fifo").code == 0
    shown = run("admin", "topic", "show", "plums").whole
    assert shown["brokers"][0]["attributes"] == {"message.type": "FIFO"}
    assert len(shown["queues"]) == 3
    names = [each["topic"] for each in run("admin", "topic", "list").whole["topics"]]
    assert "plums" in names and "TBW102" not in names and "broker-a" not in names
    everything = run("admin", "topic", "list", "--all").whole["topics"]
    assert "TBW102" in [each["topic"] for each in everything]
    assert run("admin", "topic", "delete", "plums", "--dry-run").whole["plan"]["topic"] == "plums"
    assert run("admin", "topic", "show", "plums").code == 0
    assert run("admin", "topic", "delete", "plums").code == 0
    assert run("admin", "topic", "show", "plums").code == 1


def test_a_group_from_the_shell(run: Callable[..., Result]) -> None:
    assert run("admin", "group", "create", "bakers", "--retries", 2, "--disable").code == 0
    shown = run("admin", "group", "show", "bakers").whole["group"]
    assert (shown["retries"], shown["may_consume"]) == (2, False)
    groups = [each["group"] for each in run("admin", "group", "list").whole["groups"]]
    assert "bakers" in groups and "TOOLS_CONSUMER" not in groups
    assert run("admin", "group", "delete", "bakers", "--dry-run").code == 0
    assert run("admin", "group", "delete", "bakers").code == 0
    missing = run("admin", "group", "delete", "bakers")
    assert missing.code == 1 and "bakers" in missing.err


def test_lite_topics_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    """What brokers of 5.5.0 and ours say of lite topics, as mqadmin's six sub-commands show it."""
    create = ("admin", "topic", "create", "sessions", "--type", "LITE", "--lite-minutes", 60)
    assert run(*create).code == 0
    assert run("admin", "group", "create", "agents", "--lite-of", "sessions").code == 0
    send(made, "sessions", b"a0", b"a1", lite_topic="s1")
    send(made, "sessions", b"b0", lite_topic="s2")
    with LiteConsumer("agents", "sessions", namesrv=made.namesrv_address) as consumer:
        consumer.subscribe("s1")
        consumer.subscribe("s2")
        got: dict[str, ReceivedMessage] = {}

        def all_came() -> bool:
            for message in consumer.poll(1.0):
                got[message.body.decode()] = message
            return len(got) == 3

        until(all_came, "the messages")
        consumer.ack(got["a0"])
        asked = ("sessions", "agents")
        broker = run("admin", "lite", "broker").whole
        assert broker["brokers"][0]["lite_topics"] == 2
        assert broker["brokers"][0]["limit"] is None
        assert broker["topics"][0] | {"broker": ""} == {
            "broker": "", "topic": "sessions", "minutes": 60, "groups": ["agents"],
        }  # fmt: skip
        assert run("admin", "lite", "parent", "sessions").whole["brokers"][0]["lite_topics"] == 2
        topic = run("admin", "lite", "topic", "sessions", "s1").whole
        assert topic["brokers"][0]["messages"] == 2
        (subscriber,) = topic["subscribers"]
        client = run("admin", "lite", "client", *asked, subscriber["client"], "--most", 1).whole
        assert client["brokers"][0]["lite_topics"] == 2
        assert [each["lite_topic"] for each in client["subscribed"]] == ["s1"]
        one = until(
            lambda: [
                each
                for each in run("admin", "lite", "group", *asked, "-l", "s1").whole["brokers"]
                if each["offset"] == 1
            ],
            "the acknowledgement",
        )
        assert (one[0]["behind"], one[0]["end"]) == (1, 2)
        group = run("admin", "lite", "group", *asked, "--top", 5).whole
        assert {each["lite_topic"] for each in group["most"]} == {"s1", "s2"}
        (row,) = (
            each
            for each in run("top", "--count", 1).whole["groups"]
            if (each["group"], each["topic"]) == ("agents", "sessions")
        )
        assert row["lag"] == 2
        assert run("admin", "lite", "dispatch", *asked).whole["dispatched"]["group"] == "agents"
    assert run("admin", "lite", "topic", "sessions", "none").code == 1
    refused = run("admin", "lite", "parent", "TBW102")
    assert refused.code != 0 and "type not match" in refused.err


def test_offsets_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    send(made, "pears", *[b"%d" % n for n in range(8)])
    with Consumer("packers", "pears", namesrv=made.namesrv_address, start="first") as consumer:
        while len(consumer.poll(1.0)) == 0:
            pass
    until(
        lambda: run("admin", "offset", "reset", "packers", "pears", "--to", "first").code == 0, ""
    )
    lag = run("admin", "offset", "lag", "packers", "--topic", "pears").whole
    assert lag["group"]["behind"] == 8
    queue = next(each for each in lag["lag"] if each["end"])["queue"]
    assert run("admin", "offset", "skip", "packers", "pears", "--count", 1).code == 2
    one = run("admin", "offset", "skip", "packers", "pears", "--queue", queue, "--count", 1)
    assert [(each["before"], each["after"]) for each in one.whole["moved"]] == [(0, 1)]
    until(lambda: _behind(run) == 7, "seven that wait")
    assert run("admin", "offset", "skip", "packers", "pears", "--dry-run").code == 0
    assert _behind(run) == 7
    run("admin", "offset", "skip", "packers", "pears")
    until(lambda: _behind(run) == 0, "nothing that waits")
    run("admin", "offset", "reset", "packers", "pears", "--to", "1h")
    until(lambda: _behind(run) == 8, "all of the last hour")
    assert run("admin", "offset", "reset", "packers", "pears", "--to", "soon").code == 2
    assert run("admin", "offset", "lag", "nobody").code == 1


def _behind(run: Callable[..., Result]) -> int:
    lag = run("admin", "offset", "lag", "packers", "--topic", "pears").whole
    behind: int = lag["group"]["behind"]
    return behind


def test_messages_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    (id_,) = send(made, "figs", b"12 figs", keys="order-17", tags="paid", properties={"a": "b"})
    send(made, "figs", b"\xff\x00", b"none")
    found = until(lambda: run("admin", "message", "get", id_, "--topic", "figs").lines, "the index")
    assert found[0]["body"] == "12 figs" and found[0]["all_properties"]["a"] == "b"
    by_offset = run("admin", "message", "get", found[0]["offset_msg_id"]).whole
    assert by_offset["physical_offset"] == found[0]["physical_offset"]
    assert len(run("admin", "message", "find", "figs").lines) == 3
    assert [
        each["body"] for each in run("admin", "message", "find", "figs", "--tag", "paid").lines
    ] == ["12 figs"]
    assert run("admin", "message", "find", "figs", "--key", "order-17").whole["keys"] == [
        "order-17"
    ]
    assert len(run("admin", "message", "find", "figs", "--grep", "^12|none").lines) == 2
    assert run("admin", "message", "find", "figs", "--grep", "(").code == 2
    assert len(run("admin", "message", "find", "figs", "--from", "1h", "--max", 2).lines) == 2
    assert run("admin", "message", "find", "figs", "--to", "1h").code == 1
    assert run("admin", "message", "get", "0" * 32).code in (1, 2)


def test_dead_letters_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    send(made, "dates", b"one", b"two", b"three", tags="paid")
    bury(made, "weighers", "dates", 3)
    letters = until(lambda: _three(run), "three dead letters")
    assert {each["body"] for each in letters} == {"one", "two", "three"}
    one = run("admin", "dlq", "get", "weighers", letters[0]["offset_msg_id"]).whole
    assert one["body"] == letters[0]["body"]
    assert run("admin", "dlq", "get", "weighers", "0").code == 1
    *planned, plan = run("admin", "dlq", "redrive", "weighers", "--dry-run").lines
    assert [each["outcome"] for each in planned] == ["planned"] * 3
    assert plan["plan"] == {
        "group": "weighers", "to": "%RETRY%weighers", "dead_letters": 3, "chosen": 3, "sent": 3,
        "sent_before": 0,
    }  # fmt: skip
    most = ("admin", "dlq", "redrive", "weighers", "--max", 2)
    *planned, plan = run(*most, "--dry-run").lines
    assert (len(planned), plan["plan"]["sent"], plan["plan"]["chosen"]) == (2, 2, 2)
    some = run("admin", "dlq", "redrive", "weighers", "--grep", "^t", "--rate", 1000)
    assert some.whole["redriven"]["sent"] == 2
    until(lambda: _sent_before(run) == 2, "that the index shows them")
    *before, rest = run("admin", "dlq", "redrive", "weighers").lines
    assert [each["outcome"] for each in before] == ["already"] * 2
    assert {each["body"] for each in before} == {"two", "three"}
    assert (rest["redriven"]["sent"], rest["redriven"]["sent_before"]) == (1, 2)
    assert run("admin", "dlq", "redrive", "weighers", "--again").whole["redriven"]["sent"] == 3
    nobody = run("admin", "dlq", "redrive", "nobody")
    assert nobody.code == 2 and "no broker has the group nobody" in nobody.err
    assert run("admin", "dlq", "list", "nobody").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "planned", "--queues", 3, "--type", "fifo"),
        ("topic", "create", "planned", "--perm", "x"),
        ("topic", "create", "no such name"),
        ("group", "create", "planned", "--retries", 2, "--disable"),
        ("group", "create", "no such name"),
        ("offset", "reset", "planned", "planned", "--to", "first"),
        ("offset", "skip", "planned", "planned"),
        ("offset", "skip", "nobody", "planned"),
        ("offset", "reset", "planned", "missing", "--to", "first"),
        ("config", "set", "fileReservedTime=71"),
        ("config", "set", "noSuchThing=1"),
        ("dlq", "redrive", "planned", "--max", 2),
        ("dlq", "redrive", "missing"),
        ("group", "delete", "planned"),
        ("group", "delete", "missing"),
        ("topic", "delete", "planned"),
        ("topic", "delete", "missing"),
    ],
    ids=lambda words: "-".join(map(str, words)),
)
def test_a_dry_run_plans_what_its_run_does(
    words: tuple[object, ...], run: Callable[..., Result]
) -> None:
    if words[0] == "offset":
        run("admin", "topic", "create", "planned")
    planned, done = run("admin", *words, "--dry-run"), run("admin", *words)
    assert (planned.code, planned.err) == (done.code, done.err)
    for plan, fact in zip(planned.lines, done.lines, strict=True):
        assert list(plan.values()) == list(fact.values())


def _three(run: Callable[..., Result]) -> list[dict[str, Any]] | None:
    found = run("admin", "dlq", "list", "weighers").lines
    return found if len(found) == 3 else None


def _sent_before(run: Callable[..., Result]) -> int:
    plan = run("admin", "dlq", "redrive", "weighers", "--dry-run").lines[-1]["plan"]
    before: int = plan["sent_before"]
    return before


def test_brokers_and_settings_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    (row,) = run("admin", "cluster").whole["brokers"]
    assert (row["broker"], row["address"], row["problem"]) == ("broker-a", made.address, "")
    facts = run("admin", "broker").whole[made.address]
    assert int(facts["commitLogMaxOffset"]) >= 0 and facts["started_iso"]
    got = run("admin", "config", "get", "fileReservedTime").whole[made.address]
    assert list(got) == ["fileReservedTime"]
    assert run("admin", "config", "get", "noSuchThing").code == 1
    plan = run("admin", "config", "set", "fileReservedTime=70", "--dry-run").whole["plan"]
    assert [(each["before"], each["after"]) for each in plan] == [(got["fileReservedTime"], "70")]
    assert run("admin", "config", "set", "fileReservedTime=70").code == 0
    after = run("admin", "config", "get", "fileReservedTime").whole[made.address]
    assert after == {"fileReservedTime": "70"}
    refused = run("admin", "config", "set", "noSuchThing=1")
    assert refused.code == 1 and "noSuchThing" in refused.err
    assert run("admin", "config", "set", "noSuchThing=1", "--dry-run").code == 1
    assert run("admin", "config", "set", "fileReservedTime").code == 2


def test_a_broker_that_is_gone_is_shown_with_the_reason(run: Callable[..., Result]) -> None:
    code = main(["admin", "cluster", "-b", "127.0.0.1:1", "--json"])
    assert code == 6


def test_clients_from_the_shell(run: Callable[..., Result], made: Broker) -> None:
    send(made, "nuts", b"x")
    assert run("admin", "client", "list", "crackers").code == 1
    with Consumer("crackers", "nuts", namesrv=made.namesrv_address) as consumer:
        found = until(lambda: _consumers(run), "the consumer")
    assert [each["client"] for each in found] == [consumer.client_id]


def _consumers(run: Callable[..., Result]) -> list[dict[str, Any]] | None:
    result = run("admin", "client", "list", "crackers")
    return result.whole["consumers"] if result.code == 0 else None


def test_hostile_bodies_and_names_reach_no_terminal(
    run: Callable[..., Result], made: Broker
) -> None:
    send(made, "evil", b"\x1b[2Jgone\nnext", keys="k\x07")
    text = run("admin", "message", "find", "evil", text=True).out
    assert "\x1b" not in text and "\x07" not in text and len(text.splitlines()) == 1


def test_completion_knows_topics(made: Broker) -> None:
    send(made, "quinces", b"x")
    program = Path(sys.executable).parent / "pystore"
    words = f"pystore admin topic show -n {made.namesrv_address} quin"
    env = os.environ | {
        "_PYSTORE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "6",
    }  # fmt: skip
    done = until(
        lambda: subprocess.run(
            [program], env=env, capture_output=True, text=True, timeout=BOUND_S, check=False
        ).stdout.split(),
        "the topic",
    )
    assert done == ["quinces"]


# ---- top ----


def lag(group: str, topic: str, committed: int, end: int) -> QueueLag:
    return QueueLag(group, MessageQueue(topic, "b", 0), committed, end, 0, 0)


def test_rates_are_those_between_two_looks() -> None:
    before = Look(10.0, lags=[lag("g", "t", 100, 150), lag("h", "t", 0, 150)])
    now = Look(20.0, lags=[lag("g", "t", 140, 170), lag("h", "t", 0, 170), lag("n", "t", 1, 170)])
    rows = {row.group: row for row in rows_between(before, now)}
    assert rows["g"] == TopRow("g", "t", 30, 2.0, 4.0)
    assert rows["g"].seconds_left == 15.0
    assert (rows["h"].came, rows["h"].went, rows["h"].seconds_left) == (2.0, 0.0, None)
    assert (rows["n"].came, rows["n"].went) == (None, None)
    assert [row.came for row in rows_between(None, now)] == [None] * 3


def test_a_topic_made_again_and_a_group_reset_have_no_rate_for_once() -> None:
    before, now = Look(0.0, lags=[lag("g", "t", 9, 9)]), Look(1.0, lags=[lag("g", "t", 2, 4)])
    (row,) = rows_between(before, now)
    assert (row.lag, row.came, row.went) == (2, None, None)


@pytest.mark.parametrize(
    ("sort", "order"),
    [("lag", "bac"), ("in", "cab"), ("out", "acb"), ("group", "abc"), ("topic", "cba")],
)
def test_rows_are_sorted(sort: str, order: str) -> None:
    before = Look(0.0, lags=[lag("a", "3", 0, 10), lag("b", "2", 0, 20), lag("c", "1", 0, 5)])
    now = Look(1.0, lags=[lag("a", "3", 9, 15), lag("b", "2", 1, 21), lag("c", "1", 5, 11)])
    rows = rows_between(before, now, sort)
    assert "".join(row.group for row in rows) == order


def test_top_in_a_pipe_prints_looks(run: Callable[..., Result], made: Broker) -> None:
    send(made, "limes", b"x", b"y")
    with Consumer("squeezers", "limes", namesrv=made.namesrv_address, start="first") as consumer:
        left = 2
        while left:
            found = consumer.poll(1.0)
            consumer.ack(*found)
            left -= len(found)
        consumer.commit()
    result = run("top", "--count", 2, "--interval", 0.1)
    assert result.code == 0
    first, second = result.lines
    (row,) = [each for each in second["groups"] if each["group"] == "squeezers"
              and each["topic"] == "limes"]  # fmt: skip
    assert (row["lag"], row["in/s"], row["out/s"]) == (0, 0.0, 0.0)
    assert not [each for each in second["groups"] if is_system_group(each["group"])]
    assert first["brokers"][0]["broker"] == made.address
    text = run("top", "--count", 1, text=True).out
    rows = [line.split() for line in text.splitlines() if line]
    heads = [number for number, row in enumerate(rows) if row[0] in ("broker", "group")]
    assert heads == [0, 2] and rows[1][0] == made.address
    for number, row in enumerate(rows):
        assert len(row) == len(rows[0 if number < 2 else 2])
    assert ["squeezers", "limes", "0"] in [row[:3] for row in rows]
    assert run("top", "--sort", "age").code == 2


def test_top_on_a_terminal_takes_keys(made: Broker) -> None:
    """In a terminal of its own: it draws, sorts by the key, and ends with q."""
    ours, theirs = os.openpty()
    program = Path(sys.executable).parent / "pystore"
    words = [program, "top", "-n", made.namesrv_address, "--interval", "0.2"]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        read_until(ours, "lag ▼")
        os.write(ours, b"i")
        read_until(ours, "in/s ▼")
        os.write(ours, b"q")
        until(lambda: process.poll() is not None or drained(ours), "the end")
        assert process.wait(BOUND_S) == 0
    os.close(ours)


def test_top_goes_on_while_a_broker_is_killed_and_comes_back(tmp_path: Path) -> None:
    """It says so, shows the other broker meanwhile, and then both again."""
    small = {"mappedFileSizeCommitLog": 4 << 20, "drain_s": 0.1}
    program = str(Path(sys.executable).parent / "pystore")
    with (
        NameServer.in_thread(listenPort=0) as names,
        Broker(
            tmp_path / "b", listenPort=0, namesrvAddr=names.address, brokerName="b", **small
        ) as stays,
    ):
        words = [
            program, "broker", "--store", str(tmp_path / "a"), "--port", str(free_port()),
            "-n", names.address, "--set", "brokerName=a", "--json",
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:

            def start() -> subprocess.Popen[bytes]:
                made = subprocess.Popen(words, stdout=subprocess.PIPE)
                stack.enter_context(made)
                stack.callback(made.kill)
                assert made.stdout is not None and made.stdout.readline()
                return made

            broker = start()
            asks = [program, "top", "-n", names.address, "--interval", "0.1", "--json"]
            top = stack.enter_context(subprocess.Popen(asks, stdout=subprocess.PIPE))
            stack.callback(top.kill)
            until(lambda: both(top), "both")
            broker.kill()
            until(lambda: next_look(top) == ([stays.address], True), "the one that stays")
            start()
            until(lambda: both(top), "both again")
            top.send_signal(signal.SIGINT)
            assert top.stdout is not None and top.stdout.read() is not None
            assert top.wait(BOUND_S) == 0


def next_look(top: subprocess.Popen[bytes]) -> tuple[list[str], bool]:
    """The brokers of the next look, and whether it has problems."""
    assert top.stdout is not None
    look = json.loads(top.stdout.readline())
    return [each["broker"] for each in look["brokers"]], bool(look["problems"])


def both(top: subprocess.Popen[bytes]) -> bool:
    brokers, troubled = next_look(top)
    return len(brokers) == 2 and not troubled


def read_until(terminal: int, what: str) -> None:
    seen = b""

    def there() -> bool:
        nonlocal seen
        if select.select([terminal], [], [], 0.05)[0]:
            seen += os.read(terminal, 65536)
        return what.encode() in seen

    until(there, what)


def drained(terminal: int) -> None:
    """Takes what is written, so that the writer can end."""
    with contextlib.suppress(OSError):
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 65536)
