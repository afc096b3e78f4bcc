"""With flushDiskType=SYNC_FLUSH no call that stores a record is answered before a sync has covered
it: the disk is made to wait, and what is answered meanwhile is looked at (docs/durability.md)."""

from __future__ import annotations

import asyncio
import time

import pytest
from consuming import handle_of, run, serving
from held import Disk

from broker.grpc.schema import pb

CODE = pb.Code


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


async def taken(raw):
    raw.put("a")
    (one,) = await raw.take(poll=20)
    return handle_of(one)


async def receives(raw):
    raw.put("a")
    return raw.take(poll=20)


async def acknowledges(raw):
    return raw.ack(await taken(raw))


async def changes(raw):
    return raw.change(await taken(raw), 30)


async def forwards(raw):
    return raw.forward(await taken(raw))


CALLS = (
    sends, sends_later, sends_a_half, ends, recalls, receives, acknowledges, changes, forwards,
)  # fmt: skip


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_no_record_is_told_before_the_disk_has_it(store_path, monkeypatch, make):
    """Another call is answered meanwhile: the loop is not held."""

    async def work():
        disk = Disk(monkeypatch)
        given = {"flushDiskType": "SYNC_FLUSH", "recallMessageEnable": True}
        async with serving(store_path, **given) as raw:
            raw.make("D", kind="DELAY")
            raw.make("X", kind="TRANSACTION")
            raw.make("T", group="g")
            call = await make(raw)
            with disk.held(raw.broker) as core:
                pending = asyncio.ensure_future(call)
                while not core.waiting and not pending.done():
                    await asyncio.sleep(0.001)
                asked = pb.QueryRouteRequest(topic=pb.Resource(name="T"))
                assert (await raw.call("QueryRoute", asked)).status.code == CODE.OK
                assert not pending.done(), await pending
                disk.let_go()
                answer = await pending
            assert make is receives or answer.status.code == CODE.OK

    run(work())
