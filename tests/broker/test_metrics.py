"""The metrics of a broker: upstream's names, labels and types, and values that agree with what
happened. The golden scrape is Apache's; Prometheus' own parser reads each of ours."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest
from loops import run
from popping import popping
from scrapes import COMMON, everything, golden, names_of, scrape, value, values

from broker.figures.broker import BrokerFigures
from broker.metrics.page import Page
from broker.metrics.table import BY_NAME, TABLE
from broker.wire.codes import RequestCode

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A scrape of a broker that has seen one of everything."""

    async def work():
        async with popping(tmp_path_factory.mktemp("metrics") / "store", **PROM) as popper:
            await everything(popper)
            return await scrape(popper.broker)

    return run(work())


def _missing(page):
    """What the golden scrape has and ours has not: names, and label sets of names."""
    ours, theirs = names_of(page), names_of(golden())
    for name, sets in theirs.items():
        if name in ("target_info", "otel_scope_info"):
            continue
        for labels in sets - ours[name]:
            yield name, sorted(labels - COMMON)


def test_every_name_and_label_of_apaches_scrape_is_there(page):
    assert list(_missing(page)) == []


def test_types_are_those_of_apaches_scrape(page):
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
    for name, kind in re.findall(r"^# TYPE (rocketmq_\S+) (\S+)$", golden(), re.M):
        # Upstream's line lacks the unit that its samples have.
        units = ("", "_milliseconds", "_seconds", "_bytes")
        assert {types[name + u] for u in units if name + u in types} == {kind}


def test_bounds_of_histograms_are_those_of_apaches_scrape(page):
    def bounds(text):
        found = {}
        for name, bound in re.findall(r'^(\w+)_bucket\{.*le="([^"]+)"', text, re.M):
            found.setdefault(name, set()).add(bound)
        return found

    ours = bounds(page)
    assert {name: ours[name] for name in bounds(golden())} == bounds(golden())


def test_every_family_has_one_type_and_stands_in_the_table(page):
    names = re.findall(r"^# TYPE (\S+) ", page, re.M)
    assert len(names) == len(set(names))
    assert set(names) <= set(BY_NAME)
    for name, labels in names_of(page).items():
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        row = BY_NAME[family if family in BY_NAME else name]
        assert all(each - COMMON <= set(row.labels) for each in labels), name


def test_messages_are_counted_where_they_are_stored(page):
    name = "rocketmq_messages_in_total"
    assert value(page, name, topic="plain", message_type="normal") == 3
    assert value(page, name, topic="plain", message_type="fifo") == 1
    assert value(page, name, topic="SCHEDULE_TOPIC_XXXX", message_type="delay") == 1
    assert value(page, name, topic="rmq_sys_wheel_timer", message_type="delay") == 1
    assert value(page, name, topic="RMQ_SYS_TRANS_HALF_TOPIC", message_type="transaction") == 2


def test_a_delay_level_counts_again_and_a_timer_and_a_commit_do_not(page):
    name = "rocketmq_messages_in_total"
    assert value(page, name, topic="delayed", message_type="delay") == 1
    assert not values(page, name, topic="timed")
    assert not values(page, name, topic="tx")


def test_system_topics_are_marked(page):
    marked = values(page, "rocketmq_messages_in_total", is_system="true")
    assert {dict(labels)["topic"] for labels in marked} == {
        "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
    }  # fmt: skip


def test_what_a_group_pulled_and_popped_is_counted(page):
    name = "rocketmq_messages_out_total"
    assert value(page, name, consumer_group="g", topic="plain") == 4
    assert value(page, name, consumer_group="poppers", topic="popped", is_retry="false") == 2


def test_lag_is_what_is_not_committed(page):
    labels = {"consumer_group": "g", "topic": "plain"}
    assert value(page, "rocketmq_consumer_lag_messages", **labels) == 2
    assert value(page, "rocketmq_consumer_inflight_messages", **labels) == 2
    assert value(page, "rocketmq_consumer_ready_messages", **labels) == 0
    assert value(page, "rocketmq_consumer_lag_latency_milliseconds", **labels) >= 0


def test_a_group_without_a_member_is_behind_all_the_same(page):
    labels = {"consumer_group": "gone", "topic": "plain", "is_retry": "false"}
    assert value(page, "rocketmq_consumer_lag_messages", **labels) == 3
    assert value(page, "rocketmq_consumer_ready_messages", **labels) == 3


def test_what_came_back_waits_under_the_name_of_its_topic(page):
    labels = {"consumer_group": "poppers", "topic": "popped", "is_retry": "true"}
    assert value(page, "rocketmq_consumer_lag_messages", **labels) == 1


def test_dead_letters_and_decisions_are_counted(page):
    assert value(page, "rocketmq_send_to_dlq_messages_total", topic="plain") == 1
    assert value(page, "rocketmq_commit_messages_total", topic="tx") == 1
    assert value(page, "rocketmq_rollback_messages_total", topic="tx") == 1


def test_requests_are_counted_by_code_and_outcome(page):
    name = "rocketmq_rpc_latency_milliseconds_count"
    asked = {"response_code": "success", "result": "success"}
    assert value(page, name, request_code="send_message_v2", **asked) == 10
    assert value(page, name, request_code="pull_message", **asked) == 1
    assert value(page, name, request_code="pop_message", **asked) == 1
    assert value(page, name, request_code="end_transaction", result="oneway") == 2
    assert value(page, name, request_code="consumer_send_msg_back", **asked) == 1


async def test_sums_of_a_topic_agree_with_a_scan_of_the_store(tmp_path):
    async with popping(tmp_path / "store", **PROM) as popper:
        popper.make_topic("plain", queues=1)
        sizes = []
        for n in range(20):
            assert (await popper.send(b"x" * 700 * n, topic="plain")).code in (0, 13)
        page = await scrape(popper.broker)
        store = popper.broker.store
        for at, size, _ in store.units("plain", 0, 0, 32):
            assert store.message(at).topic == "plain"
            sizes.append(size)
        assert value(page, "rocketmq_messages_in_total", topic="plain") == len(sizes)
        assert value(page, "rocketmq_throughput_in_total", topic="plain") == sum(sizes)
        small = value(page, "rocketmq_message_size_bucket", topic="plain", le="1024.0")
        assert small == sum(size <= 1024 for size in sizes)
        end = value(page, "pystore_store_log_max_offset_bytes")
        assert end == store.info().log_max


async def test_request_28_says_what_a_scrape_says(tmp_path):
    """Of each metric that has an entry there, which the table names."""
    #: Written for people, or in other units.
    written = {"remainHowManyDataToFlush", "timerReadBehind"}
    async with popping(
        tmp_path / "store", flushDiskType="SYNC_FLUSH", idempotentProduceWindow=100, **PROM
    ) as popper:
        assert (await popper.send(b"x", topic="plain")).code == 0
        answer = await popper.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table, page = json.loads(bytes(answer.body))["table"], await scrape(popper.broker)
        for metric in (m for m in TABLE if m.entry and values(page, m.name)):
            assert metric.entry in table
            if metric.entry not in written:
                assert float(table[metric.entry]) == value(page, metric.name), metric.name


async def test_what_of_the_log_is_in_memory(tmp_path):
    async with popping(tmp_path / "store", **PROM) as popper:
        assert (await popper.send(b"x" * 9000, topic="plain")).code == 0
        page, info = await scrape(popper.broker), popper.broker.store.info()
        name = "pystore_store_page_bytes"
        assert value(page, name, state="mapped") == info.log_max - info.log_min
        assert 0 < value(page, name, state="resident") <= info.log_max - info.log_min


async def test_a_master_that_is_cut_off_says_so(tmp_path):
    async with popping(tmp_path / "store", **PROM) as popper:
        services = dataclasses.replace(
            popper.broker.services,
            replication=SimpleNamespace(master=None, slave=None),
            mastership=SimpleNamespace(is_away=True, cut_offs=2),
        )
        figures, page = popper.broker.metrics, Page({})
        BrokerFigures(services, services.core, figures._ports)._add_replication(page)
        text = page.text().decode()
        assert value(text, "pystore_ha_cut_off") == 1
        assert value(text, "pystore_ha_cut_offs_total") == 2
