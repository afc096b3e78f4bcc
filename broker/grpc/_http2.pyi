"""csrc/http2 and csrc/messaging: what network threads need of gRPC, and its messages."""

class Service:
    """What all connections have in common. methods: path, and whether its requests are handed out
    one by one. streams_max: calls of a connection. headers_max: bytes of a call's headers.
    message_max: bytes of a request; one that says it has more than ask_from must be admitted.
    held_max: bytes of headers, requests and replies of a connection's calls in progress. headers:
    names of those that are metadata, in lower case."""

    def __new__(
        cls,
        methods: tuple[tuple[bytes, bool], ...],
        streams_max: int,
        headers_max: int,
        message_max: int,
        ask_from: int,
        held_max: int,
        headers: tuple[bytes, ...],
    ) -> Service: ...
    def times(self) -> list[tuple[list[int], float]]:
        """Of each method: calls that were answered, by how long they took (csrc/http2/http2.h),
        and the seconds of all. Those whose requests stream are not timed."""

    #: Of its ps_h2_conf, for network threads.
    address: int

def net_functions() -> int:
    """Address of ps_h2_all (csrc/http2/http2.h), for network threads."""

class Sends:
    """Plain sends: of one message. reserved: names of properties that users may not
    set. texts_max: bytes of tag, keys and user_max properties of the user's. A message group has
    fewer bytes than group_max, a lite topic lite_max at most. recovery_max_s: of an orphaned
    transaction. delay_max_ms: until a message is delivered."""

    def __new__(
        cls,
        reserved: tuple[bytes, ...],
        body_min: int,
        body_max: int,
        texts_max: int,
        user_max: int,
        group_max: int,
        lite_max: int,
        recovery_max_s: int,
        delay_max_ms: int,
    ) -> Sends: ...

    #: Of its ps_h2_limits, for network threads.
    address: int

    def read(
        self, request: bytes, host: str, /
    ) -> tuple[str, str, bytes, bytes, int, int, str, bool] | None:
        """Topic, message id, stored properties, body, born time (ms), MessageType and message group
        or lite topic of a SendMessage, and whether the body is gzip. host: of the client. None: it
        is another one, or something about it is unusual or wrong."""

class Deliveries:
    """Messages that are handed out. hidden: names of properties that are not shown among the
    user's."""

    def __new__(cls, hidden: tuple[bytes, ...]) -> Deliveries: ...

    #: Of its names, for network threads.
    address: int

    def message(
        self, record: bytes | memoryview, topic: str, receipt: str, attempt: int, encoding: int,
        body: bytes | None, /,
    ) -> bytes:  # fmt: skip
        """The reply of ReceiveMessage for a stored record. topic: that it is shown with. body:
        instead of the record's; encoding: of the body. Raises: ValueError for bytes that are not a
        record."""

def count_fields(request: bytes, shapes: bytes, kind: int, most: int, /) -> int:
    """How many fields and elements a request has, with those of the messages in it; counted up to
    most and one more. shapes, kind: see ps_proto_count (csrc/messaging/proto.h)."""
