"""The port of `pystore web`: who may ask, the headers of every answer, and how pages are made.

Whoever is on this machine can connect to its loopback, also those who may not read the files. So
every request needs a secret of this run, which the first address has, or which a visitor gets who
signs in; a cookie keeps it. The host that is asked for must be one of ours, so that a page
elsewhere cannot lead a browser here under a name of its own (DNS rebinding). What changes something
comes by POST, with a token that only our own forms have. There is no script.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from jinja2 import Environment, PackageLoader, StrictUndefined

from broker.loop.http_bounds import CONNECTIONS_MAX, HEAD_MAX, HEAD_S
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.web.drawing import WIDTH
from broker.web.records import text_of
from broker.web.rows import counted
from pystore import __version__
from pystore.cli.verbs import human_size, iso, printable
from pystore.errors import BadArgument, ExpressionIllegal, NotFound, RecordDamaged, StoreError

if TYPE_CHECKING:
    from broker.client.credentials import Credentials

__all__ = ["COOKIE", "HEADERS", "Handler", "PageServer", "download", "redirection"]

_T = TypeVar("_T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = SafeLogger("broker.web")
_quiet = RateLimitedLogger(log)
COOKIE = "pystore-web"
#: Strangers may see it, so that the page that refuses them is legible.
_STYLE_PATH = "/style.css"
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
_STATUS = ((NotFound, 404), (RecordDamaged, 404), (BadArgument, 400), (ExpressionIllegal, 400))
_NUMBER_MAX = (1 << 63) - 1
#: Of a form; and between two wrong secrets, of all visitors together.
_FORM_MAX, _PAUSE_S = 64 << 10, 0.5
_NAME_SHOWN = 300
#: The page that is asked for: what the navigation marks.
_here: ContextVar[str] = ContextVar("_here", default="")


def address_of_page(path: str, **query: object) -> str:
    """Returns the address of a page with a query; what is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _since(ms: int) -> str:
    """Returns how long ago something began: its two largest units."""
    minutes = max(0, ms) // 60_000
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def _ago(seconds: float) -> str:
    """Returns a span in the unit that fits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class _Complaints:
    """The log of aiohttp: a malformed request is whoever's that reaches the port, and no defect."""

    def debug(self, text: str, *arguments: object, **more: Any) -> None:
        pass

    def exception(self, text: str, *arguments: object, **more: Any) -> None:
        failed = more.get("exc_info")
        if isinstance(failed, HttpProcessingError):
            first = str(failed.message or failed).partition("\n")[0]
            _quiet.warning("malformed", "A malformed request was refused: %.200s", first)
        else:
            known = failed if isinstance(failed, BaseException) else None
            log.error("A request of `pystore web` failed", exc_info=known)

    warning = error = info = exception


class _OneTooMany(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
        _quiet.warning(
            "connections", "%d clients are connected to the pages; one more is refused",
            CONNECTIONS_MAX,
        )  # fmt: skip


class PageServer:
    """Serves pages. target: what they show. port: 0 takes a free one, which `port` names once it is
    started. credentials: a visitor signs in with them; None: the printed address lets in."""

    #: Path and name of what the navigation shows.
    menu: tuple[tuple[str, str], ...] = ()

    def __init__(
        self, target: str, host: str, port: int, credentials: Credentials | None = None
    ) -> None:
        self.target, self.host, self.port = target, host, port
        self.token = secrets.token_urlsafe(24)
        self._credentials = credentials
        #: What every form has that changes something.
        self.form_token = hmac.digest(self.token.encode(), b"form", hashlib.sha256).hex()
        self._signing_in = asyncio.Lock()
        #: Reads are one after the other: a reader is one thread's.
        self._reading = ThreadPoolExecutor(1, "pystore-web")
        self._templates = Environment(
            loader=PackageLoader("broker.web"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {
            "visible": lambda text: printable(str(text), keep="\n\t"), "iso": iso,
            "safe_text": text_of,
            "name": lambda text: text_of(str(text), _NAME_SHOWN),
            "bytes": human_size,
            "count": lambda n: "-" if n is None else n if isinstance(n, str) else f"{n:,}",
            "since": _since, "ago": _ago, "of": counted,
            "rate": lambda n: "-" if n is None else f"{n:,.0f}" if n >= 100 else f"{n:,.1f}",
            "clock": lambda ms: iso(ms)[11:19],
        }  # fmt: skip
        self._templates.globals |= {
            "to": address_of_page, "width": int(WIDTH), "menu": self.menu,
            "form_token": self.form_token, "write": False, "version": __version__,
        }  # fmt: skip
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """The first address, with the secret unless visitors sign in."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        secret = "" if self._credentials is not None else f"?token={self.token}"
        return f"http://{host}:{self.port}/{secret}"

    @property
    def cookie(self) -> str:
        """Browsers keep cookies by host, whatever the port: each port has a name of its own."""
        return f"{COOKIE}-{self.port}"

    def routes(self) -> Mapping[str, Handler]:
        """Pages by path."""
        raise NotImplementedError

    def actions(self) -> Mapping[str, Handler]:
        """Returns what forms do, by path."""
        return {}

    # ---- life ----

    async def start(self) -> None:
        """Starts serving. Raises: OSError, StoreError."""
        app = web.Application(middlewares=[self._secured], client_max_size=_FORM_MAX)
        for path, handler in self.routes().items():
            app.router.add_get(path, handler)
        for path, handler in self.actions().items():
            app.router.add_post(path, handler)
        app.router.add_get(_STYLE_PATH, self._style)
        app.router.add_get("/favicon.ico", self._no_icon)
        # A half request is closed as a connection is that nobody uses.
        self._runner = web.AppRunner(
            app, access_log=None, logger=_Complaints(), keepalive_timeout=HEAD_S,
            max_line_size=HEAD_MAX, max_field_size=HEAD_MAX,
        )  # fmt: skip
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(
            self._connection, self.host, self.port, backlog=CONNECTIONS_MAX
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _connection(self) -> asyncio.BaseProtocol:
        assert self._runner is not None and self._runner.server is not None
        server = self._runner.server
        return server() if len(server.connections) < CONNECTIONS_MAX else _OneTooMany()

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._reading.shutdown(wait=False, cancel_futures=True)

    async def _read(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, *arguments)

    # ---- who may ask ----

    @web.middleware
    async def _secured(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        answer: web.StreamResponse
        _here.set(request.path)
        posts = {*self.actions(), *(("/sign-in",) if self._credentials is not None else ())}
        if request.method not in ("GET", "HEAD") and not (
            request.method == "POST" and request.path in posts
        ):
            answer = self._refusal(405, "only GET and HEAD are served")
        elif not self._is_ours(request.host):
            answer = self._refusal(403, "this server has another name")
        elif request.method == "POST" and not self._from_here(request):
            answer = self._refusal(403, "the form came from another site")
        elif request.method == "POST" and request.path == "/sign-in":
            answer = await self._sign_in(request)
        elif self._credentials is None and self._is_known(request.query.get("token", "")):
            answer = self._let_in()
        elif request.path != _STYLE_PATH and not self._is_let_in(request):
            answer = self._entrance("")
        elif request.method == "POST" and not await self._has_token(request):
            answer = self._refusal(403, "the form is not of this run; load its page again")
        else:
            answer = await self._answered(request, handler)
        for name, value in HEADERS.items():
            answer.headers[name] = value
        return answer

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as found:
            return self._refusal(found.status, found.reason)
        except StoreError as failed:
            status = next((code for kind, code in _STATUS if isinstance(failed, kind)), 500)
            return self._refusal(status, f"{failed.text}. {failed.next_step}")
        except Exception as failed:
            known = self._explained(failed)
            if known is not None:
                return self._refusal(*known)
            log.exception("The page %s failed", request.path)
            return self._refusal(500, "this page failed; the log of `pystore web` says why")

    def _explained(self, failed: Exception) -> tuple[int, str] | None:
        """Status and text of an error that subclasses know; None: it is a defect."""
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in ("localhost", self.host.lower()):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    @staticmethod
    def _from_here(request: web.Request) -> bool:
        """Returns whether the browser says that one of our own pages sent the form. Pages without a
        referrer send the origin `null`; then the other header decides."""
        origin = request.headers.get("Origin", "null")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        return site == "same-origin" and origin in ("null", f"{request.scheme}://{request.host}")

    def _is_known(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def _is_let_in(self, request: web.Request) -> bool:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._is_known(request.cookies.get(self.cookie, "")) or self._is_known(bearer)

    async def _has_token(self, request: web.Request) -> bool:
        given = str((await request.post()).get("token", ""))
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.form_token.encode())

    def _let_in(self) -> web.Response:
        answer = redirection("/")
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="Strict", path="/")
        return answer

    async def _sign_in(self, request: web.Request) -> web.Response:
        """Attempts take turns, so that nobody can try many."""
        right = self._credentials
        assert right is not None
        try:
            async with asyncio.timeout(HEAD_S):
                form = await request.post()
        except TimeoutError:
            return self._refusal(408, "the form did not come in time")
        async with self._signing_in:
            same = [
                hmac.compare_digest(str(form.get(name, "")).encode("utf-8", "replace"), known)
                for name, known in (
                    ("user", right.access_key.encode()), ("secret", right.secret_key.encode()),
                )
            ]  # fmt: skip
            if all(same):
                return self._let_in()
            await asyncio.sleep(_PAUSE_S)
        return self._entrance("User and secret do not fit.")

    # ---- answers ----

    def _page(self, template: str, /, status: int = 200, **shown: Any) -> web.Response:
        text = self._templates.get_template(template).render(
            path=self.target, here_page=_here.get(), **shown
        )
        return web.Response(text=text, status=status, content_type="text/html")

    def _refusal(self, status: int, text: str) -> web.Response:
        return self._page("problem.html", status, code=status, text=text)

    def _entrance(self, wrong: str) -> web.Response:
        if self._credentials is None:
            return self._refusal(403, "use the address that `pystore web` has printed")
        return self._page("entrance.html", 403, wrong=wrong)

    @staticmethod
    def _number(request: web.Request, name: str, default: int | None = None) -> int | None:
        """Returns the number of a field. Raises: BadArgument."""
        text = request.query.get(name, "").strip()
        if not text:
            return default
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > _NUMBER_MAX:
            raise BadArgument(f"{name} is not a number")
        return int(text)

    def _page_of(self, request: web.Request) -> int:
        """Returns which page of a list is asked for. Raises: BadArgument."""
        return self._number(request, "page", 1) or 1

    @staticmethod
    def _again(counting: bool, answer: web.Response) -> web.Response:
        """Returns a page that comes again by itself while something of it is being counted."""
        if counting:
            answer.headers["Refresh"] = "1"
        return answer

    async def _style(self, request: web.Request) -> web.StreamResponse:
        text = await asyncio.to_thread((_STATIC / "style.css").read_text, "utf-8")
        return web.Response(text=text, content_type="text/css")

    async def _no_icon(self, request: web.Request) -> web.StreamResponse:
        """Answers that there is no icon: browsers ask for one whatever a page says."""
        return web.Response(status=204)


def redirection(where: str) -> web.Response:
    """Sends the browser to another page of ours."""
    return web.Response(status=303, headers={"Location": where})


def download(data: bytes, name: str) -> web.Response:
    """Returns bytes as an answer that no browser opens."""
    return web.Response(
        body=data, content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}.bin"'},
    )  # fmt: skip
