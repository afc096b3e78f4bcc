"""Who uses a running cluster: connected clients, the way of one message among them, and users with
their rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from broker.client.admin import AccessRight
from broker.client.admin.facts import ConnectedClient, GroupMembers
from broker.client.errors import BrokerRefused, ClientError, Misuse, NoRoute
from broker.client.options import INNER_PRODUCER
from broker.services.names import is_system_group
from broker.web.cluster_topics import ClusterTopics
from broker.web.page_server import Handler
from broker.web.rows import RowPage, paged

__all__ = ["ClusterPeople"]

#: Letters of a field of a form.
_FIELD_MAX = 500
#: What a form may do with users and rights, and what the page calls it.
_DOES = {
    "create": "create the user", "delete": "delete the user, with its rights,",
    "grant": "set this right", "revoke": "remove the right on this resource",
}  # fmt: skip


class ClusterPeople(ClusterTopics):
    """The pages of clients and users."""

    def routes(self) -> Mapping[str, Handler]:
        return {
            **super().routes(), "/clients": self._clients, "/trace": self._trace,
            "/users": self._users,
        }  # fmt: skip

    def changes(self) -> Mapping[str, Handler]:
        return {**super().changes(), "/users": self._change_users}

    async def _clients(self, request: web.Request) -> web.StreamResponse:
        """Producers and consumers that brokers hear. Groups are asked for a page at a time, one
        request each."""
        query, trouble = dict(request.query), ""
        producers: dict[str, list[ConnectedClient]] = {}
        try:
            producers = await self.facts.producers.get()
        except BrokerRefused as refused:
            trouble = str(refused)
        wanted = query.get("q", "")
        rows = [
            (group, each)
            for group, found in producers.items()
            if group != INNER_PRODUCER
            for each in found
        ]
        sending = paged(rows, self._page_of(request), wanted=wanted, text=_text_of)
        names = sorted(await self.facts.configs.get())
        groups: RowPage[str] = paged(
            [name for name in names if not is_system_group(name)], self._page_of(request),
            wanted=wanted,
        )  # fmt: skip
        known = await asyncio.gather(*map(self._members, groups.rows))
        return self._page(
            "clients.html", sending=sending, groups=groups, query=query, trouble=trouble,
            members=[each for each in known if each is not None],
        )  # fmt: skip

    async def _members(self, group: str) -> GroupMembers | None:
        """Returns the members of a group; nobody, where the group may not be asked for."""
        try:
            (found,) = await self.facts.members_of.of(group).get()
            return found
        except ClientError:
            return None

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        """Returns the way of a message, as far as clients trace it."""
        id_, trouble = request.query.get("id", "").strip(), ""
        steps = None
        if len(id_) > _FIELD_MAX:
            raise Misuse("this is not the id of a message")
        if id_:
            try:
                steps = await self.facts.admin.trace(id_)
            except NoRoute:
                trouble = "Nobody has traced a message here: clients do it when they are told to."
        return self._page("trace.html", id=id_, steps=steps, trouble=trouble)

    # ---- users and rights ----

    async def _users(self, request: web.Request) -> web.StreamResponse:
        return await self._users_page({}, said="", asks=False)

    async def _users_page(
        self, given: Mapping[str, str], *, said: str, asks: bool
    ) -> web.StreamResponse:
        """Returns the page of users. given: the form that is asked about, without its password. A
        broker without access control refuses the question, and says so."""
        trouble = ""
        users, rights = [], []
        try:
            users = await self.facts.admin.users()
            rights = await self.facts.admin.rights()
        except BrokerRefused as refused:
            trouble = str(refused)
        return self._page(
            "users.html", users=users[:1000], rights=rights[:1000], trouble=trouble, given=given,
            said=said, asks=asks,
        )  # fmt: skip

    async def _change_users(self, request: web.Request) -> web.StreamResponse:
        names = (
            "what", "user", "password", "superuser", "resource", "actions", "decision", "sources",
            "do",
        )  # fmt: skip
        given = dict(zip(names, await self._fields(request, *names), strict=True))
        what, user = given["what"], given["user"]
        if what not in _DOES or not user or max(map(len, given.values())) > _FIELD_MAX:
            raise Misuse("name a user and an action")
        if what == "create" and not given["password"]:
            raise Misuse("a user needs a password")
        right = AccessRight(
            user, given["resource"], tuple(_words(given["actions"])), given["decision"] != "deny",
            tuple(_words(given["sources"])),
        )  # fmt: skip
        if what in ("grant", "revoke") and not right.resource:
            raise Misuse("name a resource, such as Topic:orders or Group:*")
        if given["do"] != "change":
            return await self._users_page(given, said=f"This will {_DOES[what]}.", asks=True)
        async with self._changing:
            if what == "create":
                super_ = bool(given["superuser"])
                await self.facts.admin.create_user(user, given["password"], superuser=super_)
            elif what == "delete":
                await self.facts.admin.delete_user(user)
            elif what == "grant":
                await self.facts.admin.grant(right)
            else:
                await self.facts.admin.revoke(user, right.resource)
        return await self._users_page({}, said="It is done, at every master.", asks=False)


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _text_of(row: tuple[str, ConnectedClient]) -> str:
    return f"{row[0]} {row[1].id} {row[1].address}"
