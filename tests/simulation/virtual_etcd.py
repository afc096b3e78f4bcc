"""As much of etcd as its JSON gateway is asked for by broker/services/controlled/etcd.py, and the
network before it: transactions one after the other, keys that end with their leases. A request
arrives never, once or twice, late; its answer may be lost."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from virtual_time import Clock, Events
from virtual_world import Group

__all__ = ["Etcd", "Gateway"]

#: When who asks gives up, as gateway.ask does.
ASK_S = 2.0


@dataclass(frozen=True)
class _Key:
    value: str
    created: int
    changed: int
    lease: str


class Etcd:
    def __init__(self, events: Events) -> None:
        self._events, self._revision, self._next_lease = events, 1, 1
        self._keys: dict[str, _Key] = {}
        self._leases: dict[str, tuple[float, float]] = {}  # when it ends, and its seconds

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises: OSError."""
        self._end_leases()
        answer: dict[str, Any] = getattr(self, "_" + path.replace("/", "_"))(body)
        return answer

    def _end_leases(self) -> None:
        now = self._events.now
        over = {lease for lease, (end, _) in self._leases.items() if end <= now}
        if over:
            self._leases = {k: v for k, v in self._leases.items() if k not in over}
            self._keys = {k: v for k, v in self._keys.items() if v.lease not in over}

    # ---- leases ----

    def _lease_grant(self, body: dict[str, Any]) -> dict[str, Any]:
        lease, self._next_lease = str(self._next_lease), self._next_lease + 1
        self._leases[lease] = self._events.now + float(body["TTL"]), float(body["TTL"])
        return {"ID": lease, "TTL": body["TTL"]}

    def _lease_keepalive(self, body: dict[str, Any]) -> dict[str, Any]:
        found = self._leases.get(body["ID"])
        if found is None:
            return {"result": {"ID": body["ID"]}}
        self._leases[body["ID"]] = self._events.now + found[1], found[1]
        return {"result": {"ID": body["ID"], "TTL": str(int(found[1]))}}

    def _lease_revoke(self, body: dict[str, Any]) -> dict[str, Any]:
        self._leases[body["ID"]] = 0.0, 0.0
        self._end_leases()
        return {}

    # ---- keys ----

    def _kv_put(self, body: dict[str, Any]) -> dict[str, Any]:
        lease = body.get("lease", "")
        if lease and lease not in self._leases:
            raise OSError("etcdserver: requested lease not found")
        self._revision += 1
        self._put(body["key"], body["value"], lease)
        return {}

    def _put(self, key: str, value: str, lease: str) -> None:
        before = self._keys.get(key)
        created = before.created if before is not None else self._revision
        self._keys[key] = _Key(value, created, self._revision, lease)

    def _kv_txn(self, body: dict[str, Any]) -> dict[str, Any]:
        holds = all(self._compare(each) for each in body.get("compare", ()))
        asked = body["success"] if holds else body["failure"]
        if any("requestPut" in each for each in asked):
            self._revision += 1
        return {"succeeded": holds, "responses": [self._do(each) for each in asked]}

    def _compare(self, asked: dict[str, Any]) -> bool:
        found = self._keys.get(asked["key"])
        is_equal = asked["result"] == "EQUAL"
        if asked["target"] == "CREATE":
            now = found.created if found is not None else 0
            return (int(asked["createRevision"]) == now) == is_equal
        now = found.changed if found is not None else 0
        return (int(asked["modRevision"]) == now) == is_equal

    def value(self, key: str) -> str | None:
        found = self._keys.get(base64.b64encode(key.encode()).decode())
        return base64.b64decode(found.value).decode() if found is not None else None

    def _do(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "requestPut" in asked:
            self._put(asked["requestPut"]["key"], asked["requestPut"]["value"], "")
            return {"response_put": {}}
        found = [
            {"key": key, "value": each.value, "mod_revision": str(each.changed)}
            for key, each in self._range(**asked["requestRange"])
        ]
        return {"response_range": {"kvs": found} if found else {}}

    def _range(self, key: str, rangeEnd: str = "") -> Iterator[tuple[str, _Key]]:
        """In the order of keys, which base64 does not have."""
        if not rangeEnd:
            if key in self._keys:
                yield key, self._keys[key]
            return
        begin, end = base64.b64decode(key), base64.b64decode(rangeEnd)
        names = {base64.b64decode(each): each for each in self._keys}
        for name in sorted(names):
            if begin <= name < end:
                yield names[name], self._keys[names[name]]


class Gateway:
    """In place of the broker's own Gateway: of one broker, over the network of its group."""

    def __init__(self, etcd: Etcd, group: Group, number: int, clock: Clock) -> None:
        """clock: of the process that asks."""
        self._etcd, self._group, self._number, self._clock = etcd, group, number, clock

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises: OSError, TimeoutError."""
        group, number = self._group, self._number
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def hear(answer: dict[str, Any] | OSError) -> None:
            if answered.done():
                return
            if isinstance(answer, OSError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        def arrive() -> None:
            try:
                answer: dict[str, Any] | OSError = self._etcd.ask(path, body)
            except OSError as refused:
                answer = refused
            if not answered.done():
                group.from_controller(number, self._clock, lambda: hear(answer))

        group.to_controller(number, arrive)
        async with asyncio.timeout(ASK_S):
            return await answered
