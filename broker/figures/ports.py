"""Figures of what a broker serves at: connections, network threads, gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.loop.budget import Budget
from broker.metrics.page import Page, buckets
from broker.metrics.rpc import RpcTimes
from broker.remoting.server import RemotingServer

__all__ = ["CallServer", "PortFigures", "add_ports"]


class CallServer(Protocol):
    """The gRPC service, as its figures are read."""

    @property
    def client_count(self) -> int: ...

    @property
    def renewal_count(self) -> int: ...

    @property
    def connection_count(self) -> int: ...

    def call_times(self) -> Mapping[str, tuple[Sequence[int], float]]: ...


@dataclass(slots=True)
class PortFigures:
    """What is served now. servers: by the name of their port; grpc: the service while it is on;
    draining: whether the broker is about to stop."""

    times: RpcTimes
    budget: Budget
    connections_max: int
    servers: dict[str, RemotingServer] = field(default_factory=dict)
    grpc: Callable[[], CallServer | None] = lambda: None
    draining: Callable[[], bool] = lambda: False


def add_ports(page: Page, s: PortFigures) -> None:
    for name, server in s.servers.items():
        page.add("pystore_connections", server.connection_count, listener=name)
        if server.thread_count:
            page.add("pystore_network_threads", server.thread_count)
            page.add("pystore_network_reads_total", server.thread_reads)
    page.add("pystore_connections_max", s.connections_max)
    page.add("pystore_unfinished_bytes", s.budget.held)
    grpc = s.grpc()
    if grpc is not None:
        page.add("pystore_connections", grpc.connection_count, listener="grpc")
        page.add("pystore_grpc_clients", grpc.client_count)
        page.add("pystore_grpc_renewals", grpc.renewal_count)
        for method, (counts, sum_s) in grpc.call_times().items():
            page.extend(buckets("pystore_grpc_call_seconds", {"method": method}, counts, sum_s))
