"""A raw gRPC consumer, for tests: one that says exactly what a test wants said."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import grpc.aio
from waiting import BOUND_S

from broker.broker import Broker
from broker.grpc.links import LinkedCalls
from broker.grpc.schema import METHODS, SERVICE, pb
from broker.grpc.status import Code, name_of
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

__all__ = ["SMALL", "Raw", "calls_of_python", "codes", "handle_of", "run", "serving"]

SMALL = {"mappedFileSizeCommitLog": 1 << 20}
_IMPATIENT = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100}


class Raw:
    """A client over one connection. group: that it consumes as."""

    def __init__(self, broker, channel, client_id="raw@1@0", group="g", topic="T"):
        self.broker, self.channel = broker, channel
        self.group, self.topic = pb.Resource(name=group), pb.Resource(name=topic)
        self.metadata = [
            ("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        ]  # fmt: skip
        self._telemetry = None
        self._shift_ms = 0

    # ---- the broker's side ----

    def make(self, topic="T", queues=1, kind="NORMAL", group=None, fifo=False, tries=16):
        services = self.broker.services
        services.topics.update(TopicConfig(topic, queues, queues), f"+message.type={kind}")
        if group is not None:
            made = SubscriptionGroup(group, consume_message_orderly=fifo, retry_max_times=tries)
            services.groups.update(made)

    def put(self, *bodies, topic="T", queue=0, **properties):
        for n, body in enumerate(bodies):
            given = {"UNIQ_KEY": f"{body}-{n}"} | properties
            self.broker.store.put(topic, body, properties=given, queue=queue)

    def shift(self, ms):
        """So far ahead of the machine's clock everything goes on now."""
        self._shift_ms += ms
        self.broker.services.schedule.shift_clock(self._shift_ms)
        self.broker.services.pop.look()

    # ---- calls ----

    def call(self, method, request, timeout=BOUND_S, metadata=None):
        kind = METHODS[method]
        make = self.channel.unary_stream if kind.streams_out else self.channel.unary_unary
        made = make(
            f"/{SERVICE}/{method}",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.reply.FromString,
        )
        return made(request, timeout=timeout, metadata=metadata or self.metadata)

    async def settle(self, exp="*", kind=None):
        """Sends settings; the stream stays open."""
        method = METHODS["Telemetry"]
        stream = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )(metadata=self.metadata)
        settings = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER)
        settings.request_timeout.seconds = 3
        settings.subscription.group.CopyFrom(self.group)
        entry = settings.subscription.subscriptions.add()
        entry.topic.CopyFrom(self.topic)
        entry.expression.expression = exp
        entry.expression.type = pb.FilterType.TAG if kind is None else kind
        await stream.write(pb.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == Code.OK
        self._telemetry = stream
        return answer.settings

    def request(
        self, *, batch=32, invisible=15.0, poll=0.2, renew=False, exp="*", kind=None, attempt="",
    ):  # fmt: skip
        made = pb.ReceiveMessageRequest(
            group=self.group, batch_size=batch, auto_renew=renew, attempt_id=attempt
        )
        made.message_queue.topic.CopyFrom(self.topic)
        made.filter_expression.expression = exp
        made.filter_expression.type = pb.FilterType.TAG if kind is None else kind
        if invisible is not None:
            made.invisible_duration.FromMilliseconds(int(invisible * 1000))
        if poll is not None:
            made.long_polling_timeout.FromMilliseconds(int(poll * 1000))
        return made

    async def receive(self, timeout=BOUND_S, metadata=None, **more):
        """Status and messages; what ends them is there, too."""
        replies = [
            each
            async for each in self.call("ReceiveMessage", self.request(**more), timeout, metadata)
        ]
        kinds = [each.WhichOneof("content") for each in replies]
        assert kinds[0] == "status" and kinds[-1] == "delivery_timestamp"
        assert set(kinds[1:-1]) <= {"message"}
        return replies[0].status, [each.message for each in replies[1:-1]]

    async def take(self, **more):
        status, messages = await self.receive(**more)
        assert status.code == Code.OK, status
        return messages

    async def ack(self, *handles):
        entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
        return await self.call(
            "AckMessage", pb.AckMessageRequest(group=self.group, topic=self.topic, entries=entries)
        )

    async def change(self, handle, seconds):
        made = pb.ChangeInvisibleDurationRequest(
            group=self.group, topic=self.topic, receipt_handle=handle, message_id="m"
        )
        made.invisible_duration.FromMilliseconds(int(seconds * 1000))
        return await self.call("ChangeInvisibleDuration", made)

    async def forward(self, handle):
        return await self.call(
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(
                group=self.group, topic=self.topic, receipt_handle=handle, message_id="m"
            ),
        )


def handle_of(message):
    return message.system_properties.receipt_handle


def codes(status):
    return name_of(status.code)


@asynccontextmanager
async def serving(path, *, proxy=None, settled=True, **settings):
    """A broker with the service, and a raw consumer of it that has sent its settings unless told
    otherwise. proxy: of rmq-proxy.json; by default a wait in vain is short."""
    conf = path.with_name("rmq-proxy.json")
    conf.write_text(json.dumps(_IMPATIENT if proxy is None else proxy))
    given = {"listenPort": 0, "brokerIP1": "127.0.0.1", "flushDiskType": "ASYNC_FLUSH"}
    given |= SMALL | {"grpc_port": 0, "proxy_conf": conf, "drain_s": 0.5} | settings
    async with (
        Broker(path, **given) as broker,
        grpc.aio.insecure_channel(broker.grpc_address) as channel,
    ):
        raw = Raw(broker, channel)
        raw.make()
        if settled:
            await raw.settle()
        yield raw


def run(work):
    """With a bound that only a hang meets."""

    async def bounded():
        async with asyncio.timeout(300):
            return await work

    return asyncio.run(bounded())


def calls_of_python(monkeypatch):
    """What of the calls from now on the network thread leaves to Python."""
    seen, arrive = [], LinkedCalls.arrive

    def arrived(self, event):
        seen.append(event)
        arrive(self, event)

    monkeypatch.setattr(LinkedCalls, "arrive", arrived)
    return seen
