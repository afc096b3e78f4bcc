"""How long calls take, as a scrape shows it: those of the network thread and those of the loop."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

from caller import CODE, Caller, message, serving
from prometheus_client.parser import text_string_to_metric_families

from broker import Broker, NameServer
from broker.grpc.proxy import Proxy
from broker.grpc.schema import pb

NAME = "pystore_grpc_call_seconds"


def counted(broker: Broker | Proxy, suffix: str = "count", name: str = NAME) -> dict[str, float]:
    """By method."""
    where = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    with urllib.request.urlopen(where, timeout=300) as answer:
        text = answer.read().decode()
    return {
        sample.labels["method"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{name}_{suffix}"
    }


def test_calls_are_timed_whoever_serves_them(tmp_path: Path) -> None:
    """Three plain sends, of which the thread serves what it may, a refused one, and a route; a
    stream that lasts as long as its client is not a call that takes long."""
    with (
        serving(
            tmp_path / "store", metricsExporterType="PROM", metricsPromExporterPort=0,
            metricsPromExporterHost="127.0.0.1",
        ) as broker,
        Caller(broker.grpc_address) as caller,
    ):  # fmt: skip
        assert counted(broker) == {}
        telemetry = caller.telemetry()
        telemetry.publish("Normal")
        for _ in range(3):
            assert caller.send(message("Normal")).status.code == CODE.OK
        assert caller.send(message("absent")).status.code != CODE.OK
        route = caller("QueryRoute", topic=pb.Resource(name="Normal"))
        assert route.status.code == CODE.OK
        telemetry.close()
        assert counted(broker) == {"SendMessage": 4, "QueryRoute": 1}
        assert all(seconds > 0 for seconds in counted(broker, "sum").values())


async def test_a_proxy_times_its_calls_too(tmp_path: Path) -> None:
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps({
        "proxyMode": "CLUSTER", "metricsExporterType": "PROM", "metricsPromExporterPort": 0,
        "localServeAddr": "127.0.0.1",
    }))  # fmt: skip

    def ask(address: str) -> None:
        with Caller(address) as caller:
            assert caller("QueryRoute", topic=pb.Resource(name="absent")).status.code != CODE.OK

    async with (
        NameServer(listenPort=0, kvConfigPath="") as names,
        Proxy(names.address, conf=conf, grpc_port=0, remoting_port=0) as proxy,
    ):
        await asyncio.to_thread(ask, f"127.0.0.1:{proxy.port}")
        name = "pystore_proxy_call_seconds"
        assert await asyncio.to_thread(counted, proxy, name=name) == {"QueryRoute": 1}
