"""Who is the master: NOTIFY_MIN_BROKER_ID_CHANGE (905) of name servers, and
EXCHANGE_BROKER_HA_INFO (906) between a master and its slaves; NOTIFY_BROKER_ROLE_CHANGED (1008) of
controllers, GET_BROKER_EPOCH_CACHE (1007) of tools
(docs/internals/ha.md#acting-as-master; upstream AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.access.authorizer import host_of
from broker.services.acting.taking_back import ha_info
from broker.services.context import Services
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer

__all__ = ["ReplicationProcessor"]


#: Java's Long.MAX_VALUE.
_NO_END = (1 << 63) - 1


class ReplicationProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_id_changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
        }

    def role_changed(self, peer: Peer, command: Command) -> Command:
        """Asks the controller: what the request says is not believed."""
        if self.s.member is not None:
            self.s.member.hint()
        return command.reply()

    def epochs(self, peer: Peer, command: Command) -> Command:
        """Answers with upstream's EpochEntryCache: the last epoch has no end yet."""
        s = self.s
        if s.member is None or s.replication is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        found = s.replication.epochs
        ends = [each.start for each in found[1:]] + [_NO_END]
        body = {
            "brokerId": int(s.settings["brokerId"]), "brokerName": s.broker_name,
            "clusterName": s.cluster, "maxOffset": s.store.info().log_max,
            "epochList": [
                {"endOffset": end, "epoch": each.epoch, "startOffset": each.start}
                for each, end in zip(found, ends, strict=True)
            ],
        }  # fmt: skip
        return command.reply(body=mqjson.dumps(body))

    def min_id_changed(self, peer: Peer, command: Command) -> Command:
        """Asks the name server: what the request says is not believed."""
        if self.s.acting is not None:
            self.s.acting.hint()
        return command.reply()

    def exchange(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command]:
        """Answers both: a slave that comes asks where the master's log is; a master that returns
        says where its own is, and the slave stops acting before it answers."""
        if self.s.acting is not None and command.ext.get("masterHaAddress"):
            self._check_may(peer)
            return self._give_way(command)
        replication, mastership = self.s.replication, self.s.mastership
        if mastership is not None and command.ext.get("acted"):
            self._check_may(peer)
            mastership.hint(command.text("acted"))
        is_master = replication is not None and replication.master is not None
        return command.reply(ext=ha_info(self.s) if is_master else {})

    def _check_may(self, peer: Peer) -> None:
        """Checks who says so: whoever says that it is the master ends the acting of a slave, which
        follows it then. With access control it has shown that it may. Raises: Refused."""
        access, replication = self.s.access, self.s.replication
        assert access is not None and replication is not None
        if not access.is_on and not replication.trusts(host_of(peer)):
            raise Refused(ResponseCode.NO_PERMISSION, "trustedSlaves does not name your address")

    async def _give_way(self, command: Command) -> Command:
        acting, replication, said = self.s.acting, self.s.replication, command.ext
        assert acting is not None and replication is not None
        if said.get("escaped") == "taken":
            acting.taken(command.number("logEnd"))
            return command.reply()
        start = command.number("popsFrom", 0)
        if start > 0:
            return command.reply(body=mqjson.dumps(await acting.popped(start)))
        rows = await acting.give_way()
        if said.get("masterAddress"):
            replication.use_master(said["masterAddress"], said["masterHaAddress"])
        if not said.get("pystore"):
            acting.owe_java()
            return command.reply()
        return command.reply(body=mqjson.dumps({"escaped": rows, **await acting.popped(0)}))
