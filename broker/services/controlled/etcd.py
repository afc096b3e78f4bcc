"""etcd as the controller: one key a broker name, changed by compare-and-swap, and a key with a
lease for each broker that is alive. Spoken is the JSON of etcd's own HTTP gateway, from 3.4 on
(docs/internals/ha.md#etcd)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, NoReturn

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.controlled.answers import (
    MalformedAnswer,
    object_of,
    ranges_of,
    text_in,
    value_of,
)
from broker.services.controlled.controller import NO_EPOCH, ControllerRefused, Heartbeat, LogDoubt
from broker.services.controlled.identity import Identity
from broker.services.etcd_address import SCHEME_TLS, parse_etcd
from broker.services.replication.elected_role import ElectionRecord

__all__ = ["EtcdController", "Gateway"]

quiet = RateLimitedLogger(SafeLogger("broker.controlled"))

_ASK_S = 2.0
#: Bytes of an answer, and of what is read of it at once.
_ANSWER_MAX, _PIECE = 4 << 20, 64 << 10
#: Somebody else changes the same key.
_TRIES = 8


class _TokenRefused(OSError):
    pass


class Gateway:
    """The members of one etcd cluster: the first that answers."""

    def __init__(
        self, addresses: str, tls: SSLContext | None = None, patience_s: float = _ASK_S
    ) -> None:
        """Takes how etcd is reached. addresses: ``etcd://host:port,host:port``, or ``etcds://`` for
        TLS, by `tls`, else by what the system trusts; before the hosts ``user:password@``,
        percent-encoded. patience_s: after it the next member is asked; the last one has longer.
        Raises: ValueError."""
        self._members, self._user, self._password = parse_etcd(addresses)
        self._token = ""
        self._tls = None
        if addresses.startswith(SCHEME_TLS):
            self._tls = tls if tls is not None else create_default_context()
        self._patience_s = patience_s

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Asks one member after the other. Raises: OSError, TimeoutError, ValueError."""
        problem: Exception = OSError("no member of etcd is named")
        for left in reversed(range(len(self._members))):
            host, port = self._members[0]
            try:
                async with asyncio.timeout(self._patience_s if left else _ASK_S):
                    return await self._ask_signed(host, port, path, body)
            except (OSError, TimeoutError) as failed:
                problem = failed
                self._ask_others_first()
            except asyncio.CancelledError:  # whoever asked has waited long enough for this one
                self._ask_others_first()
                raise
        raise OSError(f"etcd does not answer: {problem or type(problem).__name__}") from problem

    def _ask_others_first(self) -> None:
        self._members.append(self._members.pop(0))

    async def _ask_signed(
        self, host: str, port: int, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """Asks with a token, which lasts some minutes, or until etcd starts again."""
        if not self._user:
            return await self._ask_one(host, port, path, body)
        for is_fresh in (not self._token, True):
            if is_fresh:
                named = {"name": self._user, "password": self._password}
                self._token = ""
                answer = await self._ask_one(host, port, "auth/authenticate", named)
                self._token = text_in(answer, "token")
            try:
                return await self._ask_one(host, port, path, body)
            except _TokenRefused:
                if is_fresh:
                    raise
        raise AssertionError("a fresh token was refused without an error")

    async def _ask_one(
        self, host: str, port: int, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            data = json.dumps(body).encode()
            signed = f"Authorization: {self._token}\r\n" if self._token else ""
            head = (
                f"POST /v3/{path} HTTP/1.0\r\nHost: {host}\r\n{signed}"
                f"Content-Length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            answer = await _read_all(reader, f"{host}:{port}")
        finally:
            writer.transport.abort()  # what it still sends is not waited for
        head_of, _, text = answer.partition(b"\r\n\r\n")
        status = head_of.split(b" ", 2)[1:2]
        if status != [b"200"]:
            kind = _TokenRefused if status == [b"401"] else OSError
            raise kind(f"{host}:{port} says {text[:200].decode(errors='replace')}")
        return object_of(text, f"{host}:{port}")


async def _read_all(reader: asyncio.StreamReader, where: str) -> bytes:
    """Reads an answer. Raises: OSError for an answer that does not end."""
    answer = bytearray()
    while piece := await reader.read(_PIECE):
        answer += piece
        if len(answer) > _ANSWER_MAX:
            raise MalformedAnswer(f"{where} answers more than {_ANSWER_MAX >> 20} MB")
    return bytes(answer)


@dataclass
class _Group:
    """The value of a name's key. revision: of the key, 0: it is not there. brokers: what is known
    of each number, ``doubt`` (EPOCH:END) among it; alive: numbers whose lease goes on."""

    revision: int = 0
    master: int | None = None
    epoch: int = 0
    in_sync: list[int] = field(default_factory=list)
    set_number: int = 0
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    alive: frozenset[int] = frozenset()

    def record(self) -> ElectionRecord:
        master = self.master if self.master in self.alive else None
        known = self.brokers.get(str(master), {})
        return ElectionRecord(
            master, known.get("address", ""), known.get("ha", ""), self.epoch,
            frozenset(self.in_sync), self.set_number,
        )  # fmt: skip

    def doubt(self, number: int) -> LogDoubt | None:
        """Reads the doubt of a broker. Raises: ValueError."""
        noted = self.brokers.get(str(number), {}).get("doubt")
        if noted is None:
            return None
        epoch, end = map(int, noted.split(":"))
        return LogDoubt(epoch, end)

    def heir(self, number: int) -> int | None:
        """Returns who of the in-sync set may be the master when this one of it asks: itself,
        without a doubt; else one without; else, of a set that is in doubt as a whole, who has most
        of the log. None: it is not alive."""
        doubts = {each: self.doubt(each) for each in self.in_sync}
        if doubts.get(number) is None:
            return number
        sure = [each for each, doubt in doubts.items() if doubt is None]
        if sure:
            return min(self.alive.intersection(sure), default=None)
        far = {each: (doubt.epoch, doubt.end, each == number) for each, doubt in doubts.items()
               if doubt is not None}  # fmt: skip
        best = max(far, key=lambda each: far[each])
        return best if best == number or best in self.alive else None

    def text(self) -> str:
        names = ("master", "epoch", "in_sync", "set_number", "brokers")
        return json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)


class EtcdController:
    """One broker in etcd. Keys: ``/rocketmq/CLUSTER/NAME``, and ``/alive/NUMBER`` after it."""

    renumbers = True

    def __init__(
        self, gateway: Gateway, cluster: str, name: str, identity: Path, mode: int, timeout_ms: int
    ) -> None:
        """Takes how etcd is reached. identity: ``brokerIdentity``, and mode of the file.
        timeout_ms: a broker that does not keep its lease for so long is dead."""
        self._gateway, self._cluster, self._name = gateway, cluster, name
        self._key = f"/rocketmq/{cluster}/{name}"
        self._identity = Identity(identity, mode)
        self._ttl_s = max(1, timeout_ms // 1000)
        self._lease = ""
        self._leasing = asyncio.Lock()
        #: What was there when it was asked last.
        self._seen = _Group()
        self._beating: asyncio.Task[None] | None = None

    # ---- the controller ----

    async def number(self, address: str) -> int:
        kept = self._identity.read(self._cluster, self._name)
        if kept is not None:
            return kept
        asked = self._identity.asked(self._cluster, self._name)
        code = asked[1] if asked is not None else uuid.uuid4().hex
        self._identity.keep_asked(self._cluster, self._name, 0, code)

        def take(group: _Group) -> None:
            if not any(each.get("code") == code for each in group.brokers.values()):
                number = max(map(int, group.brokers), default=0) + 1
                group.brokers[str(number)] = {"code": code}

        group = await self._change(take)
        number = next(int(n) for n, each in group.brokers.items() if each.get("code") == code)
        self._identity.keep(self._cluster, self._name, number)
        return number

    async def register(
        self, number: int, address: str, ha_address: str, doubt: LogDoubt | None
    ) -> None:
        def note(group: _Group) -> None:
            known = group.brokers.setdefault(str(number), {})
            known |= {"address": address, "ha": ha_address}
            known.pop("doubt", None)
            if doubt is not None:
                known["doubt"] = f"{doubt.epoch}:{doubt.end}"

        await self._change(note)

    async def vouch(self, number: int, record: ElectionRecord) -> None:
        def note(group: _Group) -> None:
            if (group.master, group.epoch) != (record.master, record.epoch):
                raise ControllerRefused(f"epoch {group.epoch} has begun meanwhile")
            group.brokers[str(number)].pop("doubt", None)

        await self._change(note)

    async def look(self) -> ElectionRecord:
        return (await self._read()).record()

    async def elect(self, number: int, held: int = NO_EPOCH) -> ElectionRecord:
        """Elects whoever asks first of those in sync: all of them have what was acknowledged. A
        master whose lease was over, and whom nobody has replaced meanwhile, goes on with its
        epoch."""
        await self._keep_alive(number)
        group = await self._read()
        if number not in group.alive:  # a request for an earlier lease came late
            self._lease = ""
            return group.record()
        is_mine = group.master == number
        free = group.master is None or is_mine or group.master not in group.alive
        goes_on = is_mine and group.epoch == held
        if not free or goes_on or (group.epoch > 0 and number not in group.in_sync):
            return group.record()
        guards = [] if group.master is None or is_mine else [self._is_dead(group.master)]
        heir = group.heir(number)
        if heir is None:
            await self._leave_it_to_others(group, number)
        elif heir != number:
            guards.append(self._is_alive(heir))
        self._crown(group, heir)
        return (await self._write(group, guards))[1].record()  # or somebody was faster

    async def _leave_it_to_others(self, group: _Group, number: int) -> NoReturn:
        """Refuses to lead: who comes back with all of the log must not find a master that waits for
        it. Raises: ControllerRefused."""
        if group.master == number:
            group.master = None
            await self._write(group, [])
        raise ControllerRefused(self._waits_for(group, number))

    @staticmethod
    def _waits_for(group: _Group, number: int) -> str:
        others = sorted(set(group.in_sync) - {number})
        return (
            f"the end of the log of broker {number} may be missing, and {others} of the in-sync"
            " set, who are not there, may have it: it waits for them"
            f" (`pystore ha move --accept-loss` makes {number} the master without them)"
        )

    async def move(self, number: int, accepts_loss: bool = False) -> ElectionRecord:
        group = await self._read()
        if number not in group.in_sync or number not in group.alive:
            raise ControllerRefused(f"broker {number} is not in sync, or not alive")
        if group.master == number:
            return group.record()
        heir = group.heir(number)
        if heir is not None and heir != number:
            raise ControllerRefused(
                f"broker {number} may lack acknowledged messages: move it to {heir}"
            )
        if heir is None and not accepts_loss:
            raise ControllerRefused(self._waits_for(group, number))
        self._crown(group, number)
        return await self._write_or_refuse(group)

    async def succeed(self, number: int, record: ElectionRecord) -> ElectionRecord:
        """Takes the place of a broker that is gone, whose lease would last for a while."""
        group = replace(self._seen)
        if number not in group.alive:
            await self._keep_alive(number)
        if number not in group.alive or group.record() != record:
            group = await self._read()
        if number not in group.alive:
            self._lease = ""
            return group.record()
        if (group.master, group.epoch) != (record.master, record.epoch) or (
            number not in group.in_sync or group.doubt(number) is not None
        ):
            return group.record()
        self._crown(group, number)
        return (await self._write(group, []))[1].record()  # or somebody was faster

    async def change_set(self, record: ElectionRecord, in_sync: frozenset[int]) -> ElectionRecord:
        group = await self._read()
        now = (group.master, group.epoch, group.set_number)
        if now != (record.master, record.epoch, record.set_number):
            raise ControllerRefused(f"epoch {group.epoch} has the set {group.set_number} by now")
        group.in_sync, group.set_number = sorted(in_sync), group.set_number + 1
        return await self._write_or_refuse(group)

    def beat(self, number: int, state: Heartbeat) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat(number))

    async def leave(self) -> None:
        """Gives the lease back: others need not wait for it."""
        if self._beating is not None:
            self._beating.cancel()
        if self._lease:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                await self._gateway.ask("lease/revoke", {"ID": self._lease})

    # ---- being alive ----

    async def _beat(self, number: int) -> None:
        try:
            await self._keep_alive(number)
        except (OSError, TimeoutError, ValueError) as failed:
            quiet.warning("no lease", "The lease at etcd cannot be renewed: %s", failed)

    async def _keep_alive(self, number: int) -> None:
        """Keeps the lease, one at a time: of two keys with a lease each, one would end with a lease
        that nobody keeps."""
        async with self._leasing:
            if self._lease:
                answer = await self._gateway.ask("lease/keepalive", {"ID": self._lease})
                if _time_left(answer) > 0:
                    return
            self._lease = ""
            answer = await self._gateway.ask("lease/grant", {"TTL": str(self._ttl_s)})
            granted = text_in(answer, "ID")
            put = {"key": _b64(f"{self._key}/alive/{number}"), "value": "", "lease": granted}
            await self._gateway.ask("kv/put", put)
            self._lease = granted

    def _is_dead(self, number: int | None) -> dict[str, Any]:
        key = _b64(f"{self._key}/alive/{number}")
        return {"key": key, "target": "CREATE", "result": "EQUAL", "createRevision": "0"}

    def _is_alive(self, number: int) -> dict[str, Any]:
        return self._is_dead(number) | {"result": "NOT_EQUAL"}

    # ---- the key ----

    @staticmethod
    def _crown(group: _Group, number: int) -> None:
        group.brokers.get(str(number), {}).pop("doubt", None)
        group.master, group.epoch = number, group.epoch + 1
        group.in_sync, group.set_number = [number], group.set_number + 1

    async def _change(self, change: Callable[[_Group], None]) -> _Group:
        for _ in range(_TRIES):
            group = await self._read()
            before = group.text()
            change(group)
            if group.text() == before or (await self._write(group, []))[0]:
                return group
        raise OSError("the key of this broker's name changes all the time")

    async def _read(self) -> _Group:
        """Reads key and leases, of one revision."""
        answer = await self._gateway.ask("kv/txn", {"success": self._ranges()})
        return self._group_of(answer)

    async def _write(self, group: _Group, guards: list[dict[str, Any]]) -> tuple[bool, _Group]:
        """Writes the record. Returns whether it was written, and what is there now. It is not
        written when the key is not what it was read as, or a guard does not hold."""
        same = {
            "key": _b64(self._key), "target": "MOD", "result": "EQUAL",
            "modRevision": str(group.revision),
        }  # fmt: skip
        put = {"requestPut": {"key": _b64(self._key), "value": _b64(group.text())}}
        asked = {
            "compare": [same, *guards], "success": [put, *self._ranges()],
            "failure": self._ranges(),
        }  # fmt: skip
        answer = await self._gateway.ask("kv/txn", asked)
        return bool(answer.get("succeeded")), self._group_of(answer)

    async def _write_or_refuse(self, group: _Group) -> ElectionRecord:
        """Writes the record. Raises: ControllerRefused, and what asking raises."""
        done, now = await self._write(group, [])
        if not done:
            raise ControllerRefused("the record has changed meanwhile")
        return now.record()

    def _ranges(self) -> list[dict[str, Any]]:
        alive = f"{self._key}/alive/"
        return [
            {"requestRange": {"key": _b64(self._key)}},
            {"requestRange": {"key": _b64(alive), "rangeEnd": _b64(alive[:-1] + "0")}},
        ]

    def _group_of(self, answer: dict[str, Any]) -> _Group:
        """Reads what the two ranges have found. Raises: MalformedAnswer."""
        keys, leases = ranges_of(answer)
        numbers = [each["key"].rpartition("/")[2] for each in leases]
        alive = frozenset(int(each) for each in numbers if each.isdecimal() and len(each) < 19)
        self._seen = _Group(alive=alive)
        if keys:
            found = value_of(keys[0]["value"])
            self._seen = _Group(revision=keys[0]["mod_revision"], alive=alive, **found)
        return self._seen


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _time_left(answer: dict[str, Any]) -> int:
    """Returns the time left of a lease that is kept, in seconds."""
    result = answer.get("result")
    left = str(result.get("TTL")) if isinstance(result, dict) else ""
    return int(left) if left.isdecimal() and len(left) < 19 else 0
