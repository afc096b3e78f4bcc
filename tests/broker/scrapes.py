"""Scrapes, and traffic of every kind for a broker to count."""

from __future__ import annotations

import asyncio
import lzma
import re
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from transacting import COMMIT, ROLLBACK, Producer
from waiting import BOUND_S, until_async

from broker.wire.codes import RequestCode as Code

__all__ = ["COMMON", "GOLDEN", "everything", "fetch", "names_of", "scrape", "values"]

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "metrics-5.3.3.txt.xz"
#: Labels that every sample of a broker has.
COMMON = frozenset({"otel_scope_name", "cluster", "node_id", "node_type"})
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text):
    """Name, labels and value of each line that is a sample."""
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = _SAMPLE.match(line).groups()
            yield name, dict(_LABEL.findall(labels or "")), float(value)


def names_of(text):
    """Each sample's name with the sets of its labels' names, without the bounds of buckets."""
    found = defaultdict(set)
    for name, labels, _ in samples(text):
        found[name].add(frozenset(labels) - {"le"})
    return found


def golden():
    return lzma.decompress(GOLDEN.read_bytes()).decode()


def values(text, name, **wanted):
    """Values of a name by its own labels, of those samples that have the labels that are wanted."""
    found = {}
    for each, labels, value in samples(text):
        if each == name and wanted.items() <= labels.items():
            own = tuple(sorted((k, v) for k, v in labels.items() if k not in COMMON))
            found[own] = value
    return found


def value(text, name, **wanted):
    """The only value. Raises: ValueError when there is none, or more than one."""
    (found,) = values(text, name, **wanted).values()
    return found


def fetch(port, path="/metrics", method="GET"):
    """Status, headers and body."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(asked, timeout=BOUND_S) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read().decode()


async def scrape(broker):
    """A scrape's text, which Prometheus' own parser has read."""
    figures = broker.metrics
    await figures.lag.take()
    status, headers, text = await asyncio.to_thread(fetch, broker.metrics_port)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    list(text_string_to_metric_families(text))
    return text


async def everything(popper):
    """One of everything: what the golden scrape was made of, and what it counts."""
    broker = popper.broker
    for name in ("plain", "delayed", "timed", "popped", "tx"):
        popper.make_topic(name, queues=1)
    for _ in range(3):
        assert (await popper.send(b"x" * 100, topic="plain")).code == 0
    assert (await popper.send(b"ordered", topic="plain", __SHARDINGKEY="a")).code == 0
    assert (await popper.send(b"level", topic="delayed", DELAY="1")).code == 0
    assert (await popper.send(b"timer", topic="timed", TIMER_DELAY_MS="1000")).code == 0
    await _transact(broker)
    await _consume(popper)
    await _pop(popper)
    popper.shift(120_000)
    await until_async(lambda: broker.store.range("timed", 0)[1] == 1, "the timer")
    await until_async(lambda: broker.store.range("delayed", 0)[1] == 1, "the delay level")
    await until_async(lambda: popper.pop_service.revive.revived >= 1, "what was popped")


async def _transact(broker):
    makers = await Producer.to(broker)
    await makers.beat()
    for how in (COMMIT, ROLLBACK):
        half = await makers.half(topic="tx")
        makers.end_oneway(half, how)
    await makers.ask(_runtime())
    makers.close()


def _runtime():
    from broker.wire.command import Command

    return Command(Code.GET_BROKER_RUNTIME_INFO)


def heartbeat(client, maker, subscriptions):
    """The body of a client that produces as `maker` and consumes: the topics of each group."""
    return {
        "clientID": client,
        "producerDataSet": [{"groupName": maker}],
        "consumerDataSet": [
            {
                "groupName": group, "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": topic, "subString": "*", "tagsSet": [], "codeSet": [],
                        "classFilterMode": False, "subVersion": 1, "expressionType": "TAG",
                    }
                    for topic in topics
                ],
            }
            for group, topics in subscriptions.items()
        ],
    }  # fmt: skip


async def _consume(popper):
    """A member of group `g` that has pulled all, committed two, and given one up for dead."""
    import json

    beat = heartbeat("c1", "makers", {"g": ["plain"], "poppers": ["popped"]})
    assert (await popper.ask(Code.HEART_BEAT, json.dumps(beat).encode())).code == 0
    pulled = await popper.ask(
        Code.PULL_MESSAGE, consumerGroup="g", topic="plain", queueId=0, queueOffset=0,
        maxMsgNums=32, sysFlag=0, commitOffset=0, suspendTimeoutMillis=0, subVersion=1,
    )  # fmt: skip
    assert pulled.code == 0, pulled.remark
    moved = await popper.ask(
        Code.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="plain", queueId=0, commitOffset=2
    )
    assert moved.code == 0, moved.remark
    popper.broker.services.offsets.commit("gone", "plain", 0, 1)
    first = popper.broker.store.units("plain", 0, 0, 1)[0][0]
    back = await popper.ask(
        Code.CONSUMER_SEND_MSG_BACK, group="g", offset=first, delayLevel=-1, originMsgId="m",
        originTopic="plain", unitMode="false", maxReconsumeTimes=16,
    )  # fmt: skip
    assert back.code == 0, back.remark


async def _pop(popper):
    """Two are popped: one is acknowledged, one comes back and is popped again."""
    for body in (b"one", b"two"):
        assert (await popper.send(body, topic="popped")).code == 0
    handles = await popper.handles(topic="popped", group="poppers", most=2)
    assert len(handles) == 2
    await popper.ack(handles[0][0], topic="popped", group="poppers")
