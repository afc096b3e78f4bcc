"""SEND_MESSAGE, its version 2, and batches (10, 310, 320), as far as they come up to Python: hooks,
then admission, whose decision the core carries out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from broker.processors.admission import Admission, SendRequest
from broker.processors.refusals import put_refusal
from broker.processors.static_topics import place_of_send
from broker.services.context import Services
from broker.services.hooks import SendContext, message_type
from broker.wire.codes import RequestCode
from broker.wire.command import Command, Refused
from broker.wire.decision import PutDecision, PutOutcome
from broker.wire.handlers import Handler, Peer, host_text
from pystore.errors import StoreError

__all__ = ["SendProcessor"]


class SendProcessor:
    """Serves sends that the core has handed on."""

    def __init__(self, s: Services, admission: Admission) -> None:
        self.s = s
        self._admission = admission

    @property
    def _is_checked(self) -> bool:
        """Returns whether access control, which has every request come up, has let this one in."""
        access = self.s.access
        return access is not None and access.is_on

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(self, peer: Peer, command: Command) -> None:
        if not self.s.send_hooks and self._is_checked and peer.serve_raw(command):
            return  # it came up to be checked only; the tables decide it
        context: SendContext | None = None
        try:
            request = SendRequest(command, peer.read_send(command))
            if self.s.send_hooks:
                context = self._context(peer, request)
                self.s.send_hooks.before(context)
            place = place_of_send(self.s.static, request)
            if place is not None:
                request = replace(request, asked=request.asked._replace(queue=place.part.queue))
            decision = self._admission.decide(request)
            if place is not None:
                decision.logical = place.answered
                if decision.queue is None:
                    decision.queue = place.part.queue
            if context is not None:
                decision.after = partial(self._after, context, None)
            peer.decide(command, decision)
        except Refused as refused:
            self._refuse(peer, command, refused, context)
        except StoreError as failed:
            self._refuse(peer, command, put_refusal(failed, self.s), context)

    def _refuse(
        self, peer: Peer, command: Command, refused: Refused, context: SendContext | None
    ) -> None:
        decision = PutDecision.refusal(refused.code, refused.remark)
        if context is not None:
            decision.after = partial(self._after, context, refused.remark)
        peer.decide(command, decision)

    # ---- hooks ----

    def _context(self, peer: Peer, request: SendRequest) -> SendContext:
        request.refuse_unreadable()
        properties = request.properties()
        return SendContext(
            producer_group=request.group,
            topic=request.topic,
            queue=request.asked.queue,
            client_address=host_text(peer),
            born_timestamp=request.asked.born_timestamp,
            properties=properties,
            body_length=len(request.command.body),
            message_type=message_type(properties),
        )

    def _after(self, context: SendContext, remark: str | None, sent: PutOutcome) -> None:
        context.code, context.remark = sent.code, remark
        context.message_id, context.queue_offset = sent.ids, sent.offset
        if sent.messages:
            context.queue = sent.queue
        self.s.send_hooks.after(context)
