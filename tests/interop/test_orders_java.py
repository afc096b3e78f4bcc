"""An order service and a product service that agree by transactional messages, with Apache's client
(tests/reference/src/Orders.java), and a client whose answers get lost.

The rounds of checks go by a clock that is set wherever the broker lives in this process, so that
the durations are upstream's and nobody waits for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress

import launch
import pytest
from listening import Listener
from ports import free_port
from rounds import decisions_are_in, timed
from storeview import everything
from transacting import DISCARDED
from waiting import BOUND_S

from broker.broker import Broker
from pystore import Reader

pytestmark = [pytest.mark.java, pytest.mark.slow]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}


class Services:
    """Roles of the program, running; what they said so far."""

    def __init__(self, roles, namesrv, folder, count, version):
        folder.mkdir(exist_ok=True)
        self.lines = []
        self.errors = folder / f"{roles.replace(',', '-')}.err"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [launch.SCRIPT, "orders", roles, namesrv, "orders", folder, str(count)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | {"RMQ_VERSION": version, "JAVA_OPTS": "-Xmx256m"},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def said(self, did, **facts):
        return [
            line
            for line in list(self.lines)
            if line["did"] == did and all(line[k] == v for k, v in facts.items())
        ]

    def keys(self, did, name="order", **facts):
        return Counter(line[name] for line in self.said(did, **facts))

    def wait(self, holds):
        launch.wait("what the services do", lambda: not self.failed() and holds())

    def decided(self):
        """How many orders the service committed or rolled back at once."""
        return sum(line["state"] != "UNKNOW" for line in self.said("ordered"))

    def failed(self):
        assert not self.said("failed"), self.said("failed")
        return False

    def end(self):
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(BOUND_S)
        self._reader.join()
        self.process.stdout.close()


@contextmanager
def services(roles, namesrv, folder, count=10, version="5.3.3"):
    made = Services(roles, namesrv, folder, count, version)
    try:
        yield made
    except BaseException:
        print(made.lines[-20:], made.errors.read_text("utf-8", "replace")[-3000:])
        raise
    finally:
        made.end()


def rows(folder, state):
    """Orders of the database."""
    lines = (folder / "orders").read_text().splitlines()
    return Counter(key for key, value in map(str.split, lines) if value == state)


def open_ones(broker):
    return broker.services.transactions.halves.state().open


# ---- the scenarios ----


@pytest.mark.parametrize(
    "version", ["5.3.3", pytest.param("4.9.7", marks=pytest.mark.long)]
)  # fmt: skip
def test_orders_and_products_agree(reference, tmp_path, version):
    """What was ordered leaves the stock once, what was not never does; and of ten halves that were
    unknown at first a check commits three, rolls back three, and the rest is discarded."""
    reference.run("setup", timeout=reference.setup_s, RMQ_VERSION=version)
    db = tmp_path / "db"
    with (
        timed(tmp_path / "store", **SIZES) as (broker, rounds),
        services("products,orders,hello", broker.namesrv_address, db, 10, version) as s,
    ):
        s.wait(lambda: len(s.said("end")) == 2)
        launch.wait("decisions", lambda: decisions_are_in(broker, 20, s.decided()))
        assert {line["state"] for line in s.said("sent")} == {"UNKNOW"}
        rounds.start()
        launch.wait("the end of all checks", lambda: open_ones(broker) == 0)
        s.wait(lambda: s.keys("consumed") == rows(db, "good"))
        assert len(s.said("ordered")) == 10
    assert s.keys("consumed", again=False) == s.keys("consumed") == rows(db, "good")
    assert s.keys("consumed") == s.keys("ordered", state="COMMIT_MESSAGE")
    with Reader(tmp_path / "store") as reader:
        found = list(everything(reader, "orders-hello"))
        assert sorted((m.keys[0], m.tags) for m in found) == [
            ("KEY1", "TagB"), ("KEY4", "TagE"), ("KEY7", "TagC"),
        ]  # fmt: skip
        given_up = Counter(m.keys[0] for m in everything(reader, DISCARDED))
    assert given_up == Counter(["KEY0", "KEY3", "KEY6", "KEY9"])
    checks = Counter(line["key"] for line in s.said("checked") if "key" in line)
    assert {key: checks[key] for key in given_up} == dict.fromkeys(given_up, 15)
    assert len(checks) == 10


@pytest.mark.long
@pytest.mark.parametrize("make", ["java", "ours"])
def test_both_makes_end_the_same_halves_alike(reference, tmp_path, make):
    """The same services against Apache's broker: what holds above is its rule and not only ours,
    but that it may deliver twice what a check and the service both decide. A process of its own, so
    the checks go by the real clock: one a second, as both brokers can be told."""
    often = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000}
    db = tmp_path / "db"
    with (
        launch.running(make, tmp_path / make, often) as peer,
        services("products,orders,hello", peer.namesrv, db) as s,
    ):
        s.wait(lambda: len(s.said("end")) == 2)
        s.wait(lambda: all(asked(s, key) == 15 for key in ("KEY0", "KEY3", "KEY6", "KEY9")))
        s.wait(lambda: set(s.keys("consumed")) == set(rows(db, "good")))
        assert make == "java" or s.keys("consumed") == rows(db, "good")
        launch.wait("the given up", lambda: peer_given_up(peer) >= 4)
        peer.stop()
        with Reader(peer.store) as reader:
            committed = {m.keys[0] for m in everything(reader, "orders-hello")}
            given_up = {m.keys[0] for m in everything(reader, DISCARDED)}
    assert committed == {"KEY1", "KEY4", "KEY7"}
    assert given_up == {"KEY0", "KEY3", "KEY6", "KEY9"}


def asked(services, key):
    return sum(line.get("key") == key for line in services.said("checked"))


def peer_given_up(peer):
    with Reader(peer.store) as reader:
        return len(list(everything(reader, DISCARDED)))


@pytest.mark.long
def test_a_check_commits_what_the_service_did_not_know(reference, tmp_path):
    """Its answer was UNKNOW, though the row was written: the check reads the row."""
    db = tmp_path / "db"
    with (
        timed(tmp_path / "store", **SIZES) as (broker, rounds),
        services("products,unsure", broker.namesrv_address, db, 20) as s,
    ):
        s.wait(lambda: s.said("end"))
        assert s.said("consumed") == []
        rounds.start()
        s.wait(lambda: s.keys("consumed") == rows(db, "good"))
        launch.wait("the end of all checks", lambda: open_ones(broker) == 0)
        assert {line["user"] == line["order"] for line in s.said("checked")} == {True}
    assert set(s.keys("checked")) == set(rows(db, "good") + rows(db, "bad"))


@pytest.mark.long
def test_another_instance_answers_for_the_one_that_died(reference, tmp_path):
    """The process ends in its last local transaction: row written, nobody told the broker."""
    db = tmp_path / "db"
    with timed(tmp_path / "store", **SIZES) as (broker, rounds):
        with services("dies", broker.namesrv_address, db, 7) as dead:
            dead.process.wait(BOUND_S)
        launch.wait("decisions", lambda: decisions_are_in(broker, 7, 6))
        assert open_ones(broker) == 1
        with services("products,answers", broker.namesrv_address, db) as s:
            s.wait(lambda: s.said("ready"))
            clients = broker.services.clients
            launch.wait("its heartbeat", lambda: "order-service" in clients.producers)
            rounds.start()
            launch.wait("the last one", lambda: open_ones(broker) == 0)
            s.wait(lambda: s.keys("consumed") == rows(db, "good"))
    assert len(s.said("checked")) == 1
    assert sum((rows(db, "good") + rows(db, "bad")).values()) == 7


@pytest.mark.long
def test_kill_of_the_broker_loses_no_order(reference, tmp_path):
    """Orders go on being taken while the broker is killed again and again. What is in the database
    leaves the stock once; the ledger takes what comes twice."""
    db = tmp_path / "db"
    with launch.running("ours", tmp_path / "peer", SIZES) as peer:
        with services("products,orders", peer.namesrv, db, 1500) as s:
            for n in range(4):
                s.wait(lambda n=n: len(s.said("ordered")) > 100 * (n + 1))
                peer.kill()
                time.sleep(0.5)
                peer.restart()
                peer.wait_ready()
            s.wait(lambda: s.said("end"))
            # Two rounds of checks, by the clock on the wall.
            s.wait(lambda: set(rows(db, "good")) <= set(s.keys("consumed")))
            time.sleep(2)
        assert set(s.keys("consumed")) == set(rows(db, "good"))
        assert s.keys("consumed", again=False) == rows(db, "good")


# ---- answers that get lost ----


class Thief:
    """Stands before a broker, and ends every third connection instead of handing an answer on."""

    def __init__(self, host, port, to):
        self._at, self._to, self._listener = (host, port), to, Listener(self._serve)
        self._loop = asyncio.new_event_loop()
        self._count = self.stolen = 0

    def __enter__(self):
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        opened = self._listener.open(*self._at)
        asyncio.run_coroutine_threadsafe(opened, self._loop).result(BOUND_S)
        return self

    def __exit__(self, *error):
        asyncio.run_coroutine_threadsafe(self._listener.close(), self._loop).result(BOUND_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader, writer):
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            return
        both = [
            asyncio.ensure_future(self._requests(reader, forth)),
            asyncio.ensure_future(self._answers(back, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            forth.transport.abort()

    async def _requests(self, reader, forth):
        while data := await reader.read(1 << 16):
            forth.write(data)

    async def _answers(self, back, writer):
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await back.readexactly(4)
                frame = head + await back.readexactly(*struct.unpack(">i", head))
                if b"queueOffset" in frame:  # of a send
                    self._count += 1
                    if self._count % 3 == 0:
                        self.stolen += 1
                        return
                writer.write(frame)


@pytest.mark.parametrize("window", [1000, pytest.param(0, marks=pytest.mark.long)])
def test_a_client_that_retries_stores_each_message_once(reference, tmp_path, window):
    """Every third answer is lost and the client sends again: one record each with the window, more
    without it, which shows that the answers were lost indeed."""
    port = free_port()
    # Clients are told 127.0.0.2, where the thief is; the broker is at 127.0.0.1.
    with (
        launch.name_server("ours", tmp_path / "names") as names,
        Broker(
            tmp_path / "store", listenPort=port, bindAddress="127.0.0.1", brokerIP1="127.0.0.2",
            namesrvAddr=names, idempotentProduceWindow=window, **SIZES,
        ),
        Thief("127.0.0.2", port, port) as thief,
    ):  # fmt: skip
        with services("retries", names, tmp_path / "db", 60) as s:
            s.wait(lambda: s.said("end"))
        told = {
            line["id"]: (line["place"], line["queue"], line["offset"]) for line in s.said("sent")
        }
        assert len(told) == 60 and thief.stolen > 20
    with Reader(tmp_path / "store") as reader:
        stored = list(everything(reader, "orders"))
    ids = Counter(m.properties["UNIQ_KEY"] for m in stored)
    assert set(ids) == set(told)
    if window:
        assert set(ids.values()) == {1}
        places = {m.properties["UNIQ_KEY"]: (m.offset_message_id, m.queue, m.queue_offset)
                  for m in stored}  # fmt: skip
        assert told == places
    else:
        assert max(ids.values()) > 1
