"""The master's end: slaves are accepted here and handed to a thread of the core
(csrc/ha/master.c), which sends them the log."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.replication.elected_role import ElectedRole
from broker.services.replication.epochs import EpochFile
from broker.services.replication.greeting import greet_slave
from broker.services.replication.log_comparer import LogComparer
from pystore import Store
from pystore.native import ffi, lib, raise_error

__all__ = ["SLAVES_MAX", "WAITS", "HaMaster", "SlaveSeen", "stream_conf"]

log = SafeLogger(__name__)
quiet = RateLimitedLogger(log)

#: Connections at once: each costs the thread that serves all of them a look a turn.
SLAVES_MAX = 64
#: What a slave was sent is counted over so many seconds at least.
_COUNTED_S = 0.9
#: When a slave has most likely said how much it has.
_FIRST_LOOK_S = 0.05
#: Until a slave that could not be compared is tried again: it may not be registered yet.
_COMPARE_AGAIN_S = 1.0
#: Slaves under a controller that are being greeted at once.
_GREETED_MAX = 16
#: No broker has this number: who waits for it waits for good.
_NOBODY = -1
#: Settings of who is waited for, and how long.
WAITS = frozenset({
    "inSyncReplicas", "minInSyncReplicas", "enableAutoInSyncReplicas", "haMaxGapNotInSync",
    "slaveTimeout",
})  # fmt: skip
_WHY = {
    lib.PS_HA_CLOSED: "it closed the connection",
    lib.PS_HA_SILENT: "it was silent for haHousekeepingInterval",
}


@dataclass(frozen=True, slots=True)
class SlaveSeen:
    """A slave that is connected. address: ``host:port`` of its connection. acked: end of its log,
    -1: it has not said. sent: where the next bytes for it begin. bytes: sent to it so far, and
    rate: in the last second. since: when it came within haMaxGapNotInSync of the end, in ms since
    1970; 0: it is not there. number: of the broker, under a controller, else of its host.
    silent_ms: since it was heard. compared: what it had when it came is known to be this log;
    before that it is sent nothing."""

    address: str
    acked: int
    sent: int
    bytes: int
    rate: int
    since: int
    number: int
    silent_ms: int
    compared: bool

    def is_within(self, gap: int, end: int) -> bool:
        """Says whether it is a copy of a log that ends at `end`, but for less than `gap` bytes."""
        return self.compared and self.acked >= 0 and end - self.acked < gap


def stream_conf(config: Config) -> Any:
    """Returns a ``ps_ha_conf *``."""
    return ffi.new(
        "ps_ha_conf *",
        {
            "heartbeat_ms": config["haSendHeartbeatInterval"],
            "idle_ms": config["haHousekeepingInterval"],
            "batch_bytes": config["haTransferBatchSize"],
            "bytes_s": config["maxHaTransferByteInSecond"] if config["haFlowControlEnable"] else 0,
            "near_bytes": config["haMaxGapNotInSync"],
        },
    )


def with_epochs(conf: Any, epochs: EpochFile) -> Any:
    """Gives a ``ps_ha_conf *`` the epochs of a log, or of an empty one that nobody was ever the
    master of. Returns what must live as long as they are read."""
    rows = [{"epoch": each.epoch, "start": each.start} for each in epochs.epochs]
    kept = ffi.new("ps_ha_epoch[]", rows or [{"epoch": -1, "start": 0}])
    conf.epochs, conf.epochs_len = kept, len(kept)
    return kept


class HaMaster:
    """Listens for slaves. Lives on the event loop."""

    def __init__(
        self,
        store: Store,
        config: Config,
        sock: socket.socket,
        may: Callable[[str], bool],
        comparer: LogComparer,
        elected: ElectedRole | None,
        epochs: EpochFile,
    ) -> None:
        """Takes the log and who may follow. may: whether a host may follow this broker. comparer:
        of the logs of those who do. elected: under a controller, with the epochs of this log."""
        self._elected, self._epochs = elected, epochs
        self._greeting: set[asyncio.Task[None]] = set()
        self._store, self._config, self._sock, self._may = store, config, sock, may
        self._comparer = comparer
        #: Of slaves whose logs are being compared, by their numbers.
        self._comparing: dict[int, asyncio.Task[None]] = {}
        self._handle = ffi.NULL
        self._ids = itertools.count(1)
        self._addresses: dict[int, str] = {}
        #: Numbers of hosts that slaves came from.
        self._hosts: dict[str, int] = {}
        self.slaves: list[SlaveSeen] = []
        self._looked = time.monotonic()
        self._short = False

    def start(self) -> None:
        """Opens the port for slaves. Raises: StoreError."""
        error = ffi.new("ps_error *")
        store = self._store.c_handle()
        conf = self._conf()
        if self._elected is not None:
            kept = with_epochs(conf, self._epochs)
            lib.ps_hide_unconfirmed(store)
        if conf.copies > 0 and self._config["consumeAfterReplication"]:
            lib.ps_hide_unconfirmed(store)
        lib.ps_want_copies(store, conf.copies > 0, self._config["slaveTimeout"])
        self._handle = lib.ps_ha_master_start(store, conf, error)
        if self._handle == ffi.NULL:
            raise_error(error[0], error.code)
        if self._elected is not None and self._elected.record is not None:
            del kept  # the core has a copy
            self.require(self._elected.record.in_sync - {self._elected.number})
        self._sock.listen(SLAVES_MAX)
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def _conf(self) -> Any:
        """Returns a ``ps_ha_conf *``; under a controller without what the set decides."""
        conf = stream_conf(self._config)
        if self._elected is None and self._config["brokerRole"] == "SYNC_MASTER":
            conf.copies = self._config["inSyncReplicas"] - 1
            conf.copies_min = self._config["minInSyncReplicas"] - 1
            conf.adapts = self._config["enableAutoInSyncReplicas"]
        return conf

    def settings_changed(self) -> None:
        """Has what waits for slaves go by the settings of now."""
        if self._handle != ffi.NULL:
            lib.ps_ha_master_wait_for(self._handle, self._conf(), self._config["slaveTimeout"])

    def stop(self) -> None:
        """Stops after the last client: nothing that waits for slaves is answered as if they had
        it."""
        if self._handle == ffi.NULL:
            return
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        for task in (*self._comparing.values(), *self._greeting):
            task.cancel()
        lib.ps_ha_master_stop(self._handle)
        self._handle = ffi.NULL
        self.slaves = []

    def _accept(self) -> None:
        try:
            made, (host, port, *_) = self._sock.accept()
        except OSError:  # it is gone again, or there is no descriptor left: level-triggered
            return
        address = f"{host}:{port}"
        if len(self._addresses) >= SLAVES_MAX:
            self.look()  # some may be gone
        if not self._may(host):
            quiet.warning(
                "not allowed",
                "The slave at %s may not follow: trustedSlaves does not name it",
                address,
            )
            made.close()
        elif len(self._addresses) >= SLAVES_MAX:
            quiet.warning("too many", "More than %d slaves: %s is closed", SLAVES_MAX, address)
            made.close()
        elif self._elected is not None:
            self._greet(made, address)
        else:
            self._take(made, address, self._hosts.setdefault(host, len(self._hosts)), False)

    # ---- under a controller ----

    def _greet(self, made: socket.socket, address: str) -> None:
        if len(self._greeting) >= _GREETED_MAX:
            made.close()
            return

        async def greet() -> None:
            made.setblocking(False)
            try:
                slave = await greet_slave(made, self._epochs.epochs, self.end())
            except (OSError, TimeoutError, ValueError) as failed:
                quiet.warning("not greeted", "The slave at %s is closed: %s", address,
                              failed)  # fmt: skip
                made.close()
                return
            except asyncio.CancelledError:
                made.close()
                raise
            number = _NOBODY - 1 if slave.learner else slave.number
            self._take(made, address, number, slave.compares)

        task = asyncio.get_running_loop().create_task(greet())
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    def require(
        self, members: Iterable[int], *, refuses: bool = False, fenced: bool = False
    ) -> int:
        """Answers wait for all of these brokers from now on, and readers see what all have;
        refuses: what would wait is refused; fenced: nothing is acknowledged. Returns the end of
        what may have been acknowledged without a broker that is among them only now."""
        wanted = [*sorted(members), *([_NOBODY] if fenced else [])]
        return int(lib.ps_ha_master_require(self._handle, wanted, len(wanted), refuses))

    def ends(self) -> dict[int, int]:
        """Returns what each broker that follows has of this log, by its number; learners, who are
        never waited for, have none, nor has who is not compared yet. Of a broker that is connected
        twice its newer connection counts, which comes first: it may have lost its disk since."""
        self.look()
        return {
            each.number: each.acked
            for each in reversed(self.slaves)
            if each.acked >= 0 and each.number >= 0 and each.compared
        }

    def hosts_in_sync(self) -> set[str]:
        """Returns where slaves are that have the log but for haMaxGapNotInSync bytes."""
        self.look()
        return {each.address.rpartition(":")[0] for each in self.slaves if each.since}

    def end(self) -> int:
        """Returns the end of the log."""
        return int(self._store.info().log_max)

    # ---- a slave's connection ----

    def _take(self, made: socket.socket, address: str, host: int, compared: bool) -> None:
        number, error = next(self._ids), ffi.new("ps_error *")
        self._addresses[number] = address
        if lib.ps_ha_master_take(self._handle, made.detach(), number, host, compared, error) < 0:
            text = ffi.string(error.text).decode(errors="replace")
            quiet.warning("not taken", "The slave at %s is closed: %s", address, text)
            return
        quiet.info("connected", "The slave at %s is connected", address)
        asyncio.get_running_loop().call_later(_FIRST_LOOK_S, self.look)

    def look(self) -> None:
        """Looks how far each slave is, and which are gone: a job of the duty, every second, and
        before a status is shown."""
        if self._handle == ffi.NULL:
            return
        room = ffi.new("ps_ha_peer[]", SLAVES_MAX + 1)
        count = lib.ps_ha_master_peers(self._handle, room, SLAVES_MAX + 1)
        before = {each.address: each for each in self.slaves}
        now = time.monotonic()
        passed = now - self._looked
        if passed >= _COUNTED_S:
            self._looked = now
        self.slaves = []
        for peer in room[0:count]:
            address = self._addresses.get(peer.id, "?")
            if peer.over == lib.PS_HA_GOES_ON:
                if peer.began > 0 and not peer.compared and peer.id not in self._comparing:
                    self._compare(peer.id, address.rpartition(":")[0], peer.began)
                self.slaves.append(self._seen(address, peer, before.get(address), passed))
                continue
            self._addresses.pop(peer.id, None)
            self._tell_end(address, peer.over, peer.detail)
        self._tell_short()

    def _compare(self, number: int, host: str, end: int) -> None:
        async def compare() -> None:
            same = await self._comparer.compare(host, end)
            if same is not None and self._handle != ffi.NULL:
                lib.ps_ha_master_compared(self._handle, number, same)
            if same is None:
                await asyncio.sleep(_COMPARE_AGAIN_S)
            self._comparing.pop(number, None)

        self._comparing[number] = asyncio.get_running_loop().create_task(compare())

    def _tell_short(self) -> None:
        """Logs when it begins and when it ends that sends are refused."""
        short = bool(lib.ps_lacks_replicas(self._store.c_handle()))
        if short != self._short:
            self._short = short
            count = self._config["minInSyncReplicas"]
            if short:
                log.warning("Fewer than %d brokers are in sync (minInSyncReplicas): sends are"
                            " refused, but those with WAIT=false", count)  # fmt: skip
            else:
                log.info("At least %d brokers are in sync again", count)

    def _seen(self, address: str, peer: Any, before: SlaveSeen | None, passed: float) -> SlaveSeen:
        """Returns how a slave is seen. passed: seconds since the last look."""
        since = before.since if before is not None else 0
        count, rate = (before.bytes, before.rate) if before is not None else (0, 0)
        if passed >= _COUNTED_S:
            count, rate = peer.bytes, int((peer.bytes - count) / passed)
        seen = SlaveSeen(
            address,
            peer.acked,
            peer.sent,
            count,
            rate,
            since or time.time_ns() // 1_000_000,
            int(peer.host),
            peer.silent_ms,
            bool(peer.compared),
        )
        near = seen.is_within(self._config["haMaxGapNotInSync"], self._store.info().log_max)
        return seen if near else replace(seen, since=0)

    def _tell_end(self, address: str, over: int, detail: int) -> None:
        if over == lib.PS_HA_BEYOND:
            quiet.warning(
                "beyond",
                "The slave at %s reports a log up to %d, which this broker does not have: its log"
                " is a different one, and it gets no data",
                address, detail,
            )  # fmt: skip
        elif over == lib.PS_HA_BELOW:
            quiet.warning(
                "below",
                "The slave at %s asks for %d of the log, which retention has deleted: it needs a"
                " copy of this store",
                address, detail,
            )  # fmt: skip
        elif over == lib.PS_HA_OTHER:
            quiet.warning(
                "other",
                "The slave at %s has a different log from this broker up to %d, and gets no data"
                " until its log has been compared as a whole: keep its store aside and begin with"
                " an empty one, or set haTruncateDiverged",
                address, detail,
            )  # fmt: skip
        elif over == lib.PS_HA_BACK:
            quiet.warning("back", "The slave at %s reports %d of the log, less than before: it is"
                                  " closed", address, detail)  # fmt: skip
        elif over == lib.PS_HA_FAILED:
            quiet.warning("failed", "The slave at %s is gone: %s", address, os.strerror(detail))
        else:
            quiet.info("gone", "The slave at %s is gone: %s", address, _WHY.get(over, "closed"))
