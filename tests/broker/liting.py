"""A broker with lite topics, and a raw client of it."""

from __future__ import annotations

from contextlib import asynccontextmanager

from popping import popping, records

from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig
from pystore.store.light_queues import names_in

__all__ = ["GROUP", "PARENT", "lite_broker"]

PARENT, GROUP = "L", "g"


class Lite:
    def __init__(self, p, parent):
        self.p, self.parent = p, parent
        self.lite = p.broker.services.lite

    def topic(self, expiration=-1):
        self.p.broker.services.topics.update(
            TopicConfig(self.parent, 4, 4),
            f"+message.type=LITE,+lite.topic.expiration={expiration}",
        )

    def group(self, name=GROUP, parent=None, **attributes):
        said = {"+lite.bind.topic": parent or self.parent}
        said |= {f"+lite.sub.{k.replace('_', '.')}": v for k, v in attributes.items()}
        self.p.broker.services.groups.update(SubscriptionGroup(name, attributes=said))

    async def send(self, name, *bodies, **more):
        for body in bodies:
            given = {"__LITE_TOPIC": name} | more
            answer = await self.p.send(body.encode(), topic=self.parent, **given)
            assert answer.code == 0, answer.remark

    async def ctl(self, action, *names, client="c", group=GROUP, option=None, version=0):
        row = {
            "action": action, "clientId": client, "group": group, "topic": self.parent,
            "liteTopicSet": list(names), "offsetOption": option, "version": version,
        }  # fmt: skip
        return await self.p.ask(
            Code.LITE_SUBSCRIPTION_CTL, mqjson.dumps({"subscriptionSet": [row]})
        )

    async def add(self, *names, **more):
        answer = await self.ctl("PARTIAL_ADD", *names, **more)
        assert answer.code == 0, answer.remark

    async def pop(self, client="c", group=GROUP, most=32, invisible=60_000, poll=0, **more):
        return await self.p.ask(
            Code.POP_LITE_MESSAGE, clientId=client, consumerGroup=group, topic=self.parent,
            maxMsgNum=most, invisibleTime=invisible, pollTime=poll, **more,
        )  # fmt: skip

    async def bodies(self, **more):
        """(lite topic, body) of each message of one pop."""
        answer = await self.pop(**more)
        return [(said["__LITE_TOPIC"], body.decode()) for _, body, said, *_ in records(answer.body)]

    async def some(self, **more):
        """The same, as soon as there is something."""
        return await self.bodies(poll=60_000, **more)

    async def ack(self, name, offset, answer, group=GROUP, **more):
        handle = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} 999 0 b 0 {offset}"
        given = {"liteTopic": name, "extraInfo": handle} | more
        return await self.p.ask(
            Code.ACK_MESSAGE,
            consumerGroup=group,
            topic=self.parent,
            queueId=0,
            offset=offset,
            **given,
        )

    async def change(self, name, offset, answer, invisible, **more):
        handle = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} 999 0 b 0 {offset}"
        given = {"liteTopic": name, "extraInfo": handle} | more
        return await self.p.ask(
            Code.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup=GROUP, topic=self.parent, queueId=0,
            offset=offset, invisibleTime=invisible, **given,
        )  # fmt: skip

    async def queues(self, client="c", group=GROUP):
        return [each async for some in self.lite.registry.queues(group, client)
                for each in names_in(some)]  # fmt: skip

    def committed(self, name, group=GROUP):
        return self.p.broker.services.offsets.get(group, f"%LMQ%${self.parent}${name}", 0)

    def shift(self, ms):
        self.p.shift(ms)
        self.lite.look()


@asynccontextmanager
async def lite_broker(path, expiration=-1, parent=PARENT, **settings):
    async with popping(path, **settings) as p:
        made = Lite(p, parent)
        made.topic(expiration)
        made.group()
        yield made
