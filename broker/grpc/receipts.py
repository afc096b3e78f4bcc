"""Receipt handles of gRPC clients: the remoting handle, where the message stands in the log, and
the lite topic that it was read from, which clients of schema 2.1.1 do not say when they change its
invisible time."""

from __future__ import annotations

from typing import NamedTuple

from broker.wire.receipts import NORMAL, Handle, retry_topic

__all__ = ["Receipt"]

_FIELDS = 8
#: Before the lite topic, which may be digits alone; no name of one has it.
_LITE = "$"


class Receipt(NamedTuple):
    """One delivery. physical: offset in the log, -1 unknown. lite: lite topic; empty: of none."""

    handle: Handle
    physical: int
    lite: str = ""

    @property
    def text(self) -> str:
        text = f"{self.handle.text} {self.physical}"
        return f"{text} {_LITE}{self.lite}" if self.lite else text

    @property
    def expires_ms(self) -> int:
        return self.handle.pop_ms + self.handle.invisible_ms

    def renewed(self, pop_ms: int, invisible_ms: int) -> Receipt:
        """Returns the receipt after a change of the invisible time: a delivery of this message
        alone. One of an ordered group keeps its batch."""
        old = self.handle
        start = old.start if old.is_order else old.offset
        handle = old._replace(start=start, pop_ms=pop_ms, invisible_ms=invisible_ms)
        return self._replace(handle=handle)

    def topic_of(self, group: str, topic: str) -> str:
        """Returns the topic that the message was read from: the topic itself, or its retry
        topic."""
        kind = self.handle.retry
        return topic if kind == NORMAL else retry_topic(group, topic, kind)

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Reads a handle: with eight fields, that of remoting; with more (an Apache proxy in local
        mode adds two when it changes one), the last is the offset in the log, but for the lite
        topic. Raises: ValueError that says what is wrong."""
        handle, parts = Handle.parse(text), text.split(" ")
        lite = parts.pop()[len(_LITE) :] if parts[-1].startswith(_LITE) else ""
        last = parts[-1] if len(parts) > _FIELDS else "-1"
        known = last.isascii() and last.isdigit() and len(last) < 19
        return cls(handle, int(last) if known else -1, lite)
