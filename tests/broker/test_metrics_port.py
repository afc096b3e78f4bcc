"""The HTTP port of the metrics: health, readiness, and clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from types import SimpleNamespace

import pytest
from popping import popping
from scrapes import fetch, value
from waiting import until_async

from broker.metrics import endpoint as port_of_metrics

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


@contextlib.asynccontextmanager
async def with_broker(tmp_path, **settings):
    async with popping(tmp_path / "store", **PROM, **settings) as popper:
        yield popper.broker


async def asked(broker, path):
    return await asyncio.to_thread(fetch, broker.metrics_port, path)


async def said_to(port, data, *, read=True):
    """What comes until the port closes, and whether it closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read() if read else b""
    writer.close()
    return answer


async def test_any_path_answers_with_the_metrics(tmp_path):
    async with with_broker(tmp_path) as broker:
        for path in ("/", "/metrics", "/anything?x=1"):
            status, headers, text = await asked(broker, path)
            assert status == 200 and "rocketmq_topic_number" in text
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_a_broker_that_works_is_healthy_and_ready(tmp_path):
    async with with_broker(tmp_path) as broker:
        for path in ("/health", "/ready"):
            status, headers, text = await asked(broker, path)
            assert (status, headers["Content-Type"]) == (200, "application/json")
            said = json.loads(text)
            assert said["status"] == "ok"
            assert all(check["ok"] and check["reason"] for check in said["checks"])


async def test_a_broker_that_no_name_server_knows_is_not_ready_and_says_why(tmp_path):
    async with with_broker(tmp_path, namesrvAddr="127.0.0.1:1") as broker:
        status, _, text = await asked(broker, "/ready")
        assert status == 503
        (wrong,) = [check for check in json.loads(text)["checks"] if not check["ok"]]
        assert wrong["name"] == "name servers" and "127.0.0.1:1" in wrong["reason"]
        assert (await asked(broker, "/health"))[0] == 200
        assert value((await asked(broker, "/"))[2], "pystore_ready") == 0


class FailedStore:
    """As a store says it after a sync that failed."""

    disk_full = False

    def info(self):
        return SimpleNamespace(flush_errno=errno.EIO)


async def test_a_store_whose_sync_failed_is_not_healthy(tmp_path, monkeypatch):
    async with with_broker(tmp_path) as broker:
        monkeypatch.setattr(broker.metrics.probes, "_s", SimpleNamespace(store=FailedStore()))
        status, _, text = await asked(broker, "/health")
        assert status == 503 and "EIO" in text and "nothing is written" in text


@pytest.mark.parametrize(
    "data, status",
    [
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000, b"431"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"413"),
        (b"DELETE / HTTP/1.1\r\nConnection: close\r\n\r\n", b"405"),
    ],
)
async def test_what_is_no_scrape_is_refused_and_closed(tmp_path, data, status):
    async with with_broker(tmp_path) as broker:
        answer = await said_to(broker.metrics_port, data)
        assert answer.split(b" ")[1] == status
        assert (await asked(broker, "/health"))[0] == 200


async def test_connections_are_bounded_and_others_are_served_again(tmp_path):
    async with with_broker(tmp_path) as broker:
        held = []
        for _ in range(port_of_metrics.CONNECTIONS_MAX):
            held.append(await asyncio.open_connection("127.0.0.1", broker.metrics_port))
        live = broker._listeners.endpoint.connections
        await until_async(lambda: len(live) == port_of_metrics.CONNECTIONS_MAX, "all of them")
        with pytest.raises(ConnectionError):
            if not await said_to(broker.metrics_port, b"GET / HTTP/1.1\r\n\r\n"):
                raise ConnectionResetError
        for _, writer in held:
            writer.close()
        await until_async(lambda: not live, "their end")
        assert (await asked(broker, "/health"))[0] == 200


async def test_a_client_that_sends_no_whole_request_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(port_of_metrics, "HEAD_S", 0.2)
    async with with_broker(tmp_path) as broker:
        assert await said_to(broker.metrics_port, b"GET / HT") == b""


async def test_a_client_that_does_not_read_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(port_of_metrics, "READ_S", 0.5)
    async with with_broker(tmp_path) as broker:

        async def page():
            return [b"x" * (32 << 20)]

        monkeypatch.setattr(broker._listeners.endpoint, "_page", page)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(sock.connect, ("127.0.0.1", broker.metrics_port))
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        live = broker._listeners.endpoint.connections
        await until_async(lambda: live, "the connection")
        await until_async(lambda: not live, "its end")
        sock.close()


async def test_a_client_may_ask_again_on_its_connection(tmp_path):
    async with with_broker(tmp_path) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.metrics_port)
        ask = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(ask + ask + ask.replace(b"Host: x", b"Connection: close"))
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        writer.close()
