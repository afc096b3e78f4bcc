"""Options and columns without a session: what is understood, and what is refused in one
sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_ext import options as table
from spark_ext import schema
from spark_ext.errors import BadOption, BadSchema
from spark_ext.options import Bound, parse_read, parse_write


def read(streaming: bool = False, **options: str):
    return parse_read({"path": "/s", **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topics": "t"}, "unknown option 'topics'; did you mean 'topic'?"),
        ({"startingOfset": "latest"}, "did you mean 'startingOffsets'?"),
        ({"zzz": "1"}, "unknown option 'zzz'"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss is true or false, not 'no'"),
        ({"minPartitions": "0"}, "option minPartitions is a whole number of at least 1, not '0'"),
        ({"maxBytesPerPartition": "many"}, "is a size such as 134217728 or 128m, not 'many'"),
        ({"startingOffsets": "first"}, "option startingOffsets is earliest, latest or JSON"),
        ({"startingOffsets": "latest"}, "latest would leave nothing to read"),
        ({"endingOffsets": "earliest"}, "earliest would leave nothing to read"),
        ({"startingOffsets": '{"t": 5}'}, 'is JSON such as {"topic": {"broker-a": {"0": 23}}}'),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "option startingOffsets is JSON such as"),
        ({"startingOffsets": '{"t": '}, "malformed JSON"),
        ({"startingTimestamp": "yesterday"}, "is a time in ms since 1970 or as 2026-01-31T23:59"),
        ({"subscribePattern": "("}, "option subscribePattern is not a valid regular expression"),
        ({"scan": "fast"}, "option scan is one of auto, queue, log, not 'fast'"),
        ({"includeProperties": "xml"}, "is one of json, map, none"),
        ({"topic": "a", "subscribePattern": "b"}, "give one of the options topic and subscribePat"),
        ({"nameServer": "localhost:9876"}, "nameServer of a read goes with fallback=pull"),
        ({"maxOffsetsPerTrigger": "5"}, "does not apply to a batch; it is for spark.readStream"),
        ({"brokerName": "a,b"}, "option brokerName names 2 brokers for 1 stores"),
        ({"minStoreTimestamp": "5", "maxStoreTimestamp": "4"}, "is later than maxStoreTimestamp"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "Timestamp is after endingTimestamp"),
        (
            {"scan": "log", "startingLogOffset": "5", "endingLogOffset": "4"},
            "after endingLogOffset",
        ),
        (
            {"startingOffsets": '{"t": {"1": 5}}', "endingOffsets": '{"t": {"1": 4}}'},
            "option startingOffsets is after endingOffsets in queue t/1: 5 and 4",
        ),
        ({"startingOffsets": '{"t": {"0": 5, "0": 6}}'}, "malformed JSON: '0' is given twice"),
        ({"startingOffsets": '{"t": {"0": 5, "00": 6}}'}, "option startingOffsets is JSON such as"),
        ({"pushdown": "on"}, "option pushdown is one of off, unsafe, auto, not 'on'"),
        ({"tags": "a", "sql92": "a = 1"}, "give one of the options tags and sql92"),
        ({"fallback": "pull"}, "option fallback=pull needs nameServer"),
        ({"fallback": "pull", "nameServer": "h:1", "scan": "log"}, "scan=log reads files only"),
        ({"accessKey": "a"}, "option accessKey goes with nameServer, which is not given"),
        ({"fallback": "skip"}, "option fallback is one of fail, pull, not 'skip'"),
        ({"storePathCommitLogs": "/d"}, "'storePathCommitLogs'; did you mean 'storePathCommitLog'"),
        ({"storePathCommitLog": ","}, "storePathCommitLog = ',' names no directory"),
        ({"enableDLegerCommitLog": "true"}, "DLedger commit log layout is not supported"),
        ({"conf": "/none/broker.conf"}, "cannot read the settings (No such file or directory)"),
        ({"conf": "["}, "option conf is a path or a JSON list of paths"),
        ({"conf": "a\0b"}, "option conf has a zero byte: 'a\\x00b'"),
        ({"conf": "[" * 20_000}, "JSON list of paths: nested too deeply"),
        ({"startingOffsets": '{"a":' * 20_000}, "malformed JSON: nested too deeply"),
        ({"scan": "x\n" * 9000}, "option scan is one of auto, queue, log, not 'x\\nx\\nx"),
        ({"batchRows": str(1 << 31)}, "option batchRows is at most 2147483647"),
        ({"batchBytes": "9" * 18 + "t"}, "option batchBytes is at most 9223372036854775807"),
        ({"maxRecordsPerPartition": "1_000"}, "maxRecordsPerPartition is a whole number"),
        ({"queues": "-1"}, "option queues is a whole number of at least 0, not '-1'"),
        ({"queues": str(1 << 32)}, "option queues is at most 2147483647"),
        ({"startingTimestamp": "9" * 19}, "startingTimestamp is at most 4611686018427387903"),
        ({"startingOffsets": '{"t": {"0": 1' + "0" * 40 + "}}"}, "startingOffsets is JSON such as"),
    ],
)
def test_bad_options_are_named(options, why):
    with pytest.raises(BadOption) as failure:
        read(**options)
    assert why in str(failure.value)
    assert "\n" not in str(failure.value)


def test_the_parser_knows_what_the_page_has():
    """Cases of each: test_option_behaviour.py."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    told = {name.strip() for cell in cells for name in cell.split(",")}
    assert told - {"path", "storePathCommitLog and other settings"} == {*table._READ, *table._WRITE}


def test_a_stream_refuses_what_only_a_batch_knows():
    with pytest.raises(BadOption, match="endingOffsets does not apply to a stream"):
        read(True, endingOffsets="latest")
    with pytest.raises(BadOption, match="pushdown=unsafe: Spark pushes no filters into streams"):
        read(True, pushdown="unsafe")


def test_limits_of_a_trigger_that_contradict_each_other():
    with pytest.raises(BadOption, match="minOffsetsPerTrigger is more than maxOffsetsPerTrigger"):
        read(True, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
    with pytest.raises(BadOption, match="the wait for minOffsetsPerTrigger, which is not given"):
        read(True, maxTriggerDelay="1m")


@pytest.mark.parametrize("group", ["../up", "a b", "x" * 256, "g\n"])
def test_a_group_is_the_name_of_a_file(group):
    with pytest.raises(BadOption, match="option commitToGroup is a consumer group"):
        read(True, commitToGroup=group)


def test_paths_that_are_no_json_are_a_path():
    for given in ({"paths": "[x"}, {"path": "[x"}):
        assert parse_read(given, streaming=False).paths == ("[x",)


def test_no_store_and_two_equal_stores():
    with pytest.raises(BadOption, match="no store given"):
        parse_read({}, streaming=False)
    with pytest.raises(BadOption, match="listed twice"):
        parse_read({"path": '["/a", "/a"]'}, streaming=False)


def test_options_are_read_whatever_their_case():
    o = read(STARTINGTIMESTAMP="2026-01-01T00:00:00Z", Topic="a, b", maxbytesperpartition="1m")
    assert o.start == Bound("time", 1_767_225_600_000)
    assert (o.topics, o.max_bytes) == (("a", "b"), 1 << 20)
    assert read(startingTimestamp="2026-01-01T01:00:00+01:00").start == o.start
    waits = {"maxTriggerDelay": "2m", "minOffsetsPerTrigger": "5"}
    assert read(True, **waits).trigger_delay_ms == 120_000


@pytest.mark.parametrize("parse", [parse_write, lambda given: parse_read(given, streaming=False)])
def test_a_table_of_the_catalogue_is_told_to_be_a_view(parse):
    """Spark gives the reader and the writer of such a table no options at all."""
    with pytest.raises(BadOption, match=r"no store given: .* make a view, CREATE TEMPORARY VIEW"):
        parse({})


def test_making_a_table_of_the_catalogue_is_refused_at_once():
    """With what Spark 4.3 asks the schema for."""
    given = {"location": "file:/s", "path": "file:/s", "provider": "rocketmq", "owner": "me",
             "topic": "t", "option.topic": "t"}  # fmt: skip
    with pytest.raises(BadOption, match="a table of Spark's catalogue cannot read a store: "):
        table.parse_columns(given)


def test_write_options():
    assert parse_write({"path": "/s", "storeConf": '{"a": 1}'}).conf == {"a": 1}
    with pytest.raises(BadOption, match="it is neither"):
        parse_write({"path": "/s", "storeConf": "{"})
    assert parse_write({"path": "/s", "queues": "65536"}).queues == 65536
    with pytest.raises(BadOption, match="option queues is at most 65536"):
        parse_write({"path": "/s", "queues": "65537"})
    with pytest.raises(BadOption, match="option jobId is letters"):
        parse_write({"path": "/s", "jobId": "../x"})
    with pytest.raises(BadOption, match="a write goes to one store"):
        parse_write({"path": '["/a", "/b"]'})


@pytest.mark.parametrize(
    "target",
    [
        {"path": "/s"},
        {"nameServer": "h:1"},
        {"nameServer": "h:1", "transactional": "true"},
    ],
    ids=["store", "network", "transactional"],
)
def test_a_stream_has_no_job_id_which_would_drop_the_batches_of_a_new_checkpoint(target):
    from spark_ext.source import RocketmqSource

    source = RocketmqSource({**target, "topic": "t", "jobId": "mine"})
    with pytest.raises(BadOption, match="option jobId is for a batch write: a stream writes each"):
        source.streamWriter(StructType([StructField("body", StringType())]), False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"nameServer": "nowhere"},
            "nameServer: the name server 'nowhere' is not host:port",
        ),
        ({"nameServer": "h:1", "path": "/s"}, "give a path or option nameServer, not both: '/s'"),
        ({"nameServer": "h:1", "spool": "/x"}, "option spool is for a write into a store"),
        ({"nameServer": "h:1", "queues": "4"}, "option queues is for a write into a store"),
        ({"nameServer": "h:1", "lockTimeout": "1s"}, "option lockTimeout is for a write into"),
        ({"nameServer": "h:1", "storeConf": "{}"}, "option storeConf is for a write into a store"),
        ({"nameServer": "h:1", "accessKey": "a"}, "options accessKey and secretKey go together"),
        ({"nameServer": "h:1", "securityToken": "t"}, "securityToken goes with both"),
        ({"path": "/s", "tls": "true"}, "option tls goes with nameServer, which is not given"),
        ({"path": "/s", "tlsCaFile": "/c"}, "option tlsCaFile goes with nameServer"),
        ({"nameServer": "h:1", "tls": "yes"}, "option tls is true or false, not 'yes'"),
        ({"path": "/s", "transactional": "true"}, "transactional is for a write over the network"),
    ],
)
def test_bad_options_of_a_write_over_the_network_are_named(options, why):
    with pytest.raises(BadOption) as failure:
        parse_write(options)
    assert why in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_secret_does_not_show():
    options = parse_write({"nameServer": "h:1;i:2", "accessKey": "key", "secretKey": "hidden"})
    assert options.network.credentials.secret_key == "hidden"
    assert "hidden" not in repr(options)


def test_the_default_columns_are_the_old_connectors_with_tags_and_keys():
    assert schema.ddl((), "json").startswith("topic string NOT NULL, brokerName string NOT NULL")
    assert "properties string NOT NULL" in schema.ddl((), "json")
    assert "properties" not in schema.ddl((), "none")
    assert schema.ddl(("keys", "body"), "map") == "keys string, body binary NOT NULL"
    with pytest.raises(BadSchema, match="unknown column 'tag'; did you mean 'tags'"):
        schema.ddl(("tag",), "json")


def test_columns_agree_with_those_of_the_store():
    import pystore

    assert {n: null for n, (_, null) in schema.COLUMNS.items()} == {
        name: null for name, (_, null) in pystore.COLUMNS.items()
    }


def test_the_discovery_module_imports_neither_store_nor_arrow():
    import subprocess
    import sys

    code = (
        "import sys, pyspark_rocketmq as m; print(m.DefaultSource.name(),"
        " sorted({'pystore', 'pyarrow', 'lmdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rocketmq", "[]"]
