"""The port of `pystore web`: routes, who may ask, and the headers of every answer.

Whoever is on this machine can connect to its loopback, also those who may not read the files. So
every request needs a secret of this run, which the first address has; a cookie keeps it. The host
that is asked for must be one of ours, so that a page elsewhere cannot lead a browser here under a
name of its own (DNS rebinding). Nothing is changed by any request, and there is no script.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from broker.loop.safe_log import SafeLogger
from broker.web.store_pages import StorePages
from pystore.audit import KINDS, Audit, verify
from pystore.cli.verbs import iso
from pystore.errors import BadArgument, NotFound, RecordDamaged, StoreError

__all__ = ["COOKIE", "HEADERS", "FolderServer"]

_T = TypeVar("_T")

log = SafeLogger("broker.web")
COOKIE = "pystore-web"
#: Of every answer. No script, no frame, nothing from elsewhere, nothing kept.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "pystore",
}
_STATIC = Path(__file__).with_name("static")
_STATUS = ((NotFound, 404), (RecordDamaged, 404), (BadArgument, 400))
_NUMBER_MAX = (1 << 63) - 1
#: Of the map of a log, in its own units.
_MAP_WIDTH = 1000


def visible(text: object) -> str:
    r"""Text with control characters, and those that turn the direction of writing, as ``\xNN``;
    lines and tabs pass."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "replace").decode()
        for c in str(text)
    )


class FolderServer:
    """Serves one store. port: 0 takes a free one, which `port` names once it is started."""

    def __init__(
        self, path: Path, conf: Path | None, given: dict[str, Any], host: str, port: int
    ) -> None:
        self.path, self.host, self.port = path, host, port
        self.token = secrets.token_urlsafe(24)
        self._given, self._conf = given, conf
        self._pages = StorePages(path, conf, given)
        #: Reads are one after the other: a reader is one thread's.
        self._reading = ThreadPoolExecutor(1, "pystore-web")
        self._templates = Environment(
            loader=PackageLoader("broker.web"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {"visible": visible, "iso": iso}
        self._audit: Audit | None = None
        self._checking: asyncio.Task[Audit] | None = None
        self._progress = (0, 0)
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        """The first address, with the secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/?token={self.token}"

    # ---- life ----

    async def start(self) -> None:
        """Raises: OSError, StoreError for a folder that cannot be read at all."""
        await self._read(self._pages.overview, "", 0)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._overview)
        app.router.add_get("/topic", self._topic)
        app.router.add_get("/find", self._find)
        app.router.add_get("/message", self._message)
        app.router.add_get("/body", self._body)
        app.router.add_get("/record", self._record)
        app.router.add_get("/waiting", self._waiting)
        app.router.add_get("/verify", self._verify)
        app.router.add_get("/style.css", self._style)
        app.router.add_get("/favicon.ico", self._no_icon)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._read(self._pages.close)
        self._reading.shutdown(wait=False, cancel_futures=True)

    async def _read(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, *arguments)

    # ---- who may ask ----

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        answer: web.StreamResponse
        if request.method not in ("GET", "HEAD"):
            answer = self._refusal(405, "only GET and HEAD are served")
        elif not self._is_ours(request.host):
            answer = self._refusal(403, "this server has another name")
        elif self._is_known(request.query.get("token", "")):
            answer = _see("/")
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="Strict", path="/")
        elif not self._is_let_in(request):
            answer = self._refusal(403, "use the address that `pystore web` has printed")
        else:
            answer = await self._answered(request, handler)
        for name, value in HEADERS.items():
            answer.headers[name] = value
        return answer

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as found:
            return self._refusal(found.status, found.reason)
        except StoreError as failed:
            status = next((code for kind, code in _STATUS if isinstance(failed, kind)), 500)
            return self._refusal(status, f"{failed.text}. {failed.next_step}")
        except Exception:
            log.exception("The page %s failed", request.path)
            return self._refusal(500, "this page failed; the log of `pystore web` says why")

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in ("localhost", self.host.lower()):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_known(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _is_let_in(self, request: web.Request) -> bool:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._is_known(request.cookies.get(COOKIE, "")) or self._is_known(bearer)

    # ---- answers ----

    def _page(self, template: str, /, status: int = 200, **shown: Any) -> web.Response:
        text = self._templates.get_template(template).render(path=str(self.path), **shown)
        return web.Response(text=text, status=status, content_type="text/html")

    def _refusal(self, status: int, text: str) -> web.Response:
        return self._page("problem.html", status, code=status, text=text)

    @staticmethod
    def _number(request: web.Request, name: str, default: int | None = None) -> int | None:
        """Raises: BadArgument."""
        text = request.query.get(name, "").strip()
        if not text:
            return default
        if not (text.isascii() and text.isdigit()) or int(text) > _NUMBER_MAX:
            raise BadArgument(f"{name} is not a number")
        return int(text)

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        start = self._number(request, "start", 0)
        wanted = request.query.get("q", "")
        return self._page("store.html", **await self._read(self._pages.overview, wanted, start))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        queue, offset = self._number(request, "queue"), self._number(request, "offset")
        return self._page("topic.html", **await self._read(self._pages.topic, name, queue, offset))

    async def _find(self, request: web.Request) -> web.StreamResponse:
        asked = [request.query.get(name, "").strip() for name in ("topic", "key", "id", "time")]
        if not any(asked):
            return self._page("find.html", found=None)
        found = await self._read(self._pages.find, *asked)
        if isinstance(found, int):
            return _see(f"/message?at={found}")
        if isinstance(found, tuple):
            name, queue, offset = found
            where = urlencode({"name": name, "queue": queue, "offset": offset})
            return _see(f"/topic?{where}")
        pages = [await self._read(self._pages.message, at) for at in found]
        return self._page("find.html", found=pages)

    async def _waiting(self, request: web.Request) -> web.StreamResponse:
        return self._page("waiting.html", **await self._read(self._pages.waiting))

    def _place(self, request: web.Request) -> int:
        """Raises: BadArgument."""
        at = self._number(request, "at")
        if at is None:
            raise BadArgument("no place in the log is named")
        return at

    async def _message(self, request: web.Request) -> web.StreamResponse:
        page = await self._read(self._pages.message, self._place(request))
        return self._page("message.html", message=page)

    async def _body(self, request: web.Request) -> web.StreamResponse:
        at = self._place(request)
        return _download(await self._read(self._pages.body, at), f"body-{at}")

    async def _record(self, request: web.Request) -> web.StreamResponse:
        at = self._place(request)
        return _download(await self._read(self._pages.record, at), f"record-{at}")

    async def _style(self, request: web.Request) -> web.StreamResponse:
        text = await asyncio.to_thread((_STATIC / "style.css").read_text, "utf-8")
        return web.Response(text=text, content_type="text/css")

    async def _no_icon(self, request: web.Request) -> web.StreamResponse:
        """Browsers ask for one whatever a page says."""
        return web.Response(status=204)

    # ---- findings ----

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        """Starts a check when it is asked to; a page that waits for one comes again by itself."""
        running = self._checking is not None and not self._checking.done()
        if "run" in request.query and not running:
            self._checking = asyncio.create_task(asyncio.to_thread(self._check))
            return _see("/verify")
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
            "verify.html", audit=audit, kinds=KINDS, marks=marks, width=_MAP_WIDTH, running=False
        )

    def _check(self) -> Audit:
        def tell(phase: str, done: int, total: int) -> None:
            self._progress = (done, total)

        return verify(self.path, self._conf, progress=tell, **self._given)


def _see(where: str) -> web.Response:
    """Sends the browser to another page of ours."""
    return web.Response(status=303, headers={"Location": where})


def _download(data: bytes, name: str) -> web.Response:
    """Bytes that no browser opens."""
    return web.Response(
        body=data, content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}.bin"'},
    )  # fmt: skip


def _map_of(audit: Audit) -> list[tuple[float, float, str, str]]:
    """Places of findings on the map of the log: from, width, severity, text."""
    length = max(1, audit.log_max - audit.log_min)
    marks = []
    for finding in audit.findings:
        if KINDS[finding.kind].where != "log" or finding.start is None:
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
