"""Apache's controller: the requests of its brokers
(docs/internals/ha.md#under-a-controller; upstream ReplicasManager, ControllerRequestProcessor)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger, shown
from broker.remoting.client import RemotingClient, parse_address
from broker.services.controlled.controller import NO_EPOCH, ControllerRefused, Heartbeat, LogDoubt
from broker.services.controlled.identity import Identity
from broker.services.replication.elected_role import ElectionRecord
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command

__all__ = ["ApacheController"]

log = SafeLogger("broker.controlled")

#: How long a member of the controller has to answer.
_ASK_S = 3.0
#: What the name of the leader is worth.
_LEADER_S = 10.0
#: How long a member with a doubt leaves mastership to others of the set, in lives: in the first one
#: the controller notices that it is gone, in the second one the others come back.
_YIELDS = 2.0


class ApacheController:
    """Apache's controller, as one broker asks it. addresses: of the members,
    ``host:port;host:port``; any of them says which one leads.

    The controller knows of no doubts. So a member with one seems dead to it, and does not ask for
    an election, until it has caught up; or for some time, after which the controller elects whoever
    has most of those who are there."""

    #: Its leader carries out what comes one after the other, and nothing of a former leader's.
    renumbers = False

    def __init__(
        self,
        client: RemotingClient,
        addresses: str,
        cluster: str,
        name: str,
        identity: Path,
        mode: int,
        timeout_ms: int,
        sign: Callable[[Command, str], None],
    ) -> None:
        """Takes how the controller is reached. identity: ``brokerIdentity``, and mode of the file.
        timeout_ms: a broker that is not heard for so long is dead for the controller. sign: called
        with each request, and whom it is for."""
        self._client, self._sign = client, sign
        self._addresses = [each.strip() for each in addresses.split(";") if each.strip()]
        self._cluster, self._name = cluster, name
        self._identity = Identity(identity, mode)
        self._timeout_ms, self._yields_s = timeout_ms, timeout_ms / 1000 * _YIELDS
        self._leader, self._leader_until = "", 0.0
        self._address = ""
        self._beats: set[asyncio.Task[None]] = set()
        self._number = -1
        self._doubt: LogDoubt | None = None
        #: Of the set that this broker is in.
        self._others: frozenset[int] = frozenset()
        #: When this broker began to yield to them, with a doubt, and whether it has done so long.
        self._yields_since: float | None = None
        self._has_yielded = False

    # ---- what a controller answers ----

    async def number(self, address: str) -> int:
        """Asks for a number, with a code that says who asks, so that an answer that was lost does
        not cost one. Raises: OSError, TimeoutError, ValueError, ControllerRefused."""
        self._address = address
        kept = self._identity.read(self._cluster, self._name)
        if kept is not None:
            return kept
        asked = self._identity.asked(self._cluster, self._name)
        if asked is None:
            answer = await self._ask(Command(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._of()))
            number = _number_of(answer.ext.get("nextBrokerId"), "nextBrokerId")
            asked = number, f"{address};{time.time_ns() // 1_000_000}"
            self._identity.keep_asked(self._cluster, self._name, *asked)
        number, code = asked
        fields = self._of() | {"appliedBrokerId": str(number), "registerCheckCode": code}
        try:
            await self._ask(Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields))
        except ControllerRefused:  # somebody else has it by now
            self._identity.forget_asked()
            raise
        self._identity.keep(self._cluster, self._name, number)
        return number

    async def register(
        self, number: int, address: str, ha_address: str, doubt: LogDoubt | None
    ) -> None:
        self._number, self._doubt = number, doubt
        fields = self._of() | {
            "brokerId": str(number), "brokerAddress": address, "invokeTime": _now(),
        }  # fmt: skip
        await self._ask(Command(RequestCode.CONTROLLER_REGISTER_BROKER, fields))

    async def look(self) -> ElectionRecord:
        command = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": self._name})
        record = _record(await self._ask(command))
        in_set = self._number in record.in_sync
        self._others = record.in_sync - {self._number} if in_set else frozenset()
        return record

    async def vouch(self, number: int, record: ElectionRecord) -> None:
        self._doubt = None

    async def elect(self, number: int, held: int = NO_EPOCH) -> ElectionRecord:
        """Asks for an election. Raises: as controller.py says."""
        self._yield_no_longer()
        if self._yields():
            raise ControllerRefused(
                "the end of this broker's log may be missing, and of the in-sync set"
                f" {sorted(self._others)} may have it: it leaves mastership to them for"
                f" {self._yields_s:.0f} s"
            )
        return await self._elect(number, "false", ResponseCode.CONTROLLER_MASTER_STILL_EXIST)

    def _yields(self) -> bool:
        return self._doubt is not None and bool(self._others) and not self._has_yielded

    def _yield_no_longer(self) -> None:
        """Stops yielding once the others of the set had their time."""
        now = time.monotonic()
        if self._yields_since is None:
            self._yields_since = now
        if self._yields() and now - self._yields_since > self._yields_s:
            self._has_yielded = True
            log.warning(
                "Of the in-sync set, %s did not come back in time: acknowledged messages may be"
                " missing if this broker becomes the master",
                sorted(self._others),
            )

    async def move(self, number: int, accepts_loss: bool = False) -> ElectionRecord:
        return await self._elect(number, "true")

    async def _elect(self, number: int, designated: str, *also: int) -> ElectionRecord:
        fields = self._of() | {
            "brokerId": str(number), "designateElect": designated, "invokeTime": _now(),
        }  # fmt: skip
        await self._ask(Command(RequestCode.CONTROLLER_ELECT_MASTER, fields), *also)
        return await self.look()

    async def succeed(self, number: int, record: ElectionRecord) -> ElectionRecord:
        """Reads the record: the controller notices the end of the master's connection by itself."""
        return await self.look()

    async def change_set(self, record: ElectionRecord, in_sync: frozenset[int]) -> ElectionRecord:
        fields = {
            "brokerName": self._name, "masterBrokerId": str(record.master),
            "masterEpoch": str(record.epoch), "invokeTime": _now(),
        }  # fmt: skip
        body = {"syncStateSet": sorted(in_sync), "syncStateSetEpoch": record.set_number}
        command = Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields, mqjson.dumps(body))
        await self._ask(command)
        return await self.look()

    def beat(self, number: int, state: Heartbeat) -> None:
        """Sends a heartbeat to each member of the controller: any may lead next, and must know who
        is alive."""
        if self._yields():
            return
        fields = self._of() | {
            "brokerAddr": self._address, "brokerId": str(number), "epoch": str(state.epoch),
            "maxOffset": str(state.end), "confirmOffset": str(state.confirmed),
            "heartbeatTimeoutMills": str(self._timeout_ms), "electionPriority": "2147483647",
        }  # fmt: skip
        for address in self._addresses:
            task = asyncio.get_running_loop().create_task(self._beat_at(address, fields))
            self._beats.add(task)
            task.add_done_callback(self._beats.discard)

    async def _beat_at(self, address: str, fields: Mapping[str, str]) -> None:
        try:
            command = Command(RequestCode.BROKER_HEARTBEAT, dict(fields))
            self._sign(command, address)
            await self._client.oneway(address, command)
        except (OSError, TimeoutError, ValueError):  # the round that looks tells of it
            return

    async def leave(self) -> None:
        """Does nothing: the controller notices by itself that the heartbeats end."""
        for task in list(self._beats):
            task.cancel()
        await self._client.close()

    # ---- requests ----

    def _of(self) -> dict[str, str]:
        return {"clusterName": self._cluster, "brokerName": self._name}

    async def _ask(self, command: Command, *also: int) -> Command:
        """Asks the leader. also: codes that are no refusals. Raises: OSError, TimeoutError,
        ValueError, ControllerRefused."""
        address = await self._find_leader()
        try:
            answer = await self._request(address, command)
        except (OSError, TimeoutError, asyncio.CancelledError):  # who asked waits no longer
            self._leader = ""
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = ""
            raise OSError(f"the controller at {address} no longer leads")
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            remark = shown(answer.remark or "")
            raise ControllerRefused(f"the controller answered {answer.code} {remark}".strip())
        return answer

    async def _find_leader(self) -> str:
        if self._leader and time.monotonic() < self._leader_until:
            return self._leader
        problem: object = "controllerAddr is empty"
        # All at once: one that is silent must not keep the others from being asked.
        asked = [asyncio.ensure_future(self._ask_for_leader(each)) for each in self._addresses]
        try:
            for answered in asyncio.as_completed(asked):
                try:
                    leader = await answered
                except (OSError, TimeoutError) as failed:
                    problem = reason_of(failed)
                    continue
                self._leader, self._leader_until = leader, time.monotonic() + _LEADER_S
                return leader
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise OSError(f"no controller leads: {problem}")

    async def _ask_for_leader(self, address: str) -> str:
        """Asks the controller who leads. Raises: OSError, TimeoutError."""
        answer = await self._request(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
        leader = answer.ext.get("controllerLeaderAddress")
        if answer.code != ResponseCode.SUCCESS or not leader:
            said = f"{answer.code} {answer.remark or ''}".strip()
            raise OSError(f"{address} knows no leader ({said})")
        try:
            parse_address(leader)
        except ValueError as bad:
            raise OSError(f"{address} names a leader at no address: {bad}") from None
        return leader

    async def _request(self, address: str, command: Command) -> Command:
        self._sign(command, address)
        return await self._client.request(address, command, _ASK_S)


def _now() -> str:
    return str(time.time_ns() // 1_000_000)


def _record(answer: Command) -> ElectionRecord:
    """Reads a record of a controller's answer. Raises: OSError for what no controller answers."""
    ext = answer.ext
    try:
        body: Any = mqjson.loads(bytes(answer.body), 0) if answer.body else {}
    except ValueError as bad:
        raise OSError(f"the controller's in-sync set cannot be read: {bad}") from None
    members = body.get("syncStateSet") or () if isinstance(body, dict) else None
    if not isinstance(members, list | tuple):
        raise OSError("the controller's set is not a list of numbers")
    master = _number_of(ext.get("masterBrokerId") or -1, "masterBrokerId")
    return ElectionRecord(
        master=master if master >= 0 and ext.get("masterAddress") else None,
        address=ext.get("masterAddress") or "",
        ha_address="",
        epoch=_number_of(ext.get("masterEpoch") or 0, "masterEpoch"),
        in_sync=frozenset(_number_of(each, "syncStateSet") for each in members),
        set_number=_number_of(body.get("syncStateSetEpoch") or 0, "syncStateSetEpoch"),
    )


def _number_of(value: object, name: str) -> int:
    """Reads the number of a broker. Raises: OSError."""
    try:
        found = int(value) if isinstance(value, int | str) else None
    except ValueError:
        found = None
    if found is None or abs(found) >= 1 << 63:
        raise OSError(f"{name} in the controller's answer is {value!r:.40}, which is not a number")
    return found
