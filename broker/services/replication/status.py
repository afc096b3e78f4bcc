"""Who has what of the log, for tools: GET_BROKER_HA_STATUS (907), upstream's HARuntimeInfo."""

from __future__ import annotations

import time
from typing import Any

from broker.services.replication.replication import Replication

__all__ = ["ha_status"]


def ha_status(replication: Replication | None, log_max: int, gap_max: int) -> dict[str, Any]:
    """Returns the status as upstream's tools read it. log_max: end of the log; gap_max:
    haMaxGapNotInSync. inSyncSince (ms since 1970, 0: not in sync) and problem (why the master is
    not followed) are ours; Java's tools skip them."""
    master = replication.master if replication is not None else None
    slave = replication.slave if replication is not None else None
    if master is not None:
        master.look()
    rows = [
        {
            "addr": each.address,
            "diff": log_max - each.acked,
            "inSync": each.is_within(gap_max, log_max),
            "inSyncSince": each.since,
            "slaveAckOffset": each.acked,
            "transferFromWhere": each.sent,
            "transferredByteInSecond": each.rate,
        }
        for each in (master.slaves if master is not None else ())
    ]
    named: dict[str, object] = {}
    if slave is not None:
        named = {"masterAddr": slave.connected, "problem": slave.problem}
    end, _, silent_ms = slave.state() if slave is not None else (0, 0, 0)
    heard = int(time.time() * 1000) - silent_ms if slave is not None and not slave.problem else 0
    return {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": heard,
            "lastWriteTimestamp": heard,
            **named,
            "masterFlushOffset": 0,
            "maxOffset": end,
            "transferredByteInSecond": slave.rate if slave is not None else 0,
        },
        "haConnectionInfo": rows,
        "inSyncSlaveNums": sum(bool(row["inSync"]) for row in rows),
        "master": slave is None,
        "masterCommitLogMaxOffset": log_max if slave is None else 0,
    }
