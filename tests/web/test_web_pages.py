"""What the pages of `pystore web` show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Answer, Visitor, visiting
from waiting import BOUND_S, until

import pystore
from broker import Broker, LocalState, Message, TransactionProducer
from broker.web import topic_search
from broker.web.explaining import body_of, explain
from broker.web.rawlog import RawLog
from broker.web.store_overview import rates_of
from pystore.cli.verbs import iso
from pystore.format.records import check_record

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 512,
    "maxIndexNum": 1024, "maxMessageSize": 1 << 18,
}  # fmt: skip


#: A total of an overview: its name, and its number.
TOTAL = r"<dt>(?:<a[^>]*>)?([^<]*)(?:</a>)?</dt><dd>([^<]*)</dd>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "store"
    with pystore.open(path, **SMALL) as made:
        for number in range(250):
            made.put("orders", b'{"apples": %d}' % number, queue=number % 2, keys=f"k{number}",
                     tags="paid", properties={"colour": "red"})  # fmt: skip
        made.put("letters", bytes(range(256)), queue=0)
        made.put("letters", b"x" * 200_000, queue=0)
        made.metadata.offsets.commit("billing", "orders", 0, 5)
    return path


@pytest.fixture
def visitor(store: Path) -> Iterator[Visitor]:
    with visiting(store) as made:
        yield made


def test_the_store_and_its_topics(visitor: Visitor) -> None:
    rows = visitor.get("/topics").rows()
    assert ["orders", "messages", "2", "250"] in rows and ["letters", "messages", "1", "2"] in rows
    found = [row for row in visitor.get("/topics", q="LETT").rows() if row]
    assert found == [["letters", "messages", "1", "2"]]
    assert "No topic." in visitor.get("/topics", q="none").text


def test_the_overview_of_a_store_counts_what_it_holds(visitor: Visitor) -> None:
    """Totals, what the next open would do, what the doctor finds, and rates by store times."""
    until(lambda: "Refresh" not in visitor.get("/").headers, "what the page counts")
    page = visitor.get("/")
    totals = dict(re.findall(TOTAL, page.body.decode()))
    wanted = {"Messages": "252", "Topics": "2", "Groups": "1", "Lag": "120", "Dead letters": "0",
              "Timers waiting": "0", "Open transactions": "0"}  # fmt: skip
    assert {name: totals[name] for name in wanted} == wanted
    assert ["billing", "120", ""] in page.rows(), "who is furthest behind"
    text = " ".join(page.text.split())
    assert "It was closed cleanly: the next open changes nothing." in text
    assert "pystore doctor" in text and "The doctor is looking" not in text


def test_rates_are_counted_by_store_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """120 messages within a minute are two a second, whatever was stored long before."""
    path = tmp_path / "s"
    with pystore.open(path, **SMALL) as made:
        for _ in range(60):
            made.put("t", b"x" * 100, queue=0)
    with pystore.Reader(path) as reader:
        messages = list(reader.messages())
        log = RawLog([path / "commitlog"])
        times = {message.physical_offset: 1_000 * number for number, message in enumerate(messages)}
        monkeypatch.setattr(
            type(messages[0]), "store_timestamp", property(lambda m: times[m.physical_offset])
        )
        found = rates_of(reader, log)
    assert found is not None and found.whole
    assert (found.begin_ms, found.end_ms, found.messages.seconds) == (0, 59_000, 59.0)
    (line,) = found.messages.lines
    assert line.last == pytest.approx(60 / 59, rel=0.05)


def test_many_topics_are_shown_a_page_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pystore.open(path, **SMALL) as made:
        for number in range(230):
            made.put(f"t{number:03}", b"x", queue=0)
    with visiting(path) as visitor:
        first, last = visitor.get("/topics"), visitor.get("/topics", page=5)
        assert [row[0] for row in first.rows() if row] == [f"t{n:03}" for n in range(50)]
        assert [row[0] for row in last.rows() if row] == [f"t{n:03}" for n in range(200, 230)]
        assert b'rel="next"' in first.body and b'rel="next"' not in last.body


def bodies(page: Answer) -> list[str]:
    """Of the messages that a page lists."""
    return [row[6] for row in page.rows() if len(row) == 7]


def test_a_topic_its_groups_and_its_messages(visitor: Visitor) -> None:
    """Without a queue the newest of all queues; of one, from any offset on."""
    page = visitor.get("/topic", name="orders")
    assert ["0", "0", "125", "125", ""] in page.rows()
    assert ["billing", "120", ""] in page.rows()
    shown = bodies(page)
    assert sorted(shown) == sorted(f'{{"apples": {n}}}' for n in range(200, 250))
    earlier = visitor.get("/topic", name="orders", queue=1, offset=3)
    first = next(row for row in earlier.rows() if len(row) == 7)
    assert first[1:] == ["1", "3", "paid", "k7", first[5], '{"apples": 7}']
    assert visitor.get("/topic", name="absent").status == 404
    assert visitor.get("/topic", name="orders", queue=9).status == 404
    assert visitor.get("/topic", name="orders", queue="x").status == 400


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"tag": "paid"}, 50), ({"tag": "open || paid"}, 50), ({"tag": "open"}, 0),
        ({"sql": "colour = 'red'"}, 50), ({"sql": "colour = 'blue'"}, 0),
        ({"text": "APPLES\": 24"}, 11), ({"text": "7}", "tag": "paid"}, 25),
    ],
    ids=str,
)  # fmt: skip
def test_messages_are_filtered_by_tag_sql_and_text(
    visitor: Visitor, wanted: dict[str, str], count: int
) -> None:
    page = visitor.get("/topic", name="orders", **wanted)
    assert page.status == 200 and len(bodies(page)) == count, page.text


def test_a_filter_looks_at_no_more_than_its_bound(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_search, "LOOKED_MAX", 30)
    page = visitor.get("/topic", name="orders", text="nowhere")
    assert "Only the newest 30 messages were looked at" in " ".join(page.text.split())
    assert visitor.get("/topic", name="orders", sql="colour LIKE (").status == 400
    assert visitor.get("/topic", name="orders", text="x" * 501).status == 400


def test_a_topic_is_followed_live(visitor: Visitor) -> None:
    assert visitor.get("/topic", name="orders", live=1).headers["Refresh"] == "2"
    assert "Refresh" not in visitor.get("/topic", name="orders").headers


def place_of(store: Path, topic: str, number: int) -> int:
    with pystore.Reader(store) as reader:
        return reader.read(topic, 0, number)[0].physical_offset


def test_a_message_with_its_record_field_by_field(visitor: Visitor, store: Path) -> None:
    at = place_of(store, "orders", 2)
    page = visitor.get("/message", at=at)
    assert '{"apples": 4}' in page.text and '"apples": 4\n}' in page.text
    assert ["colour", "red"] in page.rows()
    fields = {row[3]: row for row in page.rows() if len(row) == 7}
    assert fields["queueOffset"][:3] == [str(at + 20), "20", "8"]
    assert fields["queueOffset"][4:] == [
        "2", "place in the queue, in messages", "00 00 00 00 00 00 00 02",
    ]  # fmt: skip
    assert fields["bodyCRC"][5].endswith("fits the body")
    assert visitor.get("/body", at=at).body == b'{"apples": 4}'
    record = visitor.get("/record", at=at)
    assert check_record(record.body) is not None
    assert record.headers["Content-Disposition"].startswith("attachment")
    assert visitor.get("/message", at=at + 1).status == 404
    assert visitor.get("/message").status == 400


def test_bytes_are_shown_as_a_dump_and_long_bodies_in_part(visitor: Visitor, store: Path) -> None:
    dump = visitor.get("/message", at=place_of(store, "letters", 0))
    assert "shown as hex" in dump.text and "00000010  10 11 12" in dump.text
    long = visitor.get("/message", at=place_of(store, "letters", 1))
    assert "200,000 bytes" in long.text and "the first part of it" in long.text
    assert len(long.body) < 100_000


@pytest.mark.parametrize("name", ["normal-exit", "killed", "killed-pop"])
def test_the_fields_of_every_record_of_java_fill_it(
    golden: Callable[[str], Path], name: str
) -> None:
    """One after the other, from the first byte to the last."""
    count = 0
    with pystore.Reader(golden(name)) as reader:
        for message in reader.messages():
            data = bytes(message.record)
            head = check_record(data)
            assert head is not None
            at = 0
            for field in explain(data, head):
                assert field.at == at
                assert data[at : at + field.width].hex(" ").startswith(field.raw.split(" ...")[0])
                at += field.width
            assert at == len(data)
            assert body_of(data, head) == (bytes(message.body), "")
            count += 1
    assert count > 10


def test_messages_are_found_by_id_key_and_time(visitor: Visitor, store: Path) -> None:
    with pystore.Reader(store) as reader:
        message = reader.read("orders", 1, 3)[0]
        id_, at, stored = (
            message.offset_message_id, message.physical_offset, message.store_timestamp,
        )  # fmt: skip
    for query in ({"topic": "orders", "key": "k7"}, {"id": id_}):
        answer = visitor.get("/find", **query)
        assert (answer.status, answer.headers["Location"]) == (303, f"/message?at={at}")
    found = visitor.follow("/find", topic="orders", time=stored)
    assert "Messages of queue 0" in found.text
    assert visitor.get("/find", topic="orders", key="none").status == 404
    assert visitor.get("/find", id="zz").status in (400, 404)
    assert visitor.get("/find", topic="orders", time="soon").status == 400
    assert visitor.get("/find").status == 200


def test_open_transactions_and_timers_wait(tmp_path: Path) -> None:
    path, due = tmp_path / "s", 4_000_000_000_000
    with Broker(path, listenPort=0, with_namesrv=True, drain_s=0.1, **SMALL) as broker:
        with (
            TransactionProducer(
                "tellers", broker.namesrv_address, check=lambda message: LocalState.UNKNOWN
            ) as producer,
            producer.transaction(Message("orders", b"1", keys="half")) as transaction,
        ):
            transaction.leave_open()
        with broker.producer() as plain:
            due = int(time.time() * 1000) + 3_600_000
            plain.send(Message("orders", b"2", keys="timer", deliver_at_ms=due))
    with visiting(path) as visitor:
        rows = visitor.get("/waiting").rows()
    (half,) = [row for row in rows if len(row) == 6]
    assert half[1:5] == ["orders", "tellers", "0", "half"]
    (timer,) = [row for row in rows if len(row) == 4]
    assert timer[:3] == [iso(due), "orders", "timer"]


def test_a_store_of_java_has_its_timers(golden: Callable[[str], Path]) -> None:
    """66 of a broker that was killed, less those that were recalled: the file beside it says."""
    with visiting(golden("timer")) as visitor:
        page = visitor.get("/waiting")
    assert page.status == 200
    assert len([row for row in page.rows() if len(row) == 4]) > 30


# ---- damaged, crashed, in use ----


def findings(visitor: Visitor) -> Any:
    assert "Check now" in visitor.get("/verify").text
    assert visitor.get("/verify", run=1).status == 303

    def finished() -> Any:
        page = visitor.get("/verify")
        if "Refresh" in page.headers:
            assert "being checked" in page.text
            return None
        return page

    return until(finished, "the end of the check")


def test_a_sound_store_has_no_findings(visitor: Visitor) -> None:
    page = findings(visitor)
    assert "Sound: nothing is damaged or hidden. 252 records" in " ".join(page.text.split())


def test_a_damaged_log_is_drawn(store: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "damaged"
    shutil.copytree(store, copy)
    at = place_of(copy, "orders", 60)
    segment = sorted((copy / "commitlog").iterdir())[0]
    with segment.open("r+b") as log:
        log.seek(at + 100)
        log.write(b"\xff" * 40)
    with visiting(copy) as visitor:
        page = findings(visitor)
    assert "errors." in page.text and "pystore repair" in page.text
    assert page.body.count(b'<rect class="error"') >= 1
    assert any(row and row[0] == "error" for row in page.rows())


def test_a_crashed_store_of_java_is_shown(golden: Callable[[str], Path]) -> None:
    with visiting(golden("killed")) as visitor:
        text = " ".join(visitor.get("/").text.split())
        assert "It was not closed cleanly. The next open for writing checks" in text
        page = visitor.get("/topics", kind="all")
        assert any(row and row[0] == "golden2_burst" for row in page.rows())


def test_a_store_in_use_shows_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pystore.open(path, **SMALL) as made:
        made.put("orders", b"1", queue=0)
        with visiting(path) as visitor:
            assert "in use" in visitor.get("/").text
            made.put("orders", b"2", queue=0)
            row = ["orders", "messages", "1", "2"]
            until(lambda: row in visitor.get("/topics").rows(), "the second message")


def test_the_command_serves_until_it_is_stopped(store: Path) -> None:
    program = Path(sys.executable).parent / "pystore"
    words = [program, "web", store, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        keeps = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with keeps.open(address, timeout=BOUND_S) as page:
            assert b"closed cleanly" in page.read()
        process.terminate()
        assert process.wait(BOUND_S) == 0


def test_a_folder_without_a_store_ends_the_start(tmp_path: Path, capsys: Any) -> None:
    from pystore.cli import main

    assert main(["web", str(tmp_path / "none")]) == 3
    assert main(["web", str(tmp_path / "none"), "--json"]) == 3
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["exit"] == 3
