"""The same traffic to a Java broker and to ours: their scrapes say the same of it."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import launch
import pytest
from ports import free_port
from scrapes import COMMON, fetch, samples
from waiting import BOUND_S

from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode as Code
from broker.wire.command import ONEWAY, Command, texts
from pystore.format.properties import encode_properties

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

#: What is compared to the digit: names, and the labels that a value is known by.
COUNTED = (
    "rocketmq_messages_in_total", "rocketmq_throughput_in_total", "rocketmq_message_size_count",
    "rocketmq_message_size_sum", "rocketmq_message_size_bucket", "rocketmq_messages_out_total",
    "rocketmq_throughput_out_total", "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total", "rocketmq_half_messages",
    "rocketmq_send_to_dlq_messages_total", "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_inflight_messages", "rocketmq_consumer_ready_messages",
    "rocketmq_consumer_connections", "rocketmq_broker_permission",
    "rocketmq_storage_dispatch_behind_bytes",
)  # fmt: skip
#: Of upstream's own services, which read what ours keep in tables.
_INNER = ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP", "SCHEDULE_CONSUMER")


def _batch(*bodies):
    """Messages as the body of a batch has them."""
    found = b""
    for body in bodies:
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", 0)
        found += struct.pack(">i", 4 + len(rest)) + rest
    return found


class Traffic:
    """A client that does the same to whatever broker it is given."""

    def __init__(self, address, client):
        self.address, self.client = address, client
        self._count = 0

    async def ask(self, code, body=b"", flag=0, **ext):
        command = Command(code, texts(ext), body=body, flag=flag)
        if flag & ONEWAY:
            connection = await self.client.connection(self.address)
            connection.send(command)
            return None
        for _ in range(20):
            answer = await self.client.request(self.address, command, timeout=BOUND_S)
            if answer.code != 2:  # busy: a machine that has just started
                return answer
            await asyncio.sleep(0.5)
        return answer

    async def send(self, topic, body, code=Code.SEND_MESSAGE_V2, **properties):
        self._count += 1
        given = {"UNIQ_KEY": f"K{self._count:031d}"} | properties
        answer = await self.ask(
            code, body, a="makers", b=topic, c="TBW102", d=4, e=0,
            f=4 if "TRAN_MSG" in properties else 0, g=time.time_ns() // 1_000_000, h=0,
            i=encode_properties(given).decode(), j=0, k="false",
            m="true" if code == Code.SEND_BATCH_MESSAGE else "false",
        )  # fmt: skip
        assert answer.code == 0, answer
        return answer

    async def all(self):
        for topic in ("plain", "delayed", "tx"):
            made = await self.ask(
                Code.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=1,
                writeQueueNums=1, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0,
                order="false",
            )  # fmt: skip
            assert made.code == 0, made
        await self._beat()
        for size in (10, 900, 1100, 5000, 600_000):
            await self.send("plain", b"x" * size)
        await self.send("plain", b"ordered", __SHARDINGKEY="a")
        await self.send("plain", _batch(b"a" * 11, b"b" * 29, b"c" * 46), Code.SEND_BATCH_MESSAGE)
        await self.send("delayed", b"level", DELAY="1")
        await self._transact()
        await self._consume()
        await asyncio.sleep(4)  # the level is delivered

    async def _beat(self):
        beat = {
            "clientID": "c1",
            "producerDataSet": [{"groupName": "makers"}],
            "consumerDataSet": [
                {
                    "groupName": "takers", "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
                    "subscriptionDataSet": [
                        {
                            "topic": "plain", "subString": "*", "tagsSet": [], "codeSet": [],
                            "classFilterMode": False, "subVersion": 1, "expressionType": "TAG",
                        }
                    ],
                }
            ],
        }  # fmt: skip
        answer = await self.ask(Code.HEART_BEAT, json.dumps(beat).encode())
        assert answer.code == 0, answer

    async def _transact(self):
        for how in (8, 12):
            half = await self.send("tx", b"half", TRAN_MSG="true", PGROUP="makers")
            answer = await self.ask(
                Code.END_TRANSACTION, producerGroup="makers", commitOrRollback=how,
                tranStateTableOffset=half.ext["queueOffset"],
                commitLogOffset=int(half.ext["msgId"][-16:], 16), fromTransactionCheck="false",
                msgId="m", transactionId="t", topic="tx", bname="broker-a",
            )  # fmt: skip
            assert answer is None or answer.code == 0, answer

    async def _consume(self):
        asked = {"consumerGroup": "takers", "topic": "plain", "queueId": 0}
        pulled = await self.ask(
            Code.PULL_MESSAGE, **asked, queueOffset=0, maxMsgNums=4, sysFlag=0, commitOffset=0,
            suspendTimeoutMillis=0, subVersion=1,
        )  # fmt: skip
        assert pulled.code == 0, pulled
        moved = await self.ask(Code.UPDATE_CONSUMER_OFFSET, **asked, commitOffset=3)
        assert moved.code == 0, moved
        first = int.from_bytes(bytes(pulled.body)[28:36], "big")
        back = await self.ask(
            Code.CONSUMER_SEND_MSG_BACK, group="takers", offset=first, delayLevel=-1,
            originMsgId="m", originTopic="plain", unitMode="false", maxReconsumeTimes=16,
        )  # fmt: skip
        assert back.code == 0, back


async def visited(peer, port):
    """A scrape of the broker after all of it."""
    async with RemotingClient() as client:
        await Traffic(peer.broker, client).all()
        await asyncio.sleep(6)  # ours looks at lag every five seconds
        status, _, text = await asyncio.to_thread(fetch, port)
        assert status == 200
        return text


def scraped(make, folder):
    port = free_port()
    settings = {
        "metricsExporterType": "PROM", "metricsPromExporterPort": port,
        "metricsPromExporterHost": "127.0.0.1",
    }  # fmt: skip
    with launch.running(make, folder, settings) as peer:
        return asyncio.run(visited(peer, port))


def counted(text):
    """What is compared, by name and labels; bounds of buckets as numbers."""
    found = {}
    for name, labels, value in samples(text):
        if name in COUNTED and labels.get("consumer_group") not in _INNER:
            own = frozenset((k, v) for k, v in labels.items() if k not in COMMON)
            found[name, own] = value
    return found


def test_ours_says_what_the_java_broker_says(reference, tmp_path):
    with ThreadPoolExecutor(2) as both:
        texts = list(both.map(lambda m: scraped(m, tmp_path / m), ("java", "ours")))
    java, ours = map(counted, texts)
    differ = {
        key: (java.get(key), ours.get(key))
        for key in java.keys() | ours.keys()
        if java.get(key) != ours.get(key)
    }
    assert not differ, "\n".join(
        f"{name} {sorted(labels)}: java {a}, ours {b}" for (name, labels), (a, b) in differ.items()
    )
    assert len(java) > 40
