"""What is served of gRPC while the interpreter of the broker's process is held."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from caller import CODE, Caller, message
from holding import broker_process, tls_of_server

from broker.grpc.schema import METHODS, SERVICE, pb

SENDS, ACKS, AT_ONCE = 500, 300, 100


def all_of(caller: Caller, method: str, requests: Sequence[Any]) -> list[Any]:
    """The replies of a unary method."""
    call, found = caller.channel.unary_unary(f"/{SERVICE}/{method}"), []
    for begin in range(0, len(requests), AT_ONCE):
        part = [
            call.future(each.SerializeToString(), metadata=caller.metadata, timeout=300)
            for each in requests[begin : begin + AT_ONCE]
        ]
        found += [METHODS[method].reply.FromString(each.result()) for each in part]
    return found


def sending(body: bytes, **more: Any) -> Any:
    return pb.SendMessageRequest(messages=[message("T", body, **more)])


@pytest.mark.parametrize(("group", "tls"), [("", False), ("ordered", False), ("", True)])
def test_messages_are_stored_while_the_interpreter_is_held(
    tmp_path: Path, group: str, tls: bool
) -> None:
    """A call that only Python can serve is not answered meanwhile: it really is held."""
    more = {"message_type": pb.MessageType.FIFO, "message_group": group} if group else {}
    settings = {"enableMixedMessageType": True, "grpc_port": 0}
    names = tls_of_server(tmp_path) if tls else {}
    trusted = Path(names["tls.server.certPath"]).read_bytes() if tls else None
    kind = "FIFO" if group else "NORMAL"
    with broker_process(tmp_path / "s", kind=kind, tls=names, **settings) as broker:
        address = f"{'localhost' if tls else '127.0.0.1'}:{broker.grpc_port}"
        with Caller(address, trusted=trusted) as caller:
            all_of(caller, "SendMessage", [sending(b"first", **more)])
            broker.hold()
            route = caller.channel.unary_unary(f"/{SERVICE}/QueryRoute").future(
                pb.QueryRouteRequest(topic=pb.Resource(name="T")).SerializeToString(),
                metadata=caller.metadata,
                timeout=300,
            )
            replies = all_of(
                caller, "SendMessage", [sending(b"%d" % n, **more) for n in range(SENDS)]
            )
            assert {reply.status.code for reply in replies} == {CODE.OK}
            offsets = [reply.entries[0].offset for reply in replies]
            assert sorted(offsets) == list(range(1, SENDS + 1))
            assert not route.done()
            broker.let_go()
            assert route.result()


def receive(caller: Caller, **more: Any) -> list[Any]:
    """Requests that acknowledge what is received, each a message."""
    replies = caller.stream(
        "ReceiveMessage",
        group=pb.Resource(name="g"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name="T"), id=-1),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=32,
        **(more or {"auto_renew": True}),
    )
    return [
        pb.AckMessageRequest(
            group=pb.Resource(name="g"),
            topic=pb.Resource(name="T"),
            entries=[
                pb.AckMessageEntry(
                    message_id=each.message.system_properties.message_id,
                    receipt_handle=each.message.system_properties.receipt_handle,
                )
            ],
        )
        for each in replies
        if each.HasField("message")
    ]


def test_messages_are_acknowledged_while_the_interpreter_is_held(tmp_path: Path) -> None:
    """And are not renewed any more, nor do they come again."""
    with (
        broker_process(tmp_path / "s", grpc_port=0) as broker,
        Caller(f"127.0.0.1:{broker.grpc_port}") as caller,
    ):
        caller.telemetry().subscribe("g", "T")
        all_of(caller, "SendMessage", [sending(b"%d" % n) for n in range(ACKS)])
        acks: list[Any] = []
        while len(acks) < ACKS:
            acks += receive(caller)
        broker.hold()
        replies = all_of(caller, "AckMessage", acks)
        assert {reply.status.code for reply in replies} == {CODE.OK}
        broker.let_go()
        again = all_of(caller, "AckMessage", acks[:10])
        assert {reply.status.code for reply in again} == {CODE.OK}


SIMPLE = {"invisible_duration": timedelta(seconds=60)}


@pytest.mark.parametrize("more", [{}, SIMPLE], ids=["renewed", "simple"])
def test_messages_are_received_while_the_interpreter_is_held(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Each once, and acknowledged."""
    with (
        broker_process(tmp_path / "s", grpc_port=0) as broker,
        Caller(f"127.0.0.1:{broker.grpc_port}") as caller,
    ):
        caller.telemetry().subscribe("g", "T")
        all_of(caller, "SendMessage", [sending(b"%d" % n) for n in range(ACKS)])
        acks = receive(caller, **more)
        broker.hold()
        while len(acks) < ACKS:
            acks += receive(caller, **more)
        handles = {each.entries[0].receipt_handle for each in acks}
        assert len(handles) == ACKS
        replies = all_of(caller, "AckMessage", acks)
        assert {reply.status.code for reply in replies} == {CODE.OK}
        broker.let_go()


def asking(*, poll_s: float, tag: str = "*") -> dict[str, Any]:
    return {
        "group": pb.Resource(name="g"),
        "message_queue": pb.MessageQueue(topic=pb.Resource(name="T"), id=-1),
        "filter_expression": pb.FilterExpression(type=pb.FilterType.TAG, expression=tag),
        "batch_size": 32,
        "long_polling_timeout": timedelta(seconds=poll_s),
        **SIMPLE,
    }


def bodies_of(call: Any) -> list[bytes]:
    return [each.message.body for each in call if each.HasField("message")]


def test_calls_that_wait_are_answered_while_the_interpreter_is_held(tmp_path: Path) -> None:
    """By a message, whoever wants it, or when their time is over. Who gave up takes nothing."""
    settings = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100}
    settings["grpcClientConsumerMaxLongPollingTimeoutMillis"] = 3_600_000
    conf = tmp_path / "proxy.json"
    conf.write_text(json.dumps(settings))
    with (
        broker_process(tmp_path / "s", grpc_port=0, proxy_conf=str(conf)) as broker,
        Caller(f"127.0.0.1:{broker.grpc_port}") as caller,
    ):
        caller.telemetry().subscribe("g", "T")
        all_of(caller, "SendMessage", [sending(b"first")])
        assert len(receive(caller, **SIMPLE)) == 1
        broker.hold()
        caller.begin("ReceiveMessage", **asking(poll_s=250)).cancel()
        waits = [
            caller.begin("ReceiveMessage", **asking(poll_s=250, tag=tag)) for tag in ("*", "red")
        ]
        status, end = caller.stream("ReceiveMessage", **asking(poll_s=0.1))
        assert status.status.code == CODE.MESSAGE_NOT_FOUND
        assert end.HasField("delivery_timestamp")
        all_of(caller, "SendMessage", [sending(b"second")])
        assert bodies_of(waits[0]) == [b"second"]
        all_of(caller, "SendMessage", [sending(b"third", tag="red")])
        assert bodies_of(waits[1]) == [b"third"]
        broker.let_go()
