"""AsyncAdmin, and Admin, its twin for programs without an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Concatenate, ParamSpec, TypeVar, Unpack

from broker.client.admin.access import AccessAdmin
from broker.client.admin.deadletters import DeadLetterAdmin
from broker.client.admin.lite import LiteAdmin
from broker.client.admin.offsets import BrokerAdmin
from broker.client.admin.static_topics import StaticTopicAdmin
from broker.client.admin.topics import GroupAdmin, TopicAdmin
from broker.client.blocking import Runner, StartedByWith, twin_of
from broker.client.options import ClientOptions

__all__ = ["Admin", "AsyncAdmin"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class AsyncAdmin(
    TopicAdmin, StaticTopicAdmin, LiteAdmin, GroupAdmin, BrokerAdmin, DeadLetterAdmin, AccessAdmin
):  # fmt: skip
    """Looks into brokers and changes what they hold, for programs with an event loop: ours and
    Apache's. ``Admin`` is its twin without.

    namesrv: ``host:port`` of name servers, with ; between them; by default the environment variable
    NAMESRV_ADDR. broker: ask this one alone, without a name server. cluster: only brokers of this
    one. options: see ClientOptions; with access control, most of it takes the rights of an
    administrator.

    >>> import asyncio
    >>> from broker import AsyncAdmin
    >>> async def main():
    ...     async with AsyncAdmin() as admin:  # at NAMESRV_ADDR
    ...         await admin.create_topic("plums", queues=2)
    ...         return await admin.topic("plums")
    >>> topic = asyncio.run(main())
    >>> topic.messages, len(topic.queues)
    (0, 2)
    """


def _iterator_of(
    method: Callable[Concatenate[AsyncAdmin, _P], AsyncIterator[_T]],
) -> Callable[Concatenate[Admin, _P], Iterator[_T]]:
    """Returns the method of the same name that waits for each item of its asyncio twin."""

    async def following(items: AsyncIterator[_T]) -> tuple[_T] | None:
        async for item in items:
            return (item,)
        return None

    def each(self: Admin, /, *args: _P.args, **options: _P.kwargs) -> Iterator[_T]:
        items = method(self.twin, *args, **options)
        while (found := self._runner.run(following(items))) is not None:
            yield found[0]

    each.__name__, each.__doc__ = method.__name__, method.__doc__
    return each


class Admin(StartedByWith):
    """Looks into brokers and changes what they hold: ours and Apache's. ``AsyncAdmin`` is its twin,
    which says more of each method.

    Any thread may use it. namesrv, broker, cluster, options: as of AsyncAdmin.

    >>> from broker import Admin, Message, Producer
    >>> with Producer("orders-api") as producer:  # at NAMESRV_ADDR
    ...     result = producer.send(Message("pears", b"12 pears", keys="order-19"))
    >>> with Admin() as admin:
    ...     [message.body for message in admin.messages_by_key("pears", "order-19")]
    [b'12 pears']
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Raises: Misuse."""
        self.twin = self._twin = AsyncAdmin(namesrv, broker=broker, cluster=cluster, **options)
        self._runner = Runner(self.twin.network.name)

    cluster = twin_of(AsyncAdmin.cluster)
    broker = twin_of(AsyncAdmin.broker)
    configuration = twin_of(AsyncAdmin.configuration)
    configure = twin_of(AsyncAdmin.configure)
    servers = twin_of(AsyncAdmin.servers)
    renew_certificate = twin_of(AsyncAdmin.renew_certificate)
    topics = twin_of(AsyncAdmin.topics)
    topic_names = twin_of(AsyncAdmin.topic_names)
    topic = twin_of(AsyncAdmin.topic)
    create_topic = twin_of(AsyncAdmin.create_topic)
    delete_topic = twin_of(AsyncAdmin.delete_topic)
    static_topic = twin_of(AsyncAdmin.static_topic)
    create_static_topic = twin_of(AsyncAdmin.create_static_topic)
    remap_static_topic = twin_of(AsyncAdmin.remap_static_topic)
    lite_brokers = twin_of(AsyncAdmin.lite_brokers)
    lite_parent = twin_of(AsyncAdmin.lite_parent)
    lite_topic = twin_of(AsyncAdmin.lite_topic)
    lite_client = twin_of(AsyncAdmin.lite_client)
    lite_group = twin_of(AsyncAdmin.lite_group)
    lite_dispatch = twin_of(AsyncAdmin.lite_dispatch)
    groups = twin_of(AsyncAdmin.groups)
    create_group = twin_of(AsyncAdmin.create_group)
    delete_group = twin_of(AsyncAdmin.delete_group)
    members = twin_of(AsyncAdmin.members)
    producers = twin_of(AsyncAdmin.producers)
    all_producers = twin_of(AsyncAdmin.all_producers)
    groups_of = twin_of(AsyncAdmin.groups_of)
    lag = twin_of(AsyncAdmin.lag)
    all_lags = twin_of(AsyncAdmin.all_lags)
    reset_offsets = twin_of(AsyncAdmin.reset_offsets)
    seek = twin_of(AsyncAdmin.seek)
    message = twin_of(AsyncAdmin.message)
    messages_by_key = twin_of(AsyncAdmin.messages_by_key)
    trace = twin_of(AsyncAdmin.trace)
    users = twin_of(AsyncAdmin.users)
    create_user = twin_of(AsyncAdmin.create_user)
    change_password = twin_of(AsyncAdmin.change_password)
    delete_user = twin_of(AsyncAdmin.delete_user)
    rights = twin_of(AsyncAdmin.rights)
    grant = twin_of(AsyncAdmin.grant)
    revoke = twin_of(AsyncAdmin.revoke)
    messages = _iterator_of(AsyncAdmin.messages)
    dead_letters = _iterator_of(AsyncAdmin.dead_letters)
    redrive = twin_of(AsyncAdmin.redrive)
