"""The metrics of a proxy, and what its /health and /ready look at (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Sequence

from broker.grpc.cluster import ClusterBrokers
from broker.grpc.relay import Relay
from broker.grpc.service import GrpcService
from broker.metrics.endpoint import ProbeCheck
from broker.metrics.loop_delay import LoopDelay
from broker.metrics.page import Page, buckets
from broker.wire.command import Body

__all__ = ["ProxyFigures"]


class ProxyFigures:
    def __init__(self, service: GrpcService[ClusterBrokers], relay: Relay, cluster: str) -> None:
        self._service, self._relay = service, relay
        self._cluster = cluster
        self._delay = LoopDelay()

    def start(self) -> None:
        self._delay.start()

    def stop(self) -> None:
        self._delay.stop()

    async def page(self) -> Sequence[Body]:
        """Returns all metrics as text."""
        page = Page({"otel_scope_name": "proxy-meter", "cluster": self._cluster,
                     "node_type": "proxy"})  # fmt: skip
        service = self._service
        page.add("rocketmq_proxy_up", 1, proxy_mode="cluster")
        page.add("pystore_proxy_clients", service.client_count)
        page.add("pystore_proxy_renewals", service.renewal_count)
        for method, (counts, sum_s) in service.call_times().items():
            page.extend(buckets("pystore_proxy_call_seconds", {"method": method}, counts, sum_s))
        page.add("pystore_proxy_connections", service.connection_count, listener="grpc")
        page.add("pystore_proxy_connections", self._relay.connection_count, listener="remoting")
        page.add("pystore_proxy_loop_delay_seconds", round(self._delay.take(), 6))
        return [page.text()]

    def health(self) -> Sequence[ProbeCheck]:
        return [ProbeCheck("serving", True, f"gRPC at {self._service.port}")]

    def ready(self) -> Sequence[ProbeCheck]:
        return self.health()
