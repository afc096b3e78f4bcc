"""Messages that come one by one, stored many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pystore.errors import BadArgument

if TYPE_CHECKING:
    from pystore.store._results import PutManyResult

__all__ = ["PutBatch"]


class PutBatch:
    """Collects messages of a topic and stores them ``size`` at a time; made by ``Store.batch``.

    A message is stored, and acknowledged, when ``flush()`` has returned: by itself after every
    ``size`` messages, and at the end of the ``with`` block. When the block ends by an exception,
    what was not flushed yet is dropped. Not for several threads at once.
    """

    __slots__ = ("_bodies", "_columns", "_put_many", "_queue", "_size", "_topic", "_wait", "stored")

    def __init__(
        self,
        put_many: Callable[..., PutManyResult],
        topic: str,
        size: int,
        queue: int | None,
        wait: bool,
    ) -> None:
        if size < 1:
            raise BadArgument(f"size {size} is less than 1")
        self._put_many = put_many
        self._topic = topic
        self._size = size
        self._queue = queue
        self._wait = wait
        self._bodies: list[bytes | str] = []
        self._columns: tuple[list[Any], list[Any], list[Any]] | None = None
        #: How many messages are stored so far.
        self.stored = 0

    def put(
        self,
        body: bytes | str,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a message; its limits are checked when it is stored. Raises: as ``put_many``."""
        bodies = self._bodies
        if tags is None and keys is None and properties is None and self._columns is None:
            bodies.append(body)
        else:
            self._add_rich(body, tags, keys, properties)
        if len(bodies) >= self._size:
            self.flush()

    def _add_rich(self, body: bytes | str, *values: Any) -> None:
        if self._columns is None:
            n = len(self._bodies)
            self._columns = ([None] * n, [None] * n, [None] * n)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._bodies.append(body)

    def flush(self) -> PutManyResult | None:
        """Stores what was collected; None when that is nothing. Raises: as ``put_many``; what was
        collected is then dropped."""
        bodies, columns = self._bodies, self._columns
        if not bodies:
            return None
        self._bodies, self._columns = [], None
        tags, keys, properties = columns or (None, None, None)
        result = self._put_many(
            self._topic, bodies, tags=tags, keys=keys, properties=properties, queue=self._queue,
            wait=self._wait,
        )  # fmt: skip
        self.stored += result.count
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()
