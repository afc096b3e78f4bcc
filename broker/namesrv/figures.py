"""The metrics of a name server, and what its /health and /ready look at (docs/metrics.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from broker.loop.watchdog import Watchdog
from broker.metrics.endpoint import ProbeCheck
from broker.metrics.loop_delay import LoopDelay
from broker.metrics.page import Page
from broker.metrics.rpc import RpcTimes, name_of_request, name_of_response
from broker.namesrv.routes import Routes
from broker.remoting.server import RemotingServer
from broker.wire.command import Body

__all__ = ["NamesrvFigures"]


class NamesrvFigures:
    def __init__(
        self, routes: Routes, server: RemotingServer, watchdog: Watchdog, times: RpcTimes
    ) -> None:
        self._routes, self._server = routes, server
        self._watchdog, self._times = watchdog, times
        self._delay = LoopDelay()

    def start(self) -> None:
        self._delay.start()

    def stop(self) -> None:
        self._delay.stop()

    async def page(self) -> Sequence[Body]:
        """Returns all metrics as text."""
        page = Page({"node_type": "nameserver"})
        brokers, topics = self._routes.counts()
        for cluster, count in brokers.items():
            page.add("pystore_namesrv_brokers", count, cluster=cluster)
        page.add("pystore_namesrv_topics", topics)
        page.add("pystore_namesrv_connections", self._server.connection_count)
        page.add("pystore_namesrv_loop_delay_seconds", round(self._delay.take(), 6))
        answered: Counter[tuple[str, str]] = Counter()
        for asked, counts, _ in self._times.rows():
            key = name_of_request(asked.request), name_of_response(asked.response)
            answered[key] += sum(counts)
        for (request, result), count in answered.items():
            page.add("pystore_namesrv_requests_total", count, request_code=request, result=result)
        for code, count in self._watchdog.counts.items():
            name = name_of_request(code)
            page.add("pystore_namesrv_loop_held_total", count, request_code=name)
        return [page.text()]

    def health(self) -> Sequence[ProbeCheck]:
        return [ProbeCheck("serving", self._server.serving, f"port {self._server.port}")]

    def ready(self) -> Sequence[ProbeCheck]:
        brokers = sum(self._routes.counts()[0].values())
        # Without brokers it is ready all the same: they ask its port to register.
        return [*self.health(), ProbeCheck("brokers", True, f"{brokers} are registered")]
