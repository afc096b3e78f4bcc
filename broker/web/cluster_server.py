"""`pystore web HOST:PORT`: pages of a running cluster. What changes anything is in
cluster_actions.py, and only where the start allowed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from broker.client.admin import AsyncAdmin
from broker.client.admin.facts import tier_figures
from broker.client.errors import (
    BadAnswer,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    Misuse,
    NoRoute,
)
from broker.client.message import MessageQueue
from broker.client.rates import rows_between
from broker.services.names import is_system_group
from broker.web.cached import known_soon
from broker.web.cluster_actions import is_secret
from broker.web.cluster_facts import ClusterFacts, Placed
from broker.web.cluster_overview import ClusterOverview
from broker.web.cluster_people import ClusterPeople
from broker.web.drawing import plot_of
from broker.web.page_server import Handler, download
from broker.web.rows import SOON_S, GroupRow, groups_of_kind, paged
from broker.web.store_pages import message_page
from pystore.cli.verbs import parse_time
from pystore.errors import BadArgument
from pystore.format.names import DLQ_PREFIX

if TYPE_CHECKING:
    import ssl

    from broker.client.credentials import Credentials
    from broker.web.records import RecordView

__all__ = ["ClusterServer"]

_PLOT_REFRESH_S = "2"
#: How long the first page waits for what the doctor finds.
_AT_ONCE_S = 0.05


class ClusterServer(ClusterPeople):
    """target: HOST:PORT of a name server, or of one broker. write: visitors may change what
    cluster_actions.py offers."""

    menu = (
        ("/", "Overview"), ("/topics", "Topics"), ("/groups", "Groups"), ("/clients", "Clients"),
        ("/find", "Find"), ("/dead", "Dead letters"), ("/rates", "Rates"), ("/users", "Users"),
        ("/doctor", "Doctor"),
    )  # fmt: skip

    def __init__(
        self, target: str, host: str, port: int, credentials: Credentials | None = None, *,
        tls: ssl.SSLContext | bool = False, write: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(target, host, port, credentials, write=write)
        self._options = {"credentials": credentials, "tls": tls}
        self._overview: ClusterOverview | None = None

    def routes(self) -> Mapping[str, Handler]:
        return {
            **super().routes(), "/": self._cluster, "/groups": self._groups,
            "/group": self._group, "/find": self._find,
            "/message": self._message, "/body": self._body, "/record": self._record,
            "/dead": self._dead, "/rates": self._rates, "/broker": self._broker,
            "/doctor": self._doctor,
        }  # fmt: skip

    async def start(self) -> None:
        """Starts serving. Raises: OSError, ClientError when nobody of a cluster answers there."""
        facts = self._facts = await self._found()
        namesrv = "" if facts.of_broker else self.target
        self._overview = ClusterOverview(facts, namesrv, **self._options)
        self._overview.start()
        await super().start()

    async def _found(self) -> ClusterFacts:
        """Returns what a name server says, or, where it does not know what one is asked, a broker.
        Raises: ClientError."""
        try:
            return await self._answering(lambda: AsyncAdmin(self.target, **self._options))
        except (BrokerRefused, BadAnswer):
            make = lambda: AsyncAdmin(broker=self.target, **self._options)  # noqa: E731
            return await self._answering(make, of_broker=True)

    @staticmethod
    async def _answering(
        make: Callable[[], AsyncAdmin], *, of_broker: bool = False
    ) -> ClusterFacts:
        """Starts them and asks once. Raises: ClientError, after they were closed."""
        facts = ClusterFacts(await make().start(), await make().start(), of_broker=of_broker)
        try:
            await facts.admin.cluster()
        except BaseException:
            await facts.close()
            raise
        return facts

    async def stop(self) -> None:
        await super().stop()
        if self._overview is not None:
            await self._overview.close()
        if self._facts is not None:
            await self._facts.close()

    def _explained(self, failed: Exception) -> tuple[int, str] | None:
        if isinstance(failed, NoRoute):
            return 404, str(failed)
        if isinstance(failed, Misuse | InvalidMessage):
            return 400, str(failed)
        return (502, str(failed)) if isinstance(failed, ClientError) else None

    # ---- lists ----

    async def _broker(self, request: web.Request) -> web.StreamResponse:
        """Returns what one broker says of itself, or its settings."""
        place = await self._place(request.query.get("address", ""))
        query = dict(request.query)
        facts, figures = None, query.get("kind", "") == "figures"
        if figures:
            facts = await self.facts.admin.broker(place.address)
        values = await self.facts.admin.configuration(place.address) if not facts else facts.entries
        rows = sorted(values.items())
        found = paged(
            rows, self._page_of(request), wanted=query.get("q", ""), text=lambda row: row[0]
        )
        shown = [(name, "hidden" if is_secret(name) else value) for name, value in found.rows]
        return self._page(
            "broker.html", place=place, found=found, rows=shown, query=query, facts=facts,
            tier=tier_figures(facts.entries) if facts else None, now_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        look = await self.facts.brokers.get()
        by_address = {each.address: each for each in look.brokers}
        places = await self.facts.places.get()
        overview = self._overview
        assert overview is not None
        overview.take(look)
        known, counting = await known_soon({
            "names": (overview.names, SOON_S), "lag": (overview.lag, SOON_S),
            "dead": (overview.dead, SOON_S), "waiting": (overview.waiting, SOON_S),
            "replicas": (overview.replicas, SOON_S), "examined": (overview.examined, _AT_ONCE_S),
        })  # fmt: skip
        topics, groups = known["names"] or (None, None)
        timers, halves = known["waiting"] or (None, None)
        (dead,) = known["dead"] or (None,)
        lag = known["lag"]
        totals = {
            "Topics": (topics, "/topics"), "Groups": (groups, "/groups"),
            "Lag": (lag and lag.behind, "/groups"), "Dead letters": (dead, "/dead"),
            "Timers waiting": (timers, ""), "Open transactions": (halves, ""),
        }  # fmt: skip
        messages, sizes = overview.plots()
        found = paged(places, self._page_of(request))
        return self._again(counting, self._page(
            "cluster.html", problems=look.problems, totals=totals, examined=known["examined"],
            messages=messages, sizes=sizes, now_ms=time.time_ns() // 1_000_000,
            clusters=sorted({place.cluster for place in places}), found=found,
            query=dict(request.query), replicas=known["replicas"] or {}, lag=lag,
            rows=[(place, by_address.get(place.address)) for place in found.rows],
            samples=len(overview.samples),
        ))  # fmt: skip

    async def _doctor(self, request: web.Request) -> web.StreamResponse:
        """Returns all that the doctor finds."""
        assert self._overview is not None
        known, counting = await known_soon({"examined": (self._overview.examined, SOON_S)})
        return self._again(counting, self._page("doctor.html", **known))

    async def _groups(self, request: web.Request) -> web.StreamResponse:
        """Returns the page of groups. How far all groups are costs brokers much: a page that comes
        before that is known has their names, and comes again by itself."""
        query = dict(request.query)
        counted = await self.facts.groups_soon(SOON_S)
        counting = counted is None
        by_name = counting or query.get("by") == "name"
        rows = groups_of_kind(
            await self.facts.group_names() if counted is None else counted, query.get("kind", "")
        )
        found = paged(
            rows, self._page_of(request),
            wanted=query.get("q", ""), text=lambda group: group.name,
            order=None if by_name else lambda group: group.behind,
        )  # fmt: skip
        shown, more = await self.facts.with_dead(found.rows, SOON_S)
        found = replace(found, rows=shown)
        return self._again(counting or more, self._page(
            "groups.html", found=found, query=query, trouble="", counting=counting,
            most=max((row.behind or 0 for row in rows), default=0),
        ))  # fmt: skip

    async def _group(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        await self.facts.check_group(name)
        lags = await self.facts.lags_of.of(name).soon(SOON_S)
        counting = lags is None
        row = GroupRow(name, None, None, None) if lags is None else GroupRow.of(name, lags, None)
        return self._again(counting, self._page(
            "group.html", name=name, row=row, config=await self.facts.group(name),
            query=dict(request.query), counting=counting,
            members=await self.facts.admin.members(name) or False,
            found=paged(lags or (), self._page_of(request), order=lambda lag: lag.behind),
        ))  # fmt: skip

    # ---- messages ----

    async def _find(self, request: web.Request) -> web.StreamResponse:
        query = {name: value.strip() for name, value in request.query.items()}
        topic, key, id_, when = (query.get(name, "") for name in ("topic", "key", "id", "time"))
        rows: list[Placed] | None = None
        places: list[Any] = []
        if id_:
            rows = await self.facts.by_id(id_)
        elif key and topic:
            rows = await self.facts.by_key(topic, key)
        elif when and topic:
            places = await self.facts.by_time(topic, parse_time(when, "time"))
        return self._page("find.html", query=query, rows=rows, places=places, runs=True)

    async def _one(self, request: web.Request) -> tuple[dict[str, object], RecordView]:
        """Returns a message by its place. Raises: BadArgument, NoRoute, ClientError."""
        topic, broker = request.query.get("topic", ""), request.query.get("broker", "")
        queue, offset = self._number(request, "queue"), self._number(request, "offset")
        if queue is None or offset is None:
            raise BadArgument("no queue, or no offset, is named")
        found = await self.facts.read(MessageQueue(topic, broker, queue), offset, 1)
        if not found:
            raise NoRoute(f"{topic} has no message {offset} in queue {queue} of {broker}", topic)
        here = {"topic": topic, "broker": broker, "queue": queue, "offset": offset}
        return here, found[0]

    async def _message(self, request: web.Request) -> web.StreamResponse:
        here, view = await self._one(request)
        page = message_page(bytes(view.record), view.head.physical_offset)
        return self._page("message.html", message=page, here=here, broker=here["broker"])

    async def _body(self, request: web.Request) -> web.StreamResponse:
        here, view = await self._one(request)
        page = message_page(bytes(view.record), view.head.physical_offset)
        return download(page.whole_body, f"body-{here['offset']}")

    async def _record(self, request: web.Request) -> web.StreamResponse:
        here, view = await self._one(request)
        return download(bytes(view.record), f"record-{here['offset']}")

    # ---- dead letters ----

    async def _dead(self, request: web.Request) -> web.StreamResponse:
        """Returns groups that have a topic of dead letters, and how many lie there."""
        names = [
            topic.name for topic in await self.facts.topics.get() if topic.kind == "dead letters"
        ]
        found = paged(names, self._page_of(request))
        topics = await asyncio.gather(*(self.facts.admin.topic(name) for name in found.rows))
        rows = [GroupRow(t.name[len(DLQ_PREFIX) :], None, None, t.messages) for t in topics]
        return self._page(
            "dead.html", found=found, rows=rows, prefix=DLQ_PREFIX, query=dict(request.query),
            runs=True,
        )  # fmt: skip

    # ---- rates ----

    async def _rates(self, request: web.Request) -> web.StreamResponse:
        self.facts.watch()
        looks = list(self.facts.looks)
        times = [look.when for look in looks]
        plot = plot_of(times, {
            "came": [sum(b.put_rate for b in look.brokers) for look in looks],
            "went": [sum(b.get_rate for b in look.brokers) for look in looks],
        })  # fmt: skip
        rows = rows_between(looks[-2] if len(looks) > 1 else None, looks[-1]) if looks else []
        rows = [row for row in rows if not is_system_group(row.group)]
        answer = self._page(
            "rates.html", plot=plot, found=paged(rows, self._page_of(request)),
            problems=looks[-1].problems if looks else [], query=dict(request.query),
        )  # fmt: skip
        if "still" not in request.query:
            answer.headers["Refresh"] = _PLOT_REFRESH_S
        return answer
