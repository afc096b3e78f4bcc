"""A whole broker: started, served, registered, stopped, over sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest
from fakes import beat, send_command
from loops import Wire, run, until
from ports import free_port
from waiting import BOUND_S

from broker.broker import Broker
from broker.namesrv import NameServer
from broker.remoting.client import RemotingClient
from broker.remoting.selfsigned import self_signed
from broker.remoting.server import RemotingServer
from broker.remoting.tls import TlsSettings, client_context
from broker.services.hooks import AbortProcessException
from broker.wire import mqjson
from broker.wire.command import Command, texts
from pystore import BadArgument, Reader, StoreLocked


def request(code, body=b"", opaque=1, **ext):
    return Command(code, texts(ext), body, opaque=opaque)


def pull(opaque, group="readers", topic="orders", **fields):
    asked = {
        "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 2, "commitOffset": 0, "suspendTimeoutMillis": 600_000, "subVersion": 1,
    }  # fmt: skip
    return request(11, opaque=opaque, **(asked | fields))


def pop():
    asked = {
        "consumerGroup": "poppers", "topic": "orders", "queueId": 0, "maxMsgNums": 32,
        "invisibleTime": 60_000, "pollTime": 60_000, "initMode": 0, "exp": "*", "expType": "TAG",
        "bornTime": time.time_ns() // 1_000_000 + 60_000, "order": "false",
    }  # fmt: skip
    return request(200050, **asked)


async def route(broker, topic):
    """(code, route) of a topic at the broker's name server."""
    address = broker.namesrv_address.split(";")[0]
    async with await Wire.to(int(address.rpartition(":")[2])) as wire:
        answer = await wire.ask(request(105, topic=topic))
        return answer.code, mqjson.loads(answer.body) if answer.body else None


async def test_send_is_received_by_a_pull_that_waits(tmp_path, small):
    broker = Broker(tmp_path / "store", listenPort=0, with_namesrv=True, **small)
    async with broker, await Wire.to(broker.port) as wire, await Wire.to(broker.port) as other:
        first = await wire.ask(send_command("orders", b"one"))
        assert first.code == 0
        code, found = await route(broker, "orders")
        assert (code, found["brokerDatas"][0]["brokerAddrs"]) == (0, {"0": broker.address})
        other.write(pull(7))
        assert (await other.answer()).code == 24
        other.write(request(34, json.dumps(beat()).encode(), opaque=8))
        answers = {(await other.answer()).code for _ in range(2)}
        assert answers == {0, 40}
        other.write(pull(9, queueOffset=1, sysFlag=3))
        await asyncio.sleep(0.05)
        await wire.ask(send_command("orders", b"two"))
        got = await other.answer()
        assert (got.code, got.opaque, b"two" in bytes(got.body)) == (0, 9, True)
        assert broker.services.offsets.get("readers", "orders", 0) == 0


def test_port_of_records_is_the_real_one(tmp_path, small):
    async def scenario():
        async with Broker(tmp_path / "store", listenPort=0, **small) as broker:
            async with await Wire.to(broker.port) as wire:
                answer = await wire.ask(send_command())
            assert broker.port > 0
            return broker.port, answer.ext["msgId"]

    port, found = run(scenario())
    assert int(found[8:16], 16) == port
    with Reader(tmp_path / "store") as reader:
        assert reader.message_by_id(found).store_host == f"127.0.0.1:{port}"


def test_offsets_of_pulls_are_there_after_a_restart(tmp_path, small):
    async def scenario(committed):
        async with Broker(tmp_path / "store", listenPort=0, **small) as broker:
            offset = broker.services.offsets.get("readers", "orders", 0)
            async with await Wire.to(broker.port) as wire:
                await wire.ask(send_command())
                wire.write(request(34, json.dumps(beat()).encode(), opaque=2))
                await wire.answer(), await wire.answer()
                await wire.ask(pull(3, sysFlag=1, commitOffset=committed))
            return offset

    assert run(scenario(1)) is None
    assert run(scenario(2)) == 1
    assert run(scenario(2)) == 2
    stored = json.loads((tmp_path / "store/config/consumerOffset.json").read_text())
    assert stored["offsetTable"]["orders@readers"] == {"0": 2}


async def test_consumption_says_how_far_consumers_have_pulled(tmp_path, small):
    """pullOffset is where the last pull ended; tools show what lies between as in flight."""
    async with (
        Broker(tmp_path / "store", listenPort=0, **small) as broker,
        await Wire.to(broker.port) as wire,
    ):

        async def offsets():
            answer = await wire.ask(request(208, consumerGroup="readers", topic="orders"))
            (row,) = (
                row for queue, row in mqjson.loads(answer.body)["offsetTable"].items()
                if queue.queue == 0
            )  # fmt: skip
            every = mqjson.loads((await wire.ask(request(317, isOrder=False))).body)
            return row["consumerOffset"], row["pullOffset"], every["totalInflightDiff"]

        for _ in range(3):
            assert (await wire.ask(send_command("orders", b"x"))).code == 0
        wire.write(request(34, json.dumps(beat()).encode()))
        await wire.answer(), await wire.answer()
        assert (await wire.ask(pull(1, sysFlag=0, maxMsgNums=2))).code == 0
        assert await offsets() == (0, 2, 0)  # nothing is committed: no topic of the group
        assert (await wire.ask(pull(2, sysFlag=1, queueOffset=2, commitOffset=1))).code == 0
        assert await offsets() == (1, 3, 2)
        await wire.ask(
            request(15, consumerGroup="readers", topic="orders", queueId=0, commitOffset=3)
        )
        assert await offsets() == (3, 3, 0)
        await wire.ask(pull(3, sysFlag=0, queueOffset=0, maxMsgNums=1))
        assert await offsets() == (3, 3, 0)  # never less than what is committed


def test_embedded_without_a_loop(tmp_path, small):
    with Broker(tmp_path / "store", listenPort=0, **small) as broker:

        async def put():
            return broker.store.put("orders", b"x").queue_offset

        assert broker.run(put()) == 0
        assert broker.address == f"127.0.0.1:{broker.port}"
    with pytest.raises(RuntimeError):
        _ = broker.services
    with Broker(tmp_path / "store", listenPort=0, **small) as again:
        assert again.store.range("orders", 0)[1] == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_work_that_ends_badly_is_told_and_ends_no_broker(tmp_path, small, error):
    async def bad():
        await asyncio.gather(worse())

    async def worse():
        raise error("enough")

    async def good():
        return 1

    with Broker(tmp_path / "store", listenPort=0, **small) as broker:
        with pytest.raises(error, match="enough"):
            broker.run(bad())
        assert broker.run(good()) == 1


def test_second_broker_over_one_store_is_refused(tmp_path, small):
    with Broker(tmp_path / "store", listenPort=0, **small):
        other = Broker(tmp_path / "store", listenPort=0, **small)
        with pytest.raises(StoreLocked), other:
            pass


def test_settings_that_are_none_are_refused(tmp_path):
    with pytest.raises(BadArgument):
        Broker(tmp_path / "store", brokerNam="x")


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"enableDLegerCommitLog": True}, "is not supported"),
        ({"enableControllerMode": True}, "needs controllerAddr"),
        ({"allAckInSyncStateSet": True}, "has no effect"),
    ],
)
def test_what_would_be_silently_missing_is_refused(tmp_path, setting, why):
    with pytest.raises(BadArgument, match=why):
        Broker(tmp_path / "store", **setting)


def test_conf_names_the_store(tmp_path, small):
    conf = tmp_path / "broker.conf"
    lines = {**small, "storePathRootDir": tmp_path / "there", "brokerName": "b1"}
    conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    with Broker(conf, listenPort=0) as broker:
        assert broker.services.broker_name == "b1"
    assert (tmp_path / "there" / "commitlog").is_dir()


async def test_old_port_takes_sends_and_no_pulls(tmp_path, small):
    """On a network thread of its own, which hands out what a pop waits for as well."""
    async with Broker(tmp_path / "store", listenPort=free_port(), **small) as broker:
        vip = broker._listeners.figures.servers["vip"]
        assert (vip.port, vip.thread_count) == (broker.port - 2, 1)
        async with await Wire.to(vip.port) as wire, await Wire.to(vip.port) as waits:
            assert (await wire.ask(send_command())).code == 0
            assert (await wire.ask(pull(5))).code == 3
            assert (await wire.ask(request(30, topic="orders", queueId=0))).code == 0
            assert (await waits.ask(pop())).code == 0
            waits.write(pop())
            await until(lambda: vip.thread_reads == 5)
            assert (await wire.ask(send_command())).code == 0
            assert (await waits.answer()).code == 0


async def test_closed_connection_is_a_departure(tmp_path, small):
    broker = Broker(tmp_path / "store", listenPort=0, **small)
    async with broker, await Wire.to(broker.port) as stays:
        async with await Wire.to(broker.port) as goes:
            goes.write(request(34, json.dumps(beat("c1")).encode()))
            await goes.answer(), await goes.answer()
            stays.write(request(34, json.dumps(beat("c2")).encode()))
            await stays.answer(), await stays.answer()
        notice = await stays.answer()
        assert (notice.code, notice.ext) == (40, {"consumerGroup": "readers"})
        assert broker.services.clients.consumers["readers"].client_ids() == ["c2"]


async def test_sync_flush_answers_when_the_disk_has_it(tmp_path, small):
    settings = small | {"flushDiskType": "SYNC_FLUSH"}
    broker = Broker(tmp_path / "store", listenPort=0, **settings)
    async with broker, await Wire.to(broker.port) as wire:
        for each in ("orders", "orders", "%RETRY%readers"):
            assert (await wire.ask(send_command(each))).code == 0
            info = broker.store.info()
            assert info.log_flushed == info.log_max


# ---- name servers ----


class Recorder:
    """A name server that remembers what it is asked, and answers as configured."""

    def __init__(self):
        self.asked = []
        self.codes = {}

    def handlers(self):
        return dict.fromkeys((103, 104, 322, 904), self.take)

    def take(self, peer, command):
        self.asked.append(command)
        return command.reply(self.codes.pop(command.code, 0))

    def topics(self):
        """Names in each registration so far."""
        bodies = [mqjson.loads(c.body) for c in self.asked if c.code == 103]
        return [set(b["topicConfigSerializeWrapper"]["topicConfigTable"]) for b in bodies]


async def test_changed_topic_is_registered_alone(tmp_path, small):
    names = Recorder()
    async with RemotingServer(names.handlers(), host="127.0.0.1") as server:
        settings = small | {"namesrvAddr": f"127.0.0.1:{server.port}", "brokerName": "b1"}
        broker = Broker(tmp_path / "store", listenPort=0, **settings)
        async with broker, await Wire.to(broker.port) as wire:
            (everything,) = names.topics()
            assert "TBW102" in everything
            assert names.asked[0].ext.keys() == {
                "brokerAddr", "brokerId", "brokerName", "clusterName", "haServerAddr",
                "bodyCrc32", "compressed", "enableActingMaster",
            }  # fmt: skip
            await wire.ask(send_command("orders"))
            await until(lambda: names.topics()[1:] == [{"orders"}])
            made = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topic": "bills"}
            await wire.ask(request(17, **made))
            assert names.topics()[-1] == {"bills"}  # before the tool has its answer
            names.codes[103] = 1  # it has lost us: then it wants everything
            await wire.ask(send_command("more"))
            await until(lambda: len(names.topics()[-1]) > 2)
            assert names.topics()[-2] == {"more"}
            await wire.ask(request(215, topic="bills"))
            await until(lambda: "bills" not in names.topics()[-1])
        assert names.asked[-1].code == 104
        assert names.asked[-1].ext["brokerName"] == "b1"


async def test_name_server_that_comes_later_or_again_gets_everything(tmp_path, small):
    port = free_port()
    settings = small | {"namesrvAddr": f"127.0.0.1:{port}"}
    async with Broker(tmp_path / "store", listenPort=0, **settings) as broker:
        for _ in range(2):
            async with NameServer(listenPort=port):

                async def known():
                    while (await route(broker, "TBW102"))[0] != 0:
                        await asyncio.sleep(0.05)

                await known()


async def test_stopped_broker_is_in_no_route(tmp_path, small):
    async with NameServer(listenPort=0) as names:
        settings = small | {"namesrvAddr": names.address}
        async with Broker(tmp_path / "store", listenPort=0, **settings) as broker:
            assert (await route(broker, "TBW102"))[0] == 0
        assert (await route(broker, "TBW102"))[0] == 17


async def test_change_of_rights_reaches_topics_and_name_servers(tmp_path, small):
    broker = Broker(tmp_path / "store", listenPort=0, with_namesrv=True, **small)
    async with broker, await Wire.to(broker.port) as wire:
        assert (await wire.ask(request(25, b"brokerPermission=4\n"))).code == 0

        async def perm():
            return (await route(broker, "TBW102"))[1]["queueDatas"][0]["perm"]

        while await perm() & 2:
            await asyncio.sleep(0.02)


# ---- the command line ----


@pytest.mark.parametrize("first", ["broker.cli", "pystore.cli"])
def test_all_verbs_load_whichever_package_is_imported_first(first):
    code = f"import {first}; from pystore.cli._verbs import all_verbs, broken;"
    code += "print(len(all_verbs()), broken)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "{}"
    assert int(done.stdout.split()[0]) > 25


def test_verb_serves_until_it_is_told_to_stop(tmp_path):
    words = [sys.executable, "-c", "from pystore.cli import main; raise SystemExit(main())"]
    words += ["broker", "--store", str(tmp_path / "store"), "--port", "0", "--with-namesrv"]
    words += ["--namesrv-port", "0", "--set", "mappedFileSizeCommitLog=1048576", "--json"]
    words += ["--set", "loopHeldWarnMillis=600000"]  # a busy machine makes any request a slow one
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())

        async def send():
            async with await Wire.to(ready["port"]) as wire:
                return await wire.ask(send_command())

        assert run(send()).code == 0
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, out, err) == (0, "", "")
    assert ready["ready"] == "broker"
    assert ready["namesrv"].startswith("127.0.0.1:")
    assert not (tmp_path / "store" / "abort").exists()
    topics = json.loads((tmp_path / "store/config/topics.json").read_text())
    assert "orders" in topics["topicConfigTable"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], ""), (["--log-level", "info"], "INFO broker.broker Broker DEFAULT_BROKER is ready at ")],
)
def test_the_log_level_says_which_lines_are_written(tmp_path, words, expected):
    program = [sys.executable, "-c", "from pystore.cli import main; raise SystemExit(main())"]
    program += ["broker", "--store", str(tmp_path / "store"), "--port", "0", *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        p.stdout.readline()
        p.send_signal(signal.SIGTERM)
        err = p.communicate(timeout=BOUND_S)[1]
    assert expected in err
    assert bool(expected) == bool(err)


def test_every_code_of_the_tools_is_served(tmp_path, small):
    """docs/internals/wire.md#tools: what mqadmin and the dashboard need of a broker."""
    needed = {
        10, 11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41,
        42, 43, 45, 46, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225, 300, 303, 305, 306,
        307, 309, 310, 314, 315, 316, 317, 320, 321, 323, 324, 325, 328, 329, 343, 345, 351, 352,
        353, 361, 400, 401, 907,
    }  # fmt: skip
    with Broker(tmp_path / "store", listenPort=0, **small) as broker:
        from broker.processors import all_handlers

        assert needed <= all_handlers(broker.services).keys()


async def test_own_certificate_on_the_brokers_port(tmp_path, small):
    cert, key = self_signed("localhost")
    (tmp_path / "cert.pem").write_text(cert)
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "tls.conf").write_text(
        "tls.server.mode = enforcing\n"
        f"tls.server.certPath = {tmp_path / 'cert.pem'}\n"
        f"tls.server.keyPath: {tmp_path / 'key.pem'}\n"
    )
    tls = TlsSettings.from_file(tmp_path / "tls.conf")
    async with (
        Broker(tmp_path / "store", listenPort=0, tls=tls, **small) as broker,
        RemotingClient(tls=client_context(str(tmp_path / "cert.pem"))) as trusting,
        RemotingClient() as plain,
    ):
        assert (await trusting.request(broker.address, send_command())).code == 0
        with pytest.raises(ConnectionError):
            await plain.request(broker.address, send_command())


def certificate(folder, name):
    cert, key = self_signed(name)
    (folder / f"{name}.cert").write_text(cert)
    (folder / f"{name}.key").write_text(key)
    return str(folder / f"{name}.cert"), str(folder / f"{name}.key")


@pytest.mark.parametrize(
    ("names", "settings", "registered"),
    [
        ({}, {}, False),
        ({"tls.enable": "true"}, {}, True),
        ({}, {"useTLS": True}, True),
        ({"tls.enable": "true"}, {"useTLS": False}, False),
        ({"tls.server.mode": "enforcing"}, {}, True),
        ({"tls.enable": "true", "tls.client.authServer": "true", "trust": "names"}, {}, True),
        ({"tls.enable": "true", "tls.client.authServer": "true", "trust": "others"}, {}, False),
    ],
)
async def test_broker_asks_name_servers_by_tls(tmp_path, small, names, settings, registered):
    """The name server takes nothing but TLS."""
    cert, key = certificate(tmp_path, "names")
    certificate(tmp_path, "others")
    if trust := names.pop("trust", None):
        names = names | {"tls.client.trustCertPath": str(tmp_path / f"{trust}.cert")}
    tls = TlsSettings.from_names(names)
    enforcing = {"tls.server.mode": "enforcing"}
    enforcing |= {"tls.server.certPath": cert, "tls.server.keyPath": key}
    async with NameServer(None, enforcing, listenPort=0) as server:
        given = small | settings | {"namesrvAddr": f"127.0.0.1:{server.port}"}
        async with (
            Broker(tmp_path / "store", listenPort=0, tls=tls, **given) as broker,
            RemotingClient(tls=client_context(cert)) as client,
        ):
            found = await client.request(f"127.0.0.1:{server.port}", request(106))
            assert (broker.address.encode() in found.body) == registered


def test_tls_settings_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(BadArgument, match="cannot read the settings"):
        TlsSettings.from_file(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"tls.server.mode=\\u12")
    with pytest.raises(BadArgument):
        TlsSettings.from_file(tmp_path / "bad")


class Watching:
    """A consume hook that remembers, and refuses one topic."""

    name = "watching"

    def __init__(self):
        self.seen = []

    def before(self, context):
        if context.topic == "secret":
            raise AbortProcessException(16, "not for you")

    def after(self, context):
        self.seen.append((context.topic, context.queue, context.status, context.count))


async def test_consume_hooks_see_pulls_those_that_wait_too(tmp_path, small):
    broker = Broker(tmp_path / "store", listenPort=0, **small)
    hook = Watching()
    broker.add_consume_hook(hook)
    async with broker, await Wire.to(broker.port) as wire, await Wire.to(broker.port) as other:
        await wire.ask(send_command("orders", b"one"))
        await wire.ask(send_command("secret", b"two"))
        own = {"sysFlag": 6, "subscription": "*", "expressionType": "TAG"}
        assert (await other.ask(pull(1, **own))).code == 0
        assert (await other.ask(pull(2, topic="secret", **own))).code == 16
        assert (await other.ask(pull(3, queueOffset=1, **own | {"sysFlag": 4}))).code == 19
        other.write(pull(4, queueOffset=1, **own))
        await until(lambda: len(hook.seen) == 2)
        seen = [("orders", 0, "RCV_SUCCESS", 1), ("orders", 0, "RCV_EPOLLS", 0)]
        assert hook.seen == seen
        await wire.ask(send_command("orders", b"three"))
        assert (await other.answer()).code == 0
        await until(lambda: hook.seen[2:])  # it hears of an answer that is on its way already
        assert hook.seen == [*seen, ("orders", 0, "RCV_SUCCESS", 1)]


async def test_a_delayed_message_counts_as_upstream_counts_it(tmp_path, small):
    """In the schedule topic when it is sent, in its own when it comes."""
    settings = small | {"messageDelayLevel": "1s"}
    async with (
        Broker(tmp_path / "store", listenPort=0, **settings) as broker,
        await Wire.to(broker.port) as wire,
    ):
        await wire.ask(send_command("orders"))
        delayed = send_command("orders", properties={"UNIQ_KEY": "U", "DELAY": "1"})
        assert (await wire.ask(delayed)).code == 0

        def counts():
            current = broker.services.statistics.current()
            topics = ("orders", "SCHEDULE_TOPIC_XXXX")
            return [current.get(("TOPIC_PUT_NUMS", topic), 0) for topic in topics]

        assert counts() == [1, 1]
        await until(lambda: counts() == [2, 1])


async def test_who_knows_go_away_is_sent_away_at_a_stop(tmp_path, small):
    broker = Broker(tmp_path / "store", listenPort=0, drain_s=BOUND_S, **small)
    gate = asyncio.Event()

    async def slow(peer, command):
        await gate.wait()
        return command.reply()

    async with (
        RemotingServer({1: slow, 2: lambda peer, command: command.reply()}) as server,
        await Wire.to(server.port) as wire,
    ):
        wire.write(request(1))
        await until(lambda: any(c.in_work for c in server.connections))
        stopping = asyncio.create_task(server.stop(BOUND_S))
        await asyncio.sleep(0)
        for version, code in ((479, 1500), (476, 1500), (475, 0), (0, 0)):
            asked = Command(2, {}, b"", opaque=version, version=version)
            answer = await wire.ask(asked)
            assert (answer.opaque, answer.code) == (version, code)
        gate.set()
        assert (await wire.answer()).code == 0
        assert await wire.closed() == b""
        await stopping
    async with broker, await Wire.to(broker.port) as wire:
        assert (await wire.ask(send_command("orders"))).code == 0
        stopping = asyncio.create_task(broker.stop())
        # Until it is sent away; then it asks no more, and the broker need not wait for it.
        while (code := (await wire.ask(send_command("orders"))).code) != 1500:
            assert code == 0
        await stopping
