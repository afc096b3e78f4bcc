"""What visitors of a running cluster may change: dead letters that are sent again, offsets of
groups, settings of brokers.

Each is a form that says first what it would do. It is there only where the start allowed it
(--write), comes by POST with the token of this run, and reaches brokers with the credentials of the
visitor, whose rights they check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from broker.client.admin import BrokerPlace, OffsetMove
from broker.client.errors import Misuse
from broker.web.page_server import Handler, PageServer
from pystore.cli.verbs import parse_time
from pystore.settings import SECRETS

if TYPE_CHECKING:
    from broker.client.admin.offsets import Target
    from broker.client.credentials import Credentials
    from broker.web.cluster_facts import ClusterFacts

__all__ = ["ClusterActions", "is_secret"]

_SEARCHES = 4
#: Dead letters that one form sends at most, and letters of a setting's value.
_REDRIVE_MAX, _VALUE_MAX = 10_000, 4096
#: Parts of the names of settings whose values nobody is shown. Apache's brokers answer all of them.
_SECRET_PARTS = ("password", "secret", "credential", "accesskey")


def is_secret(setting: str) -> bool:
    """Returns whether the value of a setting must not be on a page."""
    return setting in SECRETS or any(part in setting.lower() for part in _SECRET_PARTS)


class ClusterActions(PageServer):
    """The forms, and what they do. write: whether they do it."""

    def __init__(
        self, target: str, host: str, port: int, credentials: Credentials | None, *, write: bool
    ) -> None:
        super().__init__(target, host, port, credentials)
        self._facts: ClusterFacts | None = None
        #: Of every client of the cluster's.
        self._options: dict[str, Any] = {}
        self._write = write
        #: One change after the other.
        self._changing = asyncio.Lock()
        #: Searches of messages that go on at once, of all visitors together.
        self._searching = asyncio.Semaphore(_SEARCHES)
        self._templates.globals |= {"write": write}

    @property
    def facts(self) -> ClusterFacts:
        assert self._facts is not None
        return self._facts

    def routes(self) -> Mapping[str, Handler]:
        return {
            "/redrive": self._redrive_form, "/reset": self._reset_form,
            "/setting": self._setting_form,
        }  # fmt: skip

    def changes(self) -> Mapping[str, Handler]:
        """Returns what forms change, by path."""
        return {"/redrive": self._redrive, "/reset": self._reset, "/setting": self._set}

    def actions(self) -> Mapping[str, Handler]:
        return self.changes() if self._write else {}

    def _must_write(self, what: str) -> None:
        """Checks that forms may change things. Raises: Misuse."""
        if not self._write:
            raise Misuse(f"start `pystore web` with --write to {what}")

    @staticmethod
    async def _fields(request: web.Request, *names: str) -> list[str]:
        """Returns the fields of a form."""
        form = await request.post()
        return [str(form.get(name, "")).strip() for name in names]

    @staticmethod
    def _whole_number(text: str, what: str, least: int, most: int) -> int:
        """Returns the number of a field. Raises: Misuse."""
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(text) < 12):
            raise Misuse(f"{what}: this is not a number")
        if not least <= int(text) <= most:
            raise Misuse(f"{what}: from {least} to {most:,}")
        return int(text)

    # ---- dead letters ----

    async def _redrive_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("redrive")
        group = request.query.get("group", "")
        return self._page("redrive.html", group=group, report=None, to_="retry", key="", dry=False)

    async def _redrive(self, request: web.Request) -> web.StreamResponse:
        """Sends dead letters again, or says what would be sent; one form after the other."""
        group, to, key, do = await self._fields(request, "group", "to", "key", "do")
        dry = do != "send"
        if to not in ("retry", "topic"):
            raise Misuse("dead letters go to the group (retry), or to their topic (topic)")
        wanted = (lambda letter: key in letter.keys) if key else None
        async with self._changing:
            report = await self.facts.admin.redrive(
                group, to=to, wanted=wanted, most=_REDRIVE_MAX, dry_run=dry
            )
        return self._page("redrive.html", group=group, report=report, to_=to, key=key, dry=dry)

    # ---- offsets ----

    async def _reset_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("move offsets")
        group, topic = (request.query.get(name, "") for name in ("group", "topic"))
        await self.facts.check_group(group)
        return self._reset_page(group, topic, "last", "", "", None, False)

    def _reset_page(
        self, group: str, topic: str, to: str, time: str, queue: str,
        moves: list[OffsetMove] | None, dry: bool,
    ) -> web.Response:  # fmt: skip
        return self._page(
            "reset.html", group=group, topic=topic, target=to, time=time, queue=queue, moves=moves,
            dry=dry,
        )  # fmt: skip

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        """Moves a group to another place of a topic, or says where it would be."""
        group, topic, to, time, queue, do = await self._fields(
            request, "group", "topic", "to", "time", "queue", "do"
        )
        await self.facts.check_group(group)
        target: Target
        if to in ("first", "last"):
            target = "first" if to == "first" else "last"
        elif to == "time" and time:
            target = parse_time(time, "time")
        else:
            raise Misuse("a group moves to the first message, the end, or a time")
        if queue and not (queue.isascii() and queue.isdigit() and len(queue) < 7):
            raise Misuse("the queue is not a number")
        async with self._changing:
            moves = await self.facts.admin.reset_offsets(
                group, topic, target, queue=int(queue) if queue else None, dry_run=do != "move"
            )
            self.facts.forget_lags()
        return self._reset_page(group, topic, to, time, queue, moves, do != "move")

    # ---- settings ----

    async def _place(self, address: str) -> BrokerPlace:
        """Returns the broker that a form names. Raises: Misuse for a broker that is not of this
        cluster, ClientError."""
        for each in await self.facts.places.get():
            if each.address == address:
                return each
        raise Misuse(f"no broker of this cluster has the address {address!r:.100}")

    async def _setting_form(self, request: web.Request) -> web.StreamResponse:
        self._must_write("change settings")
        address, name = (request.query.get(name, "") for name in ("address", "name"))
        return await self._setting_page(address, name, None, asks=False)

    async def _setting_page(
        self, address: str, name: str, wanted: str | None, *, asks: bool
    ) -> web.StreamResponse:
        """Returns the page of a setting. wanted: the value that was asked for, beside what the
        broker has now. asks: it is shown before the change is done."""
        place = await self._place(address)
        settings = await self.facts.admin.configuration(place.address)
        if name not in settings or is_secret(name):
            raise Misuse(f"the broker has no setting {name!r:.100} that can be changed here")
        return self._page(
            "setting.html", place=place, name=name, value=settings[name], wanted=wanted,
            length=_VALUE_MAX, asks=asks,
        )  # fmt: skip

    async def _set(self, request: web.Request) -> web.StreamResponse:
        """Changes one setting of a running broker, and shows what it has then: Apache's broker
        says nothing of a value that it does not take."""
        address, name, value, do = await self._fields(request, "address", "name", "value", "do")
        if len(value) > _VALUE_MAX:
            raise Misuse(f"the value is longer than {_VALUE_MAX} characters")
        page = await self._setting_page(address, name, value, asks=True)  # it may be changed
        if do != "change":
            return page
        async with self._changing:
            await self.facts.admin.configure({name: value}, address)
        return await self._setting_page(address, name, value, asks=False)
