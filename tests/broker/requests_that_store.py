"""Requests that store, each made on a broker that is prepared for it: for those who look at when
they are answered."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from loops import Wire

from broker import Broker, Credentials
from broker.client.credentials import SigningHook
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.format.names import DISCARD_TOPIC

__all__ = ["ANSWERS", "MADE", "MAKING", "SETTING", "SETTINGS", "STORING", "Asked", "Stage",
           "commit", "files_of"]  # fmt: skip

MADE = {
    "topic": "made", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "listenPort": 0, "bindAddress": "127.0.0.1", "flushDiskType": "SYNC_FLUSH",
    "recallMessageEnable": True, "mappedFileSizeCommitLog": 1 << 20,
}  # fmt: skip


OPERATOR = Credentials("operator", "operator-secret")


class Stage:
    """A broker with the topic T and the group g, and a client of it that signs as the operator."""

    def __init__(self, broker: Broker, wire: Wire) -> None:
        self.broker, self.wire = broker, wire
        self._opaque = 100
        self._hook = SigningHook(OPERATOR)

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        self._opaque += 1
        command = Command(code, dict(ext), body, opaque=self._opaque)
        self._hook.before_request("", command)
        self.wire.write(command)
        return await self.answer(self._opaque)

    async def answer(self, opaque: int) -> Command:
        while True:
            found = await self.wire.answer()
            if found.opaque == opaque:
                return found

    async def stored(self) -> Command:
        """A send whose message can be read."""
        answer = await self.send()
        while True:
            ext = {"topic": "T", "queueId": "0"}
            found = await self.ask(Code.GET_MAX_OFFSET, ext)
            if int(found.ext["offset"]) > int(answer.ext["queueOffset"]):
                return answer

    async def send(self, properties: str = "", topic: str = "T", sys_flag: int = 0) -> Command:
        return await self.ask(Code.SEND_MESSAGE_V2, sent(properties, topic, sys_flag), b"body")


def sent(properties: str = "", topic: str = "T", sys_flag: int = 0) -> dict[str, str]:
    return {
        "a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag),
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip


Asked = tuple[int, dict[str, str], bytes]


async def plain(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent(), b"body"


async def plain_v1(s: Stage) -> Asked:
    names = (
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
        "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch",
    )  # fmt: skip
    ext = dict(zip(names, sent().values(), strict=True))
    return Code.SEND_MESSAGE, ext, b"body"


async def timed(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent("TIMER_DELAY_SEC\x013600\x02"), b"body"


async def batch(s: Stage) -> Asked:
    body, properties = b"body", b""
    item = struct.pack(">iiiii", 0, 0, 0, 0, len(body)) + body
    item += struct.pack(">h", len(properties))
    item = struct.pack(">i", len(item)) + item[4:]
    return Code.SEND_BATCH_MESSAGE, {**sent(), "m": "true"}, item


async def delayed(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent("DELAY\x013\x02"), b"body"


async def half(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent("TRAN_MSG\x01true\x02PGROUP\x01P\x02", sys_flag=4), b"body"


async def decision(s: Stage, kind: str) -> Asked:
    answer = await s.send("TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K\x02", sys_flag=4)
    place = int(answer.ext["msgId"][16:], 16)
    return Code.END_TRANSACTION, {
        "producerGroup": "P", "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(place), "commitOrRollback": kind, "fromTransactionCheck": "false",
        "msgId": "K", "transactionId": answer.ext.get("transactionId", "K"),
    }, b""  # fmt: skip


async def commit(s: Stage) -> Asked:
    return await decision(s, "8")


async def given_up(s: Stage) -> Asked:
    """A half that nobody decided is taken up again: it is stored once more."""
    answer = await s.send("TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K\x02", sys_flag=4)
    store, place = s.broker.store, int(answer.ext["msgId"][16:], 16)
    half = store.message(place)
    s.broker.services.topics.built_in(DISCARD_TOPIC)
    given = {**half.properties, "TRANSACTION_CHECK_TIMES": "15"}
    copy = store.put(DISCARD_TOPIC, half.body, queue=0, properties=given)
    found = store.message(copy.physical_offset)
    return Code.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": found.offset_message_id}, b""


async def back(s: Stage, level: str) -> Asked:
    answer = await s.send()
    place = int(answer.ext["msgId"][16:], 16)
    return Code.CONSUMER_SEND_MSG_BACK, {
        "group": "g", "offset": str(place), "delayLevel": level, "originTopic": "T",
        "originMsgId": answer.ext["msgId"], "unitMode": "false", "maxReconsumeTimes": "3",
    }, b""  # fmt: skip


async def retried(s: Stage) -> Asked:
    return await back(s, "0")


async def buried(s: Stage) -> Asked:
    return await back(s, "-1")


async def reply(s: Stage) -> Asked:
    return (
        Code.SEND_REPLY_MESSAGE_V2,
        sent("CLUSTER\x01x\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01me\x02"),
        b"body",
    )


async def reply_v1(s: Stage) -> Asked:
    _, ext, body = await plain_v1(s)
    _, other, _ = await reply(s)
    return Code.SEND_REPLY_MESSAGE, {**ext, "properties": other["i"]}, body


async def recalled(s: Stage) -> Asked:
    due = time.time_ns() // 1_000_000 + 3_600_000
    answer = await s.send(f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01{'A' * 32}\x02")
    schedule = s.broker.services.schedule
    assert schedule is not None
    assert schedule.timers is not None
    while not schedule.timers.timers.count():
        await asyncio.sleep(0.001)
    return Code.RECALL_MESSAGE, {"topic": "T", "recallHandle": answer.ext["recallHandle"]}, b""


def popping() -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "1",
        "invisibleTime": "60000", "pollTime": "0", "bornTime": str(time.time_ns() // 1_000_000),
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip


async def popped(s: Stage) -> Asked:
    await s.stored()
    return Code.POP_MESSAGE, popping(), b""


async def delivery(s: Stage) -> dict[str, str]:
    await s.stored()
    answer = await s.ask(Code.POP_MESSAGE, popping())
    ext = answer.ext
    offset = int(ext["msgOffsetInfo"].split(";")[0].split(" ")[-1].split(",")[0])
    start = int(ext["startOffsetInfo"].split(";")[0].split(" ")[-1])
    info = (
        f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0"
        f" {s.broker.services.broker_name} 0 {offset}"
    )
    return {"consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": info,
            "offset": str(offset)}  # fmt: skip


async def acknowledged(s: Stage) -> Asked:
    return Code.ACK_MESSAGE, await delivery(s), b""


async def changed(s: Stage) -> Asked:
    ext = {**await delivery(s), "invisibleTime": "30000"}
    return Code.CHANGE_MESSAGE_INVISIBLETIME, ext, b""


async def in_order(s: Stage) -> Asked:
    await s.stored()
    return Code.POP_MESSAGE, {**popping(), "order": "true"}, b""


async def acknowledged_together(s: Stage) -> Asked:
    info = (await delivery(s))["extraInfo"].split(" ")
    ack = {
        "c": "g", "t": "T", "r": "0", "so": int(info[0]), "q": 0, "it": int(info[2]),
        "rq": int(info[3]), "pt": int(info[1]), "b": "AQ==",
    }  # fmt: skip
    body = {"acks": [ack], "brokerName": s.broker.services.broker_name}
    return Code.BATCH_ACK_MESSAGE, {}, json.dumps(body).encode()


STORING: tuple[Callable[[Stage], Awaitable[Asked]], ...] = (
    plain, plain_v1, batch, delayed, timed, half, commit, given_up, retried,
    buried, reply, reply_v1, recalled, popped, acknowledged, acknowledged_together,
    changed,
)  # fmt: skip


#: Codes of answers that are not 0: a reply is stored, but nobody waits for it.
ANSWERS = {"reply": 1, "reply_v1": 1}


async def topic(s: Stage) -> Asked:
    return Code.UPDATE_AND_CREATE_TOPIC, MADE, b""


async def no_topic(s: Stage) -> Asked:
    return Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""


async def group(s: Stage) -> Asked:
    return Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"made"}'


async def no_group(s: Stage) -> Asked:
    return Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""


async def forbidden(s: Stage) -> Asked:
    ext = {"group": "g", "topic": "T", "readable": "false"}
    return Code.UPDATE_AND_GET_GROUP_FORBIDDEN, ext, b""


async def mode(s: Stage) -> Asked:
    given = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    return Code.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(given).encode()


async def topics(s: Stage) -> Asked:
    made = [{"topicName": f"made-{i}", "readQueueNums": 1, "writeQueueNums": 1} for i in range(2)]
    return Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps({"topicConfigList": made}).encode()


async def groups(s: Stage) -> Asked:
    made = [{"groupName": f"made-{i}"} for i in range(2)]
    body = json.dumps({"groupConfigList": made}).encode()
    return Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body


async def settings(s: Stage) -> Asked:
    return Code.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=24\n"


#: What tools make, which no record of the log holds.
MAKING: tuple[Callable[[Stage], Awaitable[Asked]], ...] = (
    topic, topics, no_topic, group, groups, no_group, forbidden, mode,
)  # fmt: skip


# ---- access control ----


async def account(s: Stage) -> Asked:
    return Code.UPDATE_ACL_CONFIG, {"accessKey": "another", "secretKey": "a-secret"}, b""


async def no_account(s: Stage) -> Asked:
    await s.ask(*await account(s))
    return Code.DELETE_ACL_CONFIG, {"accessKey": "another"}, b""


async def white_addresses(s: Stage) -> Asked:
    return Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.0.0.1"}, b""


async def user(s: Stage) -> Asked:
    body = {"username": "another", "password": "a-secret", "userType": "Normal"}
    return Code.AUTH_CREATE_USER, {"username": "another"}, json.dumps(body).encode()


async def changed_user(s: Stage) -> Asked:
    _, ext, body = await user(s)
    await s.ask(Code.AUTH_CREATE_USER, ext, body)
    return Code.AUTH_UPDATE_USER, ext, body.replace(b"a-secret", b"b-secret")


async def no_user(s: Stage) -> Asked:
    await s.ask(*await user(s))
    return Code.AUTH_DELETE_USER, {"username": "another"}, b""


async def acl(s: Stage) -> Asked:
    await s.ask(*await user(s))
    entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    policy = {"policyType": "Custom", "entries": [entry]}
    body = {"subject": "User:another", "policies": [policy]}
    return Code.AUTH_CREATE_ACL, {"subject": "User:another"}, json.dumps(body).encode()


async def changed_acl(s: Stage) -> Asked:
    _, ext, body = made = await acl(s)
    await s.ask(*made)
    return Code.AUTH_UPDATE_ACL, ext, body.replace(b"Pub", b"Sub")


async def no_acl(s: Stage) -> Asked:
    _, ext, _ = made = await acl(s)
    await s.ask(*made)
    return Code.AUTH_DELETE_ACL, ext, b""


_OF_THE_LIST = (account, no_account, white_addresses)
#: What tools change of settings and of the rules of access control, on a broker of files_of().
SETTING: tuple[Callable[[Stage], Awaitable[Asked]], ...] = (
    settings, *_OF_THE_LIST, user, changed_user, no_user, acl, changed_acl, no_acl,
)  # fmt: skip


def files_of(make: Callable[[Stage], Awaitable[Asked]], folder: Path) -> dict[str, Any]:
    """What a broker is started with that has what `make` changes, its store in the folder."""
    if make is settings:
        (folder / "broker.conf").write_text("fileReservedTime=48\n")
        return {"conf": folder / "broker.conf"}
    if make in _OF_THE_LIST:
        text = "accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n"
        (folder / "plain_acl.yml").write_text(text)
        return {"aclEnable": True}
    first = {"username": OPERATOR.access_key, "password": OPERATOR.secret_key}
    return {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps(first),
    }  # fmt: skip
