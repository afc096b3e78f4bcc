"""Brokers of ours under etcd: who is the master changes by itself. No Java, no controller."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from etcd_server import PROGRAM, Etcd, etcd
from pairs import SMALL, lose_power, until_alike
from waiting import BOUND_S, until

from broker import Broker, Consumer, Message, NameServer, Producer
from broker.client.errors import ClientError
from broker.services.controlled import member as controlled_member
from pystore.cli import main
from pystore.errors import BadArgument

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(tmp_path / "etcd") as made:
        yield made


def member(folder: Path, names: str, controller: Etcd, **more: Any) -> Broker:
    return Broker(
        folder, namesrvAddr=names, enableControllerMode=True, controllerAddr=controller.address,
        **SMALL | more,
    )  # fmt: skip


def is_master(broker: Broker) -> bool:
    services = broker._services
    return (
        services is not None
        and services.replication is not None
        and services.replication.master is not None
    )


def in_sync(broker: Broker) -> int:
    keeper = broker._member.keeper if broker._member is not None else None
    return len(keeper.record.in_sync) if keeper is not None else 0


def send(names: str, count: int) -> dict[tuple[int, int], bytes]:
    """Where each is."""
    found = {}
    with Producer("p", names, send_timeout_s=5) as producer:
        while len(found) < count:
            body = b"m%d" % len(found)
            try:
                sent = producer.send(Message("orders", body))
            except (ClientError, OSError, TimeoutError):
                continue
            found[sent.queue.queue, sent.queue_offset] = body
    return found


@needs_etcd
def test_another_broker_of_the_set_takes_over_and_the_old_one_follows_it(
    names: str, controller: Etcd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack, member(tmp_path / "b", names, controller) as other:
        until(lambda: is_master(other), "the first master")
        one = stack.enter_context(member(tmp_path / "a", names, controller))
        until(lambda: in_sync(other) == 2, "both in sync")
        where = (controller.address, "b")
        assert main(["ha", "move", *where, "7"]) == 2
        assert main(["ha", "move", *where, "2", "--dry-run"]) == 0
        assert is_master(other)
        assert main(["ha", "move", *where, "2"]) == 0
        until(lambda: is_master(one) and not is_master(other), "the move")
        until(lambda: in_sync(one) == 2, "both in sync")
        found = send(names, 300)
        until_alike(one, other)
        capsys.readouterr()
        assert main(["ha", "group", *where, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["members"]
        assert [(row["number"], row["in_sync"]) for row in rows] == [(1, True), (2, True)]
        stack.close()  # the lease is given back
        until(lambda: is_master(other), "the next master")
        capsys.readouterr()
        assert main(["ha", "group", *where, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["group"]
        assert (row["master"], row["epoch"], row["in_sync"]) == (1, 3, "1")
        assert [each.epoch for each in other.services.replication.epochs] == [1, 2, 3]
        for (queue, offset), body in found.items():
            batch = other.store.read("orders", queue, offset, max_messages=1)
            assert bytes(batch[0].body) == body


SERVE = textwrap.dedent(
    """
    import json, sys, time
    from pathlib import Path
    from broker import Broker

    with Broker(Path(sys.argv[1]), **json.loads(sys.argv[2])) as one:
        while getattr(getattr(one._services, "replication", None), "master", None) is None:
            time.sleep(0.01)  # before that, another may become the master
        print(one.address, flush=True)
        sys.stdin.read()
    """
)


@needs_etcd
def test_a_master_whose_host_lost_power_yields_to_a_member_that_has_all(
    names: str, controller: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back before its lease is over, and nobody has noticed that it was gone."""

    async def nothing_is_heard(address: str) -> bool:
        return False

    monkeypatch.setattr(controlled_member, "_refuses", nothing_is_heard)
    folder = tmp_path / "a"
    given = SMALL | {
        "namesrvAddr": names, "enableControllerMode": True, "controllerAddr": controller.address,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), json.dumps(given)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        where = (controller.address, "b")
        with member(tmp_path / "b", names, controller) as other:

            def both_in_sync() -> bool:
                record = other._member.elected.record if other._member is not None else None
                return record is not None and record.in_sync == {1, 2}

            until(both_in_sync, "both in sync")
            found = send(names, 100)
            end = other.store.info().log_max
            process.kill()
            process.wait()
            lose_power(folder, end, 10_000)
            with member(folder, names, controller) as one:
                until(lambda: is_master(other), "the member that has all")
                until(lambda: in_sync(other) == 2, "both in sync again")
                for (queue, offset), body in found.items():
                    batch = other.store.read("orders", queue, offset, max_messages=1)
                    assert bytes(batch[0].body) == body
                until_alike(other, one)
                until(lambda: json.loads((folder / "brokerBoot").read_text())["sure"], "no doubt")
                assert main(["ha", "move", *where, "1"]) == 0
                until(lambda: is_master(one), "the move back")
    finally:
        process.kill()
        process.communicate()


@needs_etcd
def test_a_slave_tells_of_the_end_of_its_connection_from_its_first_moment(
    names: str, controller: Etcd, tmp_path: Path
) -> None:
    """And not from the next round of its member on, which a master that is killed soon after would
    cost a second without acknowledgements."""
    with member(tmp_path / "a", names, controller) as one:
        until(lambda: is_master(one), "the master")
        with member(tmp_path / "b", names, controller) as other:
            assert other._member is not None
            other.run(other._member.stop())  # there is no round any more
            other.run(other._become(other._member.elected))
            assert other.services.replication is not None
            slave = other.services.replication.slave
            assert slave is not None
            assert slave.on_lost == other._member.lost


@needs_etcd
def test_members_of_a_group_are_known_in_the_next_role(
    names: str, controller: Etcd, tmp_path: Path
) -> None:
    """Their connections end with the old one, and clients send a heartbeat every 30 s."""
    with member(tmp_path / "a", names, controller) as one:
        until(lambda: is_master(one), "the master")
        send(names, 1)
        with Consumer("g", "orders", namesrv=names, start="first", heartbeat_s=3600) as consumer:
            ids = one.services.clients.consumers["g"].client_ids()
            one.run(one._become(one._member.elected))
            assert one.services.clients.consumers["g"].client_ids() == ids
            assert next(iter(consumer)).body == b"m0"


@needs_etcd
def test_where_the_master_takes_slaves_is_etcds_word(
    names: str, controller: Etcd, tmp_path: Path
) -> None:
    """Without a secret a name server's word would lead an empty slave to anybody's log."""
    with ExitStack() as stack:
        one = stack.enter_context(member(tmp_path / "a", names, controller))
        until(lambda: is_master(one), "the master")
        other = stack.enter_context(member(tmp_path / "b", names, controller))
        until(lambda: in_sync(one) == 2, "both in sync")
        replication = other.services.replication
        replication._learn({"masterAddr": one.address, "haServerAddr": "127.0.0.1:1"})
        assert other.run(replication._ha_address()) == one.services.ha_address


@needs_etcd
def test_an_old_master_that_does_not_know_takes_no_route_back(
    controller: Etcd, tmp_path: Path
) -> None:
    """It reaches the name server, and the controller no more: clients would go on sending to it."""
    with ExitStack() as stack:
        server = stack.enter_context(NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1"))
        names = f"127.0.0.1:{server.port}"
        one = stack.enter_context(member(tmp_path / "a", names, controller))
        until(lambda: is_master(one), "the first master")
        other = stack.enter_context(member(tmp_path / "b", names, controller))
        until(lambda: in_sync(one) == 2, "both in sync")
        assert one._member is not None
        one.run(one._member.stop())  # its lease ends, and it hears of nothing any more

        def known() -> str:
            group = server.routes.member_group(one.settings["brokerClusterName"], "b")
            return str(group["brokerAddrs"].get(0))

        until(lambda: known() == other.address, "the new master is known")
        registration = one.services.registration
        one.run(registration._register_full(registration._servers))
        assert (is_master(one), known()) == (True, other.address)


@needs_etcd
@pytest.mark.long
def test_the_group_is_shown_with_how_far_each_is_and_why_one_is_out(
    names: str, controller: Etcd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"haMaxTimeSlaveNotCatchup": 500, "brokerName": "shown"}

    def shown() -> dict[int, dict[str, Any]]:
        capsys.readouterr()
        assert main(["ha", "group", controller.address, "shown", "--json"]) == 0
        return {row["number"]: row for row in json.loads(capsys.readouterr().out)["members"]}

    with ExitStack() as stack, member(tmp_path / "a", names, controller, **late) as one:
        until(lambda: is_master(one), "the master")
        other = stack.enter_context(member(tmp_path / "b", names, controller, **late))
        until(lambda: in_sync(one) == 2, "both in sync")
        with one.producer() as producer:
            producer.send(Message("orders", b"x" * 1000))
        until_alike(one, other)
        end = one.store.info().log_max
        whole = {"address": None, "log_end": end, "behind": 0, "in_sync": True, "why": None}
        until(lambda: shown() == {n: {"number": n} | whole for n in (1, 2)}, "both whole")
        stack.close()
        until(lambda: in_sync(one) == 1, "one is out")
        row = shown()[2]
        assert (row["in_sync"], row["log_end"], row["why"]) == (False, None, "not connected")


@needs_etcd
def test_without_etcd_nothing_is_acknowledged_until_it_is_back(
    names: str, controller: Etcd, tmp_path: Path
) -> None:
    with member(
        tmp_path / "a", names, controller, controllerHeartBeatTimeoutMills=2000, brokerName="alone"
    ) as one:
        until(lambda: is_master(one) and in_sync(one) == 1, "the master")
        controller.kill()
        until(lambda: one._member.keeper is not None and one._member.keeper.fenced, "the fence")
        with (
            one.producer(send_timeout_s=1, retries=0) as producer,
            pytest.raises((ClientError, OSError, TimeoutError)),
        ):
            producer.send(Message("orders", b"x"))
        controller.start()
        with one.producer(send_timeout_s=BOUND_S) as producer:

            def is_acknowledged() -> bool:
                try:
                    return producer.send(Message("orders", b"x")).status.name == "SEND_OK"
                except ClientError:  # a busy machine may cost it its lease once more
                    return False

            until(is_acknowledged, "that it goes on", 0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"controllerAddr": ""}, {"brokerId": 3}, {"brokerRole": "SYNC_MASTER"},
        {"allAckInSyncStateSet": False}, {"inSyncReplicas": 2}, {"haMasterAddress": "h:1"},
    ],
)  # fmt: skip
def test_what_would_have_no_effect_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    given = {"enableControllerMode": True, "controllerAddr": "127.0.0.1:1"} | wrong
    with pytest.raises(BadArgument, match=r"enableControllerMode|controllerAddr"):
        Broker(tmp_path / "s", **given)


@pytest.mark.parametrize(
    "wrong", [{"controllerAddr": "h:1"}, {"allAckInSyncStateSet": True}, {"brokerId": -1}]
)
def test_a_controllers_settings_need_one(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="without enableControllerMode"):
        Broker(tmp_path / "s", **wrong)
