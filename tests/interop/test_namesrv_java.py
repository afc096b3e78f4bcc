"""The Java broker, its tools and its clients with our name server in the place of theirs."""

from __future__ import annotations

import json
import os
import subprocess
from unittest import mock

import pytest
from admin import Admin
from ports import free_port
from waiting import BOUND_S, until

from broker.namesrv import NameServer

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]


class JavaBroker:
    """One that is registered at a name server."""

    def __init__(self, reference, folder, names, version, *settings, **more):
        self.reference, self.names = reference, names
        self.admin: Admin | None = None
        self.port = free_port()
        env = {"RMQ_VERSION": version, "RMQ_BROKER_PORT": str(self.port), "HEAP": "512m"}
        env |= more
        reference.run("setup", **env, timeout=reference.setup_s)
        self.process = subprocess.Popen(
            [reference.script, "broker", folder, f"namesrvAddr={names.address}", *settings],
            env=os.environ | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: self.routed("TBW102"))
        except BaseException:
            self.kill()
            raise

    def routed(self, topic):
        return self.names.routes.route(topic) is not None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def mqadmin(self, verb, *args):
        """What the tool of 5.3.3 printed, whatever the broker's version."""
        assert self.admin is not None
        return self.admin(verb, *args)

    def visit(self, sends, topic):
        done = self.reference.run("visit", self.names.address, sends, topic)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def java_broker(version, reference, tmp_path_factory):
    """The one that the tests in order use; the last of them kills it."""
    with NameServer.in_thread(listenPort=0) as names:
        made = JavaBroker(reference, tmp_path_factory.mktemp("broker"), names, version)
        made.admin = Admin(names.address, tmp_path_factory.mktemp("mqadmin"))
        yield made
        made.admin.close()
        made.stop()


def test_tools_and_clients_find_the_broker_by_our_routes(java_broker):
    address = f"127.0.0.1:{java_broker.port}"
    shown = java_broker.mqadmin("clusterList")
    assert "DefaultCluster" in shown and "broker-a" in shown and address in shown
    java_broker.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "made", "-r", "3", "-w", "3")
    assert {"made", "TBW102", "broker-a"} <= set(java_broker.mqadmin("topicList").split())
    route = java_broker.mqadmin("topicRoute", "-t", "made")
    shown = json.loads(route[route.index("{") :].replace("{0:", '{"0":'))
    assert shown["brokerDatas"][0]["brokerAddrs"] == {"0": address}
    assert shown["queueDatas"][0]["writeQueueNums"] == 3

    sent = java_broker.visit(5, "made")
    assert [line["status"] for line in sent if line["at"] == "sent"] == ["SEND_OK"] * 5
    got = [line for line in java_broker.visit(0, "made") if line["at"] == "got"]
    assert len(got) == 5

    java_broker.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "made")
    assert not java_broker.routed("made") and java_broker.routed("TBW102")


def test_our_settings_are_read_and_changed_by_the_tool(java_broker):
    shown = java_broker.mqadmin("getNamesrvConfig")
    assert "orderMessageEnable" in shown and "scanNotActiveBrokerInterval" in shown
    java_broker.mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert java_broker.names.settings.flag("orderMessageEnable")
    java_broker.mqadmin(
        "updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "TBW102", "-v", "broker-a:8"
    )
    assert java_broker.names.routes.route("TBW102")["orderTopicConf"] == "broker-a:8"
    assert "broker-a:8" in java_broker.mqadmin("topicRoute", "-t", "TBW102")
    java_broker.mqadmin("wipeWritePerm", "-b", "broker-a")
    assert java_broker.names.routes.route("TBW102")["queueDatas"][0]["perm"] & 2 == 0


def test_a_broker_that_is_killed_is_gone_with_its_connection(java_broker):
    java_broker.kill()
    # Far sooner than the scan, which looks for brokers that were silent for two minutes.
    with mock.patch.object(java_broker.names.routes, "expire", return_value=([], [])):
        until(lambda: not java_broker.routed("TBW102"))
    assert java_broker.names.routes.topics() == []


def test_a_broker_that_stops_is_gone_at_once(version, reference, tmp_path):
    """This one packs its registrations and writes binary headers."""
    with NameServer.in_thread(listenPort=0) as names:
        binary = {"ROCKETMQ_SERIALIZE_TYPE": "ROCKETMQ"}
        made = JavaBroker(
            reference, tmp_path / "broker", names, version, "compressedRegister=true", **binary
        )
        route = names.routes.route("TBW102")
        assert route["queueDatas"][0]["writeQueueNums"] == 8
        assert route["queueDatas"][0]["perm"] == 7
        made.stop()
        assert names.routes.topics() == []
        assert names.routes.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_the_java_client_speaks_tls_with_us(reference, version):
    """With the certificate that nobody has signed, as upstream's test mode has it."""
    settings = {"listenPort": 0, "tls.server.mode": "enforcing"}
    with NameServer.in_thread(**settings) as names:
        env = {"RMQ_VERSION": version}
        args = ("mqadmin", "updateKvConfig", "-n", names.address, "-s", "n", "-k", "k", "-v", "v")
        reference.run(*args, JAVA_OPTS="-Dtls.enable=true", **env)
        assert names.kv.get("n", "k") == "v"
        names.kv.delete("n", "k")
        reference.run(*args, check=False, **env)
        assert names.kv.get("n", "k") is None
