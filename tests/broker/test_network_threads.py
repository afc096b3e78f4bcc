"""What the network threads of a broker serve without the interpreter, and what waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from functools import partial
from pathlib import Path

import pytest
from fakes import beat, send_command
from holding import broker_process, tls_of_server
from popping import Popper, records
from waiting import BOUND_S, until

from broker.broker import Broker
from broker.processors.clients import ClientProcessor
from broker.remoting import links
from broker.remoting.tls import client_context
from broker.wire import codec
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command, texts
from pystore.errors import UsedAfterFork

ROOT = Path(__file__).resolve().parents[2]
#: How many of each are asked while the interpreter is held.
SENDS, POPS, ENDS, COMMITS = 4_000, 1_000, 1_000, 1_000
#: Messages that are there before.
WARM = 2


class Client:
    """A blocking socket that asks many things at once."""

    def __init__(self, port, tls=None, header=b""):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=BOUND_S)
        self.sock.sendall(header)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock)
        self._left = b""

    def ask_all(self, commands, at_once=200):
        """The answers, by opaque, in the order of the commands."""
        found = []
        for begin in range(0, len(commands), at_once):
            part = commands[begin : begin + at_once]
            for number, command in enumerate(part):
                command.opaque = number
            self.sock.sendall(b"".join(map(codec.encode, part)))
            answers = [self.answer() for _ in part]
            found += sorted(answers, key=lambda answer: answer.opaque)
        return found

    def ask(self, command):
        return self.ask_all([command])[0]

    def answer(self):
        """The next; what the broker asks is passed over."""
        while not (got := self._command()).is_response:
            pass
        return got

    def _command(self):
        while len(self._left) < 4 or len(self._left) < self._size():
            got = self.sock.recv(1 << 18)
            assert got, "the broker has closed the connection"
            self._left += got
        frame, self._left = self._left[: self._size()], self._left[self._size() :]
        return codec.decode(frame)

    def _size(self):
        return 4 + struct.unpack_from(">i", self._left)[0]

    def is_answered(self):
        """Whether anything has come that was not read."""
        self.sock.setblocking(False)
        try:
            return bool(self._left or self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.sock.settimeout(BOUND_S)

    def close(self):
        self.sock.close()


# ---- what is asked ----


def heartbeat(group="g", topics=("T",)):
    return Command(Code.HEART_BEAT, {}, json.dumps(beat(group=group, topics=topics)).encode())


def send(number, **more):
    given = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true"} | more
    return send_command("T", b"message %d" % number, properties=given, f=4 if more else 0)


def pull(offset, committed, hold_ms=0):
    commit, suspend, subscription = 1, 2 if hold_ms else 0, 4
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": commit | suspend | subscription, "commitOffset": committed,
        "suspendTimeoutMillis": hold_ms,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    return Command(Code.PULL_MESSAGE, texts(ext))


def pop(**more):
    ext = {
        "consumerGroup": "poppers", "topic": "T", "queueId": 0, "maxMsgNums": 32,
        "invisibleTime": 3_600_000, "pollTime": 0, "bornTime": time.time_ns() // 1_000_000 + 60_000,
        "initMode": 0, "exp": "*", "expType": "TAG", "order": "false",
    }  # fmt: skip
    return Command(Code.POP_MESSAGE, texts(ext | more))


def acknowledge(handle):
    ext = {
        "consumerGroup": "poppers", "topic": "T", "queueId": handle.queue,
        "offset": handle.offset, "extraInfo": handle.text,
    }  # fmt: skip
    return Command(Code.ACK_MESSAGE, texts(ext))


def end(half, how):
    ext = {
        "producerGroup": "makers", "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": int(half.ext["msgId"][-16:], 16), "commitOrRollback": how,
        "fromTransactionCheck": False, "msgId": "x",
    }  # fmt: skip
    return Command(Code.END_TRANSACTION, texts(ext))


def commit(offset):
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
    return Command(Code.UPDATE_CONSUMER_OFFSET, texts(ext))


def committed():
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    return Command(Code.QUERY_CONSUMER_OFFSET, texts(ext))


def members(group="g"):
    return Command(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def good(answers):
    wrong = [a for a in answers if a.code]
    assert not wrong, (len(wrong), wrong[0].code, wrong[0].remark)
    return answers


def pull_all(client, wanted):
    """Bodies from offset 0 on; each pull commits where the one before it ended."""
    offset, bodies = 0, []
    while len(bodies) < wanted:
        (answer,) = good([client.ask(pull(offset, offset))])
        bodies += [body for _, body, *_ in records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])
    return bodies


def pop_all(client, wanted):
    handles = []
    while len(handles) < wanted:
        (answer,) = good([client.ask(pop())])
        handles += [handle for handle, *_ in Popper.handles_of(answer, group="poppers")]
    return handles


def warm(client):
    """Tables of the core get their rows with the first request of each kind, which Python sees."""
    good(client.ask_all([heartbeat(), heartbeat("poppers")]))
    good(client.ask_all([send(0)]))
    half = client.ask(send(1, TRAN_MSG="true", PGROUP="makers"))
    good([half, client.ask(end(half, 8))])
    good([client.ask(pull(0, 0))])
    (handle, *_) = pop_all(client, 1)
    good([client.ask(acknowledge(handle))])


THREADS = pytest.mark.parametrize("threads", [1, 3])


@pytest.mark.parametrize(("threads", "tls"), [(1, False), (3, False), (1, True)])
def test_messages_pass_while_the_interpreter_is_held(tmp_path, threads, tls):
    """No request that only Python can serve is answered meanwhile: it really is held."""
    settings = {"serverSelectorThreads": threads, "tls": tls_of_server(tmp_path) if tls else {}}
    with broker_process(tmp_path / "s", **settings) as broker:
        client = Client(broker.port, client_context() if tls else None)
        other = Client(broker.port)
        warm(client)
        other.ask(heartbeat())
        broker.hold()
        other.sock.sendall(codec.encode(committed()))

        good(client.ask_all([send(n) for n in range(SENDS)]))
        bodies = pull_all(client, WARM + SENDS)[WARM:]
        assert bodies == [b"message %d" % n for n in range(SENDS)]
        good(client.ask_all([acknowledge(h) for h in pop_all(client, POPS)[:POPS]]))
        halves = good(client.ask_all([send(n, TRAN_MSG="true", PGROUP="makers")
                                      for n in range(ENDS)]))  # fmt: skip
        good(client.ask_all([end(half, 8 if n % 2 else 12) for n, half in enumerate(halves)]))
        good(client.ask_all([commit(n) for n in range(COMMITS)]))

        assert not other.is_answered()
        broker.let_go()
        assert other.answer().ext["offset"] == str(COMMITS - 1)
        client.close(), other.close()


@pytest.mark.parametrize("tls", [False, True])
def test_what_follows_a_proxy_header_is_served_while_the_interpreter_is_held(tmp_path, tls):
    settings = {"tls": tls_of_server(tmp_path) if tls else {}}
    with broker_process(tmp_path / "s", **settings) as broker:
        header = b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n"
        client = Client(broker.port, client_context() if tls else None, header)
        warm(client)
        broker.hold()
        good(client.ask_all([send(n) for n in range(1000)]))
        assert len(pull_all(client, WARM + 1000)) == WARM + 1000
        good(client.ask_all([acknowledge(h) for h in pop_all(client, 100)]))
        broker.let_go()
        client.close()


def test_heartbeats_pass_while_the_interpreter_is_held(tmp_path):
    """Those that say nothing new, and they are heard: whoever sent one is still there once the
    interpreter is back, and whoever sent nothing is dropped. One that changes something waits."""
    with broker_process(tmp_path / "s") as broker:
        client, changing, silent = (Client(broker.port) for _ in range(3))
        for each, group in (client, "g"), (changing, "changing"), (silent, "silent"):
            good([each.ask(heartbeat(group)) for _ in range(2)])
        broker.hold()
        answers = good(client.ask_all([heartbeat() for _ in range(1000)]))
        assert answers[-1].ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        changing.sock.sendall(codec.encode(heartbeat("changing", topics=("T", "U"))))
        good(client.ask_all([heartbeat() for _ in range(1000)]))
        assert not changing.is_answered()
        broker.let_go()
        assert client.ask(members()).code == 0
        assert client.ask(members("silent")).code == 1
        assert not silent.sock.recv(1)
        for each in (client, changing, silent):
            each.close()


@THREADS
def test_who_waits_is_answered_while_the_interpreter_is_held(tmp_path, threads):
    """Held pulls and pops by a message or when their time is over; sends, pops and acknowledgements
    when the log is on the disk. Each has a connection of its own, and with several threads its
    own."""
    with broker_process(
        tmp_path / "s", flushDiskType="SYNC_FLUSH", serverSelectorThreads=threads
    ) as broker:
        client, reader, popper, late = (Client(broker.port) for _ in range(4))
        warm(client)
        broker.hold()
        (answer,) = late.ask_all([pop(bornTime=0, pollTime=100)])
        assert answer.code == 210
        popper.sock.sendall(codec.encode(pop(bornTime=0, pollTime=3_600_000, maxMsgNums=1)))
        reader.sock.sendall(codec.encode(pull(WARM, WARM, hold_ms=3_600_000)))
        (answer,) = late.ask_all([pull(WARM, WARM, hold_ms=50)])
        assert answer.code == 19
        good(client.ask_all([send(n) for n in range(100)], at_once=10))
        (answer,) = good([reader.answer()])
        assert records(answer.body)[0][1] == b"message 0"
        (answer,) = good([popper.answer()])
        assert records(answer.body)[0][1] == b"message 0"
        handles = pop_all(client, 50)
        good(client.ask_all([acknowledge(h) for h in handles]))
        broker.let_go()
        for each in (client, reader, popper, late):
            each.close()


def tasks():
    """Names of this process's threads."""
    return sorted(path.read_text() for path in Path("/proc/self/task").glob("*/comm"))


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@THREADS
def test_starts_and_stops_leave_no_thread_and_no_descriptor(tmp_path, small, threads):
    """With connections that are in the middle of something."""
    small["serverSelectorThreads"] = threads

    def once(number):
        with Broker(tmp_path / f"s{number}", listenPort=0, drain_s=0.0, **small) as broker:
            broker.create_topic("T", queues=1)
            names = {f"rmq-net-{number}\n" for number in range(1, threads + 1)}
            assert names <= set(tasks())
            client, other, half = (Client(broker.port) for _ in range(3))
            good(client.ask_all([send(0)]))
            half.sock.sendall(b"PROXY TCP4 ")
            other.sock.sendall(codec.encode(send(1))[:50])
            client.sock.sendall(codec.encode(pull(1, 1, hold_ms=60_000)))
        client.close(), other.close(), half.close()

    once(0)
    gc.collect()  # what tests before have left may still go away, and then there are fewer
    before = descriptors()
    for number in range(1, 21):
        once(number)
    assert descriptors() <= before
    assert not any(name.startswith("rmq-net-") for name in tasks())


def answered_here(broker):
    """Whether the core has answered a heartbeat of the only client."""
    (connection,) = broker._listeners.main.connections
    return connection.heartbeat_at > 0


def test_a_heartbeat_comes_to_python_again_once_a_topic_is_gone(tmp_path, small):
    """It may be the one that the heartbeat makes."""
    with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        client = Client(broker.port)
        retry = "%RETRY%g"
        good([client.ask(heartbeat()) for _ in range(3)])
        assert answered_here(broker)
        assert retry in broker.services.topics
        good([client.ask(Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": retry}))])
        assert retry not in broker.services.topics
        good([client.ask(heartbeat())])
        assert retry in broker.services.topics
        client.close()


def test_cold_requests_wait_while_a_request_holds_the_loop(tmp_path, small, caplog, monkeypatch):
    """Hot ones do not; the log names the one that holds it."""
    began, let_go = threading.Event(), threading.Event()
    plain = ClientProcessor.consumers

    def slow(self, peer, command):
        began.set()
        let_go.wait(BOUND_S)
        time.sleep(0.2)  # longer than the watchdog allows, however fast the rest was
        return plain(self, peer, command)

    monkeypatch.setattr(ClientProcessor, "consumers", slow)
    with (
        Broker(tmp_path / "s", listenPort=0, **small) as broker,
        caplog.at_level(logging.WARNING, "broker.remoting"),
    ):
        broker.create_topic("T", queues=1)
        client, holder, cold = (Client(broker.port) for _ in range(3))
        warm(client)
        holder.sock.sendall(codec.encode(members()))
        assert began.wait(BOUND_S)
        cold.sock.sendall(codec.encode(committed()))
        good(client.ask_all([send(n) for n in range(1000)]))
        assert len(pull_all(client, WARM + 1000)) == WARM + 1000
        assert not cold.is_answered()
        let_go.set()
        good([holder.answer(), cold.answer()])
        for each in (client, holder, cold):
            each.close()
    held = [r.getMessage() for r in caplog.records if "held the event loop" in r.getMessage()]
    assert any("Request 38 from 127.0.0.1" in line for line in held)


# ---- in somebody's process ----


def test_a_forked_child_is_told_that_the_threads_are_not_its_own(tmp_path, small):
    with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        net = broker._listeners.main._net
        child = os.fork()
        if child == 0:
            named = 0
            for use in (partial(net.look, True), net.deafen, net.stop):
                try:
                    use()
                except UsedAfterFork:
                    named += 1
            os._exit(named)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        client = Client(broker.port)  # the parent's threads go on
        good([client.ask(heartbeat())])
        client.close()


LEAVES = """
import sys
from broker.broker import Broker

def work(broker):
    broker.create_topic("T", queues=1)
    print(broker.port, flush=True)
    sys.stdin.readline()
    sys.exit(7)

broker = Broker(sys.argv[1], listenPort=0, serverSelectorThreads=3)
if sys.argv[2] == "within":
    with broker:
        work(broker)
else:
    broker.__enter__()
    work(broker)
"""


@pytest.mark.parametrize("how", ["left open", "within"])
def test_a_process_may_exit_while_its_connections_are_busy(tmp_path, how):
    words = [sys.executable, "-c", LEAVES, str(tmp_path / "s"), how]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        clients = [Client(int(process.stdout.readline()))]
        clients += [Client(clients[0].sock.getpeername()[1]) for _ in range(5)]
        for each in clients:
            each.sock.sendall(b"".join(codec.encode(send(n)) for n in range(500)))
        process.stdin.write(b"go\n")
        assert process.wait(BOUND_S) == 7
        for each in clients:
            each.close()


def resident():
    """Bytes of this process in memory, without what is free and was kept for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.long
def test_two_hundred_starts_and_stops_leave_nothing(tmp_path, small):
    small["serverSelectorThreads"] = 2

    def once(number):
        with Broker(tmp_path / "s", listenPort=0, drain_s=0.0, **small) as broker:
            client = Client(broker.port)
            good([client.ask(heartbeat())])
        client.close()

    threads = len(tasks())
    for number in range(20):
        once(number)
    open_before, memory = descriptors(), resident()
    for number in range(200):
        once(number)
    assert descriptors() == open_before
    until(lambda: len(tasks()) <= threads)  # those of asyncio's pool end when they get their turn
    assert resident() - memory < 20 << 20


SUB = """
import sys
try:
    import _interpreters as subs
except ImportError:
    import _xxsubinterpreters as subs
subs.run_string(subs.create(), '''
import os, sys
sys.path.insert(0, ".")
try:
    import pystore
except ImportError as refused:
    os.write(1, str(refused).encode())
''')
"""


def test_a_subinterpreter_is_refused_by_name():
    done = subprocess.run(
        [sys.executable, "-c", SUB], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S
    )
    assert "cannot be used in a subinterpreter" in done.stdout, done.stderr


async def test_events_that_never_end_get_one_piece_of_each_turn_of_the_loop(monkeypatch):
    with contextlib.closing(socket.socketpair()[0]) as told:  # its peer has gone: always readable
        endless = types.SimpleNamespace(
            ps_net_event_fd=lambda net: told.fileno(), ps_net_events=lambda net, rows, count: count
        )
        monkeypatch.setattr(links, "lib", endless)
        pieces = 0

        def take(rows):
            nonlocal pieces
            pieces += 1
            next(rows)

        events = links.Events(None, take)
        for turn in range(50):
            await asyncio.sleep(0)
            assert pieces <= turn + 1
        events.stop()
    assert pieces > 10
