"""Spans of OpenTelemetry: of sends and handlers, in one trace across the broker."""

from __future__ import annotations

import sys

import pytest
from loops import until
from waiting import until as wait_until

from broker import AsyncConsumer, AsyncProducer, Consumer, LocalState, Message, Producer
from broker.client import AsyncTransactionProducer, InvalidMessage, Misuse, SendFailed

trace = pytest.importorskip("opentelemetry.trace", reason="OpenTelemetry is not installed")
memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="its SDK is not installed"
)


@pytest.fixture
def spans(monkeypatch):
    """spans() are those that ended, by name."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = memory.InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))

    def found():
        by_name = {}
        for span in exporter.get_finished_spans():
            by_name.setdefault(span.name, []).append(span)
        return by_name

    found.tracer = provider.get_tracer("the user's")
    return found


def test_a_handler_continues_the_trace_of_the_send(server, name, spans):
    """Also in threads, where what the user does is part of it."""
    topic, seen = name("topic"), []

    def handle(message):
        seen.append(trace.get_current_span().get_span_context())

    with spans.tracer.start_as_current_span("order") as order:
        with Producer("p", server.namesrv, spans=True, namespace="shop") as producer:
            message = Message(topic, b"12 apples", tags="fruit", keys="order-17")
            result = producer.send(message)
        assert not message.properties
    options = {"namesrv": server.namesrv, "start": "first", "spans": True, "namespace": "shop"}
    with Consumer(name("group"), topic, handler=handle, **options):
        wait_until(lambda: f"process {topic}" in spans())
    (send,), (process,) = spans()[f"send {topic}"], spans()[f"process {topic}"]
    assert send.parent.span_id == order.get_span_context().span_id
    assert process.parent.span_id == process.links[0].context.span_id == send.context.span_id
    assert {send.context.trace_id, process.context.trace_id} == {order.get_span_context().trace_id}
    assert seen == [process.context]
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    for span in (send, process):
        facts = span.attributes
        assert facts["messaging.system"] == "rocketmq"
        assert facts["messaging.destination.name"] == topic
        assert facts["messaging.message.id"] == result.message_id
        assert facts["messaging.destination.partition.id"] == str(result.queue.queue)
        assert facts["messaging.rocketmq.namespace"] == "shop"
        assert facts["messaging.rocketmq.message.tag"] == "fruit"
        assert facts["messaging.rocketmq.message.keys"] == ("order-17",)
    assert process.attributes["messaging.consumer.group.name"].startswith("shop%group")


async def test_every_way_to_send_has_a_span(server, name, spans):
    topic = name("topic")
    options = {"spans": True}
    async with AsyncProducer("p", server.namesrv, **options) as producer:
        await producer.send(Message(topic, b"1"))
        await (await producer.submit(Message(topic, b"2")))
        await producer.send_oneway(Message(topic, b"3"))
        await producer.send_batch([Message(topic, b"4"), Message(topic, b"5")])
    check = lambda message: LocalState.COMMIT  # noqa: E731
    async with (
        AsyncTransactionProducer(name("tx"), server.namesrv, check=check, **options) as producer,
        producer.transaction(Message(topic, b"6")),
    ):
        pass
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert len(spans()[f"send {topic}"]) == 5
    assert all(span.end_time for span in spans()[f"send {topic}"])
    (batch,) = (s for s in spans()[f"send {topic}"] if s.kind is trace.SpanKind.CLIENT)
    assert batch.attributes["messaging.batch.message_count"] == 2
    created = {span.context.span_id for span in spans()[f"create {topic}"]}
    assert created == {link.context.span_id for link in batch.links}


async def test_what_fails_is_an_error_of_its_span(server, name, spans):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv, spans=True, retries=0) as producer:
        queue = (await producer.send(Message(topic, b"x"))).queue._replace(queue=99)
        with pytest.raises(SendFailed):
            await producer.send(Message(topic, b"y"), queue=queue)
        with pytest.raises(SendFailed):
            await (await producer.submit(Message(topic, b"y"), queue=queue))
        with pytest.raises(InvalidMessage):
            await producer.send("text")

    async def handle(message):
        raise ValueError("no apples")

    async with AsyncConsumer(
        name("group"), topic, namesrv=server.namesrv, start="first", handler=handle, spans=True
    ):
        await until(lambda: f"process {topic}" in spans())
    failed = [s for s in spans()[f"send {topic}"] if not s.status.is_ok and s.status.description]
    assert [span.attributes["error.type"] for span in failed] == ["SendFailed"] * 2
    process = spans()[f"process {topic}"][0]
    assert process.attributes["error.type"] == "ValueError"
    assert process.events[0].name == "exception"


def test_without_opentelemetry_the_setting_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(Misuse, match=r"rocketmq-pystore\[otel\]"):
        Producer("p", "127.0.0.1:1", spans=True)
