"""Lite topics: what brokers say of them, and delivery begun by hand. As mqadmin's sub-commands of
5.5.0, whose requests these are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from broker.client.admin.base import AdminBase
from broker.client.admin.lite_facts import (
    LiteBrokerFacts,
    LiteClientFacts,
    LiteGroupFacts,
    LiteParentFacts,
    LiteTopicFacts,
    lite_broker_facts,
    lite_client_facts,
    lite_group_facts,
    lite_parent_facts,
    lite_topic_facts,
)
from broker.client.errors import reading
from broker.wire.codes import RequestCode

__all__ = ["LiteAdmin"]

_T = TypeVar("_T")


class LiteAdmin(AdminBase):
    """Lite topics of brokers of 5.5 and ours."""

    async def lite_brokers(self, address: str | None = None) -> list[LiteBrokerFacts]:
        """Returns what each master says of its lite topics. address: this broker alone. Raises:
        BrokerRefused from one that has none, ClientError."""
        self.network.check()
        asked = await self._masters() if address is None else [address]
        code = RequestCode.GET_BROKER_LITE_INFO
        return self._read_all(await self._of_all(asked, code, {}), code,
                              lite_broker_facts)  # fmt: skip

    async def lite_parent(self, topic: str) -> list[LiteParentFacts]:
        """Returns a topic of type LITE as each of its brokers has it. Raises: NoRoute,
        BrokerRefused for a topic of another type, ClientError."""
        return await self._lite(
            topic, RequestCode.GET_PARENT_TOPIC_INFO, {"topic": topic}, lite_parent_facts
        )

    async def lite_topic(self, topic: str, lite_topic: str) -> list[LiteTopicFacts]:
        """Returns a lite topic as each broker of `topic` has it; one that is not there has no
        messages. Raises: NoRoute, BrokerRefused, ClientError."""
        return await self._lite(
            topic, RequestCode.GET_LITE_TOPIC_INFO,
            {"parentTopic": topic, "liteTopic": lite_topic}, lite_topic_facts,
        )  # fmt: skip

    async def lite_client(
        self, topic: str, group: str, client_id: str, *, most: int = 1000
    ) -> list[LiteClientFacts]:
        """Returns what a client subscribes to at each broker of `topic`. most: names, 10,000 at
        most. Raises: NoRoute, BrokerRefused, ClientError."""
        fields = {"parentTopic": topic, "group": group, "clientId": client_id, "maxCount": most}
        return await self._lite(topic, RequestCode.GET_LITE_CLIENT_INFO, fields, lite_client_facts)

    async def lite_group(
        self, topic: str, group: str, lite_topic: str | None = None, *, most: int = 20
    ) -> list[LiteGroupFacts]:
        """Returns how far a group is behind at each broker of `topic`: in all, with the `most` lite
        topics in which it is behind most; or in one lite topic. Raises: NoRoute, BrokerRefused,
        ClientError."""
        fields = {"group": group, "liteTopic": lite_topic, "topK": most}
        return await self._lite(topic, RequestCode.GET_LITE_GROUP_INFO, fields, lite_group_facts)

    async def lite_dispatch(
        self, topic: str, group: str, client_id: str | None = None
    ) -> list[str]:
        """Has each broker of `topic` look at once for lite topics in which the group, or one of its
        clients, has something to read; returns their addresses. Brokers of this project look by
        themselves. Raises: NoRoute, BrokerRefused, ClientError."""
        self.network.check()
        where = await self._brokers_of(topic)
        fields = {"group": group, "clientId": client_id}
        for address in where:
            await self.network.request(address, RequestCode.TRIGGER_LITE_DISPATCH, fields)
        return where

    async def _lite(
        self,
        topic: str,
        code: RequestCode,
        fields: Mapping[str, object],
        read: Callable[[str, Mapping[str, Any]], _T],
    ) -> list[_T]:
        self.network.check()
        answers = await self._of_all(await self._brokers_of(topic), code, fields)
        return self._read_all(answers, code, read)

    @staticmethod
    def _read_all(
        answers: list[tuple[str, dict[Any, Any]]],
        code: RequestCode,
        read: Callable[[str, Mapping[str, Any]], _T],
    ) -> list[_T]:
        found = []
        for address, body in answers:
            with reading(code.name, address):
                found.append(read(address, body))
        return found
