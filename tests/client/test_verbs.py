"""``pystore send`` and ``pystore consume``."""

from __future__ import annotations

import io
import json
import sys

import pytest

from broker import Broker
from pystore.cli import main


@pytest.fixture
def pystore(server, capsys, monkeypatch):
    """pystore(words, lines): exit code, what was printed, what was complained about."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)

    def call(*words, lines=()):
        data = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_what_is_sent_is_consumed(pystore, name):
    topic = name("topic")
    sent = pystore("send", topic, "héllo", "--tags", "paid", "--keys", "a b", "--property", "x=y",
                   "--json")  # fmt: skip
    assert (sent[0], json.loads(sent[1])["status"]) == (0, "SEND_OK")
    assert pystore("send", topic, lines=["one", "", "two"])[0] == 0
    code, out, _ = pystore("consume", topic, "--json")
    found = {record["body"]: record for record in map(json.loads, out.splitlines())}
    assert (code, set(found)) == (0, {"héllo", "one", "two"})
    first = found["héllo"]
    assert (first["tags"], first["keys"], first["properties"]) == ("paid", ["a", "b"], {"x": "y"})
    code, out, _ = pystore("consume", topic, "--count", 1)
    assert (code, len(out.splitlines())) == (0, 1)


def test_a_delay_is_a_time_ahead_or_a_moment(pystore, name):
    code, out, _ = pystore("send", name("topic"), "later", "--delay", "2h", "--json")
    assert code == 0 and json.loads(out)["recall_handle"]
    code, out, _ = pystore("send", name("topic"), "past", "--delay", "2020-01-01", "--json")
    assert code == 0 and json.loads(out)["recall_handle"] is None
    for wrong in ("soon", "2 h", "9" * 18):
        code, _, err = pystore("send", name("topic"), "x", "--delay", wrong)
        assert code == 2 and "--delay" in err


def test_a_group_reads_each_message_once(pystore, name):
    topic, group = name("topic"), name("group")
    pystore("send", topic, lines=["1", "2", "3"])
    assert len(pystore("consume", topic, "--group", group)[1].splitlines()) == 3
    assert pystore("consume", topic, "--group", group)[:2] == (1, "")


def test_lines_of_json_go_from_topic_to_topic(pystore, name):
    one, two = name("one"), name("two")
    lines = ['{"body": "text", "tags": "a", "keys": ["k"], "properties": {"p": "q"}, "shard": "s"}',
             '{"body_base64": "/w==", "delay_level": 0}']  # fmt: skip
    assert pystore("send", one, "--json-lines", lines=lines)[0] == 0
    _, out, _ = pystore("consume", one, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    for record in records:
        del record["topic"]
    assert pystore("send", two, "--json-lines", lines=map(json.dumps, records))[0] == 0
    _, copied, _ = pystore("consume", two, "--json")
    shown = ("tags", "keys", "properties", "body", "body_base64")
    pick = [sorted(str([r.get(n) for n in shown]) for r in rs)
            for rs in (records, map(json.loads, copied.splitlines()))]  # fmt: skip
    assert pick[0] == pick[1]
    assert "/w==" in copied


@pytest.mark.parametrize(
    ("words", "lines", "code", "said"),
    [
        (("send", "t", "--json-lines"), ["{}"], 2, "line 1 is not a message"),
        (("send", "t", "--json-lines"), ["[" * 100_000], 2, "line 1 is not a message"),
        (("consume", "t", "--from", "²"), (), 2, "first, last or ms"),
        (("send", "a b", "x"), (), 2, "other characters"),
        (("send", "t", "x", "--property", "novalue"), (), 2, "not NAME=VALUE"),
        (("send", "t", "x", "-n", "nowhere"), (), 2, "not host:port"),
        (("send", "t", "x", "-n", "127.0.0.1:1"), (), 6, "no name server answers"),
        (("consume", "nowhere-at-all"), (), 1, "no broker serves"),
        (("consume", "t", "--from", "yesterday"), (), 2, "first, last or ms"),
        (("consume", "t", "--tags", "a"), (), 2, "need a --group"),
    ],
)
def test_what_goes_wrong_is_said_with_its_exit_code(pystore, words, lines, code, said):
    found, out, err = pystore(*words, lines=lines)
    assert (found, out) == (code, "")
    assert said in err


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("clone", "127.0.0.1:1", "copy"), "check the address"),
        (("ha", "status", "127.0.0.1:1"), "check the address"),
        (("ha", "group", "etcd://127.0.0.1:1", "b"), "check the address"),
        (("admin", "cluster", "-n", "127.0.0.1:1"), "check the address"),
        (("send", "t", "x", "-n", "127.0.0.1:1"), "check the address"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, tuple) else "",
)
def test_an_error_of_the_network_is_not_told_as_one_of_a_disk(words, step, capsys):
    assert main([*words]) == 6
    said = capsys.readouterr().err
    assert step in said and "disk" not in said


def test_a_name_server_that_is_asked_as_a_broker_is_named(server, tmp_path, capsys):
    assert main(["clone", server.namesrv, str(tmp_path / "copy")]) == 2
    assert "it is not a broker" in capsys.readouterr().err


def test_a_trace_that_nobody_writes_is_told_so(tmp_path, capsys):
    with Broker(tmp_path / "store", listenPort=0, drain_s=0.0, with_namesrv=True) as broker:
        given = ["admin", "message", "trace", "0" * 32, "-n", broker.namesrv_address]
        assert main(given) == 1
    assert "trace=True" in capsys.readouterr().err


def test_a_queue_that_the_topic_does_not_have_is_refused(tmp_path, capsys):
    store = str(tmp_path / "store")
    assert main(["put", store, "t", "x", "--create"]) == 0
    assert main(["put", store, "t", "x", "--queue", "999"]) == 2
    assert "queues 0 to" in capsys.readouterr().err
    assert main(["tail", store, "t", "--sql", "a >>"]) == 2
