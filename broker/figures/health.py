"""What /health and /ready of a broker look at. Nothing here waits for a disk or a lock."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from broker.metrics.endpoint import ProbeCheck
from broker.services.context import Services
from broker.services.duties import BrokerRole
from pystore.errors import StoreError

__all__ = ["Health"]


class Health:
    """health(): whether a restart may help. ready(): whether clients should come."""

    def __init__(self, services: Services, draining: Callable[[], bool]) -> None:
        self._s = services
        self._draining = draining

    def health(self) -> Sequence[ProbeCheck]:
        return [self._store()]

    def ready(self) -> Sequence[ProbeCheck]:
        checks = [self._store(), self._disk(), self._stopping(), self._names()]
        if self._s.replication is not None and self._s.replication.slave is not None:
            checks.append(self._master())
        return checks

    def _store(self) -> ProbeCheck:
        try:
            failed = self._s.store.info().flush_errno
        except StoreError as closed:
            return ProbeCheck("store", False, str(closed))
        if failed:
            why = f"{errno.errorcode.get(failed, failed)}, {os.strerror(failed)}"
            return ProbeCheck(
                "store", False, f"a sync of the log failed ({why}): nothing is written"
            )
        return ProbeCheck("store", True, "open")

    def _disk(self) -> ProbeCheck:
        if self._s.store.disk_full:
            return ProbeCheck(
                "disk", False, "too full: puts are refused until retention frees space"
            )
        return ProbeCheck("disk", True, "has space")

    def _stopping(self) -> ProbeCheck:
        if self._draining():
            return ProbeCheck("serving", False, "the broker is stopping")
        return ProbeCheck("serving", True, f"at {self._s.address}")

    def _names(self) -> ProbeCheck:
        servers = self._s.registration.states()
        known = [address for address, registered in servers if registered]
        if servers and not known:
            lost = ", ".join(address for address, _ in servers)
            return ProbeCheck("name servers", False, f"none has registered us: {lost}")
        return ProbeCheck(
            "name servers", True, f"{len(known)} of {len(servers)} have registered us"
        )

    def _master(self) -> ProbeCheck:
        replication, duties = self._s.replication, self._s.duties
        assert replication is not None and replication.slave is not None
        if duties is not None and duties.role is BrokerRole.MASTER:
            return ProbeCheck("master", True, "this broker acts for it")
        problem = replication.slave.problem
        return ProbeCheck(
            "master", not problem, problem or f"follows {replication.slave.connected}"
        )
