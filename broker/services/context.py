"""What every processor gets: the services of one broker, in one object."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from broker.access.authorizer import Authorizer
from broker.hot.core import Core
from broker.hot.dedup import Dedup
from broker.loop.watchdog import Watchdog
from broker.services.access import Access
from broker.services.clients import Clients
from broker.services.config import Config
from broker.services.duties import Duties
from broker.services.finishing import Finishing
from broker.services.groups import Groups
from broker.services.hooks import ConsumeContext, Hooks, SendContext
from broker.services.lite.lite_topics import LiteTopics
from broker.services.locks import Locks
from broker.services.offsets import ConsumerOffsets
from broker.services.pop import Pop
from broker.services.registration import Registration
from broker.services.replication.replication import Replication
from broker.services.schedule import Schedule
from broker.services.static_topics.static_topics import StaticTopics
from broker.services.statistics import Statistics
from broker.services.topics import Topics
from broker.services.transaction import Transactions
from pystore import Store

if TYPE_CHECKING:
    from broker.remoting.certificates import Certificates

    # A broker without a tier starts without it.
    from broker.services.cold.cold import Cold

__all__ = ["ActsAsMaster", "IsMember", "KeepsMastership", "KeepsPops", "Services"]


class KeepsPops(Protocol):
    """What is popped at such a slave (acting/pop_journal.py)."""

    @property
    def is_on(self) -> bool: ...


class ActsAsMaster(Protocol):
    """A slave that may act as master (acting/acting.py), as requests find it."""

    #: What is popped while there is no master.
    @property
    def pops(self) -> KeepsPops: ...

    def hint(self) -> None: ...

    async def give_way(self) -> list[list[Any]]: ...

    async def popped(self, start: int) -> dict[str, Any]: ...

    def owe_java(self) -> None: ...

    def taken(self, end: int) -> None: ...


class KeepsMastership(Protocol):
    """A master that slaves may act for (acting/mastership.py), as requests and figures find it."""

    @property
    def is_away(self) -> bool: ...

    @property
    def cut_offs(self) -> int: ...

    def hint(self, address: str) -> None: ...


class IsMember(Protocol):
    """A broker under a controller (controlled/member.py), as requests find it."""

    def hint(self) -> None: ...

    def members(self) -> list[dict[str, object]]: ...


@dataclass(slots=True)
class Services:
    """What the handlers share. `address` is the ``host:port`` at which clients reach this broker;
    `started_ms` says when it was ready."""

    store: Store
    settings: Config
    core: Core
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    clients: Clients
    locks: Locks
    statistics: Statistics
    registration: Registration
    address: str
    schedule: Schedule | None = None
    transactions: Transactions | None = None
    duties: Duties | None = None
    pop: Pop | None = None
    lite: LiteTopics | None = None
    static: StaticTopics | None = None
    replication: Replication | None = None
    acting: ActsAsMaster | None = None
    mastership: KeepsMastership | None = None
    member: IsMember | None = None
    once: Dedup | None = None
    cold: Cold | None = None
    access: Access | None = None
    authorizer: Authorizer | None = None
    certificates: Certificates | None = None
    watchdog: Watchdog | None = None
    send_hooks: Hooks[SendContext] = field(default_factory=Hooks)
    consume_hooks: Hooks[ConsumeContext] = field(default_factory=Hooks)
    finishing: Finishing = field(default_factory=Finishing)
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def ha_address(self) -> str:
        """``host:port`` for slaves; empty: none may follow."""
        return self.registration.ha_address if self.registration.ha_port else ""

    @property
    def broker_name(self) -> str:
        return str(self.settings["brokerName"])

    @property
    def cluster(self) -> str:
        return str(self.settings["brokerClusterName"])

    @property
    def host(self) -> str:
        """Returns brokerIP1, as upstream names the broker in its remarks."""
        return str(self.settings["brokerIP1"])
