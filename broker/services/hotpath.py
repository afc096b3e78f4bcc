"""What the services ask of the C core's hot path (broker/hot/core.py), and nothing more.

The core answers sends and pulls by itself, against tables that the services publish here;
everything else, and whatever has no row in them, goes to the processors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from broker.hot.core import OffsetRow, PullOutcome, Sample, Times, Totals
from broker.wire.decision import PutDecision, PutOutcome
from pystore import PutStatus

__all__ = ["HotPath"]


class HotPath(Protocol):
    """The tables of the hot path."""

    def publish_topic(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int,
        *,
        hot: bool,
        once: bool = False,
    ) -> None:
        """Publishes a topic. `hot` is False when its sends must come up to Python; `once` means
        that repeats are not stored."""

    def withdraw_topic(self, name: str) -> None: ...

    def take_kinds(self, topic: str, kinds: Iterable[int]) -> None:
        """Lets gRPC clients send plain messages of these kinds (MessageType) to a topic."""

    def must_wait(self, position: int) -> bool:
        """Returns whether an answer that rests on records up to there must wait; 0 stands for no
        record."""

    async def safe(self, position: int) -> PutStatus:
        """Waits until the log is safe up to there, or for syncFlushTimeout. Raises: StoreError."""

    def publish_subscription(
        self,
        group: str,
        topic: str,
        *,
        tags: frozenset[str] | None,
        sql: str | None = None,
        sub_version: int,
        own: bool,
        own_sql: bool = False,
        shared: bool = True,
    ) -> None:
        """Publishes a subscription. `tags` None takes every message, and `sql` is an expression
        instead. `own` lets pulls that carry their own subscription of tags be served, `own_sql`
        those of type SQL92, and `shared` serves pulls that carry none by this subscription. Raises:
        StoreError for a malformed expression."""

    def withdraw_subscription(self, group: str, topic: str | None = None) -> None: ...

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> object: ...

    def offset(self, group: str, topic: str, queue: int) -> int | None: ...

    def pulled_offset(self, group: str, topic: str, queue: int) -> int | None: ...

    def offsets(self, group: str | None = None, topic: str | None = None) -> Iterable[OffsetRow]:
        """Returns all offsets as they are now, or those of a group or a topic. They may be read
        later, and on any thread."""

    def consumed(
        self, group: str | None = None, topic: str | None = None
    ) -> Iterable[tuple[str, str]]:
        """Returns each group with each topic of which it has offsets, as offsets() does."""

    def take_changed_offsets(self) -> Sequence[OffsetRow]: ...

    def delete_offsets(self, group: str | None = None, topic: str | None = None) -> None: ...

    def reset_offset(self, group: str, topic: str, queue: int, target: int) -> None:
        """Sends the next pull to `target`; commits are ignored until then."""

    def tell_popped(self, number: int, names: bytes, found: Any) -> None:
        """Tells what a pop has waited for; see Core."""

    def statistics(self) -> Iterable[tuple[str, str | None, int, int]]:
        """Returns topic, group, messages and bytes since the start; with group None they are puts
        of the topic."""

    def sample(self) -> Sample:
        """Returns all counters at once."""

    def counter(self, topic: str, group: str | None) -> tuple[int, int, int, int]:
        """Returns its place in samples (-1 for none yet), the number of the first sample that has
        it there, and its messages and bytes now."""

    def totals(self) -> Totals: ...

    def times(self) -> Times: ...

    def put_again(
        self, physical_offset: int, decision: PutDecision, *, more_tries: int = 0
    ) -> PutOutcome:
        """Puts a message of the log once more. Raises: what putting raises."""

    def hand_on_sends(self) -> None:
        """Makes Python decide every send from now on."""

    def admit(self, *, sends_from_ms: int, lite_pulls: bool) -> None:
        """Makes Python decide what these settings refuse."""

    def notify_all(self) -> None:
        """Answers every held pull."""

    def lead_until(self, until_s: float) -> None:
        """Up to this time of the monotonic clock the broker is the master for sure."""

    @property
    def leads(self) -> bool:
        """Returns whether it is the master now, so that no slave does what it does."""

    @property
    def first_frames_refused(self) -> int:
        """Returns how many frames were too large for a connection that is not known yet."""

    @property
    def last_pull(self) -> PullOutcome | None:
        """Returns what became of the pull that was given back last, or None when it waits."""
