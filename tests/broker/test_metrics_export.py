"""Metrics that go to a collector, or to the log: a gRPC server takes what OpenTelemetry's exporter
sends."""

from __future__ import annotations

import json
import logging
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from popping import popping
from waiting import until_async

from pystore.errors import BadArgument


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self):
        self.requests = []
        self.headers = []

    def Export(self, request, context):
        self.headers.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.fixture
def collector():
    made = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(made, server)
    made.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made
    server.stop(None)


async def test_a_collector_gets_upstreams_instruments(tmp_path, collector):
    settings = {
        "metricsExporterType": "OTLP_GRPC",
        "metricsGrpcExporterTarget": f"http://127.0.0.1:{collector.port}",
        "metricsGrpcExporterHeader": "x-team:orders",
        "metricGrpcExporterIntervalInMills": 200,
        "metricGrpcExporterTimeOutInMills": 60_000,
    }
    async with popping(tmp_path / "store", **settings) as popper:
        popper.make_topic("plain")
        for _ in range(3):
            assert (await popper.send(b"x", topic="plain")).code == 0
        seen = len(collector.requests)
        await until_async(lambda: len(collector.requests) > seen + 1, "an export")
    (resource,) = collector.requests[-1].resource_metrics
    (scope,) = resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert scope.scope.name == "broker-meter"
    (point,) = found["rocketmq_messages_in_total"].sum.data_points
    assert point.as_double == 3
    assert found["rocketmq_messages_in_total"].sum.is_monotonic
    assert {a.key: a.value.string_value for a in point.attributes}["topic"] == "plain"
    assert found["rocketmq_storage_size"].gauge.data_points[0].as_double > 0
    rows = found["rocketmq_rpc_latency"].histogram.data_points
    assert all(sum(row.bucket_counts) == row.count for row in rows)
    assert sum(row.count for row in rows) >= 3
    assert collector.headers[-1]["x-team"] == "orders"


async def test_the_log_gets_them_as_json(tmp_path, caplog):

    def lines():
        return [r.getMessage() for r in caplog.records if r.name == "broker.metrics.export"]

    with caplog.at_level(logging.INFO, "broker.metrics.export"):
        settings = {"metricsExporterType": "LOG", "metricLoggingExporterIntervalInMills": 100}
        async with popping(tmp_path / "store", **settings):
            await until_async(lambda: lines(), "a line")
    data = json.loads(lines()[0].removeprefix("Metrics: "))
    scopes = data["resource_metrics"][0]["scope_metrics"]
    assert "rocketmq_topic_number" in {metric["name"] for metric in scopes[0]["metrics"]}


@pytest.mark.parametrize(
    "settings",
    [{"metricsInDelta": True}, {"metricsLabel": "no colon", "metricsExporterType": "PROM"}],
)
async def test_what_cannot_be_done_is_refused_by_name(tmp_path, settings):
    with pytest.raises(BadArgument, match=next(iter(settings))):
        async with popping(tmp_path / "store", metricsPromExporterPort=0, **settings):
            pass
