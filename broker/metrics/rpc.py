"""How long requests take that Python serves; those of the core: csrc/core/metrics.c. Upstream:
RemotingMetricsManager."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

from broker.metrics.table import BY_NAME
from broker.wire.codes import RequestCode, ResponseCode

__all__ = ["RpcOutcome", "RpcTimes", "name_of_request", "name_of_response"]

_BOUNDS_MS = BY_NAME["rocketmq_rpc_latency_milliseconds"].bounds
#: Codes that anybody may ask with are any number: so many rows, and no more.
_ROWS_MAX = 1000
#: What waits for messages, and takes longer than this, was held.
_HELD_MS = 100
_POLLS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE,
                    RequestCode.POP_MESSAGE, RequestCode.POP_LITE_MESSAGE))  # fmt: skip

_TOPIC, _GROUP = (
    "rocketmq_topic_create_execution_time_milliseconds",
    "rocketmq_consumer_group_create_execution_time_milliseconds",
)
_CREATE_MS = BY_NAME[_TOPIC].bounds
_CREATES = {
    int(RequestCode.UPDATE_AND_CREATE_TOPIC): _TOPIC,
    int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST): _TOPIC,
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): _GROUP,
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST): _GROUP,
}


class RpcOutcome(NamedTuple):
    """A row of the histogram: codes, whether it waited for messages, and what became of it."""

    request: int
    response: int
    held: bool
    result: str


class RpcTimes:
    """The requests of one server."""

    def __init__(self) -> None:
        #: Counts by bucket, and then the sum in ms.
        self._rows: dict[RpcOutcome, list[float]] = {}
        #: The same of requests that create something, by metric and success.
        self.creates: dict[tuple[str, bool], list[float]] = {}

    def answered(self, request: int, response: int, came: float, *, oneway: bool = False) -> None:
        """Counts a request that was answered. came: when it was decoded, in monotonic seconds."""
        took_ms = (monotonic() - came) * 1000
        held = request in _POLLS and took_ms >= _HELD_MS
        result = "oneway" if oneway else "success"
        row = self._row(RpcOutcome(request, response, held, result))
        row[bisect_left(_BOUNDS_MS, took_ms)] += 1
        row[-1] += took_ms
        family = _CREATES.get(request)
        if family is not None:
            made = self.creates.setdefault((family, response == 0), [0.0] * (len(_CREATE_MS) + 2))
            made[bisect_left(_CREATE_MS, took_ms)] += 1
            made[-1] += took_ms

    def _row(self, asked: RpcOutcome) -> list[float]:
        row = self._rows.get(asked)
        if row is None:
            if len(self._rows) >= _ROWS_MAX:
                asked = RpcOutcome(-1, -1, False, "success")
            row = self._rows.setdefault(asked, [0.0] * (len(_BOUNDS_MS) + 2))
        return row

    def rows(self) -> Iterator[tuple[RpcOutcome, list[int], float]]:
        """Returns each row with its counts by bucket and the sum in ms."""
        for asked, row in self._rows.items():
            yield asked, [int(count) for count in row[:-1]], row[-1]


def name_of_request(code: int) -> str:
    """Returns a request's name as upstream's metrics have it: ``send_message_v2``; digits for a
    code that has none."""
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return str(code)


def name_of_response(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)
