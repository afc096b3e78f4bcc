"""Settings both ways, who a client is to the broker, and what tools ask it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
from caller import CODE, Caller, message, serving
from waiting import BOUND_S, until

from broker import Broker
from broker.grpc.brokers import Links
from broker.grpc.outbox import BYTES_MAX, COUNT_MAX, Outbox
from broker.grpc.schema import pb
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode
from broker.wire.command import Command


def seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def test_a_producer_gets_its_settings(caller: Caller) -> None:
    reply = caller.telemetry().publish("Normal", "Fifo")
    assert reply.status.code == CODE.OK
    settings = reply.settings
    assert [each.name for each in settings.publishing.topics] == ["Normal", "Fifo"]
    assert settings.publishing.max_body_size == 4 << 20
    assert settings.publishing.validate_message_type
    policy = settings.backoff_policy
    assert policy.max_attempts == 3
    assert seconds(policy.exponential_backoff.initial) == 0.01
    assert seconds(policy.exponential_backoff.max) == 1
    assert policy.exponential_backoff.multiplier == 2
    assert settings.HasField("metric") and not settings.metric.on


def test_a_consumer_gets_its_settings(caller: Caller) -> None:
    settings = caller.telemetry().subscribe("readers", "Normal").settings
    assert settings.subscription.receive_batch_size == 32
    assert seconds(settings.subscription.long_polling_timeout) == 20
    assert settings.subscription.HasField("fifo") and not settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 17
    backoff = [each.seconds for each in settings.backoff_policy.customized_backoff.next]
    assert len(backoff) == 18 and backoff[:3] == [1, 5, 10] and backoff[-1] == 7200


def test_settings_on_one_stream_are_answered_each_time(caller: Caller) -> None:
    stream = caller.telemetry()
    stream.publish("Normal")
    stream.write()  # a command without content is passed over
    assert stream.publish("Fifo").settings.publishing.topics[0].name == "Fifo"


def test_a_client_is_registered_as_one_of_the_remoting_protocol(
    broker: Broker, caller: Caller
) -> None:
    caller.telemetry().subscribe("shop", "Normal")
    (row,) = ask(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="shop")[
        "connectionSet"
    ]
    assert row["clientId"] == caller.client_id
    assert row["language"] == "PYTHON"
    assert row["clientAddr"].startswith("127.0.0.1:")


def test_an_unknown_language_is_no_reason_to_refuse(broker: Broker) -> None:
    with Caller(broker.grpc_address, {"x-mq-language": "ZIG"}) as caller:
        caller.telemetry().subscribe("zig", "Normal")
        found = ask(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="zig")
    assert [row["language"] for row in found["connectionSet"]] == ["OTHER"]


def test_a_heartbeat_after_settings(caller: Caller) -> None:
    caller.telemetry().publish("Normal")
    assert caller("Heartbeat", client_type=1).status.code == CODE.OK


def makers(broker: Broker, topic: str) -> set[str]:
    """Ids of the clients that publish to it: those of tests before may still be there."""
    return {each.client_id for each in broker.services.clients.producers.get(topic, {}).values()}


def test_a_client_that_says_goodbye_is_gone(broker: Broker, caller: Caller) -> None:
    caller.telemetry().publish("Normal")
    assert caller.client_id in makers(broker, "Normal")
    assert caller("NotifyClientTermination").status.code == CODE.OK
    assert caller.client_id not in makers(broker, "Normal")
    assert caller("Heartbeat", client_type=1).status.code == CODE.UNRECOGNIZED_CLIENT_TYPE


def test_a_client_whose_connection_closes_is_gone(broker: Broker) -> None:
    with Caller(broker.grpc_address) as caller:
        caller.telemetry().publish("Mixed")
        assert "Mixed" in broker.services.clients.producers
    until(lambda: "Mixed" not in broker.services.clients.producers, "the end of a client")


def test_the_end_of_an_older_stream_takes_nothing_away(broker: Broker, caller: Caller) -> None:
    old, new = caller.telemetry(), caller.telemetry()
    old.publish("Normal")
    new.publish("Normal")
    old.close()
    with pytest.raises(StopIteration):
        old.read()
    assert new.publish("Normal").status.code == CODE.OK
    assert "Normal" in broker.services.clients.producers


def test_a_stream_without_client_id_ends_with_a_status(broker: Broker) -> None:
    with Caller(broker.grpc_address, {"x-mq-client-id": None}) as caller:
        stream = caller.telemetry()
        assert stream.publish("Normal").status.code == CODE.CLIENT_ID_REQUIRED
        with pytest.raises(StopIteration):
            stream.read()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"publishing": pb.Publishing(topics=[pb.Resource(name="TBW102")])},
        {"subscription": pb.Subscription(group=pb.Resource(name="a b"))},
        {"subscription": pb.Subscription(group=pb.Resource(name="CID_RMQ_SYS_x"))},
        {"publishing": pb.Publishing(), "user_agent": pb.UA(hostname="x" * (256 << 10))},
    ],
)
def test_settings_that_are_refused_end_the_stream(caller: Caller, settings: Any) -> None:
    stream = caller.telemetry()
    with pytest.raises(grpc.RpcError) as failed:
        stream.settle(**settings)
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_of_settings_no_more_is_kept_than_is_looked_at(broker: Broker, caller: Caller) -> None:
    stream = caller.telemetry()
    agent = pb.UA(hostname="x" * 100_000)
    stream.settle(client_type=1, publishing=pb.Publishing(), user_agent=agent)
    assert broker.grpc is not None
    client = broker.grpc.clients.get(caller.client_id)
    assert client is not None and client.settings.ByteSize() < 1000


def test_settings_of_all_clients_take_so_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is known may say again what it said; others come again when there is room."""
    monkeypatch.setattr("broker.grpc.clients.SIZE_MAX", 6_000)
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each
    with serving(tmp_path / "s") as broker, Caller(broker.grpc_address, options=alone) as first:
        stream = first.telemetry()
        stream.publish("Normal")
        with Caller(broker.grpc_address, options=alone) as second:
            second.telemetry().publish("Normal")
            with pytest.raises(grpc.RpcError) as failed, Caller(broker.grpc_address) as third:
                third.telemetry().publish("Normal")
            assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert stream.publish("Normal").status.code == CODE.OK
        assert broker.grpc is not None
        clients = broker.grpc.clients
        until(lambda: len(clients) == 1, "the second one is gone")
        with Caller(broker.grpc_address) as late:
            assert late.telemetry().publish("Normal").status.code == CODE.OK


def test_a_client_of_a_connection_that_closes_may_have_others() -> None:
    links = Links(lambda address, client_id: mock.Mock(key=(address, client_id), open=True))
    for port, client_id in ((1, "a"), (1, "b"), (2, "b"), (3, "c")):
        links.of(mock.Mock(address=("h", port), client_id=client_id))
    links.ended(links.of(mock.Mock(address=("h", 3), client_id="c")))
    assert links.gone(("h", 1)) == ["a"]
    assert links.gone(("h", 2)) == ["b"]
    assert links.gone(("h", 3)) == []
    assert not links._counts


def test_garbage_ends_the_stream(caller: Caller) -> None:
    stream = caller.telemetry()
    stream._out.put(b"\xff" * 9)
    with pytest.raises(grpc.RpcError) as failed:
        stream.read()
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in failed.value.details()


# ---- tools ----


class Asked:
    """A tool's question to the broker, under way."""

    def __init__(self, broker: Broker, code: int, **ext: str) -> None:
        async def asked() -> Any:
            async with RemotingClient() as client:
                answer = await client.request(broker.address, Command(code, ext), BOUND_S)
                return json.loads(bytes(answer.body))

        assert broker.loop is not None
        self._future = asyncio.run_coroutine_threadsafe(asked(), broker.loop)

    def result(self) -> Any:
        return self._future.result(BOUND_S)


def ask(broker: Broker, code: int, **ext: str) -> Any:
    return Asked(broker, code, **ext).result()


def test_a_tool_gets_the_threads_of_a_client(broker: Broker, caller: Caller) -> None:
    stream = caller.telemetry()
    stream.subscribe("dumped", "Normal")
    question = Asked(
        broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="dumped",
        clientId=caller.client_id, jstackEnable="true",
    )  # fmt: skip
    nonce = stream.read().print_thread_stack_trace_command.nonce
    stream.write(thread_stack_trace=pb.ThreadStackTrace(nonce="of nobody", thread_stack_trace="x"))
    stream.write(
        status=pb.Status(code=CODE.OK),
        thread_stack_trace=pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: asleep"),
    )
    found = question.result()
    assert found["jstack"] == "main: asleep"
    assert [each["topic"] for each in found["subscriptionSet"]] == ["Normal"]


def test_a_tool_has_a_client_verify_a_message(broker: Broker, caller: Caller) -> None:
    sent = caller.send(message("Normal", b"look at me", tag="t")).entries[0]
    stream = caller.telemetry()
    stream.subscribe("verifiers", "Normal")
    with broker.consumer("finder", "Normal", start="first") as consumer:
        found = next(m for m in consumer if m.message_id == sent.message_id)
    question = Asked(
        broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="verifiers", topic="Normal",
        clientId=caller.client_id, msgId=found.offset_message_id,
    )  # fmt: skip
    command = stream.read().verify_message_command
    assert command.message.body == b"look at me"
    assert command.message.system_properties.message_id == sent.message_id
    stream.write(
        status=pb.Status(code=CODE.FAILED_TO_CONSUME_MESSAGE, message="no"),
        verify_message_result=pb.VerifyMessageResult(nonce=command.nonce),
    )
    answer = question.result()
    assert (answer["consumeResult"], answer["remark"]) == ("CR_LATER", "no")


def test_a_late_decision_counts_as_the_answer_to_a_check_alone(tmp_path: Path) -> None:
    """A half with a recovery time of its own; the client's transaction id says which of them it
    is, as some clients never name their source."""
    now = [time.time_ns() // 1_000_000]
    with (
        serving(tmp_path / "store", now_ms=lambda: now[0]) as broker,
        Caller(broker.grpc_address) as caller,
    ):
        recovery = pb.Duration(seconds=10)
        half = message("Tx", message_type=4, orphaned_transaction_recovery_duration=recovery)
        entry = caller.send(half).entries[0]
        stream = caller.telemetry()
        stream.publish("Tx")
        now[0] += 3_600_000
        assert broker.run(checks(broker)) == 1
        command = stream.read().recover_orphaned_transaction_command
        assert command.message.system_properties.message_id == entry.message_id
        assert command.message.topic.name == "Tx"
        end = {"topic": pb.Resource(name="Tx"), "resolution": 1}
        late = caller("EndTransaction", transaction_id=entry.transaction_id, **end)
        assert late.status.code == CODE.BAD_REQUEST
        for _ in range(2):  # a repeat is harmless
            done = caller("EndTransaction", transaction_id=command.transaction_id, **end)
            assert done.status.code == CODE.OK, done.status


async def checks(broker: Broker) -> int:
    """How many checks a round sends."""
    transactions = broker.services.transactions
    assert transactions is not None
    transactions.tick()
    return (await transactions.check()).asked


def test_consumers_are_not_told_of_each_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They divide no queues, and there may be thousands of them in a group."""
    told: list[str] = []
    clients = broker.services.clients
    monkeypatch.setattr(clients, "notify_one", lambda channel, group: told.append(group))
    with Caller(broker.grpc_address) as one, Caller(broker.grpc_address) as other:
        for each in (one, other):
            assert each.telemetry().subscribe("undivided", "Normal").status.code == CODE.OK
        assert len(clients.consumers["undivided"].channels) == 2
    assert told == []


def test_a_broker_that_stops_sends_its_clients_elsewhere(tmp_path: Path) -> None:
    """And does not wait for streams that their clients would keep open."""
    with serving(tmp_path / "store", drain_s=BOUND_S) as broker:
        caller = Caller(broker.grpc_address)
        stream = caller.telemetry()
        stream.publish("Normal")
    assert stream.read().HasField("reconnect_endpoints_command")
    caller.channel.close()


@pytest.mark.parametrize("topics", [40, 1000], ids=["short", "long"])
def test_replies_that_a_client_does_not_read_are_few_and_their_bytes_bounded(
    broker: Broker, caller: Caller, topics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that come meanwhile wait in the connection, whose window is bounded."""
    made: list[Outbox] = []
    begin = Outbox.__init__

    def begin_noted(self: Outbox, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(Outbox, "__init__", begin_noted)
    kept: list[tuple[int, int]] = []
    asked = [pb.Resource(name="Normal" * 20) for _ in range(topics)]
    stream = caller.telemetry()
    settings = pb.Settings(client_type=1, publishing=pb.Publishing(topics=asked))
    for _ in range(1000):
        stream.write(settings=settings)

    def waiting() -> int:
        waits = [list(each._waiting) for each in made]
        kept.append(
            max(((len(each), sum(size for _, size in each)) for each in waits), default=(0, 0))
        )
        return kept[-1][0]

    until(lambda: waiting() >= 5, "replies wait")
    until(lambda: waiting() >= 5 and len(set(kept[-30:])) == 1, "no more of them")
    most, size = max(kept)
    assert most <= COUNT_MAX and size <= BYTES_MAX
    assert most == COUNT_MAX or size > BYTES_MAX * 3 // 4
