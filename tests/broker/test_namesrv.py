"""The name server: its tables by themselves, then its requests over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from unittest import mock

import pytest
from loops import Wire, run, until
from waiting import BOUND_S

from broker.namesrv import NameServer, processor, registration
from broker.namesrv.kv import KvConfig
from broker.namesrv.registration import parse
from broker.namesrv.routes import BrokerRegistration, BrokerTopic, MinIdChange, Routes
from broker.namesrv.settings import NamesrvSettings
from broker.remoting.client import RemotingClient
from broker.wire.command import BINARY, JSON, Command
from pystore.errors import BadArgument, RecordDamaged
from pystore.files import javajson
from pystore.meta.configfiles import DataVersion

PYSTORE = Path(sys.executable).parent / "pystore"


class Clock:
    now = 1_000_000

    def __call__(self):
        return self.now


class Peer:
    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def routes(clock):
    return Routes(clock)


TWO = {"a": BrokerTopic(4, 4, 6, 0), "b": BrokerTopic(8, 8, 6, 0)}


def broker(name="broker-a", number=0, topics=None, counter=1, **more):
    given = {"cluster": "c1", "address": f"{name}:{number}", "ha_address": f"ha-{name}:{number}"}
    version = DataVersion(more.pop("state", 0), counter, 7)
    return BrokerRegistration(
        name=name,
        broker_id=number,
        version=version,
        topics=TWO if topics is None else topics,
        **(given | more),
    )


def shown(routes, topic):
    """The route without what most tests do not look at."""
    route = routes.route(topic)
    if route is None:
        return None
    return (
        {each["brokerName"]: each["brokerAddrs"] for each in route["brokerDatas"]},
        {each["brokerName"]: each["perm"] for each in route["queueDatas"]},
    )


# ---- registration ----


def test_a_registered_topic_has_a_route(routes):
    assert routes.register(broker()) is not None
    assert routes.route("a") == {
        "brokerDatas": [
            {
                "brokerAddrs": {0: "broker-a:0"},
                "brokerName": "broker-a",
                "cluster": "c1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert routes.route("unknown") is None


def test_brokers_of_a_route_are_in_the_order_of_their_registration(routes):
    for name in ("z", "m", "a"):
        routes.register(broker(name))
    route = routes.route("a")
    assert [each["brokerName"] for each in route["brokerDatas"]] == ["z", "m", "a"]
    assert [each["brokerName"] for each in route["queueDatas"]] == ["z", "m", "a"]


def test_an_unknown_broker_with_a_single_topic_is_refused_and_leaves_nothing(routes):
    single = broker(topics={"a": TWO["a"]})
    assert routes.register(single) is None
    assert routes.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert routes.register(broker(topics={})) is not None  # none at all is a full registration
    assert routes.register(single) is not None
    assert routes.topics() == ["a"]


def test_topics_are_looked_at_when_the_data_version_differs(routes):
    routes.register(broker())
    wider = {"a": BrokerTopic(16, 16, 6, 0), "new": BrokerTopic(1, 1, 6, 0)}
    routes.register(broker(topics=wider))  # the same version: only what is missing is taken
    assert routes.route("a")["queueDatas"][0]["readQueueNums"] == 4
    assert routes.route("new") is not None
    routes.register(broker(topics=wider, counter=2))
    assert routes.route("a")["queueDatas"][0]["readQueueNums"] == 16
    assert routes.route("b") is not None  # not among them, and stays


def test_topics_that_a_registration_lacks_go_when_that_is_asked_for(routes):
    routes.switches.delete_topics = True
    routes.register(broker())
    routes.register(broker("other"))
    routes.register(broker(topics={"a": TWO["a"], "c": TWO["a"]}, counter=2))
    assert shown(routes, "b")[1].keys() == {"other"}
    assert sorted(routes.topics()) == ["a", "b", "c"]


def test_a_slave_learns_its_master_and_brings_no_topics(routes):
    done = routes.register(broker(number=1, topics={"x": TWO["a"], "y": TWO["a"]}))
    assert (done.master_address, done.ha_address) == (None, None)
    assert routes.topics() == []
    routes.register(broker())
    done = routes.register(broker(number=1))
    assert (done.master_address, done.ha_address) == ("broker-a:0", "ha-broker-a:0")
    assert shown(routes, "a")[0] == {"broker-a": {0: "broker-a:0", 1: "broker-a:1"}}


def test_an_address_has_one_id(routes):
    """A slave that becomes a master leaves its old id."""
    routes.register(broker(number=1, address="x:1"))
    routes.register(broker(number=0, address="x:1", counter=2))
    assert shown(routes, "a")[0] == {"broker-a": {0: "x:1"}}


def test_a_master_of_an_earlier_state_of_the_controller_is_passed_over(routes):
    routes.register(broker(address="new:1", state=5))
    assert routes.register(broker(address="old:1", state=4)) is not None
    assert shown(routes, "a")[0] == {"broker-a": {0: "new:1"}}
    routes.register(broker(address="newer:1", state=6))
    assert shown(routes, "a")[0] == {"broker-a": {0: "newer:1"}}


# ---- departure ----


def test_a_broker_goes_with_its_connection(routes):
    peer, other = Peer(), Peer()
    routes.register(broker(peer=peer))
    routes.register(broker("broker-b", peer=other))
    routes.peer_closed(peer)
    assert shown(routes, "a")[0] == {"broker-b": {0: "broker-b:0"}}
    routes.register(broker("broker-b", peer=peer))  # it has connected again
    routes.peer_closed(other)
    assert shown(routes, "a") is not None
    routes.peer_closed(peer)
    assert routes.topics() == [] and routes.cluster_info()["clusterAddrTable"] == {}


def test_a_broker_without_sign_of_life_goes(routes, clock):
    peer = Peer()
    routes.register(broker(peer=peer))
    routes.register(broker("short", timeout_ms=1000))
    clock.now += 1001
    assert routes.expire() == ([], [])
    assert shown(routes, "a")[0].keys() == {"broker-a"}
    clock.now += 100_000
    routes.sign_of_life("c1", "broker-a", "broker-a:0")
    clock.now += 120_000
    assert routes.expire() == ([], [])
    assert shown(routes, "a") is not None
    clock.now += 1
    assert routes.expire() == ([], [peer])
    assert shown(routes, "a") is None


def test_a_broker_that_says_so_goes_and_its_name_with_the_last(routes):
    routes.register(broker())
    routes.register(broker(number=1))
    routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    assert shown(routes, "a") == ({"broker-a": {1: "broker-a:1"}}, {"broker-a": 6})
    routes.unregister([("c1", "broker-a:1", "broker-a", 1), ("c1", "gone:1", "gone", 0)])
    assert shown(routes, "a") is None
    assert routes.system_topics() == ([], None)


# An address that somebody else names: a pod's that is used again while the old connection is half
# open, a broker that was renamed, or a stranger's word.


def test_a_broker_goes_with_its_connection_whoever_took_its_address(routes):
    old, new = Peer(), Peer()
    routes.register(broker("broker-a", address="x:1", peer=old))
    routes.register(broker("broker-b", address="x:1", peer=new))
    routes.peer_closed(old)
    assert shown(routes, "a")[0] == {"broker-b": {0: "x:1"}}
    routes.peer_closed(new)
    assert shown(routes, "a") is None and routes.cluster_info()["clusterAddrTable"] == {}


def test_a_broker_goes_with_its_silence_whoever_took_its_address(routes, clock):
    routes.register(broker("broker-a", address="x:1"))
    clock.now += 60_000
    routes.register(broker("broker-b", address="x:1"))
    clock.now += 60_001
    routes.sign_of_life("c1", "broker-b", "x:1")
    routes.expire()
    assert shown(routes, "a")[0] == {"broker-b": {0: "x:1"}}


def test_nobody_leaves_under_another_name_or_cluster(routes, clock):
    peer = Peer()
    routes.register(broker("broker-a", address="x:1", peer=peer))
    routes.register(broker("broker-b", address="y:1"))
    routes.unregister([("c1", "x:1", "broker-b", 0), ("c2", "x:1", "broker-a", 0)])
    assert shown(routes, "a")[0] == {"broker-a": {0: "x:1"}, "broker-b": {0: "y:1"}}
    routes.peer_closed(peer)
    assert shown(routes, "a")[0] == {"broker-b": {0: "y:1"}}


def test_a_broker_whose_registration_is_outdated_goes_with_its_connection(routes):
    """It was a slave of the name before; nothing of what was refused stays."""
    slave, master = Peer(), Peer()
    routes.register(broker(number=1, address="x:1", peer=slave))
    routes.register(broker(address="new:1", state=5, peer=master))
    routes.register(broker(address="x:1", state=4, peer=slave))
    assert shown(routes, "a")[0] == {"broker-a": {0: "new:1", 1: "x:1"}}
    routes.peer_closed(slave)
    assert shown(routes, "a")[0] == {"broker-a": {0: "new:1"}}


def test_a_broker_in_two_clusters_goes_with_the_last(routes):
    one, two = Peer(), Peer()
    routes.register(broker(peer=one))
    routes.register(broker(cluster="c2", peer=two))
    routes.peer_closed(one)
    assert shown(routes, "a") is not None
    routes.peer_closed(two)
    assert shown(routes, "a") is None


def test_filter_servers_are_of_one_name(routes):
    routes.register(broker("broker-a", address="x:1", filters=["f:1"]))
    routes.register(broker("broker-b", address="x:1"))
    assert routes.route("a")["filterServerTable"] == {"x:1": ["f:1"]}


MANY = {f"t{i}": TWO["a"] for i in range(35)}


def test_a_broker_of_very_many_topics_comes_and_goes_in_pieces(routes, monkeypatch):
    """None of them is in a route once it is gone, whether the tables have it still or not."""
    monkeypatch.setattr("broker.namesrv.routes.A_PIECE", 10)
    given = broker(topics=MANY)
    routes.register(given)
    assert len(routes.topics()) == 10
    assert [routes.take_more(given) for _ in range(3)] == [True, True, False]
    assert (len(routes.topics()), shown(routes, "t34")[1]) == (35, {"broker-a": 6})
    routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    assert (len(routes.topics()), shown(routes, "t34")) == (25, None)
    routes.register(broker(topics={"t34": TWO["b"], "new": TWO["b"]}))  # it is back already
    while routes.drop_more():
        pass
    assert sorted(routes.topics()) == ["new", "t34"]
    assert shown(routes, "t34")[1] == {"broker-a": 6}


def test_a_broker_that_goes_while_it_registers_leaves_nothing(routes, monkeypatch):
    monkeypatch.setattr("broker.namesrv.routes.A_PIECE", 10)
    given = broker(topics=MANY)
    routes.register(given)
    routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    while routes.take_more(given) or routes.drop_more():
        pass
    assert (routes.topics(), routes.size) == ([], 0)


def test_a_broker_that_goes_costs_the_time_of_its_own_topics(routes):
    looked = []
    plain = routes._take_out
    routes._take_out = lambda *given: looked.append(given) or plain(*given)
    peers = [Peer() for _ in range(50)]
    for n, peer in enumerate(peers):
        topics = {f"{n}-{i}": TWO["a"] for i in range(20)}
        routes.register(broker(f"broker-{n}", topics=topics, peer=peer))
    routes.peer_closed(Peer())
    assert looked == []
    routes.peer_closed(peers[7])
    assert sorted(topic for _, topic, _ in looked) == sorted(f"7-{i}" for i in range(20))


def test_brokers_of_a_network_that_fails_leave_in_turns(monkeypatch):
    """Each takes three milliseconds of that clock, and others are served between two of them."""
    now, order = [0.0], []
    monkeypatch.setattr("broker.loop.turns.monotonic", lambda: now[0])

    async def work():
        async with NameServer(listenPort=0, bindAddress="127.0.0.1", kvConfigPath="") as names:
            plain = names.routes.peer_closed

            def slow(peer):
                now[0] += 0.003
                order.append("gone")
                return plain(peer)

            names.routes.peer_closed = slow
            for peer in [Peer() for _ in range(40)]:
                names._closed(peer)
            while order.count("gone") < 40:
                order.append("other")
                await asyncio.sleep(0)

    run(work())
    assert "gone gone" not in " ".join(order)


def test_registrations_hold_so_much_memory_and_no_more(routes, monkeypatch):
    """Who is known stays, with what it serves already."""
    monkeypatch.setattr("broker.namesrv.routes.SIZE_MAX", 13_400)
    routes.register(broker(topics=MANY))
    assert routes.is_full
    assert routes.register(broker("broker-b")) is None
    routes.register(broker(topics={"t0": TWO["b"], "new": TWO["b"]}, counter=2))
    routes.register_topic("other", {"broker-a": TWO["a"]})
    assert routes.route("t0")["queueDatas"][0]["readQueueNums"] == 8
    assert len(routes.topics()) == 20
    routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    assert routes.size == 0
    assert routes.register(broker("broker-b")) is not None


def test_a_static_topic_goes_with_the_broker_that_registered_it(routes):
    for name in ("broker-a", "broker-b"):
        info = {"topic": "a", "bname": f"of-{name}"}
        routes.register(broker(name, mapping={"a": info}))
    routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    assert list(routes.route("a")["topicQueueMappingByBroker"]) == ["of-broker-b"]
    routes.unregister([("c1", "broker-b:0", "broker-b", 0)])
    assert (routes._mapping, routes.size) == ({}, 0)


# ---- acting masters ----


def test_a_slave_stands_in_for_a_master_that_is_gone(routes):
    routes.switches.support_acting_master = True
    for number in (0, 1, 2):
        routes.register(broker(number=number, acting_master=True))
    changes = routes.unregister([("c1", "broker-a:0", "broker-a", 0)])
    assert changes == [
        MinIdChange(("broker-a:1", "broker-a:2"), 1, "broker-a:1", "broker-a:0", None)
    ]
    # It may be read, not written, and has the master's id for clients alone.
    assert shown(routes, "a") == (
        {"broker-a": {0: "broker-a:1", 2: "broker-a:2"}},
        {"broker-a": 4},
    )
    assert routes.member_group("c1", "broker-a")["brokerAddrs"] == {
        1: "broker-a:1",
        2: "broker-a:2",
    }
    done = routes.register(broker(acting_master=True, counter=2))
    assert done.change == MinIdChange(
        ("broker-a:1", "broker-a:2"), 0, "broker-a:0", None, "ha-broker-a:0"
    )
    assert shown(routes, "a")[1] == {"broker-a": 6}


def test_the_slave_with_the_smallest_id_brings_topics_without_the_right_to_write(routes):
    routes.register(broker(number=2, acting_master=True))
    assert shown(routes, "a")[1] == {"broker-a": 4}
    routes.register(broker(number=1, acting_master=False, counter=3))
    assert shown(routes, "a")[1] == {"broker-a": 6}  # not acting: as it says itself


# ---- topics, rights, lists ----


def test_the_right_to_write_is_taken_and_given_back(routes):
    routes.register(broker(topics=TWO | {"c": BrokerTopic(1, 1, 4, 0)}))
    routes.register(broker("other"))
    assert routes.change_write_perm("broker-a", False, routes.topics()) == 3
    assert shown(routes, "a")[1] == {"broker-a": 4, "other": 6}
    routes.register(broker(topics=TWO))  # the same version changes nothing
    assert shown(routes, "a")[1] == {"broker-a": 4, "other": 6}
    assert routes.change_write_perm("broker-a", True, routes.topics()) == 3
    assert shown(routes, "c")[1] == {"broker-a": 6}
    assert routes.change_write_perm("unknown", True, routes.topics()) == 0


def test_a_topic_is_deleted_everywhere_or_in_a_cluster(routes):
    routes.register(broker())
    routes.register(broker("other", cluster="c2"))
    routes.delete_topic("a", "c2")
    assert shown(routes, "a")[0].keys() == {"broker-a"}
    routes.delete_topic("a", "unknown")
    assert shown(routes, "a") is not None
    routes.delete_topic("a")
    routes.delete_topic("a")
    assert shown(routes, "a") is None and shown(routes, "b") is not None


def test_a_topic_may_be_registered_by_a_tool(routes):
    routes.register(broker())
    routes.register_topic("tool", {"broker-a": TWO["a"]})
    routes.register_topic("bad", {"broker-a": TWO["a"], "unknown": TWO["a"]})
    assert shown(routes, "tool") is not None and shown(routes, "bad") is None


def test_lists_of_topics(routes):
    routes.register(
        broker(topics=TWO | {"unit": BrokerTopic(1, 1, 6, 1), "sub": BrokerTopic(1, 1, 6, 2)})
    )
    routes.register(
        broker("other", cluster="c2", topics={"a": TWO["a"], "z": BrokerTopic(1, 1, 6, 3)})
    )
    assert sorted(routes.topics()) == ["a", "b", "sub", "unit", "z"]
    topics = routes.topics()
    assert sorted(routes.of_cluster("c2", topics)) == ["a", "z"]
    assert routes.of_cluster("unknown", topics) == []
    assert sorted(routes.topics_of("other")) == ["a", "z"]
    assert routes.system_topics() == (["c1", "broker-a", "c2", "other"], "broker-a:0")
    assert sorted(routes.flagged(lambda flag: flag & 1, topics)) == ["unit", "z"]
    assert routes.flagged(lambda flag: flag & 3 == 2, [*topics, "gone"]) == ["sub"]


def test_lists_of_very_many_topics_are_written_in_pieces(monkeypatch):
    sizes = []
    plain = processor.compact
    monkeypatch.setattr(processor, "_A_TURN", 10)
    monkeypatch.setattr(processor, "compact", lambda each: sizes.append(len(each)) or plain(each))

    async def work():
        async with NameServer(listenPort=0, bindAddress="127.0.0.1", kvConfigPath="") as names:
            names.routes.register(broker(topics=MANY))
            async with await Wire.to(names.port) as wire:
                found = [
                    json.loads((await wire.ask(Command(code, {"cluster": "c1"}))).body)
                    for code in (206, 224, 311)
                ]
                wiped = await wire.ask(Command(205, {"brokerName": "broker-a"}))
                return [sorted(each["topicList"]) for each in found], wiped.ext["wipeTopicCount"]

    lists, wiped = run(work())
    assert lists == [sorted(MANY), sorted(MANY), []]
    assert (max(sizes), wiped) == (10, "35")


def test_brokers_are_bounded_in_number(routes, monkeypatch):
    """A list of all of them is made for whoever asks."""
    monkeypatch.setattr("broker.namesrv.routes.BROKERS_MAX", 3)
    done = [routes.register(broker("broker-a", number)) for number in (0, 1, 2, 3, 0)]
    assert [each is None for each in done] == [False, False, False, True, False]


def test_filter_servers_are_shown_by_address(routes):
    routes.register(broker(filters=["f1", "f2"]))
    assert routes.route("a")["filterServerTable"] == {"broker-a:0": ["f1", "f2"]}
    routes.register(broker())
    assert routes.route("a")["filterServerTable"] == {}


def test_encoded_routes_are_those_of_the_moment(routes, rng):
    """Whatever happens, in any order: what is kept is what would be rebuilt."""
    names = ["a", "b", "new", "x"]

    def act():
        name, number = rng.choice(("m", "n")), rng.randint(0, 2)
        topics = {
            t: BrokerTopic(rng.randint(1, 2), 1, 6, 0) for t in rng.sample(names, rng.randint(1, 4))
        }
        version = rng.randint(1, 3)
        match rng.randint(0, 6):
            case 0 | 1 | 2:
                given = broker(name, number, topics, version, acting_master=rng.random() < 0.5)
                given.filters = ["f"] * rng.randint(0, 1)
                given.zone = rng.choice((None, "z"))
                given.mapping = {"x": {"bname": name}} if rng.random() < 0.2 else {}
                routes.register(given)
            case 3:
                routes.unregister([("c1", f"{name}:{number}", name, number)])
            case 4:
                routes.change_write_perm(name, rng.random() < 0.5, routes.topics())
            case 5:
                routes.delete_topic(rng.choice(names), rng.choice(("", "c1")))
            case 6:
                routes.register_topic(rng.choice(names), {name: BrokerTopic(9, 9, 6, 0)})

    for _ in range(3000):
        act()
        for topic in names:
            route = routes.route(topic)
            for quoted in (True, False):
                kept = routes.encoded_route(topic, quoted)
                made = None if kept is None else javajson.loads(kept)
                assert made == (None if route is None else json.loads(json.dumps(route)))


# ---- bodies of registrations ----


def packed(topics, mapping=(), filters=()):
    def text(value):
        data = value.encode()
        return struct.pack(">i", len(data)) + data

    version = json.dumps({"counter": 3, "stateVersion": 1, "timestamp": 9})
    whole = text(version) + struct.pack(">i", len(topics)) + b"".join(map(text, topics))
    whole += text(json.dumps(list(filters)))
    if mapping is not None:
        whole += struct.pack(">i", len(mapping)) + b"".join(text(json.dumps(m)) for m in mapping)
    return zlib.compress(whole)


def test_a_packed_body_says_what_the_plain_one_says():
    data = packed(
        ["t 3 4 6 SINGLE_TAG ", 'u 1 1 2 MULTI_TAG {"a b":"c"}', "old 8 8 6 SINGLE_TAG"],
        [{"topic": "t", "bname": "b", "currIdMap": {0: 0}}],
        ["f"],
    )
    made = parse(data, True, 479)
    assert made.version == DataVersion(1, 3, 9)
    assert made.topics == {
        "t": BrokerTopic(3, 4, 6, 0),
        "u": BrokerTopic(1, 1, 2, 0),
        "old": BrokerTopic(8, 8, 6, 0),
    }
    assert made.mapping["t"]["bname"] == "b" and made.filters == ["f"]
    assert parse(data, False, 479) == made  # so say brokers of 5.x
    before_5 = parse(packed(["t 3 4 6 SINGLE_TAG "], None), True, 409)
    assert before_5.topics == {"t": BrokerTopic(3, 4, 6, 0)} and before_5.mapping == {}


def test_the_plain_bodies():
    wrapper = {
        "dataVersion": {"counter": 3, "timestamp": 9},
        "topicConfigTable": {"t": {"topicName": "t", "readQueueNums": 3, "order": False}},
        "topicQueueMappingInfoMap": {"t": {"bname": "b"}},
    }
    text = json.dumps({"filterServerList": ["f"], "topicConfigSerializeWrapper": wrapper}).encode()
    made = parse(text, False, 479)
    assert made.topics == {"t": BrokerTopic(3, 16, 6, 0)} and made.filters == ["f"]
    assert made.version == DataVersion(0, 3, 9) and made.mapping == {"t": {"bname": "b"}}
    old = parse(json.dumps(wrapper).encode(), False, 36)
    assert old.topics == made.topics and old.filters == []
    assert parse(b"", False, 479).topics == {}


def test_one_odd_topic_is_no_reason_to_refuse_a_broker():
    """Apache's brokers take any number for a topic, and its name server does, too."""
    odd = {"topicName": "odd", "readQueueNums": -1, "perm": -1, "topicSysFlag": -1}
    wrapper = {"dataVersion": {}, "topicConfigTable": {"odd": odd, "t": {"topicName": "t"}}}
    made = parse(json.dumps({"topicConfigSerializeWrapper": wrapper}).encode(), False, 479)
    assert made.topics == {"odd": BrokerTopic(-1, 16, -1, -1), "t": BrokerTopic(16, 16, 6, 0)}
    made = parse(packed(["odd -1 4 -1 SINGLE_TAG ", "t 3 4 6 SINGLE_TAG "]), True, 479)
    assert made.topics == {"odd": BrokerTopic(-1, 4, -1, 0), "t": BrokerTopic(3, 4, 6, 0)}


BAD_BODIES = {
    "no JSON": (b"{", False),
    "a list": (b"[]", False),
    "a text as wrapper": (b'{"topicConfigSerializeWrapper":"x"}', False),
    "a text as table": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":"x"}}', False),
    "a text as number": (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":"x"}}}}',
        False,
    ),
    "a list as number": (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":[]}}}}',
        False,
    ),
    "a number as filters": (b'{"filterServerList":5}', False),
    "deep": (b"[" * 100_000, False),
    "not packed": (b"hello", True),
    "packed and cut": (packed(["t 3 4 6 SINGLE_TAG "])[:-5], True),
    "packed text that ends": (zlib.compress(b"\0\0\0\x09{}"), True),
    "packed negative": (zlib.compress(b"\xff\xff\xff\xff"), True),
    "packed words": (packed(["t 3"]), True),
    "packed numbers": (packed(["t a b c SINGLE_TAG"]), True),
    "packed mapping": (packed([], ["x"]), True),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_is_none_is_a_value_error(name):
    data, is_packed = BAD_BODIES[name]
    with pytest.raises(ValueError):
        parse(data, is_packed, 479)


def test_a_body_that_unpacks_to_too_much_is_refused():
    with pytest.raises(ValueError, match="too much"):
        parse(zlib.compress(bytes(300 << 20), 1), True, 479)


# ---- requests ----


def register(name="broker-a", number=0, topics=("a", "b"), version=479, counter=1, **ext):
    rows = {t: {"topicName": t, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for t in topics}
    body = json.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": 7},
                "topicConfigTable": rows,
            },
        }
    ).encode()
    fields = {
        "brokerName": name,
        "brokerAddr": f"{name}:{number}",
        "clusterName": "c1",
        "haServerAddr": "ha",
        "brokerId": str(number),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(103, fields | ext, body, version=version)


@contextlib.asynccontextmanager
async def on_wire(**settings):
    """A client of a fresh name server, and that."""
    async with NameServer(listenPort=0, **settings) as names, await Wire.to(names.port) as wire:
        yield wire, names


async def test_a_packed_registration_is_read_beside_the_loop(monkeypatch):
    """However short it is: a few bytes may become 16 MiB."""
    at = []

    def watched(*given):
        at.append(asyncio._get_running_loop())
        return usual(*given)

    usual = registration._unpacked
    monkeypatch.setattr(registration, "_unpacked", watched)
    async with on_wire() as (wire, _):
        command = register(compressed="true", version=479)
        command.body = packed(["t 3 4 6 SINGLE_TAG ", "u 3 4 6 SINGLE_TAG "])
        del command.ext["bodyCrc32"]
        answer = await wire.ask(command)
        assert answer.code == 0, answer.remark
    assert at == [None]


async def test_both_styles_of_keys():
    async with on_wire() as (wire, _):
        assert (await wire.ask(register())).code == 0
        for serialize in (JSON, BINARY):
            for version, ext, quoted in (
                (401, {}, True),
                (479, {}, True),
                (400, {}, False),
                (0, {"acceptStandardJsonOnly": "true"}, True),
            ):
                asked = Command(105, {"topic": "a", **ext}, version=version, serialize=serialize)
                answer = await wire.ask(asked)
                addresses = b'{"0":"broker-a:0"}' if quoted else b'{0:"broker-a:0"}'
                assert addresses in bytes(answer.body) and answer.serialize == serialize
                assert b" " not in bytes(answer.body)


async def test_a_registration_that_is_damaged_is_refused():
    async with on_wire() as (wire, names):
        for bad, text in (
            (register(bodyCrc32="5"), "crc32 not match"),
            (register(brokerId="-1"), "a broker's id is not negative"),
            (register(brokerId="x"), "brokerId"),
            (register(brokerName=""), "brokerName"),
            (register(topics=["single"]), "register broker failed"),
            (register(compressed="true"), "the registration cannot be read"),
        ):
            answer = await wire.ask(bad)
            assert answer.code == 1 and text in answer.remark
        assert names.routes.cluster_info()["brokerAddrTable"] == {}


async def test_data_versions_are_compared():
    async with on_wire() as (wire, _):
        await wire.ask(register(counter=4))
        for counter, changed in ((4, "false"), (5, "true")):
            body = json.dumps({"counter": counter, "stateVersion": 0, "timestamp": 7}).encode()
            ext = {"brokerName": "broker-a", "brokerAddr": "broker-a:0", "clusterName": "c1"}
            answer = await wire.ask(Command(322, ext | {"brokerId": "0"}, body))
            assert answer.ext == {"changed": changed}
            assert json.loads(answer.body)["counter"] == 4
        answer = await wire.ask(Command(322, ext | {"brokerAddr": "x", "brokerId": "0"}, body))
        assert (answer.ext, answer.body) == ({"changed": "true"}, b"")


async def test_lists_are_sets_and_may_be_refused():
    async with on_wire() as (wire, names):
        await wire.ask(register())
        await wire.ask(register("broker-b"))
        for code, ext in ((206, {}), (224, {"cluster": "c1"})):
            answer = await wire.ask(Command(code, ext))
            assert sorted(json.loads(answer.body)["topicList"]) == ["a", "b"]
        answer = await wire.ask(Command(304))
        assert json.loads(answer.body) == {
            "brokerAddr": "broker-a:0",
            "topicList": ["c1", "broker-a", "broker-b"],
        }
        names.settings.update({"enableTopicList": "false", "enableAllTopicList": "false"})
        for code in (206, 224, 311, 312, 313):
            answer = await wire.ask(Command(code, {"cluster": "c1"}))
            assert (answer.code, answer.remark) == (1, "disable")


async def test_nearby_routes_leave_other_zones_out():
    async with on_wire() as (wire, _):
        await wire.ask(register("near", __ZONE_NAME="z1"))
        await wire.ask(register("far", __ZONE_NAME="z2"))
        await wire.ask(register("orphan", 1, __ZONE_NAME="z3", enableActingMaster="true"))
        ext = {"topic": "a", "__ZONE_MODE": "true", "__ZONE_NAME": "Z1"}
        route = json.loads((await wire.ask(Command(105, ext))).body)
        assert {b["brokerName"]: b["zoneName"] for b in route["brokerDatas"]} == {
            "near": "z1",
            "orphan": "z3",
        }
        assert {q["brokerName"] for q in route["queueDatas"]} == {"near", "orphan"}
        route = json.loads((await wire.ask(Command(105, {"topic": "a"}))).body)
        assert len(route["brokerDatas"]) == 3


async def test_key_values_are_kept_in_the_file(tmp_path):
    path = tmp_path / "sub" / "kvConfig.json"
    async with on_wire(kvConfigPath=path) as (wire, _):
        for key, value in (("k1", "v1"), ("k2", "ü"), ("k3", "")):
            asked = Command(100, {"namespace": "n", "key": key, "value": value})
            assert (await wire.ask(asked)).code == (0 if value or key == "k3" else 1)
        answer = await wire.ask(Command(101, {"namespace": "n", "key": "k2"}))
        assert answer.ext == {"value": "ü"}
        assert (await wire.ask(Command(102, {"namespace": "n", "key": "k1"}))).code == 0
        answer = await wire.ask(Command(101, {"namespace": "n", "key": "k1"}))
        assert answer.code == 22 and "Namespace: n Key: k1" in answer.remark
        answer = await wire.ask(Command(219, {"namespace": "n"}))
        assert json.loads(answer.body)["table"]["k2"] == "ü"
        assert (await wire.ask(Command(219, {"namespace": "none"}))).code == 22
        assert (await wire.ask(Command(100, {"namespace": "n", "key": "k"}))).code == 1
        asked = [Command(100, {"namespace": "m", "key": str(n), "value": "x"}) for n in range(20)]
        wire.write(*asked)
        assert {(await wire.answer()).code for _ in asked} == {0}
    kept = KvConfig(path)
    assert kept.get("n", "k2") == "ü" and len(kept.tables["m"]) == 20
    assert json.loads(path.read_text()) == {"configTable": kept.tables}


def test_a_torn_file_of_key_values_is_read_from_its_copy(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"n":{"k":"v')
    with pytest.raises(RecordDamaged, match=r"kvConfig\.json"):
        KvConfig(path)
    (tmp_path / "kvConfig.json.bak").write_text('{"configTable":{"n":{"k":"old"}}}')
    assert KvConfig(path).get("n", "k") == "old"


@pytest.mark.parametrize("deleted", [False, True])
def test_names_of_key_values_are_bounded_too(deleted):
    """Each entry in a namespace of its own, which stays when its key is deleted."""
    kv, refused = KvConfig(None), 0
    for number in range(200):
        try:
            kv.put(f"{number:05}" * 4096, "k", "")
        except BadArgument:
            refused += 1
        if deleted:
            kv.delete(f"{number:05}" * 4096, "k")
    held = sum(len(name) + len("".join(table)) for name, table in kv.tables.items())
    assert held <= 2 << 20
    assert bool(refused) is not deleted


def test_a_key_value_configuration_that_is_full_takes_a_shorter_value():
    kv = KvConfig(None)
    kv.put("n", "k", "x" * ((2 << 20) - 2 * 64 - 2))
    with pytest.raises(BadArgument):
        kv.put("n", "other", "")
    kv.put("n", "k", "short")
    kv.put("n", "other", "")
    assert kv.size == 3 * 64 + len("nkshortother")


async def test_order_topics_are_shown_to_clients_and_to_brokers():
    async with on_wire() as (wire, _):
        await wire.ask(register())
        put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "a", "value": "broker-a:4"}
        await wire.ask(Command(100, put))
        assert json.loads((await wire.ask(register())).body) == {"table": {"a": "broker-a:4"}}
        assert b"orderTopicConf" not in bytes((await wire.ask(Command(105, {"topic": "a"}))).body)
        answer = await wire.ask(Command(318, {}, b"orderMessageEnable=true\n"))
        assert answer.code == 0
        for value in ("broker-a:4", "broker-a:8"):
            await wire.ask(Command(100, put | {"value": value}))
            route = json.loads((await wire.ask(Command(105, {"topic": "a"}))).body)
            assert route["orderTopicConf"] == value
        await wire.ask(Command(102, put))
        assert b"orderTopicConf" not in bytes((await wire.ask(Command(105, {"topic": "a"}))).body)


async def test_settings_are_changed_and_kept(tmp_path):
    path = tmp_path / "namesrv.properties"
    async with on_wire(configStorePath=path) as (wire, names):
        change = b"scanNotActiveBrokerInterval=1234\nunknownToUpstream=5\n"
        assert (await wire.ask(Command(318, {}, change))).code == 0
        lines = bytes((await wire.ask(Command(319))).body).decode().splitlines()
        assert "scanNotActiveBrokerInterval=1234" in lines and lines == sorted(lines)
        for bad, code in (
            (b"kvConfigPath=/etc/passwd", 16),
            (b"rocketmqHome=/", 16),
            (b"orderMessageEnable=perhaps", 1),
            (b"listenPort=70000\norderMessageEnable=true", 1),
            (b"\xff\xfe", 1),
        ):
            assert (await wire.ask(Command(318, {}, bad))).code == code
        assert names.settings.flag("orderMessageEnable") is False
    assert NamesrvSettings(path).number("scanNotActiveBrokerInterval") == 1234


@pytest.mark.parametrize("value", [r"x\rkvConfigPath=/elsewhere", r"x\nkvConfigPath=/elsewhere"])
async def test_a_setting_brings_no_line_into_the_file_of_settings(tmp_path, value):
    """What may not be changed is not changed by way of what may, at the next start."""
    async with on_wire(configStorePath=tmp_path / "namesrv.properties") as (wire, _):
        answer = await wire.ask(Command(318, {}, f"productEnvName={value}".encode()))
        assert (answer.code, "line break" in answer.remark) == (1, True)


@pytest.mark.parametrize("value", ["a\\", "a\\b", "ü = :", "#!"])
def test_settings_are_read_as_they_were_saved(tmp_path, value):
    """A backslash at the end of a value does not swallow the next setting."""
    path = tmp_path / "namesrv.properties"
    made = NamesrvSettings(None, {"productEnvName": value, "returnOrderTopicConfigToBroker": False})
    path.write_text(made.dumped())
    again = NamesrvSettings(path)
    assert again.text("productEnvName") == value
    assert again.dumped() == made.dumped()


async def test_a_reload_takes_what_the_file_has_otherwise(tmp_path, caplog):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("orderMessageEnable=false\nlistenPort=0\n")
    async with NameServer(conf, kvConfigPath="") as names:
        names.settings.update({"enableTopicList": "false"})
        conf.write_text("orderMessageEnable=true\nlistenPort=1\ntls.server.mode=disabled\n")
        with caplog.at_level(logging.INFO, "broker.settings"):
            names.reload()
        assert names.settings.flag("orderMessageEnable")
        assert not names.settings.flag("enableTopicList")  # by a request: the file is silent
        said = [record.getMessage() for record in caplog.records]
    assert f"Read {conf} again; changed: orderMessageEnable" in said
    assert "Only a start takes over: listenPort, tls.server.mode" in said


async def test_a_file_with_a_mistake_changes_nothing(tmp_path, caplog):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("")
    async with NameServer(conf, kvConfigPath="", listenPort=0) as names:
        conf.write_text("orderMessageEnable=true\nscanNotActiveBrokerInterval=soon\n")
        names.reload()
        assert not names.settings.flag("orderMessageEnable")
    assert "Kept the settings of before" in caplog.text


async def test_routes_wait_for_brokers_when_asked_to():
    async with on_wire(needWaitForService=True) as (wire, _):
        await wire.ask(register())
        answer = await wire.ask(Command(105, {"topic": "a"}))
        assert (answer.code, answer.remark) == (1, "name server not ready")


async def test_brokers_are_told_of_another_smallest_id():
    told = []

    def hear(peer, command):
        told.append((command.is_oneway, command.ext))

    from loops import serving

    settings = {"listenPort": 0, "notifyMinBrokerIdChanged": True}
    async with NameServer(**settings) as names, serving({905: hear}) as slave:
        at = f"127.0.0.1:{slave.port}"
        async with RemotingClient() as a, RemotingClient() as b:
            acting = {"enableActingMaster": "true"}
            await a.request(names.address, register(**acting))
            await b.request(names.address, register(number=1, brokerAddr=at, **acting))
            await a.close()
            await until(lambda: told)
    fields = {
        "minBrokerId": "1",
        "minBrokerAddr": at,
        "offlineBrokerAddr": "broker-a:0",
    }
    assert told == [(True, fields)]


async def test_a_broker_goes_with_its_socket_and_with_time():
    settings = {"listenPort": 0, "scanNotActiveBrokerInterval": 20}
    async with NameServer(**settings) as names, await Wire.to(names.port) as wire:
        async with await Wire.to(names.port) as one:
            assert (await one.ask(register())).code == 0
            assert (await wire.ask(Command(105, {"topic": "a"}))).code == 0
        await until(lambda: names.routes.topics() == [])
        answer = await wire.ask(Command(105, {"topic": "a"}))
        assert answer.code == 17
        assert answer.remark.startswith("No topic route info in name server for the topic: a")
        async with await Wire.to(names.port) as mute:
            now = names.routes._clock_ms()
            with mock.patch.object(names.routes, "_clock_ms", lambda: now):
                await mute.ask(register(heartbeatTimeoutMillis="50"))
                assert names.routes.topics() == ["a", "b"]
            assert await mute.closed() == b""
            assert names.routes.topics() == []


# ---- the whole ----


def test_it_is_embedded_in_code_without_a_loop():
    with NameServer.in_thread(listenPort=0) as names:

        async def ask():
            async with RemotingClient() as client:
                return await client.request(names.address, Command(106))

        assert json.loads(run(ask()).body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        with pytest.raises(OSError), NameServer.in_thread(listenPort=names.port):
            pass


def test_settings_that_are_none_are_refused(tmp_path):
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=9999\nlistenPrt=1\n")
    with pytest.raises(BadArgument, match="the nearest name is 'listenPort'"):
        NameServer(path)
    for given in ({"listenPort": "x"}, {"listenPort": 70000}, {"orderMessageEnable": 1}):
        with pytest.raises(BadArgument):
            NameServer(**given)
    path.write_text("listenPort=9999\ntls.server.mode=disabled\n")
    assert NameServer(path).settings.number("listenPort") == 9999
    assert NameServer(path, listenPort=1).settings.tls().mode == "disabled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_line_runs_one_until_a_signal(tmp_path, number):
    words = [PYSTORE, "namesrv", "--port", "0", "--json"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, env=os.environ | {"HOME": str(tmp_path)}, text=True
    )
    try:
        facts = json.loads(process.stdout.readline())
        assert facts["ready"] == "namesrv" and facts["pid"] == process.pid

        async def put():
            async with RemotingClient() as client:
                asked = Command(100, {"namespace": "n", "key": "k", "value": "v"})
                return await client.request(f"127.0.0.1:{facts['port']}", asked)

        assert run(put()).code == 0
        process.send_signal(number)
        assert process.wait(BOUND_S) == 0
        assert KvConfig(tmp_path / "namesrv" / "kvConfig.json").get("n", "k") == "v"
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_does_not_wait(tmp_path):
    code = """
import asyncio, sys
from broker.cli.run_server import run_server
class Slow:
    async def start(self): pass
    async def stop(self): print('stopping', flush=True); await asyncio.sleep(60)
sys.exit(run_server(Slow(), lambda: print('ready', flush=True), 'INFO'))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 130


async def test_a_route_of_a_topic_without_a_name_is_not_there():
    """As at upstream's name server, whether the field is empty or missing."""
    async with on_wire() as (wire, _):
        assert (await wire.ask(Command(105, {"topic": ""}))).code == 17
        assert (await wire.ask(Command(105))).code == 17
