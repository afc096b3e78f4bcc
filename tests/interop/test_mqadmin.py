"""Each verb of the official admin tool that a broker must serve, and the facts in what it prints.

One Java process runs them all; `admin` writes a command line and reads what it printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import launch
import pytest
from admin import Admin

pytestmark = [pytest.mark.java, pytest.mark.slow]

KEYS = [f"order-{i}" for i in range(12)]


@dataclass
class Sent:
    """A message that was sent: what its producer was told."""

    key: str
    msg_id: str
    offset_id: str
    queue: int
    offset: int


@dataclass
class Scene:
    """What the tests find: a topic of twelve messages, a group that consumed them, a producer."""

    topic: str
    group: str
    makers: str
    client: str
    sent: list[Sent]


@pytest.fixture(scope="module")
def admin(peer: launch.Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    made = Admin(peer.namesrv, tmp_path_factory.mktemp("mqadmin"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def scene(admin: Admin) -> Scene:
    created = admin("updateTopic", "-c", "DefaultCluster", "-t", "orders", "-r", 4, "-w", 4)
    assert "success" in created
    lines = admin("+send", "orders", *KEYS).splitlines()
    words = [line.split() for line in lines if line.startswith("order-")]
    sent = [Sent(key, ident, place, int(q), int(at)) for key, ident, place, q, at in words]
    assert [m.key for m in sent] == KEYS
    client = admin("+consume", "readers", "orders").split()[-1]
    admin("+produce", "makers", "others")
    admin.until(
        lambda said: "Consume Diff Total: 0" in said and said.count("orders ") == 4,
        *("consumerProgress", "-g", "readers"),
    )
    return Scene("orders", "readers", "makers", client, sent)


def rows(said: str, first: str) -> list[list[str]]:
    """The words of the table lines that begin with `first`."""
    return [line.split() for line in said.splitlines() if line.split()[:1] == [first]]


def value(said: str, name: str) -> str | None:
    """What a line `name : value` or `name = value` says."""
    found = re.search(rf"^{re.escape(name)}[ \t]*[:=][ \t]*(.*?)[ \t]*$", said, re.MULTILINE)
    return found and found.group(1)


# ---- the cluster ----


def test_cluster_list(admin, peer):
    (row,) = rows(admin("clusterList"), "DefaultCluster")
    assert row[1:4] == ["broker-a", "0", peer.broker]
    assert row[4] == "V5_3_3"
    assert row[-1] == "true"


def test_broker_status(admin, peer, scene):
    said = admin("brokerStatus", "-b", peer.broker)
    assert value(said, "brokerVersionDesc") == "V5_3_3"
    assert int(value(said, "msgPutTotalTodayNow")) >= len(scene.sent)
    assert int(value(said, "commitLogMaxOffset")) > 12 * 200
    assert int(value(said, "commitLogMinOffset")) == 0
    assert int(value(said, "putMessageTimesTotal")) >= len(scene.sent)
    assert 0 <= float(value(said, "commitLogDiskRatio")) <= 1
    assert re.fullmatch(r"\[ 0 days, 0 hours, \d+ minutes, \d+ seconds \]", value(said, "runtime"))
    assert re.fullmatch(r"\d+\.\d+( \d+\.\d+){0,2}", value(said, "putTps"))
    assert re.match(r"\[<=0ms\]:|null$|$", value(said, "putMessageDistributeTime"))


def test_broker_config(admin, peer):
    said = admin("getBrokerConfig", "-b", peer.broker)
    assert value(said, "brokerName") == "broker-a"
    assert value(said, "listenPort") == peer.broker.rpartition(":")[2]
    assert value(said, "autoCreateTopicEnable") == "true"
    assert value(said, "mappedFileSizeCommitLog") == str(64 << 20)
    assert value(said, "brokerClusterName") == "DefaultCluster"


def test_update_broker_config(admin, peer):
    said = admin(
        "updateBrokerConfig", "-b", peer.broker, "-k", "flushConsumerOffsetInterval", "-v", "4000"
    )
    assert f"update broker config success, {peer.broker}" in said
    config = admin("getBrokerConfig", "-b", peer.broker)
    assert value(config, "flushConsumerOffsetInterval") == "4000"


def test_wipe_and_add_write_perm(admin, peer, scene):
    def perms() -> set[str]:
        return set(re.findall(r'"perm":(\d)', admin("topicRoute", "-t", scene.topic)))

    said = admin("wipeWritePerm", "-b", "broker-a")
    assert re.search(r"wipe write perm of broker\[broker-a\] in name server\[.*\] OK, \d+", said)
    assert perms() == {"4"}
    said = admin("addWritePerm", "-b", "broker-a")
    assert re.search(r"add write perm of broker\[broker-a\] in name server\[.*\] OK, \d+", said)
    assert perms() == {"6"}


def test_clean_expired_queues(admin, peer):
    assert "success" in admin("cleanExpiredCQ", "-b", peer.broker)


def test_clean_unused_topics(admin, peer, scene):
    assert "success" in admin("cleanUnusedTopic", "-b", peer.broker)
    assert len(rows(admin("topicStatus", "-t", scene.topic), "broker-a")) == 4


# ---- the name server ----


def test_namesrv_config(admin, peer):
    said = admin("getNamesrvConfig")
    assert f"============{peer.namesrv}============" in said
    assert value(said, "listenPort") == peer.namesrv.rpartition(":")[2]


def test_update_namesrv_config(admin, peer):
    said = admin("updateNamesrvConfig", "-k", "scanNotActiveBrokerInterval", "-v", "6000")
    assert "update name server config success" in said
    assert value(admin("getNamesrvConfig"), "scanNotActiveBrokerInterval") == "6000"


def test_kv_config(admin, peer):
    def asked() -> tuple[int, str | None]:
        code, ext, _ = launch.ask(peer.namesrv, 101, {"namespace": "ns1", "key": "k"})
        return code, ext.get("value")

    said = admin("updateKvConfig", "-s", "ns1", "-k", "k", "-v", "v")
    assert "create or update kv config to namespace success." in said
    assert asked() == (0, "v")
    assert "delete kv config from namespace success." in admin(
        "deleteKvConfig", "-s", "ns1", "-k", "k"
    )
    assert asked() == (22, None)


# ---- topics ----


def test_topic_list(admin, scene):
    names = admin("topicList").split()
    assert {"orders", "TBW102", "SELF_TEST_TOPIC", "%RETRY%readers", "DefaultCluster"} <= set(names)
    assert len(names) == len(set(names))


def test_topic_list_with_clusters(admin, scene):
    said = admin("topicList", "-c")
    assert ["DefaultCluster", "orders", "readers"] in rows(said, "DefaultCluster")


def test_topic_route(admin, peer, scene):
    said = admin("topicRoute", "-t", scene.topic)
    assert f'0:"{peer.broker}"' in said
    assert '"brokerName":"broker-a"' in said
    assert '"readQueueNums":4' in said
    assert '"writeQueueNums":4' in said
    assert '"cluster":"DefaultCluster"' in said


def test_topic_status(admin, scene):
    table = rows(admin("topicStatus", "-t", scene.topic), "broker-a")
    ends = {int(q): int(highest) for _, q, _, highest, *_ in table}
    assert ends == {q: 1 + max(m.offset for m in scene.sent if m.queue == q) for q in range(4)}
    assert [row[2] for row in table] == ["0"] * 4
    assert all(re.match(r"\d{4}-\d\d-\d\d", row[4]) for row in table)


def test_update_topic(admin, peer):
    words = ("updateTopic", "-b", peer.broker, "-t", "made", "-r", 3, "-w", 2, "-p", 6)
    said = admin(*words)
    assert f"create topic to {peer.broker} success." in said
    assert "topicName=made, readQueueNums=3, writeQueueNums=2, perm=RW-" in said
    said = admin.until(lambda s: '"readQueueNums":3' in s, "topicRoute", "-t", "made")
    assert '"writeQueueNums":2' in said


def test_delete_topic(admin, peer):
    admin("updateTopic", "-c", "DefaultCluster", "-t", "doomed", "-r", 1, "-w", 1)
    admin.until(lambda said: "doomed" in said.split(), "topicList")
    assert admin("+send", "doomed", "k1", "k2").split()[-1] == "1"
    said = admin("deleteTopic", "-c", "DefaultCluster", "-t", "doomed")
    assert "delete topic [doomed] from cluster [DefaultCluster] success." in said
    assert "delete topic [doomed] from NameServer success." in said
    assert "doomed" not in admin("topicList").split()
    assert launch.ask(peer.namesrv, launch.ROUTE, {"topic": "doomed"})[0] == 17
    admin("updateTopic", "-c", "DefaultCluster", "-t", "doomed", "-r", 1, "-w", 1)
    assert admin("+send", "doomed", "k3").split()[-1] == "0"  # its queue begins again


def test_a_pull_at_a_negative_offset_is_moved_to_the_first(admin, peer):
    admin("updateTopic", "-c", "DefaultCluster", "-t", "early", "-r", 1, "-w", 1)
    asked = {"consumerGroup": "early-readers", "topic": "early", "queueId": "0", "maxMsgNums": "1"}
    asked |= {"queueOffset": "-1", "sysFlag": "4", "commitOffset": "0", "subVersion": "0"}
    asked |= {"suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG"}
    for _ in range(2):
        code, ext, _ = launch.ask(peer.broker, 11, asked)
        assert (code, ext["nextBeginOffset"]) == (21, "0")
        admin("+send", "early", "k1")


def test_ha_status(admin, peer):
    said = admin("haStatus", "-b", peer.broker)
    assert f"#MasterAddr\t{peer.broker}" in said
    assert "#SlaveNum\t0" in said and "#InSyncSlaveNum\t0" in said
    _, _, body = launch.ask(peer.broker, 907)
    assert set(re.findall(rb'"(\w+)":', body)) == {
        b"haClientRuntimeInfo", b"lastReadTimestamp", b"lastWriteTimestamp",
        b"masterFlushOffset", b"maxOffset", b"transferredByteInSecond", b"haConnectionInfo",
        b"inSyncSlaveNums", b"master", b"masterCommitLogMaxOffset",
    }  # fmt: skip


def test_order_topic(admin, peer):
    admin("updateTopic", "-c", "DefaultCluster", "-t", "ordered", "-r", 4, "-w", 4, "-o", "true")
    code, ext, _ = launch.ask(
        peer.namesrv, 101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "ordered"}
    )
    assert (code, ext["value"]) == (0, "broker-a:4")


# ---- groups ----


def test_update_and_delete_group(admin, peer):
    said = admin("updateSubGroup", "-b", peer.broker, "-g", "made-group", "-q", 2, "-r", 5)
    assert f"create subscription group to {peer.broker} success." in said
    assert "groupName=made-group" in said
    assert "retryQueueNums=2, retryMaxTimes=5" in said
    said = admin("deleteSubGroup", "-c", "DefaultCluster", "-g", "made-group")
    assert "delete subscription group [made-group] from broker" in said
    assert "success" in said


def test_consumer_progress_of_a_group(admin, scene):
    said = admin("consumerProgress", "-g", scene.group)
    table = rows(said, scene.topic)
    assert [row[1] for row in table] == ["broker-a"] * 4
    ends = {q: 1 + max(m.offset for m in scene.sent if m.queue == q) for q in range(4)}
    assert {int(row[2]): int(row[3]) for row in table} == ends
    assert {int(row[2]): int(row[4]) for row in table} == ends
    assert [row[5] for row in table] == ["0"] * 4
    assert "Consume Diff Total: 0" in said


def test_consumer_progress_of_all_groups(admin, scene):
    (row,) = rows(admin("consumerProgress"), scene.group)
    assert row[1] == "1"
    assert row[3:5] == ["PUSH", "CLUSTERING"]


def test_consumer_connection(admin, scene):
    said = admin("consumerConnection", "-g", scene.group)
    (row,) = [line for line in said.splitlines() if scene.client in line]
    assert re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V5_3_3", row)
    assert re.search(r"^orders\s+\*$", said, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in said
    assert "MessageModel: CLUSTERING" in said
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in said


def test_producer_connection(admin, scene):
    said = admin("producerConnection", "-g", scene.makers, "-t", "others")
    assert re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V5_3_3", said)


def test_producer_connection_of_nobody(admin, scene):
    said = admin("producerConnection", "-g", "nobody", "-t", "others")
    assert "the producer group[nobody] not exist" in said


def test_consumer_status(admin, scene):
    said = admin("consumerStatus", "-g", scene.group, "-i", scene.client)
    assert "PROP_CONSUME_TYPE" in said
    assert "CONSUME_PASSIVELY" in said
    assert re.search(r"orders\s+broker-a\s+0", said)


def test_consumer_status_of_all_members(admin, scene):
    said = admin("consumerStatus", "-g", scene.group)
    assert scene.client in said
    assert "Same subscription in the same group of consumer" in said


def test_reset_offset_by_time(admin, scene):
    assert "Exception" not in admin("+send", "resets", "a", "b", "c")
    admin.until(lambda said: "broker-a" in said, "topicStatus", "-t", "resets")
    admin("updateSubGroup", "-c", "DefaultCluster", "-g", "resetters")
    launched = admin("resetOffsetByTime", "-g", "resetters", "-t", "resets", "-s", "-1", "-f", True)
    assert "start reset consumer offset by specified, group[resetters], topic[resets]" in launched
    offsets = [int(row[2]) for row in rows(launched, "broker-a")]
    assert sum(offsets) == 3


def test_stats_all(admin, scene):
    found = [row for row in rows(admin("statsAll"), scene.topic) if scene.group in row]
    assert [row[2] for row in found] == ["0"]


def test_broker_consume_stats(admin, peer, scene):
    said = admin("brokerConsumeStats", "-b", peer.broker)
    table = [row for row in rows(said, scene.topic) if row[1] == scene.group]
    assert {int(row[3]) for row in table} == {0, 1, 2, 3}
    assert all(row[4] == row[5] and row[6] == "0" for row in table)
    assert "Diff Total: " in said


# ---- messages ----


def test_query_by_offset_id(admin, peer, scene):
    want = scene.sent[5]
    said = admin("queryMsgById", "-i", want.offset_id, "-t", scene.topic)
    assert value(said, "OffsetID") == want.offset_id
    assert value(said, "Topic") == scene.topic
    assert value(said, "Tags") == "[TagA]"
    assert value(said, "Keys") == f"[{want.key}]"
    assert value(said, "Queue ID") == str(want.queue)
    assert value(said, "Queue Offset") == str(want.offset)
    assert value(said, "Store Host") == peer.broker
    assert f"UNIQ_KEY={want.msg_id}" in said


def test_query_tells_who_consumed_it(admin, scene):
    said = admin("queryMsgById", "-i", scene.sent[0].offset_id, "-t", scene.topic)
    assert re.search(r"MessageTrack \[consumerGroup=readers, trackType=CONSUMED,", said)


def test_query_by_key(admin, scene):
    want = scene.sent[7]
    words = ("queryMsgByKey", "-t", scene.topic, "-k", want.key)
    said = admin.until(lambda said: want.msg_id in said, *words)
    assert rows(said, want.msg_id) == [[want.msg_id, str(want.queue), str(want.offset)]]


def test_query_by_unique_key(admin, scene):
    want = scene.sent[3]
    words = ("queryMsgByUniqueKey", "-i", want.msg_id, "-t", scene.topic)
    said = admin.until(lambda said: "Queue ID" in said, *words)
    assert value(said, "Queue ID") == str(want.queue)
    assert value(said, "Queue Offset") == str(want.offset)
    assert value(said, "Keys") == f"[{want.key}]"


def test_query_by_unique_key_delivers_again(admin, scene):
    want = scene.sent[3]
    words = ("-i", want.msg_id, "-t", scene.topic, "-g", scene.group, "-d", scene.client)
    assert "consumeResult=CR_SUCCESS" in admin("queryMsgByUniqueKey", *words)


def test_query_by_offset(admin, scene):
    want = scene.sent[9]
    words = ("-t", scene.topic, "-b", "broker-a", "-i", want.queue, "-o", want.offset)
    said = admin("queryMsgByOffset", *words)
    assert value(said, "Keys") == f"[{want.key}]"
    assert value(said, "OffsetID") == want.offset_id


def test_send_message(admin, scene):
    said = admin("sendMessage", "-t", "others", "-p", "hello", "-k", "kk", "-c", "TagX")
    (row,) = rows(said, "broker-a")
    assert row[2] == "SEND_OK"
    words = ("queryMsgByUniqueKey", "-i", row[3], "-t", "others")
    found = admin.until(lambda said: "Queue ID" in said, *words)
    assert value(found, "Tags") == "[TagX]"


def test_consume_message(admin, scene):
    said = admin("consumeMessage", "-t", scene.topic, "-b", "broker-a", "-i", 0, "-c", 5)
    wanted = {m.key for m in scene.sent if m.queue == 0}
    assert {key for key in KEYS if f"KEYS={key}," in said or f"KEYS={key}}}" in said} == wanted


def test_print_messages(admin, scene):
    said = admin("printMsg", "-t", scene.topic, "-d", True)
    for m in scene.sent:
        assert f"MSGID: {m.msg_id} " in said
        assert f"body of {m.key}" in said


def test_an_unknown_topic_is_told_as_such(admin):
    assert "No topic route info in name server for the topic: nothing" in admin(
        "topicRoute", "-t", "nothing"
    )
