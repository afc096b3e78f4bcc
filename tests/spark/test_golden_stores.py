"""The Java broker's stores through Spark: every row is what Apache's own store sees in them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

pytestmark = pytest.mark.spark

SCHEMA = (
    "topic string, queueId int, queueOffset long, body binary, tags string, keys string,"
    " properties map<string,string>, flag int, bornTimestamp timestamp, storeTimestamp timestamp,"
    " sysFlag int, bornHost string, storeHost string, reconsumeTimes int, bodyCRC int,"
    " storeSize int, commitLogOffset long, preparedTransactionOffset long"
)


def in_queues(records: list[dict[str, Any]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The messages that a unit points to, by topic, queue, offset."""
    by_place = {r["phy"]: r for r in records if r["at"] == "msg"}
    return {
        (r["topic"], r["queue"], r["offset"]): by_place[r["phy"]]
        for r in records
        if r["at"] == "cq" and r["phy"] in by_place
    }


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
@pytest.mark.parametrize("scan", ["queue", "log"])
def test_every_row_is_what_java_sees(load, golden, golden_records, name, scan):
    path, records = golden(name), golden_records(name)
    want = in_queues(records)
    frame = load(path, SCHEMA, includeTransactions="all", decompress="false", scan=scan)
    rows = frame.selectExpr(
        "*", "unix_millis(bornTimestamp) AS born", "unix_millis(storeTimestamp) AS stored"
    ).collect()
    got = {(r.topic, r.queueId, r.queueOffset): r for r in rows}
    assert len(got) == len(rows)
    if scan == "log":
        want = {(m["topic"], m["queue"], m["queue_offset"]): m for m in records if m["at"] == "msg"}
    assert got.keys() == want.keys()
    for key, m in want.items():
        r = got[key]
        body = bytes(r.body)
        assert facts(r, body) == {
            "phy": m["phy"],
            "size": m["size"],
            "flag": m["flag"],
            "sys_flag": m["sys_flag"],
            "born": (m["born_ts"], m["born_host"]),
            "store": (m["store_ts"], m["store_host"]),
            "reconsume": m["reconsume"],
            "prepared": m["prepared_offset"],
            "crc": m["body_crc"],
            "body": (m["body_len"], m["body_crc32"]),
            "props": m["props"],
            "tags": (m["props"].get("TAGS"), m["props"].get("KEYS")),
        }, key


def facts(r: Any, body: bytes) -> dict[str, Any]:
    return {
        "phy": r.commitLogOffset,
        "size": r.storeSize,
        "flag": r.flag,
        "sys_flag": r.sysFlag,
        "born": (r.born, r.bornHost),
        "store": (r.stored, r.storeHost),
        "reconsume": r.reconsumeTimes,
        "prepared": r.preparedTransactionOffset,
        "crc": r.bodyCRC,
        "body": (len(body), f"{zlib.crc32(body):08x}"),
        "props": r.properties,
        "tags": (r.tags, r.keys),
    }


def test_keys_of_javas_index(load, golden, golden_records):
    path, records = golden("normal-exit"), golden_records("normal-exit")
    want = {m["phy"] for m in records if "order-0" in m.get("props", {}).get("KEYS", "").split(" ")}
    found = load(path, "commitLogOffset long", keys="order-0")
    assert want and {r.commitLogOffset for r in found.collect()} == want
