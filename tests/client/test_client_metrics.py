"""Metrics of a client in the registry of its program."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from waiting import until

from broker import Broker, Message
from broker.client import ClientError, Misuse
from broker.metrics.table import BY_NAME


def value(registry, name, **labels):
    return registry.get_sample_value(f"pystore_client_{name}", labels)


def test_sends_and_handlers_are_counted_in_the_programs_registry(tmp_path):
    registry, failed = CollectorRegistry(), []

    def handle(message):
        if message.body == b"bad" and not failed:
            failed.append(message)
            raise ValueError("not today")

    with Broker(tmp_path / "store", listenPort=0) as one:
        with one.producer("makers", metrics=registry) as producer:
            for body in (b"1", b"2", b"bad"):
                producer.send(Message("orders", body))
            producer.send_batch([Message("orders", b"3"), Message("orders", b"4")])
            producer.submit(Message("orders", b"5")).result()
        sent = {"group": "makers", "topic": "orders"}
        assert value(registry, "sends_total", **sent, status="ok") == 6
        assert value(registry, "send_seconds_count", **sent) == 5
        with one.consumer("takers", "orders", handler=handle, start="first", metrics=registry):
            done = {"group": "takers", "topic": "orders"}
            until(lambda: value(registry, "handled_total", **done, result="ok") == 5)
            until(lambda: value(registry, "handled_total", **done, result="retry") == 1)


def test_a_send_that_fails_counts_as_failed(tmp_path):
    registry = CollectorRegistry()
    with (
        Broker(tmp_path / "store", listenPort=0, autoCreateTopicEnable=False) as one,
        one.producer("makers", metrics=registry) as producer,
        pytest.raises(ClientError, match="orders"),
    ):
        producer.send(Message("orders", b"1"))
    labels = {"group": "makers", "topic": "orders", "status": "failed"}
    assert value(registry, "sends_total", **labels) == 1


def test_clients_share_a_registry_and_names_are_those_of_the_table(tmp_path):
    registry = CollectorRegistry()
    with Broker(tmp_path / "store", listenPort=0) as one:
        for group in ("a", "b"):
            with one.producer(group, metrics=registry) as producer:
                producer.send(Message("orders", b"1"))
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert BY_NAME[name].of == "client"
        assert all(set(BY_NAME[name].labels) <= set(s.labels) for s in family.samples)
    for group in ("a", "b"):
        assert value(registry, "sends_total", group=group, topic="orders", status="ok") == 1


def test_what_is_no_registry_is_refused(tmp_path):
    with (
        Broker(tmp_path / "store", listenPort=0) as one,
        pytest.raises(Misuse, match="CollectorRegistry"),
    ):
        one.producer("a", metrics=object())
