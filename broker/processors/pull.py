"""PULL_MESSAGE and LITE_PULL_MESSAGE (11, 361) that the core has handed on: the checks in
upstream's order (docs/internals/wire.md#pull), then what was missing is published and the core
reads."""

from __future__ import annotations

from broker.hot.core import PullOutcome
from broker.processors.lite_pull import LightPulls, light_queue
from broker.processors.refusals import illegal_queue
from broker.processors.subscriptions import check_expression
from broker.services.clients import BROADCASTING, Subscription
from broker.services.context import Services
from broker.services.hooks import ConsumeContext
from broker.services.lite.names import topic_below
from broker.services.topics import READ
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result, host_text
from pystore.format.names import LIGHT_PREFIX
from pystore.meta.configfiles import SubscriptionGroup

__all__ = ["PullProcessor", "waited"]

#: Of a pull's sysFlag: it brings its own subscription.
OWN = 4
#: In a peer's state: contexts of hooks by the opaque of a pull that waits.
_WAITING = "pulls of hooks"


def waited(s: Services, peer: Peer, pulled: PullOutcome) -> None:
    """Calls the hooks when a held pull was answered."""
    context = peer.state.get(_WAITING, {}).pop(pulled.opaque, None)
    if context is not None:
        _after(s, context, pulled)


def _after(s: Services, context: ConsumeContext, pulled: PullOutcome) -> None:
    context.count, context.size = pulled.messages, pulled.size
    context.success = pulled.code == ResponseCode.SUCCESS
    if context.success:
        context.status = "RCV_SUCCESS"
    s.consume_hooks.after(context)


class PullProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s
        self._lights = LightPulls(s)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, peer: Peer, command: Command) -> Result:
        group = self._check_group(command)
        topic, light = command.text("topic"), light_queue(command)
        parent = topic_below(topic)
        if not parent.startswith(LIGHT_PREFIX):
            self._check_topic(command, parent, group.name)
        own = command.number("sysFlag", 0) & OWN
        try:
            if own:
                sub = self._own_subscription(command, topic)
            else:
                sub = self._group_subscription(command, group, topic)
        except Refused as refused:
            return self._answer(command, refused)
        if light:
            return self._pull_light(peer, command, group.name, light, sub)
        if own:
            self.s.clients.publish_own(group.name, topic)
        else:
            self.s.clients.publish(group.name, topic)
        context = self._context(peer, command, group.name, topic)
        if context is not None:
            self.s.consume_hooks.before(context)
        if peer.serve_raw(command):
            if context is not None:
                self._served(peer, command, context)
            return None
        for name in ("queueId", "queueOffset", "maxMsgNums"):
            command.number(name)  # names what is missing
        raise Refused(ResponseCode.SYSTEM_ERROR, "the pull request has an invalid field")

    async def _pull_light(
        self, peer: Peer, command: Command, group: str, queue: str, sub: Subscription
    ) -> Command:
        if command.number("queueId"):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{command.number('queueId')}] is illegal: a light queue is queue 0",
            )
        context = self._context(peer, command, group, command.text("topic"))
        if context is not None:
            self.s.consume_hooks.before(context)
        answer, count = await self._lights.pull(command, group, queue, sub)
        if context is not None:
            size = len(answer.body)
            _after(self.s, context, PullOutcome(command.opaque, answer.code, count, size))
        return answer

    # ---- hooks ----

    def _context(
        self, peer: Peer, command: Command, group: str, topic: str
    ) -> ConsumeContext | None:
        if not self.s.consume_hooks:
            return None
        queue = command.number("queueId")
        return ConsumeContext(group, topic, queue, host_text(peer), count=0, status="RCV_EPOLLS")

    def _served(self, peer: Peer, command: Command, context: ConsumeContext) -> None:
        pulled = self.s.core.last_pull
        if pulled is None:
            peer.state.setdefault(_WAITING, {})[command.opaque] = context
        else:
            _after(self.s, context, pulled)

    @staticmethod
    def _answer(command: Command, refused: Refused) -> Command:
        return command.reply(refused.code, refused.remark)

    def _check_group(self, command: Command) -> SubscriptionGroup:
        s = self.s
        if not s.settings["brokerPermission"] & READ:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{s.host}] pulling message is forbidden"
            )
        if (
            command.code == RequestCode.LITE_PULL_MESSAGE
            and not s.settings["litePullMessageEnable"]
        ):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{s.host}] for lite pull consumer is forbidden",
            )
        group = s.groups.found(command.text("consumerGroup"))
        if not group.consume_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}"
            )
        return group

    def _check_topic(self, command: Command, topic: str, group: str) -> None:
        config = self.s.topics.found(topic)
        if not config.perm & READ:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden"
            )
        queue = command.number("queueId")
        if not 0 <= queue < config.read_queue_nums:
            raise illegal_queue(ResponseCode.INVALID_PARAMETER, config, queue, group)

    # ---- subscriptions ----

    def _own_subscription(self, command: Command, topic: str) -> Subscription:
        """Checks the subscription that the pull itself carries. Raises: Refused."""
        kind = command.text("expressionType", "TAG")
        expression = command.text("subscription", "")
        check_expression(self.s, kind, expression)
        return Subscription(topic, expression, kind=kind)

    def _group_subscription(
        self, command: Command, config: SubscriptionGroup, topic: str
    ) -> Subscription:
        """Checks the subscription that the group said by heartbeat, on which the pull relies.
        Raises: Refused."""
        group = self.s.clients.consumers.get(config.name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {config.name} has sent no heartbeat yet",
            )
        if not config.consume_broadcast_enable and group.message_model == BROADCASTING:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.name}] can not consume by broadcast way",
            )
        if self.s.groups.is_forbidden(group.name, topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.name}] is forbidden for topic[{topic}]",
            )
        found: Subscription | None = group.subscriptions.get(topic)
        if found is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {group.name} does not include {topic}",
            )
        if found.version < command.number("subVersion", 0):
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                "the consumer's subscription not latest: a newer heartbeat is on its way",
            )
        check_expression(self.s, found.kind, found.expression)
        return found
