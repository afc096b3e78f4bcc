"""Names that no topic, group or client can have, in every request of a broker and a name server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from field_cases import CASES
from loops import Wire

from broker import Message, Producer
from broker.broker import Broker
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.wire.codes import RequestCode
from broker.wire.command import Command

NAMES = ["", "a b", "../x", "nul\x00", "x" * 300, "\u00e4" * 200, "%RETRY%", "line\n\x1b[31m"]
#: Fields that are names, in one request or another; and what others then hold.
FIELDS = (
    "topic", "consumerGroup", "group", "producerGroup", "groupName", "clientID", "clientId",
    "brokerName", "topicList", "srcGroup", "destGroup", "statsName", "statsKey", "key", "username",
    "subject", "resource", "clusterName", "defaultTopic", "namespace", "a", "b", "c",
)  # fmt: skip
NUMBERS = dict.fromkeys(
    (
        "queueId", "offset", "commitOffset", "timestamp", "maxNum", "bornTimestamp", "delayLevel",
        "readQueueNums", "writeQueueNums", "beginTimestamp", "endTimestamp", "brokerId",
    ), "0",
)  # fmt: skip
#: They need an administrator's care, and end what the test looks at.
LEFT_OUT = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}


def body_of(name: str) -> bytes:
    queue = {"topic": name, "brokerName": name, "queueId": 0}
    subscription = {"topic": name, "subString": name}
    group = {"groupName": name, "subscriptionDataSet": [subscription]}
    known: dict[str, Any] = {
        "groupName": name, "retryQueueNums": 1, "topicName": name, "clientID": name,
        "clientId": name, "consumerGroup": name, "topic": name, "mqSet": [queue],
        "consumerDataSet": [group], "producerDataSet": [{"groupName": name}],
        "username": name, "password": name, "userType": "Normal", "subject": name,
    }  # fmt: skip
    return json.dumps(known).encode()


def requests(name: str) -> Iterator[Command]:
    """Groups are made first, so that others find them."""
    codes = [code for code in RequestCode if code not in LEFT_OUT]
    codes.sort(key=lambda code: code != RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    bases = dict(CASES.values())
    for code in codes:
        yield Command(code, {**dict.fromkeys(FIELDS, name), **NUMBERS}, body_of(name))
        base = bases.get(code, {})
        for field in FIELDS:
            if field in base:
                yield Command(code, {**base, "delayLevel": "1", field: name}, body_of(name))


def test_no_name_makes_a_request_fail(store_path, caplog, monkeypatch):
    """Each is served or refused by name: none is answered with the name of a Python error, and the
    log has no traceback."""
    failed: list[str] = []
    monkeypatch.setattr(
        RateLimitedLogger, "error",
        lambda self, kind, error, text, *given: failed.append(f"{text % given}: {error!r}"),
    )  # fmt: skip

    async def work() -> None:
        settings = {"mappedFileSizeCommitLog": 1 << 20, "autoCreateTopicEnable": True}
        async with Broker(store_path, listenPort=0, with_namesrv=True, **settings) as broker:
            ports = (broker.port, int(broker.namesrv_address.rpartition(":")[2]))
            broker.store.put("T", b"x")
            for port in ports:
                for name in NAMES:
                    await asked(port, name)

    async def asked(port: int, name: str) -> None:
        wire = await Wire.to(port)
        for number, command in enumerate(requests(name)):
            command.opaque = number
            wire.write(command)
        last = Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}, opaque=1 << 20)
        wire.write(last)
        while (await wire.answer()).opaque != 1 << 20:
            pass
        wire.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert not failed, "\n".join(failed)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_stored_topic_with_an_impossible_name_ends_no_start(store_path, caplog):
    with Broker(store_path, listenPort=0) as broker:
        broker.create_topic("good")
    path = store_path / "config" / "topics.json"
    table = json.loads(path.read_text())
    row = table["topicConfigTable"]["good"] | {"topicName": "a b"}
    table["topicConfigTable"]["a b"] = row
    path.write_text(json.dumps(table))
    with Broker(store_path, listenPort=0) as broker:
        assert {"good", "a b"} <= {row.name for row in broker.services.topics.all()}
    assert "The topic 'a b' is not served" in caplog.text


@pytest.mark.parametrize("queues", [-7, 65_537, 2**31 - 1])
def test_a_stored_topic_with_impossible_queues_ends_no_start(store_path, caplog, queues):
    """Nor does it keep what there is to another topic from being served."""
    with Broker(store_path, listenPort=0) as broker:
        broker.create_topic("good")
        broker.create_topic("bad")
    path = store_path / "config" / "topics.json"
    table = json.loads(path.read_text())
    table["topicConfigTable"]["bad"]["writeQueueNums"] = queues
    path.write_text(json.dumps(table))
    with Broker(store_path, listenPort=0, with_namesrv=True, namesrv_port=0) as broker:
        with Producer("makers", broker.namesrv_address) as producer:
            assert producer.send(Message("good", b"body")).queue_offset == 0
        broker.create_topic("bad", 4)
        with Producer("makers", broker.namesrv_address) as producer:
            assert producer.send(Message("bad", b"body")).queue_offset == 0
    assert f"The topic 'bad' is not served: topic 'bad' has 4 queues to read and {queues}" in (
        caplog.text
    )
