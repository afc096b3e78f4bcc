"""The calls that official Java, Python and Node clients made to Apache's proxy 5.3.3, made to ours.

Routes, settings, sends, ends of transactions, recalls, heartbeats and terminations of
tests/golden/grpc-5.3.3.jsonl.xz go to a fresh broker, in their order and with their headers. Every
reply has the status of Apache's; routes and settings are the same message, but for the port. Times
of delivery are as far ahead as they were. What consumers ask hangs on the moment and is left out.
"""

from __future__ import annotations

import base64
import json
import lzma
import time
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from caller import CODE, Caller, Telemetry, on_loop, serving

from broker import Broker
from broker.grpc.schema import METHODS, pb
from pystore.meta.configfiles import SubscriptionGroup

GOLDEN = Path(__file__).parents[1] / "golden" / "grpc-5.3.3.jsonl.xz"
#: Prefixes of the names that each client used.
WHO = ("g", "py", "nd")
KINDS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "tx": "TRANSACTION"}
MADE = (
    "QueryRoute", "SendMessage", "EndTransaction", "RecallMessage", "Heartbeat",
    "NotifyClientTermination",
)  # fmt: skip


class Row(NamedTuple):
    """A message on a stream of a connection."""

    conn: int
    method: str
    headers: dict[str, str]
    is_request: bool
    stream: tuple[int, int]
    value: Any


def captured() -> Iterator[Row]:
    headers: dict[tuple[int, int], dict[str, str]] = {}
    with lzma.open(GOLDEN, "rt") as lines:
        for line in map(json.loads, lines):
            stream, from_client = (line["conn"], line["stream"]), line["from"] == "client"
            if line["kind"] == "headers" and from_client and ":path" in dict(line["headers"]):
                headers[stream] = dict(line["headers"])
            if line["kind"] != "message" or line.get("whole") is False:
                continue
            method = headers[stream][":path"].rpartition("/")[2]
            known = METHODS[method].request if from_client else METHODS[method].reply
            data = base64.b64decode(line["b64"])
            value = known.FromString(data)
            assert len(value.SerializeToString()) == len(data)  # but for the order of maps
            yield Row(line["conn"], method, headers[stream], from_client, stream, value)


@pytest.fixture(scope="module")
def apache_like(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("golden") / "store", brokerName="broker-a") as broker:
        for who in WHO:
            for name, kind in KINDS.items():
                broker.create_topic(f"{who}_{name}", message_type=kind)
        groups = [SubscriptionGroup(f"{who}_group", retry_max_times=2) for who in WHO]
        groups += [
            SubscriptionGroup(f"{who}_order", retry_max_times=1, consume_message_orderly=True)
            for who in WHO
        ]
        on_loop(broker, lambda: [broker.services.groups.update(each) for each in groups])
        yield broker


class Replay:
    """One client of ours for each of theirs."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._callers: dict[tuple[int, str], Caller] = {}
        self._streams: dict[tuple[int, int], Telemetry] = {}
        #: What our broker gave in place of a transaction id or a recall handle of theirs.
        self.ours: dict[str, str] = {}

    def caller(self, row: Row) -> Caller:
        key = row.conn, row.headers["x-mq-client-id"]
        if key not in self._callers:
            headers: dict[str, str | None] = {
                name: value for name, value in row.headers.items() if name.startswith("x-mq")
            }
            self._callers[key] = Caller(self.broker.grpc_address, headers)
        return self._callers[key]

    def telemetry(self, row: Row) -> Telemetry:
        if row.stream not in self._streams:
            self._streams[row.stream] = self.caller(row).telemetry()
        return self._streams[row.stream]

    def call(self, row: Row, theirs: Any) -> Any:
        """Our reply to a request. theirs: Apache's."""
        request = row.value
        if row.method == "SendMessage":
            self._shift(request)
        for field in ("transaction_id", "recall_handle"):
            if getattr(request, field, ""):
                setattr(request, field, self.ours.get(getattr(request, field), "?"))
        data = self.caller(row).raw(row.method, request.SerializeToString())
        reply = METHODS[row.method].reply.FromString(data)
        if row.method == "SendMessage":
            for own, other in zip(reply.entries, theirs.entries, strict=True):
                assert own.message_id == other.message_id
                assert bool(own.recall_handle) == bool(other.recall_handle)
                self.ours[other.transaction_id] = own.transaction_id
                self.ours[other.recall_handle] = own.recall_handle
        return reply

    @staticmethod
    def _shift(request: Any) -> None:
        """Everything happens later by as long as the capture is old."""
        for message in request.messages:
            system = message.system_properties
            late = int(time.time()) - system.born_timestamp.seconds
            system.born_timestamp.seconds += late
            if system.HasField("delivery_timestamp"):
                system.delivery_timestamp.seconds += late

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        for caller in self._callers.values():
            caller.channel.close()


def without_port(route: Any) -> Any:
    for queue in route.message_queues:
        for address in queue.broker.endpoints.addresses:
            address.port = 0
    return route


def compare(row: Row, ours: Any, theirs: Any) -> str:
    """What is different, empty: nothing."""
    if row.method == "RecallMessage" and theirs.status.code == CODE.INTERNAL_SERVER_ERROR:
        theirs.status.code = CODE.BAD_REQUEST  # a handle that nobody can read
    if ours.status.code != theirs.status.code:
        return f"{row.method} {row.value}: {ours.status}, at Apache's {theirs.status}"
    is_route = row.method == "QueryRoute" and ours.status.code == CODE.OK
    if is_route and without_port(ours) != without_port(theirs):
        return f"{row.value}: {ours}, at Apache's {theirs}"
    return ""


def test_every_call_is_answered_as_by_apache(apache_like: Broker) -> None:
    rows = list(captured())
    answers: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        if not row.is_request and (row.method != "Telemetry" or row.value.HasField("settings")):
            answers.setdefault(row.stream, []).append(row.value)
    replay, differ, made = Replay(apache_like), [], 0
    for row in rows:
        if not row.is_request:
            continue
        if row.method in MADE and row.stream in answers:
            theirs = answers[row.stream][0]
            differ.append(compare(row, replay.call(row, theirs), theirs))
            made += 1
        if row.method == "Telemetry" and row.value.HasField("settings"):
            stream, theirs = replay.telemetry(row), answers[row.stream].pop(0)
            stream.write(settings=row.value.settings)
            ours = stream.read()
            while not ours.HasField("settings"):  # a check of a transaction came between
                ours = stream.read()
            if ours != theirs:
                lines = unified_diff(str(theirs).splitlines(), str(ours).splitlines(), n=3)
                differ.append("\n".join(lines))
            made += 1
    replay.close()
    assert made > 250
    found = [each for each in differ if each]
    assert not found, "\n".join(found)


def test_the_schema_is_that_of_the_official_client() -> None:
    """Every field of ours has its name, number, type and label there."""
    definition = pytest.importorskip("rocketmq.grpc_protocol.definition_pb2")
    from rocketmq.grpc_protocol import service_pb2 as service

    theirs = {**definition.DESCRIPTOR.message_types_by_name}
    theirs |= service.DESCRIPTOR.message_types_by_name
    count = 0
    for name, made in vars(pb).items():
        if not hasattr(made, "DESCRIPTOR") or name in ("Duration", "Timestamp"):
            continue
        for field in made.DESCRIPTOR.fields:
            other = theirs[name].fields_by_number[field.number]
            assert (field.name, field.type, field.has_presence) == (
                other.name, other.type, other.has_presence,
            ), f"{name}.{field.name}"  # fmt: skip
            count += 1
    assert count > 180
