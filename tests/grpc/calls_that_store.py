"""Calls that store, each made on a broker that is prepared for it: for those who look at when they
are answered."""

from __future__ import annotations

import asyncio
import time

from consuming import handle_of

from broker.grpc.schema import pb

__all__ = ["CALLS", "SETTINGS", "prepare"]

SETTINGS = {"flushDiskType": "SYNC_FLUSH", "recallMessageEnable": True}


def prepare(raw):
    """Topics for every kind of message."""
    raw.make("D", kind="DELAY")
    raw.make("X", kind="TRANSACTION")
    raw.make("T", group="g")


def message(topic, kind="NORMAL", **more):
    made = pb.Message(topic=pb.Resource(name=topic), body=b"body")
    made.system_properties.message_id = f"{time.time_ns():032X}"
    made.system_properties.message_type = getattr(pb.MessageType, kind)
    made.system_properties.born_timestamp.GetCurrentTime()
    for name, value in more.items():
        setattr(made.system_properties, name, value)
    return pb.SendMessageRequest(messages=[made])


def delayed():
    made = message("D", "DELAY")
    made.messages[0].system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 3600)
    return made


async def sends(raw):
    return raw.call("SendMessage", message("T"))


async def sends_together(raw):
    several = message("T")
    several.messages.extend(message("T").messages)
    return raw.call("SendMessage", several)


async def sends_later(raw):
    return raw.call("SendMessage", delayed())


async def sends_a_half(raw):
    return raw.call("SendMessage", message("X", "TRANSACTION"))


async def ends(raw):
    sent = (await raw.call("SendMessage", message("X", "TRANSACTION"))).entries[0]
    return raw.call(
        "EndTransaction",
        pb.EndTransactionRequest(
            topic=pb.Resource(name="X"), message_id=sent.message_id,
            transaction_id=sent.transaction_id, resolution=pb.TransactionResolution.COMMIT,
        ),
    )  # fmt: skip


async def recalls(raw):
    sent = (await raw.call("SendMessage", delayed())).entries[0]
    timers = raw.broker.services.schedule.timers.timers
    while not timers.count():
        await asyncio.sleep(0.001)
    return raw.call(
        "RecallMessage",
        pb.RecallMessageRequest(topic=pb.Resource(name="D"), recall_handle=sent.recall_handle),
    )


async def put_one(raw):
    """Puts a message, and waits until whoever asks finds it at once."""
    end = raw.broker.store.range("T", 0)[1]
    raw.put("a")
    while raw.broker.store.range("T", 0)[1] == end:
        await asyncio.sleep(0.001)


async def taken(raw):
    await put_one(raw)
    (one,) = await raw.take(poll=20)
    return handle_of(one)


async def receives(raw):
    await put_one(raw)
    return raw.take(poll=20)


async def acknowledges(raw):
    return raw.ack(await taken(raw))


async def changes(raw):
    return raw.change(await taken(raw), 30)


async def forwards(raw):
    return raw.forward(await taken(raw))


CALLS = (
    sends, sends_together, sends_later, sends_a_half, ends, recalls, receives, acknowledges,
    changes, forwards,
)  # fmt: skip
