"""Names that would break a scrape, and more topics than a scrape may show."""

from __future__ import annotations

import logging

import pytest
from popping import popping
from prometheus_client.parser import text_string_to_metric_families
from scrapes import scrape, value, values

from broker.metrics.page import Page, buckets, escaped
from broker.wire.codes import RequestCode as Code

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
NASTY = 'a"} 1\nrocketmq_topic_number 7 \\ é \u2028'


@pytest.mark.parametrize(
    "raw, shown",
    [('"', '\\"'), ("\\", "\\\\"), ("a\nb", "a\\nb"), ("é", "é"), ("\udcff", "?")],
)
def test_values_of_labels_are_escaped(raw, shown):
    assert escaped(raw) == shown


async def test_a_name_cannot_end_its_line_nor_its_quotes(tmp_path):
    async with popping(tmp_path / "store", **PROM) as popper:
        popper.make_topic("plain")
        assert (await popper.send(b"x", topic="plain")).code == 0
        core = popper.broker.services.core
        core.publish_subscription(NASTY, "plain", tags=None, sub_version=1, own=True)
        pulled = await popper.ask(
            Code.PULL_MESSAGE, consumerGroup=NASTY, topic="plain", queueId=0, queueOffset=0,
            maxMsgNums=32, sysFlag=0, commitOffset=0, suspendTimeoutMillis=0, subVersion=1,
        )  # fmt: skip
        assert pulled.code == 0, pulled.remark
        text = await scrape(popper.broker)
        families = {f.name: f for f in text_string_to_metric_families(text)}
        (sample,) = families["rocketmq_messages_out"].samples
        assert sample.labels["consumer_group"] == NASTY and sample.value == 1
        assert len(families["rocketmq_topic_number"].samples) == 1


async def test_series_beyond_the_limit_are_one_and_it_is_said(tmp_path, caplog):
    settings = PROM | {"metricsOtelCardinalityLimit": 3}
    async with popping(tmp_path / "store", **settings) as popper:
        for n in range(5):
            popper.make_topic(f"T{n}")
            for _ in range(n + 1):
                assert (await popper.send(b"x", topic=f"T{n}")).code == 0
        with caplog.at_level(logging.WARNING, "broker.metrics"):
            text = await scrape(popper.broker)
        name = "rocketmq_messages_in_total"
        shown = values(text, name)
        assert len(shown) == 4 and sum(shown.values()) == 15
        assert len(values(text, name, otel_metric_overflow="true")) == 1
        assert value(text, "rocketmq_message_size_count", otel_metric_overflow="true") > 0
        assert value(text, "pystore_scrape_series_left_out") >= 2
        assert any("metricsOtelCardinalityLimit=3" in r.getMessage() for r in caplog.records)


def test_a_page_has_a_bound_too():
    page = Page({}, most=2)
    for n in range(5):
        page.add("pystore_ha_slave_lag_bytes", n, slave=f"s{n}")
    assert page.left_out == 3
    assert page.text().count(b"pystore_ha_slave_lag_bytes{") == 2
    name = "rocketmq_rpc_latency_milliseconds"
    for n in range(4):
        page.extend(buckets(name, {"request_code": f"r{n}"}, [1] * 10, 10.0))
    assert page.left_out == 5
    assert page.text().count(b'le="+Inf"') == page.text().count(name.encode() + b"_count{") == 2


async def test_own_labels_stand_in_every_sample(tmp_path):
    settings = PROM | {"metricsLabel": "env:prod,rack:r1"}
    async with popping(tmp_path / "store", **settings) as popper:
        popper.make_topic("plain")
        assert (await popper.send(b"x", topic="plain")).code == 0
        text = await scrape(popper.broker)
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines and all('env="prod",rack="r1"' in line for line in lines)
