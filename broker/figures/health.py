"""What /health and /ready of a broker look at. Nothing here waits for a disk or a lock."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from broker.metrics.endpoint import HealthCheck
from broker.services.context import Services
from broker.services.duties import BrokerRole
from pystore.errors import StoreError

__all__ = ["Health"]


class Health:
    """health(): whether a restart may help. ready(): whether clients should come."""

    def __init__(self, services: Services, draining: Callable[[], bool]) -> None:
        self._s = services
        self._draining = draining

    def health(self) -> Sequence[HealthCheck]:
        return [self._store()]

    def ready(self) -> Sequence[HealthCheck]:
        checks = [self._store(), self._disk(), self._stopping(), self._names()]
        if self._s.replication is not None and self._s.replication.slave is not None:
            checks.append(self._master())
        return checks

    def _store(self) -> HealthCheck:
        try:
            failed = self._s.store.info().flush_errno
        except StoreError as closed:
            return HealthCheck("store", False, str(closed))
        if failed:
            why = f"{errno.errorcode.get(failed, failed)}, {os.strerror(failed)}"
            return HealthCheck(
                "store", False, f"a sync of the log failed ({why}): nothing is written"
            )
        return HealthCheck("store", True, "open")

    def _disk(self) -> HealthCheck:
        if self._s.store.disk_full:
            return HealthCheck(
                "disk", False, "too full: puts are refused until retention frees space"
            )
        return HealthCheck("disk", True, "has space")

    def _stopping(self) -> HealthCheck:
        if self._draining():
            return HealthCheck("serving", False, "the broker is stopping")
        return HealthCheck("serving", True, f"at {self._s.address}")

    def _names(self) -> HealthCheck:
        servers = self._s.registration.states()
        known = [address for address, registered in servers if registered]
        if servers and not known:
            lost = ", ".join(address for address, _ in servers)
            return HealthCheck("name servers", False, f"none has registered us: {lost}")
        return HealthCheck(
            "name servers", True, f"{len(known)} of {len(servers)} have registered us"
        )

    def _master(self) -> HealthCheck:
        replication, duties = self._s.replication, self._s.duties
        assert replication is not None and replication.slave is not None
        if duties is not None and duties.role is BrokerRole.MASTER:
            return HealthCheck("master", True, "this broker acts for it")
        problem = replication.slave.problem
        return HealthCheck(
            "master", not problem, problem or f"follows {replication.slave.connected}"
        )
