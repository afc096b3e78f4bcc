"""A broker inside somebody's process: where it listens, what it says, how one leaves it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BOUND_S

import pystore
from broker.broker import Broker
from broker.namesrv.server import NameServer
from pystore.cli import main
from pystore.errors import BadArgument

ROOT = Path(__file__).resolve().parents[2]


def listening(port):
    """Addresses of this machine that something listens on at this port, as the kernel has it."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        address, number = words[1].split(":")
        if words[3] == "0A" and int(number, 16) == port:
            found.add(socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder)))
    return found


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({}, {"127.0.0.1"}),
        ({"brokerIP1": "127.0.0.2"}, {"127.0.0.2"}),
        ({"brokerIP1": "10.0.0.1"}, {"0.0.0.0"}),
        ({"brokerIP1": "10.0.0.1", "bindAddress": "127.0.0.1"}, {"127.0.0.1"}),
        ({"bindAddress": "0.0.0.0"}, {"0.0.0.0"}),
    ],
)
async def test_a_broker_listens_where_it_says_that_it_is(tmp_path, small, settings, where):
    async with Broker(tmp_path / "s", listenPort=0, with_namesrv=True, **small, **settings) as b:
        assert listening(b.port) == where
        assert listening(b.namesrv.port) == where


def test_a_name_server_listens_where_it_says_that_it_is():
    with NameServer.in_thread(listenPort=0) as names:
        assert listening(names.port) == {"127.0.0.1"} == {names.address.split(":")[0]}


LEAVES = """
import os, sys
from broker.broker import Broker
from broker.namesrv.server import NameServer

with Broker(sys.argv[1], listenPort=0, with_namesrv=True), NameServer.in_thread(listenPort=0):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    print("child", os.waitpid(child, 0)[1])
print("parent left")
"""


def test_a_forked_child_leaves_the_block(tmp_path):
    """The thread of the loop is the parent's: the child must not wait for it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVES, tmp_path / "s"],
        cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    assert done.stdout == f"child {7 << 8}\nparent left\n", done.stderr


def test_a_forked_child_is_told_that_the_loop_is_elsewhere(tmp_path, small):
    with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        child = os.fork()
        if child == 0:
            try:
                broker.run(broker.stop())
            except RuntimeError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_taken_port_is_named(tmp_path, small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = re.escape(f"cannot listen on 127.0.0.1:{port}: ")
        with (
            pytest.raises(OSError, match=where),
            Broker(tmp_path / "s", listenPort=port, **small),
        ):
            pass
        assert not (tmp_path / "s").exists()
        with pytest.raises(OSError, match=where), NameServer.in_thread(listenPort=port):
            pass


# ---- what it has not ----

#: A broker can, and a store without one cannot.
OF_BROKERS = [
    ("brokerRole", "SYNC_MASTER"), ("brokerRole", "SLAVE"), ("inSyncReplicas", 2),
    ("minInSyncReplicas", 2), ("enableAutoInSyncReplicas", True),
    ("allAckInSyncStateSet", True), ("enableControllerMode", True),
]  # fmt: skip
NOT_SERVED = [("duplicationEnable", True), ("enableConsumeQueueExt", True)]


@pytest.mark.parametrize(("name", "value"), NOT_SERVED)
def test_what_it_cannot_do_is_refused_at_the_start(tmp_path, name, value):
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{name}={str(value).lower() if value is True else value}\n")
    with pytest.raises(BadArgument, match=f"{name} = .* is not supported: ") as refused:
        Broker(conf)
    assert refused.value.where == f"{conf}:1"
    with pytest.raises(BadArgument, match=f"{name} = .* is not supported: "):
        Broker(tmp_path / "s", **{name: value})


@pytest.mark.parametrize(("name", "value"), NOT_SERVED + OF_BROKERS)
def test_a_store_without_a_broker_refuses_the_same(tmp_path, name, value):
    with pytest.raises(BadArgument, match=f"{name} = .* is not supported: "):
        pystore.open(tmp_path / "s", **{name: value})
    assert not (tmp_path / "s").exists()


def test_tools_take_the_conf_of_a_broker_that_replicates(tmp_path, small):
    """Reading, checking and mending the store of such a broker asks for nothing of the kind."""
    conf, root = tmp_path / "broker.conf", tmp_path / "s"
    with pystore.open(root, **small) as store:
        store.metadata.topics.put(pystore.TopicConfig("t", 1, 1))
        store.put("t", b"1")
    conf.write_text("brokerRole=SYNC_MASTER\nenableConsumeQueueExt=true\n")
    for verb in ("verify", "rebuild", "info", "carve"):
        more = [str(tmp_path / "carved")] if verb == "carve" else []
        assert main([verb, str(root), *more, "--conf", str(conf)]) == 0, verb


@pytest.mark.parametrize(("name", "value"), NOT_SERVED)
def test_what_it_cannot_do_is_refused_while_it_runs(tmp_path, small, name, value):
    with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        config = broker.services.settings
        with pytest.raises(BadArgument, match=f"{name} = .* is not supported: "):
            config.update({name: str(value)})


def test_a_java_file_with_the_values_that_are_true_here_is_taken(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=ASYNC_MASTER\ninSyncReplicas=1\nhaListenPort=10912\n"
                    "timerWheelEnable=false\n")  # fmt: skip
    Broker(conf)


@pytest.mark.parametrize("served", [True, False])
def test_settings_say_whether_timers_are_served(tmp_path, small, served):
    with Broker(tmp_path / "s", listenPort=0, timerWheelEnable=served, **small) as broker:
        text = broker.services.settings.as_text(tmp_path)
        assert f"timerWheelEnable={str(served).lower()}\n" in text


def test_name_servers_are_told_of_no_replication_port_unless_there_is_one(tmp_path, small):
    with Broker(tmp_path / "s", listenPort=0, with_namesrv=True, **small) as broker:
        row = next(iter(broker.namesrv.routes._live.values()))
        assert row.ha_address == "127.0.0.1:0"
