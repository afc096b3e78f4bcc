"""`pystore web FOLDER`: the routes of a store's pages. Nothing is changed by any request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from broker.web.cached import known_soon
from broker.web.drawing import log_map
from broker.web.page_server import COOKIE, HEADERS, Handler, PageServer, download, redirection
from broker.web.rawlog import RawLog
from broker.web.records import RecordView, hex_lines
from broker.web.rows import SOON_S, paged
from broker.web.store_lists import StoreLists
from broker.web.store_overview import StoreOverview
from broker.web.store_pages import StorePages
from broker.web.topic_search import MessageFilter, Newest, newest, queue_of
from pystore.audit import Audit, describe, mend_command, verify
from pystore.cli.verbs import human_size
from pystore.errors import BadArgument, NotAStore, StoreError
from pystore.format.records import CHECK_BODY, check_record
from pystore.settings import load

if TYPE_CHECKING:
    from broker.client.credentials import Credentials

__all__ = ["COOKIE", "HEADERS", "FolderServer"]

#: Of the map of a log, in its own units.
_MAP_WIDTH = 1000
#: Messages of one page, and how often one that follows comes again, seconds.
_MESSAGES, _LIVE_S = 50, "2"
#: Bytes of the log on one page.
_LOG_BYTES = 1024


class FolderServer(PageServer):
    """Serves one store. port: 0 takes a free one, which `port` names once it is started."""

    menu = (
        ("/", "Overview"), ("/topics", "Topics"), ("/groups", "Groups"), ("/find", "Find"),
        ("/dead", "Dead letters"), ("/waiting", "Waiting"), ("/verify", "Verify"), ("/map", "Map"),
        ("/doctor", "Doctor"),
    )  # fmt: skip

    def __init__(
        self, path: Path, conf: Path | None, given: dict[str, Any], host: str, port: int,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        super().__init__(str(path), host, port, credentials)
        self.path = path
        self._given, self._conf = given, conf
        self._pages = StorePages(path, conf, given)
        self._lists = StoreLists(self._pages)
        self._log = RawLog(load(conf, given).commitlog_dirs(path))
        self._overview = StoreOverview(path, conf, given, self._log)
        self._audit: Audit | None = None
        self._checking: asyncio.Task[Audit] | None = None
        self._progress = (0, 0)

    def routes(self) -> Mapping[str, Handler]:
        return {
            "/": self._store, "/topics": self._topics, "/topic": self._topic, "/find": self._find,
            "/message": self._message, "/body": self._body, "/record": self._record,
            "/verify": self._verify, "/map": self._map, "/log": self._bytes_of_log,
            "/groups": self._groups, "/group": self._group, "/dead": self._dead,
            "/waiting": self._waiting, "/doctor": self._doctor,
        }  # fmt: skip

    # ---- life ----

    async def start(self) -> None:
        """Starts serving. A store that is there and cannot be opened is shown as far as its files
        can be read. Raises: OSError, NotAStore."""
        try:
            await self._read(self._pages.overview)
        except NotAStore:
            raise
        except StoreError:
            await self._read(self._log.segments)
        await super().start()

    async def stop(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        await self._overview.close()
        if self._runner is not None:
            await self._read(self._pages.close)
        await super().stop()

    async def _store(self, request: web.Request) -> web.StreamResponse:
        try:
            shown = await self._read(self._pages.overview)
        except StoreError as failed:
            return self._page("closed.html", text=failed.text, next_step=failed.next_step)
        asked = self._overview
        known, counting = await known_soon({
            "totals": (asked.totals, SOON_S), "rates": (asked.rates, SOON_S),
            "waiting": (asked.waiting, SOON_S), "examined": (asked.examined, SOON_S),
        })  # fmt: skip
        sums, (timers, halves) = known["totals"], known["waiting"] or (None, None)
        counts = {name: getattr(sums, name, None) for name in (
            "messages", "topics", "groups", "lag", "dead",
        )}  # fmt: skip
        lag = counts["lag"]
        totals = {
            "Messages": (counts["messages"], "/topics"),
            "Size": (human_size(shown.pop("size")), "/map"),
            "Topics": (counts["topics"], "/topics"), "Groups": (counts["groups"], "/groups"),
            "Lag": (lag and lag.behind, "/groups"), "Dead letters": (counts["dead"], "/dead"),
            "Timers waiting": (timers, "/waiting"), "Open transactions": (halves, "/waiting"),
        }  # fmt: skip
        (rates,) = known["rates"] or (None,)
        return self._again(counting, self._page(
            "store.html", totals=totals, rates=rates, examined=known["examined"],
            audit=self._audit, lag=lag, **shown,
        ))  # fmt: skip

    async def _doctor(self, request: web.Request) -> web.StreamResponse:
        """Returns all that the doctor finds."""
        known, counting = await known_soon({"examined": (self._overview.examined, SOON_S)})
        return self._again(counting, self._page("doctor.html", **known))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        """Returns the newest messages of all queues, or those of one; queues and groups."""
        query = dict(request.query)
        name, wanted = query.get("name", ""), MessageFilter.of(query)
        queues, groups = await self._read(self._pages.topic, name)
        at, chosen = 0, queue_of(queues, "", self._number(request, "queue"))
        read = partial(self._read, self._pages.views)
        if chosen is None:
            shown = await newest(queues, read, wanted, _MESSAGES)
        else:
            at = self._number(request, "offset", max(0, chosen.max_offset - _MESSAGES)) or 0
            at = max(chosen.min_offset, min(at, chosen.max_offset))
            found = await read(chosen.queue, at, _MESSAGES) if at < chosen.max_offset else []
            shown = Newest([("", view) for view in found])
        facts = {
            "Messages": f"{sum(each.count for each in queues):,}", "Queues": f"{len(queues):,}",
            "Groups": f"{len(groups):,}",
        }  # fmt: skip
        answer = self._page(
            "topic.html", name=name, facts=facts, chosen=chosen, at=at, shown=shown, trouble="",
            step=_MESSAGES, groups=groups, counting=False, query=query, wanted=wanted,
            lite=None, found=paged(queues, self._page_of(request)),
        )  # fmt: skip
        if query.get("live"):
            answer.headers["Refresh"] = _LIVE_S
        return answer

    async def _find(self, request: web.Request) -> web.StreamResponse:
        query = {name: value.strip() for name, value in request.query.items()}
        asked = [query.get(name, "") for name in ("topic", "key", "id", "time")]
        rows = None
        found = await self._read(self._pages.find, *asked) if any(asked) else None
        if isinstance(found, int):
            return redirection(f"/message?at={found}")
        if isinstance(found, tuple):
            name, queue, offset = found
            where = urlencode({"name": name, "queue": queue, "offset": offset})
            return redirection(f"/topic?{where}")
        if found is not None:
            rows = [("", RecordView(await self._read(self._pages.record, at))) for at in found]
        return self._page("find.html", query=query, rows=rows, places=[], runs=False)

    async def _waiting(self, request: web.Request) -> web.StreamResponse:
        return self._page("waiting.html", **await self._read(self._pages.waiting))

    def _place(self, request: web.Request) -> int:
        """Returns the place that is asked for. Raises: BadArgument."""
        at = self._number(request, "at")
        if at is None:
            raise BadArgument("no place in the log is named")
        return at

    async def _message(self, request: web.Request) -> web.StreamResponse:
        page = await self._read(self._pages.message, self._place(request))
        return self._page("message.html", message=page, here={"at": page.at}, broker="")

    async def _body(self, request: web.Request) -> web.StreamResponse:
        at = self._place(request)
        page = await self._read(self._pages.message, at)
        return download(page.whole_body, f"body-{at}")

    async def _record(self, request: web.Request) -> web.StreamResponse:
        at = self._place(request)
        return download(await self._read(self._pages.record, at), f"record-{at}")

    # ---- lists ----

    async def _listed(self, request: web.Request, template: str, work: Any) -> web.StreamResponse:
        """Returns a page of a list. work: is called with the query and the number of the page."""
        query, page = dict(request.query), self._number(request, "page", 1)
        return self._page(template, query=query, **await self._read(work, query, page))

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        return await self._listed(request, "topics.html", self._lists.topics)

    async def _groups(self, request: web.Request) -> web.StreamResponse:
        return await self._listed(request, "groups.html", self._lists.groups)

    async def _group(self, request: web.Request) -> web.StreamResponse:
        return await self._listed(request, "group.html", self._lists.group)

    async def _dead(self, request: web.Request) -> web.StreamResponse:
        return await self._listed(request, "dead.html", self._lists.dead)

    # ---- bytes of the log ----

    async def _bytes_of_log(self, request: web.Request) -> web.StreamResponse:
        """Returns bytes of the log, whatever they are; `seek` goes to the next whole record."""
        at = self._number(request, "at", 0) or 0
        if "seek" in request.query:
            after = await self._read(self._log.next_record, at)
            if after is None:
                raise BadArgument(f"no whole record was found in the 64 MiB after {at}")
            return redirection(f"/log?at={after}")
        data = await self._read(self._log.bytes_at, at, _LOG_BYTES)
        record = await self._read(self._log.record_at, at)
        return self._page(
            "log.html", at=at, lines=hex_lines(data, at), there=bool(data), step=_LOG_BYTES,
            zeros=not any(data), blank=await self._read(self._log.blank_at, at),
            whole=record is not None,
            fits=record is not None and check_record(record, checks=CHECK_BODY) is not None,
        )  # fmt: skip

    async def _map(self, request: web.Request) -> web.StreamResponse:
        audit = self._audit
        segments = await self._read(self._log.segments)
        bars = log_map(audit, segments) if audit is not None else []
        found = paged(bars, self._number(request, "page", 1) or 1)
        return self._page("map.html", audit=audit, found=found, query=dict(request.query))

    # ---- findings ----

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        """Starts a check when it is asked to; a page that waits for one comes again by itself."""
        running = self._checking is not None and not self._checking.done()
        if "run" in request.query and not running:
            self._checking = asyncio.create_task(asyncio.to_thread(self._check))
            return redirection("/verify")
        if running:
            done, total = self._progress
            answer = self._page("verify.html", audit=None, done=done, total=total, running=True)
            answer.headers["Refresh"] = "1"
            return answer
        if self._checking is not None and not self._checking.cancelled():
            self._audit = self._checking.result()
        audit = self._audit
        marks = _map_of(audit) if audit is not None else []
        return self._page(
            "verify.html", audit=audit, describe=describe, mend_command=mend_command, marks=marks,
            width=_MAP_WIDTH, running=False,
        )  # fmt: skip

    def _check(self) -> Audit:
        def tell(phase: str, done: int, total: int) -> None:
            self._progress = (done, total)

        return verify(self.path, self._conf, progress=tell, **self._given)


def _map_of(audit: Audit) -> list[tuple[float, float, str, str]]:
    """Places of findings on the map of the log: from, width, severity, text."""
    length = max(1, audit.log_max - audit.log_min)
    marks = []
    for finding in audit.findings:
        if finding.about.where != "log" or finding.start is None:
            continue
        begin = (finding.start - audit.log_min) * _MAP_WIDTH / length
        end = ((finding.end or finding.start) - audit.log_min) * _MAP_WIDTH / length
        begin = max(0.0, min(begin, _MAP_WIDTH - 2))
        text = f"{finding.kind}, {finding.start} to {finding.end}"
        marks.append(
            (round(begin, 1), round(max(2.0, min(end, _MAP_WIDTH) - begin), 1),
             finding.severity.name.lower(), text)
        )  # fmt: skip
    return marks
