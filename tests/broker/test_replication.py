"""A master and its slave, both ours: the same log, what answers wait for, what a slave does not do,
logs with different pasts."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from access_cases import play
from pairs import SMALL, JavaLikePort, master_of, send, slave_of, until_alike
from waiting import BOUND_S, until

from broker import Broker, Message
from broker.services.replication.status import ha_status
from pystore import TopicConfig
from pystore.audit import verify
from pystore.audit.kinds import DeletedMessagesFinding
from pystore.errors import BadArgument, InSyncReplicasNotEnough
from pystore.meta.configfiles import SubscriptionGroup
from pystore.meta.pending import Decision
from pystore.native import lib

SEND = {
    "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "", "j": "0", "k": "false",
}  # fmt: skip


def test_a_slave_has_the_log_and_what_tools_made(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 2000)  # several segments
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            send(master, 500)
            until_alike(master, slave)
            master.run(_make(master))
            until(lambda: slave.services.topics.get("made") is not None, "the topic")
            until(lambda: slave.services.groups.get("g") is not None, "the group")
            until(lambda: slave.services.offsets.get("g", "orders", 0) == 7, "the offset")
            until(lambda: slave.services.topics.get("gone") is None, "that it is gone")
            seen = master.services.replication.master  # looks once a second
            end = master.store.info().log_max
            until(lambda: [each.acked for each in seen.slaves] == [end], "what it has is known")
    report = verify(tmp_path / "s")
    assert report.findings == []


async def _make(master: Broker) -> None:
    services = master.services
    services.topics.update(TopicConfig("made", 2, 2))
    services.groups.update(SubscriptionGroup("g"))
    services.offsets.commit("g", "orders", 0, 7)
    services.topics.update(TopicConfig("gone", 1, 1))
    services.topics.delete("gone")


def test_a_slave_goes_on_after_it_was_away(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        for count in (300, 1200, 0):
            send(master, count)
            with slave_of(tmp_path / "s", names) as slave:
                until_alike(master, slave)


@pytest.mark.parametrize("deleted", [0, 2])
def test_a_new_slave_gets_the_whole_log_of_a_java_master(
    deleted: int, names: str, tmp_path: Path
) -> None:
    """Java's sends whoever reports 0 its last segment alone."""
    with master_of(tmp_path / "m", names, deleteFileBatchMax=2) as master:
        master.create_topic("orders", 4)
        send(master, 4000)
        assert not deleted or master.store.clean(immediate=True).log_files == deleted
        with (
            JavaLikePort(master) as port,
            slave_of(tmp_path / "s", names, haMasterAddress=port.address) as slave,
        ):
            until_alike(master, slave)
            assert slave.store.info().log_min == deleted * SMALL["mappedFileSizeCommitLog"]
            assert 0 not in port.asked


def test_a_slave_that_retention_has_overtaken_says_so(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 10)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
        send(master, 4000)
        assert master.store.clean(immediate=True).log_files > 0
        with slave_of(tmp_path / "s", names) as slave:
            until(lambda: "retention" in slave.services.replication.slave.problem, "it says")


def test_a_slave_that_is_opened_as_a_master_goes_on_with_the_queues(
    names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 40)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
    with Broker(tmp_path / "s", **SMALL) as alone:
        ends = [alone.store.range("orders", queue)[1] for queue in range(4)]
        assert sum(ends) == 40
        send(alone, 8)
        assert sum(alone.store.range("orders", queue)[1] for queue in range(4)) == 48
        assert [m.queue_offset for m in alone.store.read("orders", 0, 0)] == list(
            range(alone.store.range("orders", 0)[1])
        )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_an_answer_of_a_synchronous_master_waits_for_the_slave(
    flush: str, names: str, tmp_path: Path
) -> None:
    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, flushDiskType=flush,
        slaveTimeout=60_000,
    ) as master:  # fmt: skip
        master.create_topic("orders", 4)
        with slave_of(tmp_path / "s", names, flushDiskType=flush) as slave:
            with master.producer(send_timeout_s=BOUND_S) as producer:
                for number in range(50):
                    sent = producer.send(Message("orders", b"%d" % number))
                    at = int(sent.offset_message_id[16:], 16)
                    assert slave.store.info().log_max > at
            until_alike(master, slave)


def test_without_a_slave_the_answer_says_so(names: str, tmp_path: Path) -> None:
    """12, and the message is stored; a message with WAIT=false waits for nobody."""
    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, slaveTimeout=50
    ) as master:
        master.create_topic("orders", 1)
        asked = {"server": "4.9.7", "code": 310, "ext": SEND, "body": "x"}
        assert play(master.port, asked)[0] == 12
        assert play(master.port, asked | {"ext": SEND | {"i": "WAIT\1false"}})[0] == 0
        assert master.store.range("orders", 0) == (0, 2)


def test_with_too_few_in_sync_nothing_is_stored(names: str, tmp_path: Path) -> None:
    """1, as 5.3.3 with slaves that act as masters, ✓live; a message with WAIT=false is stored."""
    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, minInSyncReplicas=2
    ) as master:
        master.create_topic("orders", 1)
        asked = {"server": "4.9.7", "code": 310, "ext": SEND, "body": "x"}
        code, remark, _ = play(master.port, asked)
        assert (code, "in-sync replicas not enough" in remark) == (1, True)
        assert master.store.range("orders", 0) == (0, 0)
        half = asked | {"ext": SEND | {"i": "WAIT\1false\2TRAN_MSG\1true\2PGROUP\1p", "f": "4"}}
        assert play(master.port, half)[0] == 0
        with pytest.raises(InSyncReplicasNotEnough):
            master.run(_decide(master, Decision.COMMIT))
        with slave_of(tmp_path / "s", names):
            until(lambda: play(master.port, asked)[0] == 0, "the slave")
            master.run(_decide(master, Decision.COMMIT))
            until_end = master.store.range("orders", 0)[1]
        lacks = partial(lib.ps_lacks_replicas, master.store.c_handle())
        until(lacks, "that the slave is gone")  # what is sent before is stored
        assert play(master.port, asked)[0] == 1
        assert master.store.range("orders", 0) == (0, until_end)


async def _decide(broker: Broker, decision: Decision) -> object:
    assert broker.services.transactions is not None
    return broker.services.transactions.halves.decide(0, decision)


def test_who_is_gone_is_not_waited_for_if_the_settings_say_so(names: str, tmp_path: Path) -> None:
    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, enableAutoInSyncReplicas=True,
        slaveTimeout=600_000,
    ) as master, master.producer(send_timeout_s=BOUND_S) as producer:  # fmt: skip
        master.create_topic("orders", 4)
        producer.send(Message("orders", b"alone"))
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            until(lambda: _status(master)["inSyncSlaveNums"] == 1, "that it is in sync")
            for number in range(20):
                sent = producer.send(Message("orders", b"%d" % number))
                at = int(sent.offset_message_id[16:], 16)
                assert slave.store.info().log_max > at
        producer.send(Message("orders", b"alone again"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"inSyncReplicas": 2}, "inSyncReplicas = 2 has no effect"),
        ({"minInSyncReplicas": 2}, "minInSyncReplicas = 2 has no effect"),
        ({"enableAutoInSyncReplicas": True}, "enableAutoInSyncReplicas = true has no effect"),
        ({"brokerRole": "SYNC_MASTER", "minInSyncReplicas": 2}, "is more than inSyncReplicas = 1"),
    ],
)
def test_settings_of_replicas_that_do_nothing_are_refused(
    given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=why):
        Broker(tmp_path / "m", **given)


def test_a_slave_may_have_the_settings_of_the_master_that_it_may_become(tmp_path: Path) -> None:
    more: dict[str, Any] = {"inSyncReplicas": 3, "minInSyncReplicas": 2}
    with Broker(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **more, **SMALL) as slave:
        assert slave.settings["inSyncReplicas"] == 3


def test_a_stop_tells_nobody_that_a_slave_has_the_message(names: str, tmp_path: Path) -> None:
    answers: list[int] = []

    def ask(port: int) -> None:
        asked = {"server": "4.9.7", "code": 310, "ext": SEND, "body": "x"}
        with contextlib.suppress(Exception):  # the connection ends without an answer
            answers.append(play(port, asked)[0])

    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, slaveTimeout=60_000, drain_s=0.2
    ) as master:
        master.create_topic("orders", 1)
        thread = threading.Thread(target=ask, args=(master.port,))
        thread.start()
        until(lambda: master.store.range("orders", 0) == (0, 1), "the message")
    thread.join()
    assert 0 not in answers


def test_a_slave_takes_no_messages_and_no_changes(names: str, tmp_path: Path) -> None:
    pull = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    topic = {"topic": "made", "defaultTopic": "TBW102", "readQueueNums": "1",
             "writeQueueNums": "1", "perm": "6"}  # fmt: skip
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 10)
        for readable in (False, True):
            with slave_of(tmp_path / "s", names, slaveReadEnable=readable) as slave:
                until_alike(master, slave)
                until(lambda: slave.services.topics.get("orders") is not None, "the topic")
                asked = {"server": "4.9.7", "code": 17, "ext": topic}
                assert play(slave.port, asked)[0] == 1
                asked = {"server": "4.9.7", "code": 11, "ext": pull}
                assert play(slave.port, asked)[0] == (0 if readable else 2)
                end = slave.store.info().log_max
                sent = {"server": "4.9.7", "code": 310, "ext": SEND, "body": "x"}
                assert play(slave.port, sent)[0] == 14
                assert slave.store.info().log_max == end


def test_a_slave_with_another_past_does_not_follow(names: str, tmp_path: Path) -> None:
    with Broker(tmp_path / "s", **SMALL) as other:
        other.create_topic("orders", 4)
        send(other, 30)
        end = other.store.info().log_max
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 100)
        with slave_of(tmp_path / "s", names) as slave:
            until(lambda: "different pasts" in slave.services.replication.slave.problem, "it says")
            assert slave.store.info().log_max == end
            until(lambda: master.services.replication.master.slaves == [], "that it is gone")


@pytest.mark.parametrize("count", [0, 100])
def test_of_a_master_whose_log_is_not_taken_nothing_is_taken(
    count: int, names: str, tmp_path: Path
) -> None:
    """Neither of a foreign master nor of one that has lost its store."""
    with Broker(tmp_path / "s", **SMALL) as other:
        other.create_topic("orders", 3)
        send(other, 30)
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 8)
        master.create_topic("theirs", 1)
        send(master, count)
        with slave_of(tmp_path / "s", names) as slave:
            replication = slave.services.replication
            until(lambda: "different pasts" in replication.slave.problem, "it says")
            problems: list[str] = []

            async def take() -> None:
                replication.synchronize()
                problems.extend(await replication.take_all())

            slave.run(take())
            assert all("no master's log is being copied" in each for each in problems)
            assert slave.services.topics.get("theirs") is None
            assert slave.services.topics.get("orders").write_queue_nums == 3


def test_segments_of_another_size_are_refused_by_name(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 10)
        more = SMALL | {"mappedFileSizeCommitLog": 1 << 16}
        with Broker(
            tmp_path / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **more
        ) as slave:
            until(
                lambda: "mappedFileSizeCommitLog" in slave.services.replication.slave.problem,
                "it says",
            )
            assert slave.store.info().log_max == 0


def test_the_status_says_who_has_what(names: str, tmp_path: Path) -> None:
    before = time.time() * 1000
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        send(master, 10)
        with slave_of(tmp_path / "s", names) as slave:
            until_alike(master, slave)
            end = master.store.info().log_max
            until(lambda: len(_status(master)["haConnectionInfo"]) == 1, "the slave")
            until(lambda: _status(master)["haConnectionInfo"][0]["diff"] == 0, "its report")
            assert _status(master)["master"] is True
            assert _status(master)["inSyncSlaveNums"] == 1
            since = _status(master)["haConnectionInfo"][0]["inSyncSince"]
            assert before <= since <= time.time() * 1000
            found = _status(slave)
            assert found["master"] is False
            assert found["haClientRuntimeInfo"]["maxOffset"] == end
            assert found["haClientRuntimeInfo"]["problem"] == ""
            for broker in (master, slave):
                until(lambda b=broker: send(master, 5) or _rate(b) > 0, "that it counts")
        until(lambda: _status(master)["haConnectionInfo"] == [], "that it is gone")


def _rate(broker: Broker) -> int:
    """Bytes of replication in the last second."""
    found = _status(broker)
    rows = [found["haClientRuntimeInfo"], *found["haConnectionInfo"]]
    return max(row["transferredByteInSecond"] for row in rows)


def test_the_status_is_of_now(names: str, tmp_path: Path) -> None:
    """Not of the last look at the slaves."""
    with master_of(tmp_path / "m", names) as master:
        master.create_topic("orders", 4)
        with slave_of(tmp_path / "s", names) as slave:
            send(master, 10)
            until_alike(master, slave)
            ha, end = master.services.replication.master, master.store.info().log_max
            until(lambda: _status(master)["haConnectionInfo"], "the slave")
            until(lambda: _status(master)["haConnectionInfo"][0]["diff"] == 0, "its report")

            async def of_old() -> dict[str, Any]:
                ha.slaves = [replace(each, acked=0) for each in ha.slaves]
                return ha_status(master.services.replication, end, 1 << 28)

            (row,) = master.run(of_old())["haConnectionInfo"]
            assert (row["slaveAckOffset"], row["diff"]) == (end, 0)


def _status(broker: Broker) -> dict[str, Any]:
    return json.loads(play(broker.port, {"server": "4.9.7", "code": 907, "ext": {}})[2])


def test_who_has_not_reported_is_not_in_sync(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        port = master.settings["haListenPort"]
        with socket.create_connection(("127.0.0.1", port)) as sock:
            until(lambda: _status(master)["haConnectionInfo"], "the connection")
            assert _status(master)["inSyncSlaveNums"] == 0
            sock.sendall(struct.pack(">q", 0))
            until(lambda: _status(master)["inSyncSlaveNums"] == 1, "that it is in sync")


# ---- what counts as a copy ----


def test_a_slave_that_comes_again_is_compared_and_counts(names: str, tmp_path: Path) -> None:
    """Uncompared, it would count after slaveTimeout, when nothing waits from before it came."""
    with master_of(
        tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, slaveTimeout=250_000
    ) as master:
        master.create_topic("orders", 4)
        with slave_of(tmp_path / "s", names) as slave:
            send(master, 1500)  # several segments
            until_alike(master, slave)
        with slave_of(tmp_path / "s", names), master.producer(send_timeout_s=BOUND_S) as producer:
            producer.send(Message("orders", b"once more"))


@pytest.mark.parametrize("count", [30, 1500])
def test_a_shorter_log_with_another_past_is_no_copy_and_is_sent_nothing(
    count: int, names: str, tmp_path: Path
) -> None:
    """As a slave of Java's would follow, whose broker answers at the name server's address."""
    with Broker(tmp_path / "s", **SMALL) as other:
        other.create_topic("orders", 4)
        send(other, count)
        end = other.store.info().log_max
    with (
        master_of(
            tmp_path / "m", names, "SYNC_MASTER", inSyncReplicas=2, slaveTimeout=50
        ) as master,
        slave_of(tmp_path / "s", names),
    ):
        master.create_topic("orders", 4)
        unwaited = {"server": "4.9.7", "code": 310, "ext": SEND | {"i": "WAIT\1false"}}
        while master.store.info().log_max <= end:
            play(master.port, unwaited | {"body": "longer" * 100})
        with socket.create_connection(("127.0.0.1", master.settings["haListenPort"])) as sock:
            sock.settimeout(200)
            sock.sendall(struct.pack(">q", end))
            got = b""
            while data := sock.recv(65536):
                got += data
        assert set(struct.iter_unpack(">qi", got)) <= {(end, 0)}  # heartbeats alone
        asked = {"server": "4.9.7", "code": 310, "ext": SEND, "body": "x"}
        assert play(master.port, asked)[0] == 12


# ---- who may follow ----


def test_slaves_follow_when_a_setting_says_so(tmp_path: Path) -> None:
    with Broker(tmp_path / "alone", **SMALL) as broker:
        assert broker.services.replication is None
        assert broker.services.registration.ha_port == 0
    with Broker(tmp_path / "m", brokerRole="ASYNC_MASTER", **SMALL) as broker:
        assert broker.services.registration.ha_port == broker.settings["haListenPort"] > 0


def test_a_reader_sees_a_message_once_a_slave_has_it(names: str, tmp_path: Path) -> None:
    """consumeAfterReplication: also what was answered with 12, and what asks for no wait."""
    given = {"inSyncReplicas": 2, "slaveTimeout": 20, "consumeAfterReplication": True}
    with master_of(tmp_path / "m", names, "SYNC_MASTER", **given) as master:
        master.create_topic("orders", 1)
        with master.producer(send_timeout_s=BOUND_S) as producer:
            assert producer.send(Message("orders", b"1")).status.name == "FLUSH_SLAVE_TIMEOUT"
            assert (
                producer.send(Message("orders", b"2", wait_stored=False)).status.name == "SEND_OK"
            )
        assert len(master.store.read("orders", 0, 0)) == 0
        with slave_of(tmp_path / "s", names) as slave:
            until(lambda: master.store.range("orders", 0) == (0, 2), "both messages")
            assert len(slave.store.read("orders", 0, 0)) == 2
    with master_of(tmp_path / "m", names, "SYNC_MASTER", **given) as master:
        assert len(master.store.read("orders", 0, 0)) == 0  # is it anywhere else?
        with slave_of(tmp_path / "s", names):
            until(lambda: len(master.store.read("orders", 0, 0)) == 2, "what the slave has")


def test_a_topic_that_was_made_again_begins_anew_at_a_slave(names: str, tmp_path: Path) -> None:
    delete = {"server": "4.9.7", "code": 215, "ext": {"topic": "orders"}}
    with master_of(tmp_path / "m", names) as master:
        with slave_of(tmp_path / "s", names) as slave:
            master.create_topic("orders", 1)
            send(master, 5)
            until_alike(master, slave)
            assert play(master.port, delete)[0] == 0
            master.create_topic("orders", 1)
            send(master, 2)
            until_alike(master, slave)
        with slave_of(tmp_path / "s", names) as slave:
            following = slave.services.replication.slave
            until(lambda: following.follows or following.diverged, "an end of the comparison")
            assert following.problem == ""
            until_alike(master, slave)
        with slave_of(tmp_path / "new", names) as slave:
            until_alike(master, slave)
    for name in ("s", "new"):
        (deleted,) = verify(tmp_path / name).findings
        assert isinstance(deleted, DeletedMessagesFinding)


def test_a_report_within_a_record_hides_the_record_and_breaks_nothing(tmp_path: Path) -> None:
    """Java's slaves report at the ends of chunks of 32 KiB."""
    given: dict[str, Any] = {"inSyncReplicas": 2, "slaveTimeout": 60_000}
    with Broker(
        tmp_path / "m", brokerRole="SYNC_MASTER", consumeAfterReplication=True, **given, **SMALL
    ) as master:
        master.create_topic("orders", 1)
        unwaited = {"server": "4.9.7", "code": 310, "ext": SEND | {"i": "WAIT\1false"}}
        with socket.create_connection(("127.0.0.1", master.settings["haListenPort"])) as sock:
            sock.settimeout(60)
            sock.sendall(struct.pack(">q", 0))
            stream = sock.makefile("rb")
            for number in range(3):
                assert play(master.port, unwaited | {"body": "x" * 100_000})[0] == 0
                assert master.store.range("orders", 0)[1] == number
                end = master.store.info().log_max
                at = _take_chunk(stream)
                while at < end:
                    sock.sendall(struct.pack(">q", at))
                    assert len(master.store.read("orders", 0, number)) == 0
                    at = _take_chunk(stream)
                sock.sendall(struct.pack(">q", at))
                until(lambda n=number: master.store.range("orders", 0)[1] == n + 1, "the message")


def _take_chunk(stream: BinaryIO) -> int:
    """The end of the next frame that is not a heartbeat."""
    while True:
        at, count = struct.unpack(">qi", stream.read(12))
        if count > 0:
            assert len(stream.read(count)) == count
            return int(at + count)


@pytest.mark.parametrize("given", [{"trustedSlaves": "10.0.0.1"}, {"aclEnable": True}])
def test_hosts_that_are_not_named_may_not_follow(given: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n"
    )
    with Broker(tmp_path / "m", brokerRole="ASYNC_MASTER", **SMALL, **given) as broker:
        replication = broker.services.replication
        assert not replication.trusts("10.0.0.2")
        assert replication.trusts("127.0.0.1") == ("aclEnable" in given)
        with socket.create_connection(("127.0.0.1", broker.settings["haListenPort"])) as sock:
            sock.sendall(struct.pack(">q", 0))
            sock.settimeout(BOUND_S)
            if "aclEnable" not in given:
                with contextlib.suppress(ConnectionError):
                    assert sock.recv(1) == b""


@pytest.mark.long
def test_what_strangers_send_is_bounded_and_sent_nothing(tmp_path: Path) -> None:
    """Reports of more than there is, noise, half a report, connections without end."""
    with Broker(tmp_path / "m", brokerRole="ASYNC_MASTER", **SMALL) as broker:
        broker.create_topic("orders", 4)
        send(broker, 10)
        port = broker.settings["haListenPort"]
        for data in (struct.pack(">q", 1 << 40), struct.pack(">q", -1), b"\xff" * 4096):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.settimeout(10)
                sock.sendall(data)
                with contextlib.suppress(ConnectionError):
                    assert sock.recv(100) == b""
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for _ in range(1000)]  # fmt: skip
            held[0].sendall(b"\0\0\0")
            until(
                lambda: len(broker.services.replication.master.slaves) == lib.PS_HA_STRANGERS_MAX,
                "so many",
            )
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.settimeout(60)
                sock.sendall(struct.pack(">q", 0))
                assert struct.unpack(">qi", sock.recv(12))[0] == 0
        until(lambda: broker.services.replication.master.slaves == [], "that they are gone")
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(10)
            sock.sendall(struct.pack(">q", 0))
            at, count = struct.unpack(">qi", sock.recv(12))
            assert (at, count > 0) == (0, True)


@pytest.mark.parametrize(
    "settings", [{"brokerRole": "SLAVE"}, {"brokerRole": "SLAVE", "brokerId": 0}]
)
def test_a_slave_needs_an_id_of_its_own(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="brokerId"):
        Broker(tmp_path / "s", **SMALL, **settings)
