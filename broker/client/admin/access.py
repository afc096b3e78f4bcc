"""Users and policies of brokers of 5.x with access control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.client.admin.base import AdminBase
from broker.client.errors import Misuse, reading
from broker.wire import mqjson
from broker.wire.codes import RequestCode

__all__ = ["AccessAdmin", "AccessRight", "AccessUser"]


@dataclass(frozen=True, slots=True)
class AccessUser:
    """A user. superuser: may do everything. enabled: may do anything at all."""

    name: str
    superuser: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class AccessRight:
    """What a user may, or may not, do with a resource, such as ``Topic:orders`` or ``Group:*``.
    actions: Pub, Sub, Create, Update, Delete, Get, List or All. sources: addresses and networks;
    empty: from anywhere."""

    user: str
    resource: str
    actions: tuple[str, ...]
    allow: bool = True
    sources: tuple[str, ...] = ()


class AccessAdmin(AdminBase):
    """Users and their rights. Each broker keeps its own: changes go to every master."""

    async def users(self) -> list[AccessUser]:
        """Returns the users of the first master; passwords are not told. Raises: BrokerRefused from
        a broker without users, ClientError."""
        self.network.check()
        found = await self._list(RequestCode.AUTH_LIST_USERS)
        with reading("AUTH_LIST_USERS", "the broker"):
            return [
                AccessUser(
                    str(each["username"]), each.get("userType") == "Super",
                    each.get("userStatus", "enable") == "enable",
                )
                for each in sorted(found, key=lambda user: str(user["username"]))
            ]  # fmt: skip

    async def create_user(self, name: str, password: str, *, superuser: bool = False) -> None:
        """Makes a user. Raises: BrokerRefused for one that is there, ClientError."""
        kind = "Super" if superuser else "Normal"
        body = {"username": name, "password": password, "userType": kind, "userStatus": "enable"}
        await self._change(RequestCode.AUTH_CREATE_USER, {"username": name}, body)

    async def change_password(self, name: str, password: str) -> None:
        """Gives a user another password. Raises: BrokerRefused, ClientError."""
        body = {"username": name, "password": password}
        await self._change(RequestCode.AUTH_UPDATE_USER, {"username": name}, body)

    async def delete_user(self, name: str) -> None:
        """Deletes a user with its rights. Raises: BrokerRefused, ClientError."""
        await self._change(RequestCode.AUTH_DELETE_USER, {"username": name})

    async def rights(self, user: str | None = None) -> list[AccessRight]:
        """Returns the rights of all users, or of one, as the first master has them. Raises:
        BrokerRefused, ClientError."""
        self.network.check()
        found = []
        with reading("AUTH_LIST_ACL", "the broker"):
            for each in await self._list(RequestCode.AUTH_LIST_ACL):
                name = str(each["subject"]).removeprefix("User:")
                if user not in (None, name):
                    continue
                for policy in each.get("policies") or ():
                    found += [_right_of(name, entry) for entry in policy.get("entries") or ()]
        return sorted(found, key=lambda right: (right.user, right.resource))

    async def grant(self, right: AccessRight) -> None:
        """Gives a user a right, or takes it away (allow=False), in the place of the one on the same
        resource. Raises: Misuse without an action, BrokerRefused, ClientError."""
        if not right.actions:
            raise Misuse(f"the right on {right.resource} names no action; write Pub, Sub or All")
        entry: dict[str, object] = {
            "resource": right.resource, "actions": list(right.actions),
            "decision": "Allow" if right.allow else "Deny",
        }  # fmt: skip
        if right.sources:
            entry["sourceIps"] = list(right.sources)
        subject = f"User:{right.user}"
        body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": [entry]}]}
        await self._change(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, body)

    async def revoke(self, user: str, resource: str) -> None:
        """Removes the right of a user on a resource. Raises: BrokerRefused, ClientError."""
        fields = {"subject": f"User:{user}", "policyType": "Custom", "resource": resource}
        await self._change(RequestCode.AUTH_DELETE_ACL, fields)

    # ---- parts ----

    async def _list(self, code: RequestCode) -> Sequence[Mapping[str, Any]]:
        first = (await self._masters())[0]
        answer = await self.network.request(first, code)
        with reading(code.name, first):
            found = mqjson.loads(answer.body or b"[]")
            if not isinstance(found, list):
                raise ValueError("the body is not a list")
            return found

    async def _change(
        self, code: RequestCode, fields: Mapping[str, object], body: object = None
    ) -> None:
        self.network.check()
        data = mqjson.dumps(body) if body is not None else b""
        for address in await self._masters():
            await self.network.request(address, code, fields, data)


def _right_of(user: str, entry: Mapping[str, Any]) -> AccessRight:
    return AccessRight(
        user, str(entry["resource"]), tuple(map(str, entry.get("actions") or ())),
        str(entry.get("decision", "Allow")).lower() == "allow",
        tuple(map(str, entry.get("sourceIps") or ())),
    )  # fmt: skip
