"""A client's side of the network: name servers, routes, heartbeats, requests to brokers.

One of these belongs to each producer and consumer. All of it happens on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.access.recipients import recipients_of
from broker.client import errors
from broker.client.credentials import SigningHook
from broker.client.errors import (
    BadAnswer,
    BrokerRefused,
    ClientError,
    NoRoute,
    RequestTimeout,
    Unreachable,
    reading,
)
from broker.client.ids import client_id
from broker.client.options import ClientSettings
from broker.client.routes import Route, as_template, parse_route
from broker.loop.safe_log import SafeLogger
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Connection
from broker.wire.answers import answer_framers
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import ONEWAY, Command, header_format
from broker.wire.handlers import Handlers
from broker.wire.outstanding import Waiter
from pystore.format.names import TEMPLATE_TOPIC

__all__ = ["Network", "number_in", "request_of"]

log = SafeLogger("broker.client")

#: After a broker was lost: the first and the longest wait before it is tried again.
BACKOFF_S = (0.2, 10.0)
#: A route is not asked for again within this time because a send failed.
REFRESH_S = 0.2
#: The longest pause while a new topic is waited for; the pauses before it are as long in all.
NEW_TOPIC_S = 0.5
_NAMED = frozenset(int(code) for code in RequestCode)


class Network:
    """name: shown in errors. beat: the body of a heartbeat. masters_only: whether slaves hear of
    us too. route_changed: called with a topic whose route is another now."""

    def __init__(
        self,
        name: str,
        servers: Sequence[str],
        settings: ClientSettings,
        handlers: Handlers,
        beat: Callable[[], bytes],
        *,
        masters_only: bool,
        route_changed: Callable[[str], None] | None = None,
        connected_again: Callable[[], None] | None = None,
        binds: bool = False,
    ) -> None:
        """Takes who the client is, and what it answers. binds: what is signed is good for the
        server alone that is asked, which a producer or a consumer behind a proxy does not know."""
        self.name = name
        self.settings = settings
        credentials = settings.credentials
        #: Signs every request; None: nobody does.
        self._binds = binds and credentials is not None
        self.signing = None
        if credentials is not None:
            self.signing = SigningHook(credentials, self._recipients if binds else None)
        self._hooks = (*settings.hooks, *([self.signing] if self.signing is not None else ()))
        #: Whether requests may be encoded in C, unseen by Python.
        self._plain = not settings.hooks and (
            self.signing is None or self.signing.signer is not None
        )
        self.client_id = client_id(settings.instance_name, settings.unit_name)
        self._servers = list(servers)
        self._handlers = handlers
        self._beat_body = beat
        self._masters_only = masters_only
        self._route_changed = route_changed
        self._connected_again = connected_again
        self._remoting: RemotingClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False
        self._routes: dict[str, Route] = {}
        #: Routes on which a send creates a topic, until name servers know it.
        self._templates: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Task[Route]] = {}
        self._fetched: dict[str, float] = {}
        #: Topics whose route is kept although nothing is sent there, and those of them for which no
        #: name server has answered yet.
        self._followed: set[str] = set()
        self._unanswered: set[str] = set()
        self._beaten: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake: asyncio.Event | None = None

    # ---- life ----

    def start(self) -> None:
        """Starts on the running loop. Raises: Misuse when it was started before."""
        if self._closed:
            raise errors.AlreadyClosed(f"{self.name} is closed; make a new one")
        if self._loop is not None:
            raise errors.Misuse(f"{self.name} is started already")
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._wake = asyncio.Event()
        if self._servers and len(self._servers) > 1:
            random.shuffle(self._servers)
        self._remoting = RemotingClient(
            self._handlers,
            framer=answer_framers(),
            tls=self.settings.tls_context(),
            on_close=self._lost,
            connector=self.settings.connector,
        )
        self.spawn(self._keep())

    @property
    def remoting(self) -> RemotingClient | None:
        """What requests go over; None before the start."""
        return self._remoting

    @property
    def started(self) -> bool:
        """Whether it is started and not closed."""
        return self._loop is not None and not self._closed

    def check(self) -> None:
        """Checks that the client is started, in this process and on this loop. Raises: NotStarted,
        AlreadyClosed, WrongLoop, Forked."""
        if asyncio._get_running_loop() is not self._loop or self._closed or self._loop is None:
            self._refuse()

    def _refuse(self) -> None:
        if self._closed:
            raise errors.AlreadyClosed(f"{self.name} is closed; make a new one")
        if self._loop is None:
            raise errors.NotStarted(
                f"{self.name} is not started; use it inside 'with', or call start() first"
            )
        if self._pid != os.getpid():
            raise errors.Forked(
                f"{self.name} was started in process {self._pid}, this is its child"
                f" {os.getpid()}; make a new one after the fork"
            )
        raise errors.WrongLoop(
            f"{self.name} was started on another event loop"
            f"{', which is closed' if self._loop.is_closed() else ''}; make one for each loop"
        )

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something until it ends, or until close(). Its exceptions are logged."""
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Background task of %s failed", self.name, exc_info=error)

    async def close(self, groups: Iterable[tuple[str, str]] = ()) -> None:
        """Closes every connection. groups: (field, group) that brokers are told to forget. Harmless
        when repeated."""
        if self._closed or self._loop is None:
            self._closed = True
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.request_timeout_s):
                await self._unregister(list(groups))
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._remoting is not None:
            await self._remoting.close()

    async def _unregister(self, groups: Sequence[tuple[str, str]]) -> None:
        jobs = []
        for address in list(self._beaten):
            for name, group in groups:
                fields = {"clientID": self.client_id, name: group}
                jobs.append(self.request(address, RequestCode.UNREGISTER_CLIENT, fields))
        await asyncio.gather(*jobs, return_exceptions=True)

    # ---- requests ----

    def before(self, address: str, command: Command) -> None:
        """Shows a request to the hooks. Raises: HookFailed."""
        for hook in self._hooks:
            try:
                hook.before_request(address, command)
            except Exception as failed:
                raise errors.HookFailed(hook, command.code, address, failed) from failed

    def after(self, address: str, command: Command, answer: Command) -> None:
        """Shows an answer to the hooks. It counts whatever they make of it: the work is done."""
        for hook in self._hooks:
            try:
                hook.after_response(address, command, answer)
            except Exception:
                log.exception("A hook of %s failed after an answer", self.name)

    def begin(
        self, address: str, command: Command, waiter: Waiter
    ) -> tuple[Connection, int] | None:
        """Sends a request whose answer `waiter` gets, who also looks at the time and calls after();
        its opaque is returned. None while there is no connection: connect() makes one."""
        connection = self._remoting.connected(address) if self._remoting is not None else None
        if connection is None:
            return None
        self.before(address, command)
        return connection, connection.begin(command, waiter)

    async def connect(self, address: str) -> None:
        """Connects to a server, unless a connection is there. Raises: Unreachable,
        RequestTimeout."""
        remoting = self._remoting
        assert remoting is not None
        with _named_errors():
            await remoting.connection(address, self.settings.request_timeout_s)

    def _recipients(self, address: str) -> tuple[str, ...]:
        made = self._remoting.connected(address) if self._remoting is not None else None
        return recipients_of(address, made.address if made is not None else None)

    def forget(self, address: str) -> None:
        """Drops the connection, so that the next request makes a new one."""
        if self._remoting is not None:
            self._remoting.forget(address)

    def ready(self, address: str) -> Connection | None:
        """Returns a connection for a request that no hook wants to see, or None where exchange() is
        needed."""
        if not self._plain or self._remoting is None:
            return None
        return self._remoting.ready(address)

    async def exchange(self, address: str, command: Command, timeout: float) -> Command:
        """Sends a request and returns the answer, whatever its code. Raises: Unreachable,
        RequestTimeout."""
        remoting = self._remoting
        if remoting is None or self._closed:
            self._refuse()
        assert remoting is not None
        hooks = self._hooks
        if self._binds:  # whom it is for is known once there is a connection
            await self.connect(address)
        if hooks:
            self.before(address, command)
        with _named_errors():
            answer = await remoting.exchange(address, command, timeout)
        if hooks:
            self.after(address, command, answer)
        return answer

    async def request(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        fine: Sequence[int] = (0,),
        timeout: float | None = None,
    ) -> Command:
        """Sends a request and returns the answer, whose code must be among `fine`. Raises:
        BrokerRefused, Unreachable, RequestTimeout."""
        answer = await self.exchange(
            address, request_of(code, fields, body), timeout or self.settings.request_timeout_s
        )
        if answer.code not in fine:
            what = RequestCode(code).name if code in _NAMED else f"request {code}"
            raise BrokerRefused(what, answer.code, answer.remark, address)
        return answer

    async def oneway(self, address: str, command: Command) -> None:
        """Sends a request that nobody answers. Raises: Unreachable, RequestTimeout."""
        remoting = self._remoting
        if remoting is None or self._closed:
            self._refuse()
        assert remoting is not None
        command.flag |= ONEWAY
        if self._binds:
            await self.connect(address)
        self.before(address, command)
        with _named_errors():
            await remoting.oneway(address, command, self.settings.request_timeout_s)

    async def ask_servers(self, code: int, fields: Mapping[str, object]) -> Command:
        """Returns the first answer that one of the name servers gives. Raises: Unreachable."""
        told = []
        for _ in range(len(self._servers)):
            server = self._servers[0]
            try:
                return await self.exchange(
                    server, request_of(code, fields), self.settings.request_timeout_s
                )
            except (Unreachable, RequestTimeout) as failed:
                told.append(str(failed))
                self._servers.append(self._servers.pop(0))
        raise Unreachable(
            f"no name server answers ({'; '.join(told)}); check namesrv, and that one is running"
        )

    # ---- routes ----

    def known_route(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    def follow(self, topic: str) -> None:
        """Keeps the route of a topic from now on, so that its brokers get heartbeats before
        anything is sent. Brokers that serve it later get them after the next poll."""
        self._followed.add(topic)
        self._unanswered.add(topic)
        if self._wake is not None:
            self._wake.set()

    async def route(self, topic: str, *, create_queues: int = 0, fresh: bool = False) -> Route:
        """Returns the route of a topic. create_queues: for a topic that does not exist, the route
        on which a send creates it with so many queues. fresh: asks a name server even if the route
        is known. Raises: NoRoute, Unreachable."""
        found = self._routes.get(topic)
        now = time.monotonic()
        if found is not None and (not fresh or now - self._fetched.get(topic, 0) < REFRESH_S):
            return found
        task = self._fetching.get(topic)
        if task is None:
            assert self._loop is not None
            task = self._loop.create_task(self._fetch(topic, create_queues))
            self._fetching[topic] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._fetched_route(topic, done))
        await asyncio.wait({task})
        if task.cancelled():
            self._refuse()
        return task.result()

    def _fetched_route(self, topic: str, task: asyncio.Task[Route]) -> None:
        self._tasks.discard(task)
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it

    async def route_soon(self, topic: str) -> Route:
        """Returns the route of a topic that was perhaps made a moment ago, and that name servers do
        not know yet. Raises: NoRoute after a second, Unreachable."""
        pause = 0.02
        while True:
            try:
                return await self.route(topic)
            except NoRoute:
                if pause > NEW_TOPIC_S:
                    raise
                await asyncio.sleep(pause)
                pause *= 2

    async def _fetch(self, topic: str, create_queues: int) -> Route:
        route = await self._ask_route(topic)
        if route is None and create_queues:
            template = await self._ask_route(TEMPLATE_TOPIC)
            if template is not None:
                return self._learn(topic, as_template(template, topic, create_queues), keep=False)
        if route is None:
            known = self._routes.get(topic)
            if known is not None:
                return known
            raise NoRoute(
                f"no broker serves the topic {topic}; create it, or let the broker create it"
                " (autoCreateTopicEnable), and check that the broker is registered",
                topic,
            )
        return self._learn(topic, route, keep=True)

    async def _ask_route(self, topic: str) -> Route | None:
        if self.settings.find_route is not None:
            return await self.settings.find_route(topic)
        for left in reversed(range(len(self._servers))):
            try:
                return await self._ask_one_route(topic)
            except BadAnswer as bad:
                if not left:
                    raise
                log.warning("%s; will ask another name server", bad)
                self._servers.append(self._servers.pop(0))
        return None

    async def _ask_one_route(self, topic: str) -> Route | None:
        """Asks one name server after the other, until one answers."""
        answer = await self.ask_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Unreachable(
                f"{self._servers[0]} knows no routes: it is a broker, not a name server; those"
                " listen on port 9876 by default"
            )
        if answer.code:
            raise BrokerRefused(
                f"the route of {topic}", answer.code, answer.remark, self._servers[0]
            )
        with reading(f"the route of {topic}", self._servers[0]):
            return parse_route(answer.body, topic)

    def _learn(self, topic: str, route: Route, *, keep: bool) -> Route:
        before = self._routes.get(topic)
        if keep:
            self._routes[topic] = route
            self._templates.pop(topic, None)
            self._fetched[topic] = time.monotonic()
        else:
            self._templates[topic] = route
        fresh = route.addresses(masters_only=self._masters_only) - self._beaten
        if fresh and self._wake is not None:
            self._wake.set()
        if keep and before is not None and before != route and self._route_changed is not None:
            self._route_changed(topic)
        return route

    # ---- heartbeats ----

    def _targets(self) -> set[str]:
        found: set[str] = set()
        for route in (*self._routes.values(), *self._templates.values()):
            found |= route.addresses(masters_only=self._masters_only)
        return found

    def _lost(self, connection: Connection) -> None:
        """Takes note of a connection that closed: the server at its other end may have forgotten
        us."""
        if self._closed:
            return
        self._beaten.clear()
        if self._wake is not None:
            self._wake.set()

    async def beat(self, addresses: Iterable[str] | None = None) -> None:
        """Tells brokers, those of all routes by default, that we are there. Failures are logged and
        tried again in the background."""
        targets = list(addresses) if addresses is not None else sorted(self._targets())
        await asyncio.gather(*(self._beat_one(address) for address in targets))

    async def _beat_one(self, address: str) -> None:
        again = address not in self._beaten
        try:
            await self.request(address, RequestCode.HEART_BEAT, None, self._beat_body())
        except ClientError as failed:
            self._beaten.discard(address)
            log.info("Cannot send a heartbeat to %s: %s", address, failed)
            return
        self._beaten.add(address)
        if again and self._connected_again is not None:
            self._connected_again()

    async def registered(self, address: str) -> None:
        """Waits until the broker has heard of this client, or refuses to."""
        if address not in self._beaten:
            await self._beat_one(address)

    async def _keep(self) -> None:
        """Sends heartbeats and polls routes; brokers that were lost are tried again, slower and
        slower."""
        assert self._wake is not None
        settings = self.settings
        beat_due = time.monotonic() + settings.heartbeat_s
        poll_due = time.monotonic() + settings.route_poll_s
        pause = BACKOFF_S[0]
        while True:
            missing = self._targets() - self._beaten
            wait = min(beat_due, poll_due) - time.monotonic()
            if missing or self._unanswered:
                wait = min(wait, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait)):
                    await self._wake.wait()
            self._wake.clear()
            now = time.monotonic()
            if now >= poll_due or missing or self._unanswered:
                await self._poll()
                poll_due = now + settings.route_poll_s
            if now >= beat_due:
                await self.beat()
                beat_due = now + settings.heartbeat_s
            elif missing := self._targets() - self._beaten:
                await self.beat(missing)
            if self._targets() - self._beaten or self._unanswered:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, BACKOFF_S[1])
            else:
                pause = BACKOFF_S[0]

    async def _poll(self) -> None:
        for topic in {*self._routes, *self._templates, *self._followed}:
            try:
                await self._fetch(topic, 0)
            except NoRoute:
                self._unanswered.discard(topic)
            except ClientError as failed:
                log.info("Cannot refresh the route of %s; keeping the old one: %s", topic, failed)
            else:
                self._unanswered.discard(topic)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Turns errors of the transport into the client's."""
    try:
        yield
    except TimeoutError as late:
        raise RequestTimeout(str(late)) from None
    except (ConnectionError, ValueError) as failed:
        raise Unreachable(str(failed)) from None


def number_in(answer: Command, name: str) -> int:
    """Reads a number from a field of an answer. Raises: KeyError, ValueError (also beyond 64
    bits)."""
    value = int(answer.ext[name])
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"the field {name} is beyond 64 bits")
    return value


def request_of(code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
    """Returns a request with values as the wire has them; those that are None are left out."""
    ext: dict[str, str] = {}
    for name, value in (fields or {}).items():
        if value is None:
            continue
        ext[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return Command(code, ext, body, serialize=header_format(code))
