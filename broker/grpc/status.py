"""How a call ended: the status of a reply, and what becomes of a broker's refusal
(docs/internals/grpc.md#status-codes)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.grpc.schema import pb
from broker.wire.codes import ResponseCode

__all__ = ["Code", "Problem", "name_of", "of_response", "ok", "overall", "status"]

Code: Any = pb.Code
_NAMES = {number: name for name, number in vars(Code).items()}
#: Characters of a status message: it may quote what was asked, which may be long.
_TEXT_MAX = 1024

#: What a broker's response code means to a gRPC client; others are INTERNAL_SERVER_ERROR.
_OF_RESPONSE = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL: Code.MESSAGE_CORRUPTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class Problem(Exception):
    """A call that ends with this status. code: of Code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def status(self) -> Any:
        return status(self.code, self.text)


def name_of(code: int) -> str:
    return str(_NAMES.get(code, code))


def status(code: int, text: str = "") -> Any:
    """Makes a pb.Status. text: the code's name when there is none."""
    return pb.Status(code=code, message=(text or name_of(code))[:_TEXT_MAX])


def ok() -> Any:
    return status(Code.OK)


def of_response(code: int) -> int:
    """Returns the status code for a broker's response code."""
    found: int = _OF_RESPONSE.get(code, Code.INTERNAL_SERVER_ERROR)  # type: ignore[call-overload]
    return found


def overall(each: Iterable[Any]) -> Any:
    """Returns the status of a reply whose entries have these: the one that all have in common."""
    codes = {one.code: one for one in each}
    if len(codes) == 1:
        (one,) = codes.values()
        return one
    return status(Code.MULTIPLE_RESULTS)
