"""Metrics, /health and /ready of the name server and of the proxy."""

from __future__ import annotations

import asyncio
import json

import pytest
from scrapes import fetch, value, values

from broker import Broker, NameServer
from broker.grpc.proxy import Proxy
from broker.wire.codes import RequestCode as Code
from pystore.errors import BadArgument

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


async def test_a_name_server_counts_brokers_topics_and_requests(tmp_path):
    async with NameServer(listenPort=0, kvConfigPath="", **PROM) as names:
        async with Broker(tmp_path / "store", listenPort=0, namesrvAddr=names.address) as one:
            await one.services.registration.settled()
            status, _, page = await asyncio.to_thread(fetch, names.metrics_port)
            assert status == 200
            assert value(page, "pystore_namesrv_brokers", cluster="DefaultCluster") == 1
            topics = len(one.services.topics.all())
            assert value(page, "pystore_namesrv_topics") == topics
            name = Code.REGISTER_BROKER.name.lower()
            asked = values(page, "pystore_namesrv_requests_total", request_code=name)
            assert sum(asked.values()) >= 1
        for path in ("/health", "/ready"):
            status, _, text = await asyncio.to_thread(fetch, names.metrics_port, path)
            assert status == 200 and json.loads(text)["status"] == "ok"
    assert names.metrics_port == 0


async def test_a_name_server_without_metrics_has_no_port_for_them():
    async with NameServer(listenPort=0, kvConfigPath="") as names:
        assert names.metrics_port == 0


async def test_a_name_server_sends_no_metrics_elsewhere():
    with pytest.raises(BadArgument, match="metricsExporterType"):
        async with NameServer(listenPort=0, kvConfigPath="", metricsExporterType="LOG"):
            pass


async def test_a_proxy_says_that_it_is_up(tmp_path):
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps({"proxyMode": "CLUSTER", **PROM, "localServeAddr": "127.0.0.1"}))
    async with (
        NameServer(listenPort=0, kvConfigPath="") as names,
        Proxy(names.address, conf=conf, grpc_port=0, remoting_port=0) as proxy,
    ):
        status, _, page = await asyncio.to_thread(fetch, proxy.metrics_port)
        assert status == 200
        assert value(page, "rocketmq_proxy_up", proxy_mode="cluster") == 1
        assert value(page, "pystore_proxy_clients") == 0
        assert (await asyncio.to_thread(fetch, proxy.metrics_port, "/ready"))[0] == 200
