"""What pystore/native/_put.c offers."""

from collections.abc import Callable
from typing import Self, overload

from pystore.store._results import PutResult

class Place:
    """The numbers of a put, kept in C; PutResult adds what is made of them."""

    def __new__(
        cls,
        status_code: int,
        size: int,
        queue: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
        store_host: bytes,
    ) -> Self: ...
    @property
    def status_code(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def store_host(self) -> bytes: ...

def bind(put: int, result: type[PutResult], make_error: Callable[..., Exception], /) -> None: ...
@overload
def put(topic: int, queue: int, body: bytes, /) -> PutResult: ...
@overload
def put(
    topic: int, queue: int, body: bytes, properties: bytes, flag: int, wait: bool, /
) -> PutResult: ...
def new_stream() -> tuple[object, int]:
    """Makes an ``ArrowArrayStream`` of zeros in a capsule, which releases and frees it; returns it
    with its address."""
