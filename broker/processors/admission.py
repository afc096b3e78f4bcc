"""Whether a send is let in, and what becomes of it: the checks in upstream's order, then one
PutDecision, which the C core carries out (docs/internals/send-path.md).

docs/internals/wire.md#sending, docs/internals/services.md#retries. The core's tables admit plain
sends by themselves; here come first sends to a topic, retries, messages without an id, and
every refusal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from broker.services.context import Services
from broker.services.lite.lite_topics import is_lite
from broker.services.lite.names import name_problem, queue_of, queues_below
from broker.services.names import NOT_FOR_CLIENTS, check_topic
from broker.services.topics import UNIT, UNIT_SUB, WRITE
from broker.services.uniq_ids import UniqIds
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.decision import AskedSend, PutDecision
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, REVIVE_PREFIX
from pystore.format.properties import LITE_TOPIC, MULTI_DISPATCH, parse_properties
from pystore.meta.configfiles import TopicConfig

__all__ = ["V3_4_9", "Admission", "SendRequest"]

#: MQVersion.V3_4_9: clients from it on say how often a message is tried again.
V3_4_9 = 121
#: Field of version 1 of the header, by letter of version 2.
_LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
}
_VERSION_1 = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A send, in whichever version of the header. `asked` has its numbers, and what it asks for."""

    command: Command
    asked: AskedSend

    def field(self, letter: str) -> str | None:
        """Returns a field by its letter of version 2."""
        name = _LONG_NAMES[letter] if self.command.code in _VERSION_1 else letter
        return self.command.ext.get(name)

    @property
    def group(self) -> str:
        return self.field("a") or ""

    @property
    def topic(self) -> str:
        """Returns the topic; a blank one is refused later, with the code of a bad topic."""
        return self.field("b") or ""

    @property
    def template(self) -> str:
        return self.field("c") or ""

    def properties(self) -> dict[str, str]:
        """Returns the properties, which are made with each call."""
        return parse_properties((self.field("i") or "").encode())

    def refuse_unreadable(self) -> None:
        """Checks the fields. Raises: Refused for one that is missing or not a number."""
        bad = self.asked.bad
        if not bad:
            return
        value, code = self.field(bad), self.command.code
        name = _LONG_NAMES[bad] if code in _VERSION_1 else bad
        if not value:
            problem = f"request {code} lacks the field {name}"
        elif value.lstrip("-").isdecimal() and bad != "g":
            problem = f"the field {name} of request {code} is beyond 32 bits: {value:.40}"
        else:
            problem = f"the field {name} of request {code} is not a number: {value:.40}"
        raise Refused(ResponseCode.SYSTEM_ERROR, problem)


class Admission:
    """Decides which sends a broker accepts. It raises Refused for the others."""

    def __init__(self, s: Services) -> None:
        self.s = s
        self._ids = UniqIds(s.settings.store_host[:-4])

    def decide(self, request: SendRequest) -> PutDecision:
        """Decides what becomes of a send. Raises: Refused."""
        config = self.check(request)
        asked = request.asked
        decision = PutDecision()
        if asked.queues:
            self._check_lite(request, config)
        if asked.batch:
            return decision
        if request.topic.startswith(RETRY_PREFIX):
            self._redirect(request, decision)
        if asked.is_half(decision.level):
            self._check_half()
        self.identify(asked, decision)
        return decision

    def identify(self, asked: AskedSend, decision: PutDecision) -> None:
        """Gives a message that came without one an id."""
        if not asked.has_id:
            decision.add = {**decision.add, "UNIQ_KEY": self._ids.make()}

    # ---- checks, in upstream's order ----

    def check(self, request: SendRequest) -> TopicConfig:
        """Returns the topic that the message goes to, made if need be. Raises: Refused."""
        s = self.s
        request.refuse_unreadable()
        starts = s.settings["startAcceptSendRequestTimeStamp"]
        if starts and time.time() * 1000 < starts:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {starts} (ms)"
            )
        topic = request.topic
        config = s.topics.get(topic)
        writable = s.settings["brokerPermission"] & WRITE
        if not writable and config is not None and config.order:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{s.host}] sending message is forbidden"
            )
        check_topic(topic)
        if topic in NOT_FOR_CLIENTS or topic.startswith(REVIVE_PREFIX):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{topic}] is forbidden.",
            )
        if config is None:
            config = self._make(request)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if request.asked.queue >= queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{request.asked.queue}] is illegal, topic[{config.name}] has"
                f" {queues} queues",
            )
        # Upstream lets it pass, and relies on clients to obey the route.
        if not config.perm & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{config.name}] sending message is forbidden"
            )
        return config

    def _make(self, request: SendRequest) -> TopicConfig:
        sys_flag = 0
        if request.asked.unit:
            sys_flag = UNIT_SUB if request.topic.startswith(RETRY_PREFIX) else UNIT
        topics = self.s.topics
        made = topics.for_send(
            request.topic, request.template, request.asked.template_queues, sys_flag=sys_flag
        )
        return made if made is not None else topics.found(request.topic)

    def _redirect(self, request: SendRequest, decision: PutDecision) -> None:
        """Sends a message that was tried too often to the dead letters. Raises: Refused."""
        name, asked = request.topic.removeprefix(RETRY_PREFIX), request.asked
        group = self.s.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}. Make it with mqadmin updateSubGroup.",
            )
        most = group.retry_max_times
        if request.command.version >= V3_4_9 and asked.max_reconsume >= 0:
            most = asked.max_reconsume
        if asked.reconsume_times > most or self.s.locks.is_orderly(name):
            decision.topic, decision.queue = self.s.topics.dead_letter_topic(name).name, 0
            decision.level = 0
            decision.add = {"DELAY": "0"}

    def _check_lite(self, request: SendRequest, config: TopicConfig) -> None:
        """Checks that a message of a lite topic can have its queue, which the core names. Raises:
        Refused."""
        properties = request.properties()
        name = properties.get(LITE_TOPIC, "")
        if name:
            problem = name_problem(name)
            if problem:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"{problem}: {name:.80}")
            if config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                return
            if not is_lite(config.attributes):
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the topic[{config.name}] has no lite topics: its message.type is not LITE",
                )
            self._check_quota(queue_of(config.name, name))
            return
        queues = properties.get(MULTI_DISPATCH, "")
        if queues_below("")[:-1] in queues:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{MULTI_DISPATCH} may not name the queue of a lite topic: set {LITE_TOPIC}",
            )
        for queue in queues.split(","):
            self._check_quota(queue)

    def _check_quota(self, queue: str) -> None:
        """Checks that there may be one more light queue, if this one is new. Raises: Refused."""
        lite, settings = self.s.lite, self.s.settings
        if lite is None or not lite.is_on or not settings["enableLmqQuota"]:
            return
        full = lite.lights.count >= int(settings["maxLmqConsumeQueueNum"])
        if full and lite.lights.range(queue) is None:
            raise Refused(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
            )

    def _check_half(self) -> None:
        """Checks that a half message may be put. Raises: Refused."""
        transactions = self.s.transactions
        if transactions is None or self.s.settings["rejectTransactionMessage"]:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.s.host}] sending transaction message is forbidden",
            )
        if transactions.full:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{transactions.halves.state().open} transactions are open; new ones are"
                " refused until some are decided. See `pystore tx ls`.",
            )
