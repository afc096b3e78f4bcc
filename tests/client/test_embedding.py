"""A broker in one's own process, and the pytest plugin in somebody else's project."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from broker import Broker, Credentials, Message, Producer
from broker.client import AlreadyClosed
from broker.client.errors import BrokerRefused, SendFailed
from broker.client.faults import FaultTable
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(small):
    return small | {"listenPort": 0, "drain_s": 0.0}


def test_a_broker_hands_out_clients_without_a_name_server(tmp_path, settings):
    with Broker(tmp_path / "store", **settings) as broker:
        with broker.producer() as producer:
            producer.send(Message("orders", b"12 apples"))
        with broker.consumer("billing", "orders", start="first") as consumer:
            assert next(iter(consumer)).body == b"12 apples"


async def test_the_same_on_a_running_loop(tmp_path, settings):
    async with Broker(tmp_path / "store", **settings) as broker:
        broker.create_topic("orders", queues=1)
        async with (
            broker.async_producer() as producer,
            broker.async_consumer("billing", "orders", start="first") as consumer,
        ):
            result = await producer.send(Message("orders", b"12 apples"))
            assert result.queue.queue == 0
            async for message in consumer:
                assert message.body == b"12 apples"
                break


def test_the_name_server_knows_a_topic_as_soon_as_it_is_made(tmp_path, settings):
    """Else a first send takes the default topic's route, and queues that the topic lacks."""
    with (
        Broker(tmp_path / "store", with_namesrv=True, **settings) as broker,
        Producer("shop", broker.namesrv_address) as producer,
    ):
        for number in range(20):
            broker.create_topic(f"orders-{number}", queues=1)
            assert producer.send(Message(f"orders-{number}", b"x")).queue.queue == 0


async def test_clients_on_the_loop_of_the_broker_have_no_socket(tmp_path, settings, monkeypatch):
    # A first send that was slow beside other work would have the broker avoided for a while.
    monkeypatch.setattr(FaultTable, "avoided", False)
    async with Broker(tmp_path / "store", **settings) as broker:
        broker.create_topic("orders")
        async with broker.async_producer() as producer:
            await producer.send(Message("orders", b"x"))
            assert producer.network.ready(broker.address).near
            begun = producer.send(Message("orders", b"y"))
            with pytest.raises(StopIteration) as done:  # it never waits for the loop
                begun.send(None)
            assert done.value.value.queue_offset >= 0

        async with broker.async_producer() as other:
            await other.send_batch([Message("orders", b"x" * 1000)] * 3000)


async def test_a_client_in_the_process_needs_no_tls(tmp_path, settings):
    """With a name server that enforces it, too; there is no socket that anybody could listen to."""
    for name, text in zip(("crt", "key"), self_signed("localhost"), strict=True):
        (tmp_path / name).write_text(text)
    tls = TlsSettings(
        mode="enforcing", cert_path=str(tmp_path / "crt"), key_path=str(tmp_path / "key")
    )
    async with Broker(tmp_path / "store", with_namesrv=True, tls=tls, **settings) as broker:
        broker.create_topic("orders", queues=1)
        async with (
            broker.async_producer() as producer,
            broker.async_consumer("billing", "orders", start="first") as consumer,
        ):
            await producer.send(Message("orders", b"12 apples"))
            assert producer.network.ready(broker.address).near
            async for message in consumer:
                assert message.body == b"12 apples"
                break


async def test_a_client_in_the_process_needs_credentials(tmp_path, settings):
    """Access control asks it as any other."""
    boss = Credentials("boss", "boss-secret")
    users = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"boss","password":"boss-secret"}',
    }  # fmt: skip
    async with Broker(tmp_path / "store", **users, **settings) as broker:
        broker.create_topic("orders", queues=1)
        async with broker.async_producer(credentials=boss) as producer:
            await producer.send(Message("orders", b"x"))
        for wrong in (None, Credentials("boss", "guessed-it")):
            async with broker.async_producer(credentials=wrong, retries=0) as producer:
                with pytest.raises((SendFailed, BrokerRefused), match=r"username|signature"):
                    await producer.send(Message("orders", b"x"))


def test_a_broker_closes_the_clients_that_run_with_it(tmp_path, settings):
    with Broker(tmp_path / "store", **settings) as broker:
        producer = broker.producer().start()
        producer.send(Message("orders", b"x"))
    with pytest.raises(AlreadyClosed):
        producer.send(Message("orders", b"x"))


async def test_a_plain_with_works_inside_a_running_loop(tmp_path, settings):
    """As in a notebook."""
    with Broker(tmp_path / "store", **settings) as broker, broker.producer() as producer:
        assert producer.send(Message("orders", b"x")).queue_offset == 0
        async with broker.async_producer() as other:
            await other.send(Message("orders", b"y"))


def test_a_broker_starts_again_on_its_folder(tmp_path, settings):
    for turn in range(3):
        with Broker(tmp_path / "store", **settings) as broker, broker.producer() as producer:
            queue = producer.queues("orders")[0] if turn else None
            result = producer.send(Message("orders", b"x"), queue=queue)
            with broker.consumer("counts", auto_commit_s=0, start="first") as consumer:
                assert sum(consumer.max_offset(q) for q in consumer.queues("orders")) == turn + 1
            assert result.queue_offset >= 0


def test_a_second_start_is_refused_and_the_first_goes_on(tmp_path, settings):
    broker = Broker(tmp_path / "store", **settings)
    with pytest.raises(RuntimeError, match="inside 'with'"):
        broker.producer()
    with broker:
        with pytest.raises(RuntimeError, match="running already"):
            broker.__enter__()
        with pytest.raises(RuntimeError, match="running already"):
            asyncio.run(broker.start())
        with broker.producer() as producer:
            assert producer.send(Message("orders", b"x")).queue_offset == 0
    broker.__exit__(None, None, None)  # harmless


def test_several_brokers_live_in_one_process(tmp_path, settings):
    brokers = [Broker(tmp_path / str(n), with_namesrv=True, **settings) for n in range(3)]
    for broker in brokers:
        broker.__enter__()
    try:
        for n, broker in enumerate(brokers):
            with broker.producer() as producer:
                producer.send_batch([Message("orders", b"x")] * (n + 1))
        for n, broker in enumerate(brokers):
            with broker.consumer("g", start="first") as consumer:
                assert sum(consumer.max_offset(q) for q in consumer.queues("orders")) == n + 1
    finally:
        for broker in brokers:
            broker.__exit__(None, None, None)


PROJECT = """
import pytest
from broker import Consumer, Message, Producer
from broker.client.faults import FaultTable

def test_through_a_broker(rocketmq_namesrv, rocketmq_topic):
    with Producer("shop", rocketmq_namesrv) as producer:
        producer.send(Message(rocketmq_topic, b"12 apples"))
    with Consumer("billing", rocketmq_topic, start="first") as consumer:  # NAMESRV_ADDR
        assert next(iter(consumer)).body == b"12 apples"

@pytest.mark.rocketmq(maxMessageSize=1000)
@pytest.mark.parametrize("size", [900, 2000])
def test_with_settings(rocketmq_broker, rocketmq_topic, size):
    with rocketmq_broker.producer(retries=0, compress_over=0) as producer:
        if size < 1000:
            producer.send(Message(rocketmq_topic, b"x" * size))
        else:
            with pytest.raises(Exception, match="13"):
                producer.send(Message(rocketmq_topic, b"x" * size))

def test_each_test_has_its_own(rocketmq_broker):
    assert rocketmq_broker.services.topics.get("orders") is None
"""


def test_the_plugin_gives_a_project_its_broker(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_shop=PROJECT)
    done = pytester.runpytest_subprocess("-p", "pytest_rocketmq", "--strict-markers", "-q")
    done.assert_outcomes(passed=4)


def test_the_page_about_tests_shows_tests_that_pass(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    page = (ROOT / "docs/testing.md").read_text()
    text = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M))
    text += "\n\ndef test_shared(shared_broker):\n    assert shared_broker.address\n"
    pytester.makepyfile(test_page=text)
    done = pytester.runpytest_subprocess("-p", "pytest_rocketmq", "-q")
    done.assert_outcomes(passed=3)


def test_a_wrong_marker_is_refused(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.rocketmq(5)\ndef test_x(rocketmq_broker): pass\n"
    )
    done = pytester.runpytest_subprocess("-p", "pytest_rocketmq", "-q")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*settings by name only*"])
