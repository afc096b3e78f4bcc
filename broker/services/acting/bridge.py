"""Messages put at other brokers of the cluster, as upstream's EscapeBridge does it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.services.acting.escape_ledger import Doubt
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore.format.names import TEMPLATE_TOPIC
from pystore.format.properties import encode_properties

__all__ = ["Bridge", "Copy", "NotStored", "PopRecord", "records_command", "took_it"]

#: A route is asked for again after so many seconds, and after a failure.
_ROUTE_S = 30.0
#: Of the system flag, what belongs to the log that a message was in: addresses of 16 bytes.
_OF_A_LOG = 0x10 | 0x20
#: What a broker answers that has the message: it did not wait for its disk or its slaves.
_HAS_IT = (
    ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)  # fmt: skip
#: Until the other broker's index has what was put there.
_INDEXED_S = 1.0
#: Clocks of two brokers differ by less.
_CLOCKS_MS = 600_000

#: Asks the broker at this address. Raises: OSError, TimeoutError.
AskAt = Callable[[str, Command], Awaitable[Command]]
#: A topic's route; None: no name server answers. As Registration.route.
FindRoute = Callable[[str], Awaitable[Mapping[str, Any] | None]]


class NotStored(OSError):
    """No other broker has the message: it was refused, or there is none."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A message for another broker. like: a topic whose brokers take it when nobody serves its own,
    which is then made there; empty: none. stored_in: the topic that it is stored in."""

    topic: str
    properties: Mapping[str, str]
    body: bytes
    sys_flag: int
    flag: int
    born_ms: int
    tries: int
    stored_in: str
    like: str = ""

    @property
    def key(self) -> str:
        return self.properties.get("UNIQ_KEY", "")


def _send_command(
    group: str, topic: str, queue: int, said: Mapping[str, str], body: bytes, *, sys_flag: int = 0,
    flag: int = 0, born_ms: int, tries: int = 0,
) -> Command:  # fmt: skip
    ext = {
        "a": group, "b": topic, "c": TEMPLATE_TOPIC, "d": "8", "e": str(queue),
        "f": str(sys_flag & ~_OF_A_LOG), "g": str(born_ms), "h": str(flag),
        "i": encode_properties({**said, "WAIT": "false"}).decode(),
        "j": str(tries), "k": "false", "m": "false",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, ext, body)


class PopRecord(NamedTuple):
    """A record of the revive topic that is not in the log. `tag` says what it is, `due_ms` when it
    is delivered there."""

    tag: str
    queue: int
    due_ms: int
    body: bytes

    def line(self) -> bytes:
        return b"%s %d %d %s" % (self.tag.encode(), self.queue, self.due_ms, self.body)


def records_command(topic: str, broker: str, record: PopRecord) -> Command:
    """Puts a record of POP into a queue of the revive topic of another broker, as upstream's
    PopMessageProcessor and AckMessageProcessor do through its bridge."""
    said = mqjson.loads(record.body)
    at, kind = (said["so"], "ck") if record.tag == "ck" else (said["ao"], "ack")
    place = (said["t"], said["q"], at, said["c"], said["pt"], broker, kind)
    properties = {
        "UNIQ_KEY": "@".join(map(str, place)), "TAGS": record.tag,
        "TIMER_DELIVER_MS": str(record.due_ms),
    }  # fmt: skip
    now_ms = time.time_ns() // 1_000_000
    return _send_command(f"InnerProducerGroup_{broker}_0", topic, record.queue, properties,
                         record.body, born_ms=now_ms)  # fmt: skip


def took_it(answer: Command) -> bool:
    """Says whether the broker has the message."""
    return answer.code in _HAS_IT


class Bridge:
    """Lives on the event loop."""

    def __init__(self, name: str, number: int, route: FindRoute, ask: AskAt) -> None:
        """Takes who this broker is. name, number: of this broker."""
        self._name, self._number, self._route, self._ask = name, number, route, ask
        self._known: dict[str, tuple[float, list[tuple[str, int]]]] = {}
        self._turn = 0

    async def places(self, copy: Copy) -> list[tuple[str, int]]:
        """Returns address and queue of each queue at other brokers that takes it. Raises:
        NotStored."""
        for topic in filter(None, (copy.topic, copy.like)):
            since, found = self._known.get(topic, (0.0, []))
            if not found or time.monotonic() - since > _ROUTE_S:
                found = list(self._others(await self._route(topic) or {}))
                self._known[topic] = time.monotonic(), found
            if found:
                return found if topic == copy.topic else [(at, 0) for at, _ in found]
        raise NotStored(f"no other broker takes messages of {copy.topic}")

    def _others(self, route: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        brokers = {row["brokerName"]: row["brokerAddrs"] for row in route.get("brokerDatas") or ()}
        for row in route.get("queueDatas") or ():
            addresses = brokers.get(row["brokerName"]) or {}
            address = addresses.get("0") or addresses.get(0)
            if row["brokerName"] != self._name and row["perm"] & 2 and address:
                yield from ((str(address), queue) for queue in range(row["writeQueueNums"]))

    async def next_place(self, copy: Copy) -> tuple[str, int]:
        """Returns one of the places, in turn. Raises: NotStored."""
        places = await self.places(copy)
        self._turn += 1
        return places[self._turn % len(places)]

    async def put(self, copy: Copy, address: str, queue: int) -> None:
        """Puts a message at another broker. Raises: NotStored; OSError, TimeoutError, when the
        broker may have it nevertheless."""
        group = copy.properties.get("PGROUP") or f"InnerProducerGroup_{self._name}_{self._number}"
        command = _send_command(
            group, copy.topic, queue, copy.properties, copy.body, sys_flag=copy.sys_flag,
            flag=copy.flag, born_ms=copy.born_ms, tries=copy.tries,
        )  # fmt: skip
        try:
            answer = await self._ask(address, command)
        except ConnectionRefusedError as nobody:
            self._known.clear()
            raise NotStored(f"nobody listens at {address}") from nobody
        except (OSError, TimeoutError):
            self._known.clear()
            raise
        if not took_it(answer):
            self._known.clear()
            raise NotStored(f"{address} answered {answer.code} {answer.remark}")

    async def has_any(self, copy: Copy) -> bool:
        """Says whether one of the brokers that may have got the message has it: some time ago.
        Raises: NotStored; OSError, TimeoutError, when one cannot be asked."""
        asked = {address for address, _ in await self.places(copy)} if copy.key else set()
        said = (Doubt(at, copy.stored_in, copy.key, copy.born_ms) for at in asked)
        return any(await asyncio.gather(*(self.has(each, indexed=True) for each in said)))

    async def has(self, doubt: Doubt, *, indexed: bool = False) -> bool:
        """Says whether the broker has the message. `indexed`: it was put long ago. Raises: OSError,
        TimeoutError."""
        if not doubt.key:
            return False
        if not indexed:
            await asyncio.sleep(_INDEXED_S)
        ext = {
            "topic": doubt.topic, "key": doubt.key, "maxNum": "8",
            "beginTimestamp": str(doubt.born_ms - _CLOCKS_MS), "endTimestamp": str((1 << 63) - 1),
            "_UNIQUE_KEY_QUERY": "true",
        }  # fmt: skip
        answer = await self._ask(doubt.address, Command(RequestCode.QUERY_MESSAGE, ext))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise OSError(f"{doubt.address} answered {answer.code} {answer.remark}")
        return answer.code == ResponseCode.SUCCESS
