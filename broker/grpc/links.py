"""The port of gRPC. csrc/net accepts, reads and writes its connections (csrc/net/calls.c), in plain
text and by TLS, and makes calls of what it reads. What Python serves of these comes here as events,
and what it replies is written there. A broker has a thread for it, which serves the hot calls; at a
proxy, which has no store, the loop has its turns.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from broker.grpc._http2 import Sends, Service, net_functions
from broker.grpc.calls import AUTHORIZATION, CLIENT_ID
from broker.grpc.clients import GrpcClients
from broker.grpc.http2 import MUCH, Address, CallsOfConnection, Serving
from broker.grpc.messages import DELIVERIES, millis
from broker.grpc.receipts import Receipt
from broker.grpc.receiving import FULL, NOTHING
from broker.grpc.renewal import Renewals
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import of_response, status
from broker.loop.budget import Budget
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.durable import DISK_IS_LATE, LOG_FAILED, SLAVES_ARE_LATE
from broker.remoting.links import (
    Events,
    LinkTransport,
    TlsOfThreads,
    end_of_unopened,
    limit_openings,
    text_of_event,
)
from broker.remoting.tls import TlsSettings
from broker.services.pop.batches import PopOutcome
from broker.wire.codes import ResponseCode
from pystore.format.compression import zlib_addresses
from pystore.native import ffi, lib, raise_error

__all__ = ["GrpcPort", "HotCalls", "LinkedCalls"]

_quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: Of the thread among those that call the core (csrc/core/lock.h): after those of remoting.
_NUMBER = 16
#: Events of a connection that wait for the loop, and their bytes: then it is not read from.
_QUEUED, _QUEUED_BYTES = 4096, 16 << 20
#: Bytes that wait to be written: above the one nothing is read until they are below the other.
_HIGH, _LOW = 256 << 10, 64 << 10
#: Bytes of a call's replies, after which it pauses until little of them waits.
_PART = 64 << 10
#: Milliseconds for the first frames of HTTP/2, and for a client to read what is left for it.
OPENING_MS, _LINGER_MS = 10_000, 10_000
#: The longest time for a request that counts.
_REQUEST_MS = 1 << 30
_NOTHING, _FULL = ffi.new("uint8_t[]", NOTHING), ffi.new("uint8_t[]", FULL)
#: Replies of calls whose records are not safe: by the member of ps_net_conf.
_UNSAFE = {
    name: ffi.from_buffer("uint8_t[]", pb.AckMessageResponse(status=refused).SerializeToString())
    for name, refused in (
        ("late_disk", status(of_response(ResponseCode.FLUSH_DISK_TIMEOUT), DISK_IS_LATE)),
        ("late_slaves", status(of_response(ResponseCode.FLUSH_SLAVE_TIMEOUT), SLAVES_ARE_LATE)),
        ("unsafe", status(of_response(ResponseCode.SERVICE_NOT_AVAILABLE), LOG_FAILED)),
    )
}
#: Metadata that connections have in common is made of its bytes once.
_KNOWN_MAX = 4096


class LinkedSession:
    """The session of a connection of the thread, as its calls use it."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._arrived: deque[tuple[Any, ...]] = deque()
        #: By stream: bytes of replies since the thread was last asked to tell when they are sent.
        self._sent: dict[int, int] = {}

    def arrive(self, event: tuple[Any, ...]) -> None:
        self._arrived.append(event)

    def events(self, most: int, /) -> list[tuple[Any, ...]]:
        arrived = self._arrived
        return [arrived.popleft() for _ in range(min(most, len(arrived)))]

    def send(self, stream: int, reply: bytes, last: bool, /) -> int:
        """Counts what was handed to the thread, and says MUCH when that has to tell how much of it
        is sent."""
        if self._link is None:
            return -1
        waiting = self._sent.pop(stream, 0) + len(reply)
        tell = not last and waiting >= _PART
        if not last and not tell:
            self._sent[stream] = waiting
        lib.ps_link_reply(self._link, stream, ffi.from_buffer(reply), len(reply), last, tell)
        return MUCH if tell else 0

    def finish(self, stream: int, status: int, text: str | None, /) -> None:
        self._sent.pop(stream, None)
        if self._link is not None:
            given = ffi.NULL if text is None else text.replace("\0", "").encode()
            lib.ps_link_finish_call(self._link, stream, status, given)

    def admit(self, stream: int, /) -> None:
        if self._link is not None:
            lib.ps_link_admit(self._link, stream)

    def taken(self, stream: int, size: int, /) -> None:
        if self._link is not None:
            lib.ps_link_taken(self._link, stream, size)

    def go_away(self) -> None:
        if self._link is not None:
            lib.ps_link_go_away(self._link)

    def hold(self, more: int, /) -> None:
        if self._link is not None:
            lib.ps_link_hold(self._link, more)

    def trust(self, client_id: str, attempts: int, fifo: bool, request_ms: int) -> None:
        """Lets this client send, and receive if a message has so many attempts, not 0: the thread
        serves its plain calls. fifo: in order. request_ms: its time for a request."""
        if self._link is not None:
            lib.ps_link_client(self._link, client_id.encode(), attempts, fifo, request_ms)

    def know(self) -> None:
        """Notes that access control lets its client in."""
        if self._link is not None:
            lib.ps_link_know(self._link)

    def forget(self) -> None:
        link, self._link = self._link, None
        self._arrived.clear()
        lib.ps_link_forget(link)


class LinkedCalls(CallsOfConnection):
    """The calls of a connection of the thread."""

    def __init__(
        self, link: Any, transport: LinkTransport, serving: Serving,
        trusted: Callable[[str], tuple[str, int, bool, int, int]],
    ) -> None:  # fmt: skip
        """Serves a connection of the thread. trusted: returns, for a client id, the id, its
        delivery attempts, whether it consumes in order, its request timeout (ms), and the version
        of the settings that say so."""
        self._session = LinkedSession(link)
        super().__init__(self._session, transport.get_extra_info("peername"), serving)
        self._transport = self._link_transport = transport
        self._trust = trusted
        self._trusted = ("", 0, False, 0, 0)

    def arrive(self, event: tuple[Any, ...]) -> None:
        self._session.arrive(event)
        if len(event) > 3 and not self._known and AUTHORIZATION in event[4]:
            self._metadata = event[4]
            if self.known:
                self._session.know()

    def handle_arrived(self) -> None:
        """Serves what has come, or has it wait for its turn."""
        if self._transport is None:
            return
        entered = self._turns.enter()
        try:
            if self._line.waits or self._turns.over:
                self._wait()
            else:
                self._handle()
        finally:
            if entered:
                self._turns.leave()

    def _served(self, metadata: dict[str, str]) -> None:
        trusted = self._trust(metadata.get(CLIENT_ID, ""))
        if trusted != self._trusted:
            self._trusted = trusted
            self._session.trust(*trusted[:4])

    def _turn(self) -> None:
        self._handle()
        if not self._line.waits and self._transport is not None:
            self._transport.resume_reading()

    def end(self) -> None:
        """Ends it, since the thread has closed it."""
        self._link_transport.forget()
        self._session.forget()
        self._lost()


@dataclass(frozen=True, slots=True)
class HotCalls:
    """What the thread serves itself. core: ps_core. sends: what plain messages are. renewals: of
    messages whose acknowledgements it serves. clients: those that it may serve, as settings say.
    expect: told when what the thread has popped ends, in ms, if that is before all others. popped:
    told of an event with what a call that is gone has waited for."""

    core: Any
    sends: Sends
    renewals: Renewals
    clients: GrpcClients
    settings: ProxySettings
    expect: Callable[[int], None]
    popped: Callable[[Any], None]


class GrpcPort:
    """The port and its connections. Everything here happens on the event loop."""

    def __init__(
        self,
        hot: HotCalls | None,
        service: Service,
        methods: Sequence[str],
        sock: socket.socket,
        serving: Serving,
        *,
        connections_max: int,
        idle_s: float,
        tls: TlsSettings,
        proxies: Sequence[tuple[int, int, int]],
        gone: Callable[[Address], None],
    ) -> None:
        """Makes the port. hot: what a thread serves; None: there is none, and Python serves every
        call. methods: names, in the order of the service. sock: listens. proxies: as Limits has
        them. gone: told of each client whose connection is closed. Raises: OutOfMemory,
        StoreIOError."""
        self._serving, self._gone = serving, gone
        self._service, self._hot = service, hot
        self._loop = asyncio.get_running_loop()
        self._budget = Budget.of(self._loop)
        #: By the number of the link.
        self._links: dict[int, LinkedCalls] = {}
        self._metadata: dict[bytes, dict[str, str]] = {}
        error = ffi.new("ps_error *")
        conf = _conf(service, connections_max, idle_s)
        conf.budget = self._budget.handle
        self._tls = TlsOfThreads(tls)
        self._proxies = limit_openings(conf, self._tls, proxies, OPENING_MS / 1000)
        core = ffi.NULL
        if hot is not None:
            core = hot.core
            _serve_hot(conf, hot, methods)
        self._handle: Any = lib.ps_net_start(core, conf, sock.fileno(), ffi.NULL, error)
        if self._handle == ffi.NULL:
            raise_error(error[0])
        self._does = {
            lib.PS_NET_OPENED: self._opened,
            lib.PS_NET_CLOSED: self._closed,
            lib.PS_NET_RESTING: self._resting,
            lib.PS_NET_UNOPENED: self._unopened,
            lib.PS_NET_TLS_WANTED: self._tls_wanted,
        }
        #: How often the settings of clients have changed.
        self._settings = 0
        if hot is not None:
            self._does |= _events_of_hot(hot)
            hot.clients.changed = self._settled
            hot.renewals.on_first(lambda: lib.ps_net_renewing(self._handle))
        self._tls.start(self._handle)
        self._events = Events(self._handle, self._take)

    @property
    def connections(self) -> list[LinkedCalls]:
        return list(self._links.values())

    @property
    def count(self) -> int:
        """Connections, with those that have not said anything."""
        return int(lib.ps_net_links(self._handle)) if self._handle is not None else 0

    @property
    def waiting(self) -> int:
        """Calls that wait for messages in the thread, which no connection here counts."""
        return int(lib.ps_net_waiting(self._handle)) if self._handle is not None else 0

    @property
    def calls(self) -> int:
        """Calls in progress."""
        return self.waiting + sum(each.calls for each in self._links.values())

    # ---- the end ----

    def deafen(self) -> None:
        """Accepts no further connections."""
        lib.ps_net_deafen(self._handle)

    def stop(self) -> None:
        """Ends the thread and what connections are left."""
        self._events.stop()
        self._tls.stop()
        lib.ps_net_stop(self._handle)
        self._events.take_all()
        for each in list(self._links.values()):
            self._end(each)
        self._links.clear()
        handle, self._handle = self._handle, None
        lib.ps_net_free(handle)

    # ---- events ----

    def _take(self, rows: Iterator[Any]) -> None:
        called: dict[LinkedCalls, None] = {}
        for row in rows:
            link = self._links.get(row.link_id)
            if row.kind != lib.PS_NET_CALL:
                if row.kind in self._does:
                    self._does[row.kind](link, row)
                continue
            event = self._event_of(row)
            if link is not None:
                link.arrive(event)
                called[link] = None
        for each in called:
            each.handle_arrived()

    def _event_of(self, row: Any) -> tuple[Any, ...]:
        """Returns an event as Calls.events() has it."""
        call = row.call
        data = bytes(ffi.buffer(row.data, row.len)) if row.len else b""
        if not call.headers_len and call.method < 0:
            return call.kind, call.stream, data
        block, data = data[: call.headers_len], data[call.headers_len :]
        timeout_ns: int = call.timeout_ns
        timeout_s = timeout_ns / 1e9 if timeout_ns >= 0 else -1.0
        made = call.kind, call.stream, data, call.method, self._metadata_of(block), timeout_s
        if call.found == ffi.NULL:
            return made
        raw = ffi.new("ps_pop_found *")
        lib.ps_pop_found_take(call.found, raw)
        return *made, PopOutcome.of(raw)

    def _metadata_of(self, block: bytes) -> dict[str, str]:
        """Returns the same dict for the same bytes: nobody changes it. Later ones of a name
        count."""
        found = self._metadata.get(block)
        if found is None:
            words = [each.decode(errors="replace") for each in block.split(b"\0")]
            pairs = zip(words[::2], words[1::2], strict=False)
            found = {name: value for name, value in pairs if not name.endswith("-bin")}
            if len(self._metadata) >= _KNOWN_MAX:
                self._metadata.clear()
            self._metadata[block] = found
        return found

    def _opened(self, _: LinkedCalls | None, row: Any) -> None:
        host, port, own, own_port = text_of_event(row).split(" ")
        if row.number:
            _tell_closed(host, "too many connections")
        transport = LinkTransport(row.link, (host, int(port)), (own, int(own_port)))
        self._links[row.link_id] = LinkedCalls(row.link, transport, self._serving, self._trusted)

    def _closed(self, link: LinkedCalls | None, row: Any) -> None:
        if link is None:
            return
        del self._links[row.link_id]
        why = text_of_event(row)
        if why:
            _tell_closed(link.address[0], why)
        self._end(link)

    def _tls_wanted(self, _: LinkedCalls | None, row: Any) -> None:
        self._tls.prepare()

    def _unopened(self, _: LinkedCalls | None, row: Any) -> None:
        peer, why, detail = end_of_unopened(row)
        _tell_closed(peer.rpartition(":")[0], why, detail)

    def _end(self, link: LinkedCalls) -> None:
        link.end()
        self._gone(link.address)

    # ---- clients ----

    def _settled(self) -> None:
        self._settings += 1
        if self._handle is not None:
            lib.ps_net_settled(self._handle)

    def _trusted(self, client_id: str) -> tuple[str, int, bool, int, int]:
        if self._hot is None:
            return "", 0, False, 0, 0
        client, attempts, fifo, request_ms = self._hot.clients.get(client_id), 0, False, 0
        if client is not None and not client.is_producer and not client.is_lite:
            attempts = client.settings.backoff_policy.max_attempts
            fifo = client.settings.subscription.fifo
            request_ms = min(max(millis(client.settings.request_timeout), 0), _REQUEST_MS)
        return client_id, attempts, fifo, request_ms, self._settings

    def settings_changed(self) -> None:
        """Has receives that begin from now on served as the settings of the service say. Raises:
        OutOfMemory."""
        if self._hot is None or self._handle is None:
            return
        receives, error = ffi.new("ps_net_receives *"), ffi.new("ps_error *")
        _set_receives(receives, self._hot.settings)
        if lib.ps_net_receive(self._handle, receives, error) < 0:
            raise_error(error[0])
        self._settled()  # what comes before the thread knows them is served by Python

    def _resting(self, _: LinkedCalls | None, row: Any) -> None:
        _quiet.warning("accept", "Cannot accept a gRPC connection: %s", os.strerror(row.number))


def _tell_closed(host: str, why: str, detail: str = "") -> None:
    """Tells why a connection was closed, each reason once in a while."""
    text = f"{why} ({detail})" if detail else why
    _quiet.warning(why, "Closed the gRPC connection of %s: %s", host, text)


def _events_of_hot(hot: HotCalls) -> dict[int, Callable[[LinkedCalls | None, Any], None]]:
    """Returns what is done at events of calls that the thread serves."""

    def acked(_: LinkedCalls | None, row: Any) -> None:
        group, topic, *handles = text_of_event(row).split("\n")
        for given in handles:
            hot.renewals.release(group, topic, given)

    def held(_: LinkedCalls | None, row: Any) -> None:
        client, group, topic, *messages = text_of_event(row).split("\n")
        if hot.clients.get(client) is None:  # it has just left
            return
        for each in messages:
            attempts, handle = each.split(" ", 1)
            hot.renewals.hold(client, group, topic, Receipt.parse(handle), int(attempts))

    return {
        lib.PS_NET_ACKED: acked,
        lib.PS_NET_HELD: held,
        lib.PS_NET_POP_DUE: lambda _, row: hot.expect(row.value),
        lib.PS_NET_POPPED: lambda _, row: hot.popped(row),
    }


def _set_receives(to: Any, own: ProxySettings) -> None:
    to.invisible_min_ms, to.invisible_max_ms = own.invisible_min_ms, own.invisible_max_ms
    to.invisible_ms, to.renews = own.invisible_default_ms, own.renew
    to.poll_min_ms, to.poll_max_ms = own.poll_min_ms, own.poll_max_ms


def _serve_hot(conf: Any, hot: HotCalls, methods: Sequence[str]) -> None:
    conf.sends = ffi.cast("struct ps_h2_limits *", hot.sends.address)
    conf.send_method = methods.index("SendMessage")
    conf.ack_method = methods.index("AckMessage")
    conf.receive_method = methods.index("ReceiveMessage")
    conf.end_method = methods.index("EndTransaction")
    _set_receives(conf.receives, hot.settings)
    conf.nothing, conf.nothing_len = _NOTHING, len(NOTHING)
    conf.full, conf.full_len = _FULL, len(FULL)
    conf.hidden = ffi.cast("struct ps_h2_names *", DELIVERIES.address)
    for name, reply in _UNSAFE.items():
        setattr(conf, name, reply)
        setattr(conf, f"{name}_len", len(reply))
    names = "inflate_init", "inflate", "inflate_end", "zlib_version"
    for name, address in zip(names, zlib_addresses() or (), strict=False):
        setattr(conf, name, ffi.cast(ffi.typeof(getattr(conf, name)), address))


def _conf(service: Service, connections_max: int, idle_s: float) -> Any:
    made = ffi.new("ps_net_conf *")
    made.number = _NUMBER
    made.links_max = connections_max
    made.queued_max, made.queued_bytes = _QUEUED, _QUEUED_BYTES
    made.write_high, made.write_low = _HIGH, _LOW
    made.unsent_max = 1 << 62  # replies wait in the session instead, which has its own limit
    made.idle_ms = int(idle_s * 1000)
    made.linger_ms = _LINGER_MS
    made.h2 = ffi.cast("struct ps_h2_functions *", net_functions())
    made.h2_conf = ffi.cast("struct ps_h2_conf *", service.address)
    return made
