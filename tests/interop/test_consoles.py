"""rocketmq-exporter and rocketmq-dashboard, as Apache builds them, before a Java broker and ours.

The same traffic, the same questions: each page answers, with the same fields. The jars are built
from their repositories by `mvn package`; PS_EXPORTER_JAR and PS_DASHBOARD_JAR say where they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import launch
import pytest
from java_member import JavaMember
from ports import free_port
from waiting import BOUND_S, until

from broker import Message
from broker.client import Consumer, Producer

EXPORTER, DASHBOARD = os.environ.get("PS_EXPORTER_JAR"), os.environ.get("PS_DASHBOARD_JAR")
pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]
MAKES = ("java", "ours")
TOPIC, GROUP, JAVA_GROUP, KEY = "orders", "still", "takers", "order-7"
CLUSTER = "DefaultCluster"
#: The last one that was taken is still being worked on: it is not committed.
SENT, TAKEN = 50, 10
_CRON = (
    "collectTopicOffset", "collectProducer", "collectConsumerOffset", "collectBrokerStatsTopic",
    "collectBrokerStats", "collectBrokerRuntimeStats",
)  # fmt: skip


@contextmanager
def java(jar: str, folder: Path, *words: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            ["java", "-Xmx256m", f"-Duser.home={folder}", "-jar", jar, *words],
            stdout=out, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def traffic(peer: launch.Peer) -> Iterator[list[str]]:
    """SENT messages, one group that took TAKEN of them, and a Java consumer that is there."""
    with Producer("makers", peer.namesrv) as producer:
        ids = [
            producer.send(Message(TOPIC, b"12 apples", keys=KEY, tags="A")).message_id
            for _ in range(SENT)
        ]
        member = JavaMember(peer.namesrv, TOPIC, JAVA_GROUP)
        try:
            with Consumer(GROUP, TOPIC, namesrv=peer.namesrv, start="first") as consumer:
                taken = iter(consumer)
                for _ in range(TAKEN):
                    next(taken)
                consumer.commit()
                yield ids
        finally:
            asyncio.run(member.stop())


# ---- the exporter ----


def series(text: str) -> dict[str, dict[str, float]]:
    """The values of a page by name and labels."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.findall(r"(\w+)\{(.*)\} (\S+)$", line)[0]
            found.setdefault(name, {})[labels] = float(value)
    return found


def exported(make: str, folder: Path) -> dict[str, dict[str, float]]:
    """What the exporter says once it has shown all kinds of things."""
    port = free_port()
    page = f"http://127.0.0.1:{port}/metrics"
    with (
        launch.running(make, folder / make) as peer,
        traffic(peer),
        java(
            str(EXPORTER), folder / f"exporter-{make}", f"--server.port={port}",
            f"--grpc.server.port={free_port()}", f"--rocketmq.config.namesrvAddr={peer.namesrv}",
            *(f"--task.{task}.cron=0/5 * * * * ?" for task in _CRON),
        ),
    ):  # fmt: skip
        found: dict[str, dict[str, float]] = {}

        def whole() -> bool:
            with suppress(OSError), urllib.request.urlopen(page) as answer:
                found.update(series(answer.read().decode()))
            return {
                "rocketmq_client_consumer_pull_tps", "rocketmq_group_diff",
                "rocketmq_brokeruntime_put_tps10", "rocketmq_consumer_offset",
            } <= found.keys()  # fmt: skip

        until(whole, f"the exporter's page ({make})", 0.5)
        time.sleep(6)  # the next round of every task
        assert whole()
    return found


@pytest.mark.skipif(EXPORTER is None, reason="PS_EXPORTER_JAR names no exporter")
def test_the_exporter_shows_of_our_broker_what_it_shows_of_apaches(reference, tmp_path):
    theirs, ours = (exported(make, tmp_path) for make in MAKES)
    assert theirs.keys() <= ours.keys(), sorted(theirs.keys() - ours.keys())
    for found in (theirs, ours):
        offset = {
            value
            for labels, value in found["rocketmq_producer_offset"].items()
            if f'topic="{TOPIC}"' in labels
        }
        assert offset == {SENT}
        diff = {
            value for labels, value in found["rocketmq_group_diff"].items()
            if f'group="{GROUP}"' in labels
        }  # fmt: skip
        assert diff == {SENT - TAKEN + 1}


# ---- the dashboard ----


class Dashboard:
    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Any = None) -> Any:
        """The data of an answer. Raises: AssertionError with what the dashboard said instead."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data)
        request.add_header("Content-Type", "application/json")
        # Its guard against forgery: the same words as a cookie and as a header.
        request.add_header("Cookie", "XSRF-TOKEN=same")
        request.add_header("X-XSRF-TOKEN", "same")
        with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
            said = json.load(answer)
        assert not isinstance(said, dict) or said.get("status", 0) == 0, (path, said)
        return said["data"] if isinstance(said, dict) and "status" in said else said


def lacks(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """The fields of one answer that the other has not, or has of another kind."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key in ours:
                yield from lacks(value, ours[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours:
            yield from lacks(theirs[0], ours[0], f"{path}[0]")
        elif theirs:
            yield f"{path}[0]"
    elif type(theirs) is not type(ours):
        yield f"{path}: {theirs!r} and {ours!r}"


def pages(ids: list[str], broker: str) -> dict[str, str | tuple[str, Any]]:
    """Every question of its pages, by a name of ours: the path, or the path and what is posted."""
    now = int(time.time() * 1000)
    day = time.strftime("%Y-%m-%d")
    page = {"pageNum": 1, "pageSize": 20, "begin": now - 3_600_000, "end": now + 60_000,
            "topic": TOPIC, "taskId": ""}  # fmt: skip
    named = {"topicName": "made", "writeQueueNums": 4, "readQueueNums": 4, "perm": 6,
             "order": False, "messageType": "NORMAL", "brokerNameList": [],
             "clusterNameList": [CLUSTER]}  # fmt: skip
    reset = {"consumerGroupList": [GROUP], "topic": TOPIC, "resetTime": now, "force": True}
    return {
        "clusters": "/cluster/list.query",
        "home, brokers": f"/dashboard/broker.query?date={day}",
        "home, topics": f"/dashboard/topic.query?date={day}",
        "home, now": "/dashboard/topicCurrent.query",
        "topics": "/topic/list.query",
        "kinds of topics": "/topic/list.queryTopicType",
        "make a topic": ("/topic/createOrUpdate.do", named),
        "change a topic": ("/topic/createOrUpdate.do", named | {"writeQueueNums": 6}),
        "its settings": "/topic/examineTopicConfig.query?topic=made",
        "send": (
            "/topic/sendTopicMessage.do",
            {"topic": "made", "key": "k", "tag": "t", "messageBody": "by hand",
             "traceEnabled": False},
        ),
        "state of a topic": f"/topic/stats.query?topic={TOPIC}",
        "route of a topic": f"/topic/route.query?topic={TOPIC}",
        "groups of a topic": f"/topic/queryConsumerByTopic.query?topic={TOPIC}",
        "lag of a topic": f"/topic/queryTopicConsumerInfo.query?topic={TOPIC}",
        "groups": "/consumer/groupList.query",
        "a group": f"/consumer/group.query?consumerGroup={JAVA_GROUP}",
        "settings of a group": "/consumer/examineSubscriptionGroupConfig.query"
        f"?consumerGroup={GROUP}",
        "brokers of a group": f"/consumer/fetchBrokerNameList.query?consumerGroup={GROUP}",
        "lag of a group": f"/consumer/queryTopicByConsumer.query?consumerGroup={JAVA_GROUP}"
        f"&address={broker}",
        "members": f"/consumer/consumerConnection.query?consumerGroup={JAVA_GROUP}"
        f"&address={broker}",
        "producers": f"/producer/producerConnection.query?producerGroup=makers&topic={TOPIC}",
        "a message": f"/message/viewMessage.query?topic={TOPIC}&msgId={ids[0]}",
        "messages by key": f"/message/queryMessageByTopicAndKey.query?topic={TOPIC}&key={KEY}",
        "messages by time": f"/message/queryMessageByTopic.query?topic={TOPIC}"
        f"&begin={page['begin']}&end={page['end']}",
        "messages by page": ("/message/queryMessagePageByTopic.query", page),
        "consume again": (
            f"/message/consumeMessageDirectly.do?topic={TOPIC}&consumerGroup={JAVA_GROUP}"
            f"&msgId={ids[0]}", {},
        ),
        "dead letters": (
            "/dlqMessage/queryDlqMessageByConsumerGroup.query",
            page | {"topic": quote(f"%DLQ%{GROUP}", safe="%")},
        ),
        "a message, for its trace": f"/messageTrace/viewMessage.query?topic={TOPIC}&msgId={ids[0]}",
        "reset": ("/consumer/resetOffset.do", reset),
        "skip": ("/consumer/skipAccumulate.do", reset | {"resetTime": -1}),
        "delete a group": (
            "/consumer/deleteSubGroup.do",
            {"groupName": "made", "brokerNameList": ["broker-a"]},
        ),
        "delete a topic": ("/topic/deleteTopic.do?topic=made", {}),
    }  # fmt: skip


def seen(make: str, folder: Path) -> dict[str, Any]:
    """The answer of every page."""
    port = free_port()
    with (
        launch.running(make, folder / make) as peer,
        traffic(peer) as ids,
        java(
            str(DASHBOARD), folder / f"dashboard-{make}", f"--server.port={port}",
            f"--rocketmq.config.namesrvAddrs[0]={peer.namesrv}",
            f"--rocketmq.config.dataPath={folder}/data-{make}",
        ),
    ):  # fmt: skip
        dashboard = Dashboard(port)

        def up() -> bool:
            with suppress(OSError):
                return bool(dashboard.ask("/cluster/list.query"))
            return False

        until(up, f"the dashboard ({make})", 0.5)
        found: dict[str, Any] = {}
        for name, asked in pages(ids, peer.broker).items():
            words = (asked,) if isinstance(asked, str) else asked
            try:
                found[name] = dashboard.ask(*words)
            except AssertionError as error:
                found[name] = f"refused: {error}"
        return found


@pytest.mark.skipif(DASHBOARD is None, reason="PS_DASHBOARD_JAR names no dashboard")
def test_the_dashboard_shows_of_our_broker_what_it_shows_of_apaches(reference, tmp_path):
    theirs, ours = (seen(make, tmp_path) for make in MAKES)
    missing = {
        f"{name}{path}"
        for name in theirs
        for path in lacks(theirs[name], ours[name])
        # One field is named by the folder of the log.
        if "commitLogDiskRatio_" not in path
    }
    # Apache's list of groups has the topic's own name in it.
    assert missing <= {f"groups of a topic.{TOPIC}"}
    refused = {name for name, said in ours.items() if str(said).startswith("refused")}
    assert refused == set()
