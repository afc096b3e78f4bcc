"""A client of the gRPC service whose every field a test chooses, and brokers for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from broker import Broker
from broker.grpc.schema import METHODS, SERVICE, pb
from broker.testing import SETTINGS

CODE = pb.Code
#: A topic for each type that a topic may take.
TOPICS = {
    "Normal": "NORMAL",
    "Fifo": "FIFO",
    "Delay": "DELAY",
    "Tx": "TRANSACTION",
    "Mixed": "MIXED",
}
_numbers = itertools.count(1)


@contextmanager
def serving(folder: Path, **given: Any) -> Iterator[Broker]:
    """A broker with the service, and a topic of every type."""
    settings = {**SETTINGS, "enableMixedMessageType": True, "recallMessageEnable": True}
    settings |= {"listenPort": 0, "grpc_port": 0, "drain_s": 0.2, **given}
    with Broker(folder, **settings) as broker:
        for name, kind in TOPICS.items():
            broker.create_topic(name, message_type=kind)
        yield broker


def on_loop(broker: Broker, work: Callable[[], object]) -> None:
    """Does something to a broker's services where they are used."""

    async def there() -> None:
        work()

    broker.run(there())


class Caller:
    """One client on one connection. headers: put over the usual ones; None leaves one out.
    trusted: the server's certificate, if it is asked by TLS."""

    def __init__(
        self, address: str, headers: dict[str, str | None] | None = None, *,
        trusted: bytes | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.client_id = f"test@{next(_numbers)}"
        self.headers = {
            "x-mq-client-id": self.client_id, "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.1.2", "x-mq-protocol": "v2",
            **(headers or {}),
        }  # fmt: skip
        if trusted is None:
            self.channel = grpc.insecure_channel(address, **options)
        else:
            shown = grpc.ssl_channel_credentials(trusted)
            self.channel = grpc.secure_channel(address, shown, **options)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.headers.items() if value is not None]

    def raw(self, method: str, data: bytes, timeout: float = 300) -> bytes:
        return self.channel.unary_unary(f"/{SERVICE}/{method}")(
            data, metadata=self.metadata, timeout=timeout
        )

    def __call__(self, method: str, timeout: float = 300, **fields: Any) -> Any:
        """The reply of a unary method."""
        known = METHODS[method]
        data = known.request(**fields).SerializeToString()
        return known.reply.FromString(self.raw(method, data, timeout))

    def send(self, *messages: Any) -> Any:
        return self("SendMessage", messages=messages)

    def begin(self, method: str, timeout: float = 300, **fields: Any) -> Any:
        """A call whose replies come in a stream."""
        known = METHODS[method]
        made = self.channel.unary_stream(
            f"/{SERVICE}/{method}", response_deserializer=known.reply.FromString
        )
        data = known.request(**fields).SerializeToString()
        return made(data, metadata=self.metadata, timeout=timeout)

    def stream(self, method: str, timeout: float = 300, **fields: Any) -> list[Any]:
        return list(self.begin(method, timeout, **fields))

    def telemetry(self) -> Telemetry:
        return Telemetry(self)


class Telemetry:
    """A telemetry stream."""

    def __init__(self, caller: Caller) -> None:
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._replies = caller.channel.stream_stream(f"/{SERVICE}/Telemetry")(
            iter(self._out.get, None), metadata=caller.metadata, timeout=300
        )

    def write(self, **fields: Any) -> None:
        self._out.put(pb.TelemetryCommand(**fields).SerializeToString())

    def read(self) -> Any:
        """The next command. Raises: StopIteration, grpc.RpcError."""
        return pb.TelemetryCommand.FromString(next(self._replies))

    def settle(self, **settings: Any) -> Any:
        """Sends settings; the answer."""
        self.write(settings=pb.Settings(**settings))
        return self.read()

    def publish(self, *topics: str) -> Any:
        named = [pb.Resource(name=topic) for topic in topics]
        return self.settle(client_type=1, publishing=pb.Publishing(topics=named))

    def subscribe(self, group: str, *topics: str) -> Any:
        entries = [
            pb.SubscriptionEntry(
                topic=pb.Resource(name=topic),
                expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            )
            for topic in topics
        ]
        return self.settle(
            client_type=3,
            subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=entries),
        )

    def close(self) -> None:
        self._out.put(None)

    def break_off(self) -> None:
        self._replies.cancel()


def message(topic: str, body: bytes = b"hello", *, id: str | None = None, **system: Any) -> Any:
    """A message as a client sends it. system: of its system properties, but `user`: its own."""
    user = system.pop("user", {})
    made = pb.Message(body=body, topic=pb.Resource(name=topic), user_properties=user)
    own = made.system_properties
    own.message_id = id if id is not None else f"01{next(_numbers):032X}"
    own.body_encoding = pb.Encoding.IDENTITY
    own.message_type = pb.MessageType.NORMAL
    own.born_timestamp.seconds = int(time.time())
    own.born_host = "vm"
    for name, value in system.items():
        if isinstance(value, list):
            getattr(own, name).extend(value)
        elif name.endswith(("_timestamp", "_duration")):
            getattr(own, name).CopyFrom(value)
        else:
            setattr(own, name, value)
    return made


def at(seconds: float) -> Any:
    """A time so many seconds from now."""
    return pb.Timestamp(seconds=int(time.time() + seconds))
