"""The server and the client of the remoting protocol, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path
from unittest import mock

import pytest
from listening import listening
from loops import Wire, run, serving, until
from ports import free_port
from waiting import BOUND_S, settled_async

from broker.loop import turns
from broker.loop.idle import IdleWheel
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.watchdog import Watchdog
from broker.remoting import connection
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Connection, Limits
from broker.remoting.links import LinkTransport
from broker.wire import codec
from broker.wire.answer_limits import SHORT_ANSWER_MAX
from broker.wire.codes import RequestCode
from broker.wire.command import BINARY, JSON, ONEWAY, Command, Refused
from broker.wire.framer import PlainFramer

ECHO, FAIL, REFUSE, LATER = 1, 2, 3, 4


def echo(peer, command):
    return command.reply(0, ext=command.ext, body=command.body)


def fail(peer, command):
    raise ValueError("no such thing")


def refuse(peer, command):
    raise Refused(16, "not allowed")


async def later(peer, command):
    await asyncio.sleep(0.01)
    return command.reply(0, "later")


HANDLERS = {ECHO: echo, FAIL: fail, REFUSE: refuse, LATER: later}


async def test_an_answer_carries_opaque_and_encoding_of_its_request():
    async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
        for serialize in (JSON, BINARY):
            asked = Command(ECHO, {"a": "ä"}, b"body", opaque=-77, serialize=serialize)
            answer = await wire.ask(asked)
            assert (answer.code, answer.opaque, answer.serialize) == (0, -77, serialize)
            assert (answer.ext, bytes(answer.body)) == ({"a": "ä"}, b"body")
            assert answer.is_response and answer.version == 479


async def test_the_client_asks_and_is_told_errors():
    async with serving(HANDLERS) as server, RemotingClient() as client:
        at = f"127.0.0.1:{server.port}"
        answer = await client.request(at, Command(ECHO, {"k": "v"}, b"x" * 100_000))
        assert answer.code == 0 and len(answer.body) == 100_000
        answer = await client.request(at, Command(REFUSE))
        assert (answer.code, answer.remark) == (16, "not allowed")
        answer = await client.request(at, Command(FAIL))
        assert (answer.code, answer.remark) == (1, "ValueError: no such thing")
        answer = await client.request(at, Command(4711))
        assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
        answer = await client.request(at, Command(LATER))
        assert (answer.code, answer.remark) == (0, "later")


async def test_what_is_short_is_not_read_when_it_is_long():
    """A stranger may stand where a name server or a master is looked for."""
    route, topics = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_ALL_TOPIC_CONFIG
    async with serving({route: echo, topics: echo}) as server, RemotingClient() as client:
        at = f"127.0.0.1:{server.port}"
        longest = bytes(SHORT_ANSWER_MAX)
        assert len((await client.request(at, Command(route, {}, longest))).body) == len(longest)
        with pytest.raises(ConnectionError, match="the answer to request 105 has 1048577 bytes"):
            await client.request(at, Command(route, {}, longest + b"0"))
        answer = await client.request(at, Command(topics, {}, longest + b"0"))
        assert len(answer.body) == len(longest) + 1


# ---- frames ----


def test_frames_of_any_length_in_pieces_of_any_length(rng):
    """A framer gives the commands that went in, however they are cut, and keeps no buffer. Short
    ones come byte by byte."""
    scratch = memoryview(bytearray(32 << 10))
    for number in range(40):
        framer, is_short = PlainFramer(scratch), number % 4 == 0
        pieces = (1,) if is_short else (1, 3, 500, 20_000, 1 << 20)
        sizes = (0, 1, 100) if is_short else (0, 1, 100, 4096, 40_000, 300_000)
        bodies = [rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 12))]
        sent = b"".join(codec.encode(Command(ECHO, {}, body)) for body in bodies)
        found, at = [], 0
        while at < len(sent):
            room = framer.buffer(0)
            count = min(len(room), len(sent) - at, rng.choice(pieces))
            room[:count] = sent[at : at + count]
            scratch_is_free = len(room) <= len(scratch)
            found += [bytes(command.body) for command in framer.received(count)]
            at += count
            if scratch_is_free:
                scratch[:] = b"\xff" * len(scratch)  # the next connection reads into it
        assert found == bodies
        assert framer._own is None and framer._part == b""


def test_a_frame_that_only_says_it_is_long_takes_no_memory():
    framer = PlainFramer(memoryview(bytearray(256 << 10)))
    head = struct.pack(">iI", (16 << 20) - 8, 10)
    for piece in (head, b"x" * 5000):
        framer.buffer(0)[: len(piece)] = piece
        framer.received(len(piece))
    assert len(framer._own) == 64 << 10


async def test_the_longest_frame_and_one_that_is_too_long():
    async with serving(HANDLERS) as server:
        async with await Wire.to(server.port, limit=1 << 26) as wire:
            # Both the request and its answer have exactly 16 MiB.
            empty = len(codec.encode(Command(ECHO, flag=1)))
            body = bytes((16 << 20) - empty)
            answer = await wire.ask(Command(ECHO, {}, body))
            assert len(answer.body) == len(body)
        for bad in (struct.pack(">i", (16 << 20) - 3), b"\xff" * 4, struct.pack(">i", 3)):
            async with await Wire.to(server.port) as wire:
                wire.write(bad)
                assert await wire.closed() == b""
        async with await Wire.to(server.port) as wire:
            wire.write(struct.pack(">iI", 8, 0x07000004) + b"{{{{")
            assert await wire.closed() == b""


async def test_many_requests_in_one_write_are_answered_with_few():
    writes = []

    write = LinkTransport.write

    def count(transport, data):
        writes.append(len(data))
        write(transport, data)

    # A turn that a busy machine makes long would end early, and write what it has.
    endless = mock.patch.object(turns, "TURN_S", BOUND_S)
    with mock.patch.object(LinkTransport, "write", count), endless:
        async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
            await wire.ask(Command(ECHO))
            one = sum(writes)
            writes.clear()
            wire.write(b"".join(codec.encode(Command(ECHO, opaque=n)) for n in range(500)))
            for n in range(500):
                assert (await wire.answer()).opaque == n
    assert len(writes) < 10 and sum(writes) >= 500 * one


# ---- one-way, errors ----


async def test_a_oneway_request_is_never_answered():
    async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
        for code in (ECHO, FAIL, REFUSE, LATER, 4711):
            wire.write(Command(code, opaque=9, flag=ONEWAY))
        await asyncio.sleep(0.05)
        answer = await wire.ask(Command(ECHO, opaque=1))
        assert answer.opaque == 1


async def test_an_answer_that_cannot_be_encoded_is_an_error_answer():
    def strange(peer, command):
        answer = command.reply()
        answer.ext["a"] = object()
        return answer

    async with (
        serving({1: strange, ECHO + 1: echo}) as server,
        await Wire.to(server.port) as wire,
    ):
        answer = await wire.ask(Command(1, opaque=5))
        assert (answer.code, answer.opaque) == (1, 5)
        assert (await wire.ask(Command(ECHO + 1))).code == 0


async def test_an_error_is_logged_once_a_kind(caplog):
    connection._quiet._kinds.clear()
    async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
        for _ in range(50):
            assert (await wire.ask(Command(FAIL))).code == 1
    assert [r.getMessage().split(" from ")[0] for r in caplog.records] == ["Request 2"]
    assert caplog.records[0].exc_info[0] is ValueError


def test_a_line_that_repeats_says_how_often(caplog):
    quiet = RateLimitedLogger(SafeLogger("quiet"))
    with mock.patch("broker.loop.rate_limited_log.time.monotonic", side_effect=[0, 1, 2, 61]):
        for _ in range(4):
            quiet.warning("kind", "it happened")
    assert [r.getMessage() for r in caplog.records] == [
        "it happened",
        "it happened (2 more since the last line)",
    ]


# ---- back-pressure and limits ----


async def test_a_client_that_never_reads_is_not_read_from():
    """The server takes no more than a bounded number of requests of it, and serves the others."""
    served = [0]

    def large(peer, command):
        served[0] += 1
        return command.reply(0, body=bytes(100_000))

    async with serving({1: large, 2: echo}) as server:
        deaf, other = await Wire.to(server.port), await Wire.to(server.port)
        async with deaf, other:
            deaf.writer.transport.pause_reading()
            one = codec.encode(Command(1))
            for _ in range(200):
                deaf.write(one * 100)
                await asyncio.sleep(0)
            before = await settled_async(lambda: served[0])
            assert before < 2000  # of 20,000
            (held,) = [c for c in server.connections if c.in_work]
            assert held._transport.get_write_buffer_size() < 4 << 20
            assert (await other.ask(Command(2))).code == 0
            deaf.writer.transport.resume_reading()
            for _ in range(before + 500):
                assert len((await deaf.answer()).body) == 100_000


async def test_a_client_that_does_not_read_what_is_pushed_is_closed(caplog):
    limits = Limits(unsent_max=1 << 20, write_high=100_000, write_low=50_000)
    peers = []
    async with (
        serving({}, limits=limits, on_connect=peers.append) as server,
        await Wire.to(server.port) as deaf,
    ):
        deaf.writer.transport.pause_reading()
        deaf.write(Command(99))
        await until(lambda: peers)
        while not peers[0].closed:
            peers[0].send(Command(40, {}, bytes(60_000), flag=ONEWAY))
            await asyncio.sleep(0)
    assert "responses not read by the client" in caplog.text


async def test_requests_in_work_are_bounded():
    begun, gate = [], asyncio.Event()

    async def wait(peer, command):
        begun.append(command.opaque)
        await gate.wait()
        return command.reply()

    async with (
        serving({1: wait}, limits=Limits(in_work_max=10)) as server,
        await Wire.to(server.port) as wire,
    ):
        wire.write(*(Command(1, opaque=n) for n in range(1, 101)))
        await until(lambda: len(begun) == 10)
        await asyncio.sleep(0.05)
        assert len(begun) == 10
        gate.set()
        assert {(await wire.answer()).opaque for _ in range(100)} == set(range(1, 101))


async def test_an_answer_is_heard_while_requests_wait():
    """A request in work that asks its client back must not wait for its own end."""

    async def ask_back(peer, command):
        await peer.request(Command(220), BOUND_S)
        return command.reply()

    async with (
        serving({1: ask_back}, limits=Limits(in_work_max=2)) as server,
        await Wire.to(server.port) as wire,
    ):
        wire.write(Command(1, opaque=1))
        asked = await wire.answer()
        assert asked.code == 220
        # In one read: a second request, which fills the limit, a third, and then the answer.
        wire.write(
            b"".join(
                map(
                    codec.encode,
                    (Command(1, opaque=2), Command(1, opaque=3), asked.reply(0)),
                )
            )
        )
        answered = []
        while len(answered) < 3:
            got = await wire.answer()
            if got.is_response:
                assert got.code == 0, got.remark
                answered.append(got.opaque)
            else:
                wire.write(got.reply(0))
        assert sorted(answered) == [1, 2, 3]


async def test_an_idle_connection_is_closed():
    """One that says nothing at all is idle, too; nobody was told of it."""
    gone, answer, tries = [], b"", 0
    limits = Limits(idle_s=0.05)
    async with (
        serving(HANDLERS, limits=limits, on_close=gone.append) as server,
        await Wire.to(server.port) as silent,
    ):
        unheard = silent.socket.getsockname()
        while not answer:  # one that a busy machine kept from asking was idle before
            tries += 1
            async with await Wire.to(server.port) as idle:
                idle.write(Command(ECHO))
                answer = await idle.closed()
        assert codec.decode(answer).code == 0
        assert await silent.closed() == b""
        await until(lambda: gone and not server.connections and not server.connection_count)
        assert len(gone) <= tries and unheard not in [each.address for each in gone]


async def test_thousands_of_idle_connections_cost_one_timer():
    class Watched:
        def __init__(self, wheel):
            self.seen, self.wheel, self.gone = 0, wheel, False
            wheel.add(self)

        def idle(self):
            self.gone = True

    wheel = IdleWheel(0.24)
    watched = [Watched(wheel) for _ in range(5000)]
    while wheel.now < 20:
        await asyncio.sleep(0.005)
    for each in watched[:100]:
        each.seen = wheel.now
    assert sum(map(len, wheel._ring)) == 5000
    while wheel.now < 30:
        await asyncio.sleep(0.005)
    assert sum(each.gone for each in watched) == 4900
    while wheel._timer is not None:
        await asyncio.sleep(0.005)
    assert all(each.gone for each in watched)


async def test_connections_over_the_limit_are_told_so():
    limits = Limits(connections_max=2)
    async with (
        serving(HANDLERS, limits=limits) as server,
        await Wire.to(server.port) as a,
        await Wire.to(server.port) as b,
    ):
        assert (await a.ask(Command(ECHO))).code == 0
        assert (await b.ask(Command(ECHO))).code == 0
        async with await Wire.to(server.port) as c:
            answer = await c.ask(Command(ECHO, opaque=3))
            assert (answer.code, answer.opaque) == (2, 3)
            assert await c.closed() == b""
        b.close()
        await until(lambda: len(server.connections) == 1)
        async with await Wire.to(server.port) as d:
            assert (await d.ask(Command(ECHO))).code == 0


# ---- both directions ----


async def test_a_service_learns_who_comes_and_goes():
    seen = []
    async with serving(
        HANDLERS,
        on_connect=lambda peer: seen.append(("came", peer.address)),
        on_close=lambda peer: seen.append(("went", peer.address)),
    ) as server:
        async with await Wire.to(server.port) as wire:
            address = wire.writer.get_extra_info("sockname")
            await wire.ask(Command(ECHO))
            assert seen == [("came", address)]
        await until(lambda: len(seen) == 2)
        assert seen[1] == ("went", address)


async def test_a_server_asks_its_client():
    async def ask_back(peer, command):
        answer = await peer.request(Command(220, {"q": "?"}), BOUND_S)
        return command.reply(answer.code, answer.remark, answer.ext, answer.body)

    def told(peer, command):
        return command.reply(7, "told", {"heard": command.ext["q"]}, b"body")

    async with serving({1: ask_back}) as server, RemotingClient({220: told}) as client:
        answer = await client.request(f"127.0.0.1:{server.port}", Command(1))
        assert (answer.code, answer.remark, answer.ext) == (7, "told", {"heard": "?"})


async def test_a_request_times_out_and_its_late_answer_is_dropped():
    asked_again = asyncio.Event()

    async def slow(peer, command):
        await asked_again.wait()
        return command.reply(0, "late")

    async with serving({1: slow, 2: echo}) as server, RemotingClient() as client:
        at = f"127.0.0.1:{server.port}"
        connection = await client.connection(at)
        with pytest.raises(TimeoutError, match=r"did not answer the request 1 within 0\.05 s"):
            await connection.request(Command(1), 0.05)
        answer = await connection.request(Command(2, {"a": "b"}), BOUND_S)
        assert answer.ext == {"a": "b"}
        (served,) = server.connections
        asked_again.set()
        await until(lambda: not served.in_work)  # the late one comes in between
        assert (await connection.request(Command(2, {"c": "d"}), BOUND_S)).ext == {"c": "d"}
        assert await client.connection(at) is connection and not connection._outstanding


async def test_a_server_that_is_silent_is_left_and_connected_anew():
    """A half-open connection: the other side is gone and nobody said so."""

    async def swallow(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read()

    port = free_port()
    async with RemotingClient() as client:
        async with listening(swallow, port=port) as at:
            first = await client.connection(at)
            with pytest.raises(TimeoutError):
                await client.request(at, Command(ECHO), 0.1)
            assert not first.open
        async with serving(HANDLERS, port=port):
            assert (await client.request(at, Command(ECHO))).code == 0
            assert await client.connection(at) is not first


async def test_the_client_says_what_is_wrong_with_a_connection():
    async with RemotingClient() as client:
        async with serving(HANDLERS) as server:
            at = f"127.0.0.1:{server.port}"
            peer = await client.connection(at)
            waiting = asyncio.ensure_future(peer.request(Command(ECHO, flag=ONEWAY), BOUND_S))
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectionError, match="is closed"):
            await waiting
        with pytest.raises(ConnectionError, match="no connection to"):
            await client.request(at, Command(ECHO))
        with pytest.raises(ValueError, match="is not host:port"):
            await client.request("nowhere", Command(ECHO))


async def test_one_connection_serves_all_who_ask_at_once():
    async with serving(HANDLERS) as server, RemotingClient() as client:
        at = f"127.0.0.1:{server.port}"
        asked = [client.request(at, Command(ECHO, {"n": str(n)})) for n in range(200)]
        answers = await asyncio.gather(*asked)
        assert [a.ext["n"] for a in answers] == [str(n) for n in range(200)]
        assert len(server.connections) == 1


async def test_a_connection_whose_opening_is_ended_is_not_kept(monkeypatch):
    """What ends it may come between the connection and the task that waits for it."""
    made = Connection.connection_made

    def met(self, transport):
        made(self, transport)
        for task in client._making.values():
            task.cancel()

    monkeypatch.setattr(Connection, "connection_made", met)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with RemotingClient() as client:
            with pytest.raises(ConnectionError, match="the client is closed"):
                await client.connection(f"127.0.0.1:{listening.getsockname()[1]}")
            assert not client._shared.connections


# ---- the end ----


async def test_stop_answers_what_is_in_work():
    closed = []
    server = serving(HANDLERS, on_close=closed.append)
    await server.start()
    async with await Wire.to(server.port) as wire:
        wire.write(Command(LATER, opaque=8))
        await until(lambda: any(c.in_work for c in server.connections))
        stopping = asyncio.ensure_future(server.stop(BOUND_S))
        answer = await wire.answer()
        assert (answer.opaque, answer.remark) == (8, "later")
        assert await wire.closed() == b""
        await stopping
    assert len(closed) == 1
    with pytest.raises(OSError):
        await Wire.to(server.port)


async def test_stop_does_not_wait_for_ever():
    cancelled = []

    async def never(peer, command):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(command.opaque)
            raise

    server = serving({1: never})
    await server.start()
    async with await Wire.to(server.port) as wire:
        wire.write(Command(1, opaque=8))
        await until(lambda: any(c.in_work for c in server.connections))
        await server.stop(0.1)
        assert await wire.closed() == b""
    assert cancelled == [8]


async def test_a_client_that_closes_its_half_is_closed():
    gone = []
    async with serving(HANDLERS, on_close=gone.append) as server:
        async with await Wire.to(server.port) as wire:
            await wire.ask(Command(ECHO))
            wire.writer.write_eof()
            assert await wire.closed() == b""
        assert len(gone) == 1


def accepted_from(ours):
    """A copy of the server's end, which is in this process."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(path.name)))
            if found.getpeername() == ours.getsockname():
                return found
            found.close()
    raise AssertionError("there is none")


async def test_sockets_send_at_once_and_are_not_kept_alive():
    async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
        await wire.ask(Command(ECHO))
        made = accepted_from(wire.socket)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        made.close()


# ---- requests that hold the loop ----


def test_what_holds_the_loop_is_named_and_counted(caplog, monkeypatch):
    """A handler that blocks for 80 ms of a clock, at a limit of 50 ms; 50 ms are fine."""
    # What other tests of this process have logged, and their brokers still do, is nothing to it.
    logger = SafeLogger("broker.remoting.held")
    monkeypatch.setattr("broker.loop.watchdog._quiet", RateLimitedLogger(logger))
    now = [0.0]

    def blocking(seconds):
        def handler(peer, command):
            now[0] += seconds
            return command.reply()

        return handler

    def failing(peer, command):
        now[0] += 1.0
        raise Refused(1, "no")

    dog = Watchdog(50, clock=lambda: now[0])
    handlers = {901: blocking(0.08), 902: blocking(0.05), 903: failing}

    async def work():
        async with (
            serving(handlers, watchdog=dog) as server,
            await Wire.to(server.port) as wire,
        ):
            return [(await wire.ask(Command(code))).code for code in (901, 902, 903, 901)]

    with caplog.at_level(logging.WARNING, "broker.remoting.held"):
        assert run(work()) == [0, 0, 1, 0]
    assert (dict(dog.counts), dog.longest_ms) == ({901: 2, 903: 1}, 1000)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Request 90")]
    assert lines == [
        "Request 901 from 127.0.0.1 held the event loop for 80 ms",
        "Request 903 from 127.0.0.1 held the event loop for 1000 ms",
    ]
