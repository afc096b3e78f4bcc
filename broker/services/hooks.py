"""The user's own code around sends and send-backs (docs/internals/services.md#hooks).

A hook is any object with a name, ``before(context)`` and ``after(context)``. Hooks run in the order
of registration, on the event loop: they must not block. While a send hook is registered, sends come
up to Python instead of being answered in C; while a consume hook is, pulls do. Upstream lets no
hook refuse a pull (PullMessageProcessor swallows what it raises); here AbortProcessException does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from broker.loop.safe_log import SafeLogger
from broker.wire.command import Refused

__all__ = [
    "AbortProcessException",
    "ConsumeContext",
    "ConsumeMessageHook",
    "Hooks",
    "SendContext",
    "SendMessageHook",
]

log = SafeLogger(__name__)


class AbortProcessException(Refused):
    """Raised by a hook's before(): its code and text become the answer."""


@dataclass(slots=True)
class SendContext:
    """What hooks are shown of a send. The fields of the answer are filled in for after(); times are
    in ms."""

    producer_group: str
    topic: str
    queue: int
    client_address: str
    born_timestamp: int
    properties: dict[str, str]
    body_length: int
    message_type: str = "Normal_Msg"
    code: int = -1
    remark: str | None = None
    message_id: str = ""
    queue_offset: int = -1
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class ConsumeContext:
    """What hooks are shown of a pull, or of a message that a consumer sends back.

    For after(), `count` and `size` are those of the messages that it got. `status` is upstream's
    name of the outcome: RCV_SUCCESS or RCV_EPOLLS (nothing was there) of a pull, SEND_BACK or
    SEND_BACK_TO_DLQ."""

    consumer_group: str
    topic: str
    queue: int
    client_address: str
    count: int = 1
    size: int = 0
    status: str = "SEND_BACK"
    success: bool = False
    extra: dict[str, object] = field(default_factory=dict)


class SendMessageHook(Protocol):
    name: str

    def before(self, context: SendContext) -> None: ...
    def after(self, context: SendContext) -> None: ...


class ConsumeMessageHook(Protocol):
    name: str

    def before(self, context: ConsumeContext) -> None: ...
    def after(self, context: ConsumeContext) -> None: ...


_Context = TypeVar("_Context", contravariant=True)


class _Hook(Protocol[_Context]):
    name: str

    def before(self, context: _Context) -> None: ...
    def after(self, context: _Context) -> None: ...


_Of = TypeVar("_Of")


class Hooks(Generic[_Of]):
    """The hooks of one kind. Only an AbortProcessException of before() changes an answer."""

    def __init__(self) -> None:
        self._hooks: list[_Hook[_Of]] = []

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @property
    def names(self) -> Sequence[str]:
        return [hook.name for hook in self._hooks]

    def add(self, hook: _Hook[_Of]) -> None:
        self._hooks.append(hook)

    def before(self, context: _Of) -> None:
        """Calls the hooks that come before. Raises: AbortProcessException."""
        for hook in self._hooks:
            try:
                hook.before(context)
            except AbortProcessException:
                raise
            except Exception:
                log.exception("Hook %s failed before a request", hook.name)

    def after(self, context: _Of) -> None:
        for hook in self._hooks:
            try:
                hook.after(context)
            except Exception:
                log.exception("Hook %s failed after a request", hook.name)


def message_type(properties: dict[str, str]) -> str:
    """Returns how upstream classes a message, for hooks and accounting."""
    if properties.get("TRAN_MSG") == "true":
        return "Trans_Msg_Half"
    if any(name in properties for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC")):
        return "Delay_Msg"
    return "Order_Msg" if "__SHARDINGKEY" in properties else "Normal_Msg"
