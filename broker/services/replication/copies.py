"""The master's end: whether what a slave has when it comes is this log. Its report says how much it
has, not what: Java's slaves follow with any log, and would count as copies of what they lack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from broker.access.addresses import address_of
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.remoting.client import parse_address
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore import Store
from pystore.errors import StoreError

__all__ = ["Comparer"]

quiet = RateLimitedLogger(SafeLogger(__name__))

#: Asks the broker at this address. Raises: OSError, TimeoutError.
AskAt = Callable[[str, Command], Awaitable[Command]]
#: The brokers of this name by their ids, as the name servers know them. Raises: OSError,
#: TimeoutError, ValueError.
Members = Callable[[], Awaitable[Mapping[int, str]]]

#: Records of the log that are looked at at once.
_STEP = 1024


class Comparer:
    """Compares the last record that a slave has with the one here."""

    def __init__(self, store: Store, members: Members, ask: AskAt) -> None:
        self._store, self._members, self._ask = store, members, ask

    async def compare(self, host: str, end: int) -> bool | None:
        """Whether a log of a slave at this host that ends at `end` is ours so far; None: nobody
        there could be asked."""
        try:
            last = await asyncio.to_thread(_last_before, self._store, end)
            if last < 0:
                return False
            mine = bytes(self._store.message(last).record)
            found = None
            for number, address in (await self._members()).items():
                if number == 0 or address_of(parse_address(address)[0]) != address_of(host):
                    continue
                view = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(last)})
                answer = await self._ask(address, view)
                if answer.code == ResponseCode.SUCCESS and bytes(answer.body) == mine:
                    return True
                # Java's answers 1 to whoever has no rights, too.
                if answer.code == ResponseCode.SUCCESS or (
                    answer.code == ResponseCode.SYSTEM_ERROR and await self._may_ask(address)
                ):
                    found = False
        except (OSError, TimeoutError, ValueError, StoreError) as failed:
            quiet.warning("not compared", "The log of the slave at %s is not compared: %s",
                          host, failed)  # fmt: skip
            return None
        return found

    async def _may_ask(self, address: str) -> bool:
        answer = await self._ask(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        return answer.code == ResponseCode.SUCCESS


def _last_before(store: Store, end: int) -> int:
    """Where the record begins that ends at `end`, or before the blank that does; -1: none does.
    Raises: StoreError."""
    info = store.info()
    size = info.commitlog_file_size
    at = max(info.log_min, (end - 1) // size * size)
    last, upto = -1, at
    while upto < end:
        batch = store.log(upto, max_messages=_STEP)
        starts = [each.physical_offset for each in batch]
        last = max((start for start in starts if start < end), default=last)
        if not starts or starts[-1] >= end:
            break
        upto = batch.next_offset
    if last < 0:
        return -1
    closes = last + len(store.message(last).record)
    return last if closes == end or (end % size == 0 and closes < end) else -1
