"""What the groups of methods need of the brokers behind the service: the one of the same process
(local.py), or all of a cluster (cluster.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from broker.access.needs import AccessAction
from broker.grpc.calls import Call
from broker.grpc.receipts import Receipt
from broker.grpc.status import Code, Problem, of_response
from broker.processors.poprules import PopRules
from broker.services.pop.batches import PopOutcome
from broker.services.topics import READ, WRITE
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

__all__ = [
    "BROKER",
    "LINK",
    "REQUEST_S",
    "BrokerLink",
    "Brokers",
    "InProcess",
    "Key",
    "Links",
    "Put",
    "TopicPlace",
    "accepted",
    "refused",
]

#: Within this time a broker answers.
REQUEST_S = 30.0
#: Clients of one connection: official libraries have one.
_LINKS_MAX = 256
_STORED = frozenset(
    (
        ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)  # fmt: skip


class TopicPlace(NamedTuple):
    """A topic at one broker. `ids` are those of the brokers of that name, of which 0 is the master;
    `host` is where a service of its own is, for clients that do not reach it through this one.
    `led` are the logical queues of a static topic that are written to at this broker."""

    broker: str
    config: TopicConfig
    ids: tuple[int, ...] = (0,)
    host: str = ""
    led: tuple[int, ...] | None = None

    @property
    def reads(self) -> int:
        """Queues that can be read."""
        return self.config.read_queue_nums if self.config.perm & READ else 0

    @property
    def writes(self) -> int:
        """Queues that can be written."""
        if not self.config.perm & WRITE:
            return 0
        return self.config.write_queue_nums if self.led is None else len(self.led)


#: A client's address, and its id.
Key = tuple[tuple[str, int], str]
#: In the state of each peer that may ask a client something: the client's link, the broker's name.
LINK, BROKER = "link", "broker"


class BrokerLink(Protocol):
    """One client's way to the brokers, which is theirs to the client. `client` is whom it belongs
    to, once that is known."""

    key: Key
    client: object

    @property
    def open(self) -> bool: ...

    def close(self) -> None: ...


_L = TypeVar("_L", bound=BrokerLink)


class Links(Generic[_L]):
    """The links of all clients, by the address of a client's connection and by its id. `make` makes
    the link of a client of this address and id."""

    def __init__(self, make: Callable[[tuple[str, int], str], _L]) -> None:
        self._make = make
        self._links: dict[tuple[str, int], dict[str, _L]] = {}
        #: How many connections a client has, by its id.
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """Returns how many connections have any."""
        return len(self._links)

    def __iter__(self) -> Iterator[_L]:
        for links in self._links.values():
            yield from links.values()

    def of(self, call: Call) -> _L:
        """Returns that of the client that calls. Raises: Problem."""
        links = self._links.setdefault(call.address, {})
        found = links.get(call.client_id)
        if found is not None and found.open:
            return found
        if len(links) >= _LINKS_MAX:
            raise Problem(
                Code.TOO_MANY_REQUESTS, f"{_LINKS_MAX} clients use this connection already"
            )
        made = self._make(call.address, call.client_id)
        if found is None:
            self._counts[call.client_id] = self._counts.get(call.client_id, 0) + 1
        links[call.client_id] = made
        return made

    def _has_left(self, client_id: str) -> bool:
        """Counts a link less, and returns whether it was the last."""
        self._counts[client_id] -= 1
        if self._counts[client_id] > 0:
            return False
        del self._counts[client_id]
        return True

    def ended(self, link: _L) -> None:
        """Forgets a link that is closed, because it was idle or its client is gone."""
        address, client_id = link.key
        links = self._links.get(address, {})
        if links.get(client_id) is link:
            del links[client_id]
            self._has_left(client_id)
            if not links:
                del self._links[address]

    def gone(self, address: tuple[str, int]) -> list[str]:
        """Closes the links of a connection that is closed, and returns the ids of its clients that
        have no other."""
        links = self._links.pop(address, {})
        for link in links.values():
            link.close()
        return [name for name in links if self._has_left(name)]

    def close(self) -> None:
        for address in list(self._links):
            self.gone(address)


class Brokers(Protocol):
    """The brokers behind the service; a method's `broker` is the name of one. Unless something else
    is said, methods raise Problem."""

    #: Where clients reach the service; empty: at the host that they asked.
    host: str

    def link(self, call: Call) -> BrokerLink:
        """Returns the link of the client that calls."""

    def gone(self, address: tuple[str, int]) -> list[str]:
        """Returns who is gone; see Links.gone."""

    def close(self) -> None: ...

    def now_ms(self) -> int:
        """Returns the clock of invisible times."""

    # ---- what brokers know ----

    async def places(self, topic: str) -> Sequence[TopicPlace]:
        """Returns where a topic is, sorted by broker; nowhere when there is no such topic."""

    async def writable(self, topic: str, wait_s: float) -> Sequence[TopicPlace]:
        """Returns the same, once a broker can be written to: while another master is elected, it
        waits up to `wait_s` seconds for that."""

    async def everywhere(self, topic: str) -> Sequence[TopicPlace]:
        """Returns the same with brokers that have a service of their own."""

    async def group(self, name: str, topics: Sequence[str]) -> SubscriptionGroup | None:
        """Returns the group of this name, which consumes the `topics`, or None."""

    async def reader(self, topic: str, wanted: str) -> str:
        """Returns the broker to ask for messages: the one that is wanted if it can be found, else
        any."""

    def is_available(self, broker: str) -> bool:
        """Says whether it answered lately, as far as we know."""

    async def holds(self, topic: str, receipt: Receipt) -> bool:
        """Says whether the message of a receipt stands where the receipt says, in this topic."""

    # ---- requests ----

    async def request(
        self, call: Call, command: Command, broker: str, *, timeout_s: float = REQUEST_S
    ) -> Command:
        """Returns the answer, whatever its code."""

    async def request_own(self, command: Command, broker: str) -> Command:
        """Asks for the service itself, for a client that was let in before."""

    async def tell(
        self, call: Call, link: BrokerLink, command: Command, topics: Sequence[str]
    ) -> None:
        """Sends a request to every broker of these topics, over a link of the same client."""

    # ---- access control ----

    async def check(self, call: Call, command: Command) -> None:
        """Checks that the client may ask this."""

    async def check_topic(self, call: Call, topic: str, *actions: AccessAction) -> None:
        """Checks that the client may do one of these to a topic."""

    async def check_name(self, call: Call) -> None:
        """Checks that the headers of a call prove who asks, where that is wanted."""

    def is_known(self, call: Call) -> bool:
        """Says whether access control is on and they do, as far as can be told at once."""


class Put(NamedTuple):
    """A message that was put: its offset in the queue, and upstream's offset message id."""

    offset: int
    ids: str


@runtime_checkable
class InProcess(Protocol):
    """Brokers of one, of this `name`, in this process, with its network threads."""

    name: str

    def takes(self, topic: str, kinds: Iterable[int]) -> None:
        """Lets plain messages of these kinds (MessageType) go to a topic, until it changes: network
        threads store them without asking."""

    def forget_taken(self) -> None:
        """Has network threads ask again what messages topics take."""

    def expect(self, due_ms: int) -> None:
        """Notes when something ends that a network thread has popped, before all others."""

    def popped(self, event: Any) -> None:
        """Takes a ps_net_event with what a call of a network thread has waited for that is gone."""

    def give_back(self, group: str, topic: str, found: PopOutcome) -> None:
        """Makes what was popped, and nobody gets, visible again soon."""

    def pop_rules(self, call: Call, code: int, topic: str, group: str) -> PopRules:
        """Returns the rules of POP for a client that may ask this (POP_MESSAGE, ACK_MESSAGE) of the
        topic as the group."""


def accepted(answer: Command) -> Command:
    """Returns the answer. Raises: Problem for one that is an error."""
    if answer.code not in _STORED:
        raise Problem(of_response(answer.code), answer.remark or "")
    return answer


def refused(answer: Command) -> Problem:
    """Returns what a client is told that brokers do not want to know."""
    return Problem(Code.INTERNAL_SERVER_ERROR, answer.remark or "")
