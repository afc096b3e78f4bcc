"""What a handler gets of a call, and how handlers are registered.

A group of methods is a class with ``handlers()``: by method name, what serves it. A unary method is
``async (call, request) -> reply``; one that streams replies is an async generator
``(call, request)`` that yields them, as messages or as their bytes. Both raise Problem (or Refused,
of the broker) for a call that ends with another status than OK; the server puts it into the reply
of that method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.grpc.status import Code, Problem
from broker.services.pop.batches import PopOutcome
from broker.wire.handlers import address_text

__all__ = ["AUTHORIZATION", "CLIENT_ID", "DATE", "HEADERS", "Call", "Handlers"]

Handlers = Mapping[str, Callable[..., Any]]

CLIENT_ID = "x-mq-client-id"
LANGUAGE, VERSION = "x-mq-language", "x-mq-client-version"
#: Of access control: who calls, and what was signed.
AUTHORIZATION, DATE = "authorization", "x-mq-date-time"
#: The metadata that handlers look at; others, as an id of each call, are not handed out.
HEADERS = (CLIENT_ID, LANGUAGE, VERSION, AUTHORIZATION, DATE)
#: Characters of a client's id, which tools show.
_ID_MAX = 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client at `address`. The names of `metadata` are in lower case; `deadline` is
    in monotonic seconds, and None when the client waits for ever. `found` is what a network thread
    has popped for the call, and is left to be handed out. `hold` is told how many bytes more wait
    for the client."""

    method: str
    metadata: Mapping[str, str]
    address: tuple[str, int]
    deadline: float | None = None
    found: PopOutcome | None = None
    hold: Callable[[int], None] = lambda more: None
    began: float = field(default_factory=time.monotonic)

    @property
    def client_id(self) -> str:
        """Raises: Problem when the call names none."""
        found = self.metadata.get(CLIENT_ID, "")
        if not found.strip():
            raise Problem(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(found) > _ID_MAX:
            raise Problem(
                Code.BAD_REQUEST,
                f"the client id has {len(found)} characters, {_ID_MAX} are allowed",
            )
        return found

    @property
    def host(self) -> str:
        """The client's address, as records have it."""
        return address_text(self.address)

    @property
    def language(self) -> str:
        return self.metadata.get(LANGUAGE, "")

    @property
    def version(self) -> str:
        return self.metadata.get(VERSION, "")

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the client gives up; None: it does not say."""
        return None if self.deadline is None else self.deadline - time.monotonic()
