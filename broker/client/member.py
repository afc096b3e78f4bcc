"""A consumer's settings, and what its parts see of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from broker.client.allocation import Strategy, strategy_of
from broker.client.beginnings import Beginnings
from broker.client.checks import check_seconds
from broker.client.errors import Misuse
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network
from broker.client.options import ClientOptions, check_settings
from broker.client.progress import QueueProgress
from broker.client.ready import ReadyMessages
from broker.client.subscription import TopicSubscription

__all__ = ["Changed", "ConsumerOptions", "ConsumerSettings", "Member", "Start", "Worker"]

Start = Literal["first", "last"] | dt.datetime | int
Mode = Literal["pull", "pop"]
Changed = Callable[[Collection[MessageQueue]], Awaitable[None] | None]


class ConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of every consumer: those of ClientOptions, and the fields of
    ConsumerSettings."""

    mode: Mode
    invisible_s: float
    start: Start
    strategy: str | Strategy
    broadcast: bool
    orderly: bool
    concurrency: int
    max_retries: int
    auto_commit_s: float
    pull_batch: int
    buffer_messages: int
    poll_wait_s: float
    handler_timeout_s: float
    stop_timeout_s: float
    offsets_folder: str | None
    rebalance_s: float
    on_assigned: Changed | None
    on_revoked: Changed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """mode: pull divides queues among the members; pop has brokers hand messages out, one
    acknowledgement each, and divides nothing. invisible_s: how long a popped message is ours before
    it goes to somebody else, unless extend() says so. start: where a group that has committed
    nothing begins: first, last, or a time (a datetime, or milliseconds since 1970). strategy: how
    members divide queues, by upstream's name (AVG, AVG_BY_CIRCLE, CONSISTENT_HASH) or one of
    broker.client.allocation. broadcast: every member gets every message, and offsets are kept in a
    file below offsets_folder. orderly: a handler gets each queue's messages one after the other.
    concurrency: handlers at once. max_retries: how often a message comes again before it is a dead
    letter; of an orderly consumer, -1: for ever. auto_commit_s: how often offsets are committed; 0:
    only by commit(). pull_batch: messages asked for at once. buffer_messages: of each queue, pulled
    and not done. poll_wait_s: how long a broker holds a pull. handler_timeout_s: after it a message
    is given to somebody else. stop_timeout_s: how long close() waits for handlers. rebalance_s: how
    often queues are divided without cause. on_assigned, on_revoked: called with queues that came
    and that go; revoked queues are still ours while it runs."""

    mode: Mode = "pull"
    invisible_s: float = 60.0
    start: Start = "last"
    strategy: str | Strategy = "AVG"
    broadcast: bool = False
    orderly: bool = False
    concurrency: int = 20
    max_retries: int = -1
    auto_commit_s: float = 5.0
    pull_batch: int = 32
    buffer_messages: int = 1000
    poll_wait_s: float = 15.0
    handler_timeout_s: float = 900.0
    stop_timeout_s: float = 30.0
    offsets_folder: str | None = None
    rebalance_s: float = 20.0
    on_assigned: Changed | None = None
    on_revoked: Changed | None = None

    def __post_init__(self) -> None:
        strategy_of(self.strategy)
        if isinstance(self.start, str) and self.start not in ("first", "last"):
            raise Misuse(f"start '{self.start}' is not first, last or a time")
        check_settings(
            self,
            at_least={
                "concurrency": 1, "pull_batch": 1, "buffer_messages": 1, "max_retries": -1,
                "auto_commit_s": 0, "poll_wait_s": 0, "stop_timeout_s": 0,
            },
            more_than_0=("handler_timeout_s", "rebalance_s"),
        )  # fmt: skip
        check_seconds("poll_wait_s", self.poll_wait_s + 1, more_than_0=True)
        if not isinstance(self.start, str) and not _is_time(self.start):
            raise Misuse(f"start {self.start!r} is not first, last, a datetime or milliseconds")
        for name in ("on_assigned", "on_revoked"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise Misuse(f"{name} is {getattr(self, name)!r}; pass a function")
        if self.mode not in ("pull", "pop"):
            raise Misuse(f"mode '{self.mode}' is neither pull nor pop")
        if self.mode == "pop":
            self._check_pop()
        if self.orderly and self.broadcast:
            raise Misuse("orderly and broadcast exclude each other: nobody locks queues for all")

    def _check_pop(self) -> None:
        for name in ("broadcast", "orderly"):
            if getattr(self, name):
                raise Misuse(f"{name} needs queues of one's own; leave mode at pull")
        if self.start not in ("first", "last"):
            raise Misuse("with mode pop a group starts first or last; a time is for mode pull")
        check_seconds("invisible_s", self.invisible_s, more_than_0=True)
        if not self.invisible_s >= 0.001:
            raise Misuse("invisible_s is at least a millisecond")

    @property
    def retries(self) -> int:
        """The number of retries that brokers are told: 16 by default."""
        return self.max_retries if self.max_retries >= 0 else 16


def _is_time(start: object) -> bool:
    """Says whether the number is a moment, in milliseconds of 64 bits."""
    if isinstance(start, dt.datetime):
        try:
            start.timestamp()
        except (ValueError, OverflowError, OSError):  # the year 1, of which a zone takes an hour
            return False
        return True
    return isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 1 << 63


class Worker(Protocol):
    """What handling and retrying need of any consumer."""

    group: str
    settings: ConsumerSettings
    network: Network
    ready: ReadyMessages

    @property
    def client_id(self) -> str: ...

    def shown(self, topic: str) -> str:
        """Returns a topic without the namespace."""

    def broker_of(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """Returns the address of the queue's broker with this id, else of its master, else of any.
        Raises: Unreachable."""

    def arrived(self, messages: Sequence[ReceivedMessage]) -> None:
        """Takes messages that were pulled."""

    async def nack(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Has the message delivered again. Raises: Misuse, ClientError."""


class Member(Worker, Protocol):
    """What rebalance, pulling, popping and inquiries need of a consumer, too."""

    strategy: Strategy
    subscriptions: dict[str, TopicSubscription]
    progress: dict[MessageQueue, QueueProgress]
    beginnings: Beginnings

    async def take(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begins pulling queues at these offsets."""

    async def revoke(self, queues: Collection[MessageQueue]) -> None:
        """Stops pulling queues, commits what is done of them and lets them go."""

    async def start_offset(self, queue: MessageQueue) -> int:
        """Returns where to begin. Raises: ClientError."""

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues a queue at an offset. Raises: Misuse."""

    async def commit(self) -> None:
        """Commits what is done now. Raises: ClientError."""

    async def consume_directly(self, message: ReceivedMessage) -> tuple[str, str | None]:
        """Gives a message that a tool sends to the handler."""
