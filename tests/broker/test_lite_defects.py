"""Defects of lite topics of 5.5.0 that ours does not have, by their rows (docs/internals/lite.md);
those that are not here are in test_lite.py and in tests/grpc/test_grpc_lite.py."""

from __future__ import annotations

import asyncio

import pytest
from liting import GROUP, PARENT, lite_broker
from popping import records
from waiting import until_async

from broker.services.lite import lite_topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from pystore.meta.configfiles import SubscriptionGroup

PLAIN = "plain"


@pytest.mark.parametrize("how", ["acknowledged", "time is over"])
async def test_d7_an_event_of_a_queue_that_is_out_is_not_lost(store_path, monkeypatch, how):
    """Both clients ask, and get nothing, while the first message is out. Nobody looks again by a
    clock here, and no further message comes."""
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    async with lite_broker(store_path) as lt:
        await lt.add("a", client="c1")
        await lt.send("a", "0")
        first = await lt.pop("c1", poll=60_000)
        await lt.add("a", client="c2")
        await lt.send("a", "1")
        # The core has looked who is to have it: it counts the message then.
        await until_async(lambda: [each.messages for each in lt.lite.registry.lags()] == [2])
        for client in ("c1", "c2"):
            assert (await lt.pop(client)).code == 210
        assert lt.lite.registry.totals().events == 0
        if how == "acknowledged":
            assert (await lt.ack("a", 0, first)).code == 0
        else:
            lt.shift(60_001)
        await until_async(lambda: lt.lite.registry.totals().events)
        got = [body for client in ("c1", "c2") for _, body in await lt.bodies(client=client)]
        assert got == (["1"] if how == "acknowledged" else ["0", "1"])


async def test_who_waits_has_the_batch_of_a_client_that_is_gone_when_its_time_is_over(
    store_path, monkeypatch
):
    """The one that is gone has the event of a further message, too."""
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    async with lite_broker(store_path) as lt:
        await lt.add("a", client="c1")
        await lt.send("a", "0")
        assert (await lt.pop("c1", poll=60_000)).code == 0
        await lt.send("a", "1")
        await until_async(lambda: lt.lite.registry.totals().events)
        await lt.add("a", client="c2")
        waits = asyncio.ensure_future(lt.bodies(client="c2", poll=600_000))
        await until_async(lambda: lt.lite.registry.totals().polls)
        lt.shift(60_001)
        assert [body for _, body in await waits] == ["0", "1"]


async def test_d12_a_deleted_group_of_lite_topics_has_no_offsets(store_path, monkeypatch):
    """A pop of it that waits is answered; another group's offsets stay unless somebody asks, and
    for a group without lite topics nobody looks at the clients of others."""
    async with lite_broker(store_path) as lt:
        lt.p.broker.services.groups.update(SubscriptionGroup(PLAIN))
        lt.p.broker.services.offsets.commit(PLAIN, PARENT, 0, 7)
        await lt.add("a", "b")
        await lt.send("a", "0")
        answer = await lt.pop(poll=60_000)
        assert (await lt.ack("a", 0, answer)).code == 0
        waits = asyncio.ensure_future(lt.pop(poll=120_000))
        await until_async(lambda: lt.lite.registry.totals().polls)
        with monkeypatch.context() as nothing:
            nothing.setattr(lt.lite, "registry", None)  # within one step, so that nobody else asks
            await lt.lite.leave_group(PLAIN)
        for group in (GROUP, PLAIN):
            gone = await lt.p.ask(Code.DELETE_SUBSCRIPTIONGROUP, groupName=group)
            assert gone.code == 0
        assert lt.lite.registry.totals().clients == 0  # so that nothing holds the pop
        assert (await waits).code == 210
        assert lt.committed("a") is None
        assert lt.p.broker.services.offsets.get(PLAIN, PARENT, 0) == 7


async def test_d14_a_wildcard_group_without_clients_subscribes_to_nothing(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("w", wildcard="true")

        async def subscribers():
            answer = await lt.p.ask(Code.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="a")
            return mqjson.loads(bytes(answer.body))["subscriber"]

        assert (await lt.ctl("COMPLETE_ADD", group="w")).code == 0
        assert await subscribers() == [{"clientId": "*", "group": "w"}]
        assert (await lt.ctl("COMPLETE_REMOVE", group="w")).code == 0
        assert await subscribers() == []
        await lt.send("a", "0")
        await until_async(lambda: lt.lite.lights.range("%LMQ%$L$a") == (0, 1))
        assert lt.lite.registry.totals().events == 0


@pytest.mark.parametrize("restarts", [False, True])
async def test_d18_a_queue_whose_records_are_gone_goes_on_where_it_was(store_path, restarts):
    """So that what comes next is not before the offsets of its groups, which would skip it."""
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        await lt.send("a", "0", "1", "2")
        answer = await lt.pop(poll=60_000)
        for offset in range(3):
            assert (await lt.ack("a", offset, answer)).code == 0
        for _ in range(3):  # files of the log take 1 MiB
            lt.p.broker.store.put("T", bytes(700_000))
        await until_async(lambda: lt.p.broker.store.clean(immediate=True).log_min)
        assert lt.lite.lights.range("%LMQ%$L$a") == (3, 3)
        if not restarts:
            await lt.send("a", "3")
            assert await lt.some() == [("a", "3")]
    async with lite_broker(store_path) as lt:
        if restarts:
            await lt.send("a", "3")
            assert await lt.some() == [("a", "3")]
        assert lt.lite.lights.range("%LMQ%$L$a") == (3, 4)


async def test_d18_no_offset_of_a_lite_topic_that_expires_outlives_it_on_the_disk(
    store_path, monkeypatch
):
    """After a crash it would skip messages of a new one of its name. One that got a message just
    then stays, and so does its offset."""
    queues = ["%LMQ%$L$a", "%LMQ%$L$b"]
    by_hand = {"minLiteTTl": 1000, "liteTtlCheckInterval": 10**9}
    async with lite_broker(store_path, expiration=1, **by_hand) as lt:
        offsets, stored = lt.p.broker.services.offsets, lt.p.broker.store.metadata.offsets
        await lt.send("a", "0")
        await lt.send("b", "0")
        for queue in queues:
            offsets.commit(GROUP, queue, 0, 1)
        await offsets.persist()
        assert [stored.get(GROUP, queue, 0) for queue in queues] == [1, 1]
        on_disk, delete = {}, lt.lite.registry.delete

        def noted(queue, groups, before_ms):
            on_disk[queue] = stored.get(GROUP, queue, 0)
            return queue == queues[0] and delete(queue, groups, before_ms)

        monkeypatch.setattr(lt.lite.registry, "delete", noted)
        lt.shift(61_000)
        assert await lt.lite.expire() == 1
        assert on_disk == dict.fromkeys(queues)
        await offsets.persist()
        assert [stored.get(GROUP, queue, 0) for queue in queues] == [None, 1]


async def test_d20_a_subscription_is_kept_wherever_the_messages_go_now(store_path):
    """Upstream answers 0 and forgets it, if another broker has the lite topic."""
    async with lite_broker(store_path) as lt:
        names = [f"n{i}" for i in range(50)]
        await lt.add(*names)
        assert lt.lite.registry.get(GROUP, "c").queues == 50
        await lt.send("n17", "0")
        assert await lt.some() == [("n17", "0")]


@pytest.mark.parametrize(("attribute", "events"), [(None, 100), ("120", 120)])
async def test_d22_as_many_events_wait_as_the_group_says(store_path, attribute, events):
    """100 by default, which is upstream's in effect, though it declares 400."""
    async with lite_broker(store_path) as lt:
        lt.group("e", **({"client.max.event.cnt": attribute} if attribute else {}))
        names = [f"n{i}" for i in range(130)]
        for name in names:
            await lt.send(name, "0")
        await until_async(lambda: lt.lite.lights.count == 130)
        await lt.add(*names, group="e")
        assert lt.lite.registry.totals().events == events


async def test_d23_a_pop_of_a_client_that_leaves_is_answered_at_once(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        waits = asyncio.ensure_future(lt.pop(poll=120_000))
        await until_async(lambda: lt.lite.registry.totals().polls)
        assert (await lt.ctl("COMPLETE_REMOVE")).code == 0
        assert lt.lite.registry.totals().polls == 0
        assert (await waits).code == 210


# ---- beside the rows ----


@pytest.mark.parametrize("invisible", [0, 1, 3_600_000])
async def test_a_failed_message_keeps_its_place_whatever_its_time(store_path, invisible):
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        await lt.send("a", "0", "1")
        first = await lt.pop(most=1, poll=60_000)
        assert (await lt.change("a", 0, first, invisible)).code == 0
        if invisible > 1:
            assert (await lt.pop()).code == 210  # neither it nor what follows
        lt.shift(invisible + 1)
        again = await lt.pop(poll=60_000)
        assert [body for _, body, *_ in records(again.body)] == [b"0", b"1"]
        assert again.ext["orderCountInfo"] == "0 qo0%0 1;0"


async def test_what_is_out_when_its_client_unsubscribes_can_be_acknowledged(store_path):
    """If it is not, another client of the group has it when its time is over."""
    async with lite_broker(store_path) as lt:
        await lt.add("a", client="c1")
        await lt.send("a", "0", "1")
        answer = await lt.pop("c1", poll=60_000)
        assert (await lt.ctl("PARTIAL_REMOVE", "a", client="c1")).code == 0
        assert (await lt.ack("a", 0, answer)).code == 0
        await lt.add("a", client="c2")
        assert (await lt.pop("c2")).code == 210
        lt.shift(60_001)
        assert await lt.some(client="c2") == [("a", "1")]


async def test_a_topic_that_is_made_again_begins_with_nothing(store_path):
    """Whoever subscribed still does: the first message comes to it."""
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        await lt.send("a", "0", "1")
        assert await lt.some(most=1) == [("a", "0")]
        await lt.p.ask(Code.DELETE_TOPIC_IN_BROKER, topic=PARENT)
        assert (await lt.pop()).code == 17
        lt.topic()
        await lt.send("a", "new")
        assert await lt.some() == [("a", "new")]
        assert lt.lite.lights.range("%LMQ%$L$a") == (0, 1)


async def test_a_lite_topic_that_expires_while_a_client_waits_comes_back_to_it(store_path):
    by_hand = {"minLiteTTl": 1000, "liteTtlCheckInterval": 3_600_000}
    async with lite_broker(store_path, expiration=1, **by_hand) as lt:
        await lt.add("a")
        await lt.send("a", "0")
        answer = await lt.pop(poll=60_000)
        assert (await lt.ack("a", 0, answer)).code == 0
        waits = asyncio.ensure_future(lt.some())
        await until_async(lambda: lt.lite.registry.totals().polls)
        lt.shift(61_000)
        assert await lt.lite.expire() == 1
        await lt.send("a", "anew")
        assert await waits == [("a", "anew")]


@pytest.mark.parametrize("name", ["n", "n" * 64, "A-z_0"])
async def test_names_at_their_bounds_work_under_a_topic_at_its_bound(store_path, name):
    parent = "P" * 127
    async with lite_broker(store_path, parent=parent) as lt:
        await lt.add(name)
        await lt.send(name, "0")
        answer = await lt.pop(poll=60_000)
        assert [body for _, body, *_ in records(answer.body)] == [b"0"]
        assert (await lt.ack(name, 0, answer)).code == 0
        assert lt.committed(name) == 1
