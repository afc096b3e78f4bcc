"""Lite topics over the classic wire (broker/services/lite); what a running 5.5.0 answered stands in
golden/lite-5.5.0 of the reference, and D1 to D24 are its defects by their numbers."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
from liting import GROUP, PARENT, lite_broker
from popping import records
from scrapes import scrape, value
from snapshots import snapshot
from waiting import BOUND_S, until_async

from broker.loop.turns import Pieces
from broker.processors.lite import LiteProcessor
from broker.processors.send import SendProcessor
from broker.remoting.client import RemotingClient
from broker.services.lite import kept, lite_topics, registry
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.errors import BadArgument
from pystore.meta.configfiles import SubscriptionGroup
from pystore.native import ffi

# ---- sends ----


async def test_a_message_is_stored_as_upstream_stores_it(store_path, monkeypatch):
    """Properties in the order of Java's map, without WAIT; queue and offset of the parent. The core
    decides such sends by itself."""
    monkeypatch.setattr(SendProcessor, "send", None)
    async with lite_broker(store_path) as lt:
        await lt.send("ra", "ra#0", UNIQ_KEY="K", WAIT="true")
        await lt.send("ra", "ra#1", UNIQ_KEY="K", INNER_MULTI_DISPATCH="%LMQ%other")
        await lt.add("ra")
        answer = await lt.pop()
        first, second = records(answer.body)
        assert list(first[2].items()) == [
            ("MSG_REGION", "DefaultRegion"), ("UNIQ_KEY", "K"), ("CLUSTER", "DefaultCluster"),
            ("INNER_MULTI_QUEUE_OFFSET", "0"), ("TRACE_ON", "true"),
            ("INNER_MULTI_DISPATCH", "%LMQ%$L$ra"), ("__LITE_TOPIC", "ra"),
        ]  # fmt: skip
        assert second[2]["INNER_MULTI_QUEUE_OFFSET"] == "1"
        assert second[2]["INNER_MULTI_DISPATCH"] == "%LMQ%$L$ra"
        assert answer.ext["orderCountInfo"] == "0;0"
        assert (answer.ext["reviveQid"], answer.remark) == ("999", "FOUND")


@pytest.mark.parametrize("name", ["d$e", "d/e", "ca,cb", "x,%LMQ%$O$y", "y" * 65, " ", "a b", "é"])
async def test_d1_to_d3_names_that_break_things_are_refused_at_the_send(store_path, name):
    async with lite_broker(store_path) as lt:
        answer = await lt.p.send(b"x", topic=PARENT, __LITE_TOPIC=name)
        assert (answer.code, answer.remark[:10]) == (13, "lite topic")
        by_hand = await lt.p.send(b"x", topic=PARENT, INNER_MULTI_DISPATCH=f"%LMQ%$L${name}")
        assert by_hand.code == 13
        assert lt.lite.lights.count == 0
        await lt.send("fine", "goes on")
        await lt.add("fine")
        assert await lt.some() == [("fine", "goes on")]


async def test_light_queues_of_a_message_count_where_lite_topics_do(store_path):
    async with lite_broker(store_path, enableLmqQuota=True, maxLmqConsumeQueueNum=1) as lt:
        lt.p.make_topic("N")
        queues = ("%LMQ%a", "%LMQ%b", "%LMQ%a,%LMQ%b", "%LMQ%a")
        codes = [(await lt.p.send(b"x", topic="N", INNER_MULTI_DISPATCH=q)).code for q in queues]
        assert (codes, lt.lite.lights.count) == ([0, 2017, 2017, 0], 1)


async def test_d9_a_topic_of_another_type_takes_no_lite_messages(store_path):
    async with lite_broker(store_path) as lt:
        lt.p.make_topic("N")
        answer = await lt.p.send(b"x", topic="N", __LITE_TOPIC="a")
        assert (answer.code, "not LITE" in answer.remark) == (13, True)


async def test_a_delayed_message_gets_its_queue_when_it_is_delivered(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("d")
        await lt.send("d", "late", TIMER_DELAY_SEC="100")
        await lt.send("d", "level", DELAY="6")
        await lt.send("d", "now")
        assert await lt.some() == [("d", "now")]
        lt.shift(200_000)
        await until_async(lambda: lt.lite.lights.range("%LMQ%$L$d") == (0, 3))
        got = await lt.some()
        assert {body for _, body in got} == {"now", "late", "level"}


# ---- popping ----


async def test_a_waiting_pop_is_answered_by_the_message(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("s")
        waits = asyncio.ensure_future(lt.some())
        await until_async(lambda: lt.lite.registry.get(GROUP, "c").polls)
        await lt.send("s", "1")
        assert await waits == [("s", "1")]


async def test_a_batch_blocks_its_lite_topic_alone_until_it_is_acknowledged(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a", "b")
        await lt.send("a", "a0", "a1", "a2")
        await until_async(lambda: lt.lite.registry.get(GROUP, "c").events)
        first = await lt.pop(most=2, poll=60_000)
        assert [r[1] for r in records(first.body)] == [b"a0", b"a1"]
        await lt.send("b", "b0")
        assert await lt.some() == [("b", "b0")]
        assert (await lt.ack("a", 1, first)).code == 0
        assert lt.committed("a") == 0
        assert (await lt.pop()).code == 210
        assert (await lt.ack("a", 0, first)).code == 0
        assert lt.committed("a") == 2
        assert await lt.some() == [("a", "a2")]


async def test_d5_each_message_has_its_own_count_and_d19_what_is_acknowledged_stays_away(
    store_path,
):
    async with lite_broker(store_path) as lt:
        await lt.add("n")
        await lt.send("n", "0", "1", "2")
        first = await lt.pop(poll=60_000)
        assert (await lt.ack("n", 1, first)).code == 0
        lt.shift(60_001)
        await lt.send("n", "3")
        again = await lt.pop(poll=60_000)
        assert [r[1] for r in records(again.body)] == [b"0", b"2", b"3"]
        assert again.ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%2 1;0"
        for offset in (0, 2, 3):
            assert (await lt.ack("n", offset, again)).code == 0
        assert lt.committed("n") == 4


async def test_the_same_attempt_gets_the_batch_again_and_is_not_counted(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("n")
        await lt.send("n", "0")
        assert await lt.some(attemptId="x") == [("n", "0")]
        assert (await lt.p.ask(Code.TRIGGER_LITE_DISPATCH, group=GROUP, clientId="c")).code == 0
        again = await lt.pop(attemptId="x")
        assert again.ext["orderCountInfo"] == "0"


async def test_another_invisible_time_counts_and_a_suspended_one_does_not(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("n")
        await lt.send("n", "0")
        answer = await lt.pop(poll=60_000)
        made = await lt.change("n", 0, answer, 1000, suspend="true")
        assert (made.code, made.ext["reviveQid"]) == (0, "999")
        lt.shift(1001)
        answer = await lt.pop(poll=60_000)
        assert answer.ext["orderCountInfo"] == "0"
        assert (await lt.change("n", 0, answer, 0)).code == 0
        again = await lt.pop(poll=60_000)
        assert again.ext["orderCountInfo"] == "0 qo0%0 1"


async def test_d4_the_lite_topic_of_an_old_handle_is_found_by_its_record(store_path):
    """Java 5.2.0 and Apache's proxy leave it out; the handle ends with the place in the log."""
    async with lite_broker(store_path) as lt:
        await lt.add("n")
        await lt.send("n", "0")
        answer = await lt.pop(poll=60_000)
        place = lt.lite.lights.read("%LMQ%$L$n", 0, 1)[0].physical_offset
        said = answer.ext
        handle = f"0 {said['popTime']} {said['invisibleTime']} 999 0 b 0 0 {place}"
        assert (await lt.change(None, 0, answer, 0, extraInfo=handle, liteTopic="")).code == 0
        assert await lt.some() == [("n", "0")]


async def test_d24_an_acknowledgement_of_nothing_commits_nothing(store_path):
    async with lite_broker(store_path) as lt:
        answer = await lt.pop()
        assert (await lt.ack("nolite", 0, answer)).code == 208
        assert lt.committed("nolite") is None


async def test_refusals_of_acknowledgements_come_in_upstreams_order(store_path):
    async with lite_broker(store_path) as lt:
        lt.p.broker.services.groups.update(SubscriptionGroup("plain"))
        await lt.add("ra")
        await lt.send("ra", "0", "1", "2", "3")
        pop = await lt.pop(most=2, poll=60_000)
        cases = [
            ({"group": "plain"}, 0, 29), ({"queueId": 1}, 0, 29), ({"queueId": 9}, 0, 13),
            ({}, 99, 208), ({}, 3, 13), ({}, 0, 0), ({}, 0, 0),
            ({"extraInfo": "0 1 8000 0 0 b 0 1"}, 1, 29),
            ({"extraInfo": "0 1 8000 999 0 b 0 1"}, 1, 0),
        ]  # fmt: skip
        for more, offset, code in cases:
            given = dict(more)
            queue = given.pop("queueId", 0)
            group = given.pop("group", GROUP)
            handle = f"0 {pop.ext['popTime']} {pop.ext['invisibleTime']} 999 0 b 0 {offset}"
            ext = {
                "consumerGroup": group, "topic": PARENT, "queueId": queue, "offset": offset,
                "extraInfo": handle, "liteTopic": "ra",
            } | given  # fmt: skip
            assert (await lt.p.ask(Code.ACK_MESSAGE, **ext)).code == code, (more, offset)
        assert lt.committed("ra") == 1


# ---- subscriptions ----


async def test_d6_one_client_in_two_groups_has_two_sets(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("g2")
        await lt.add("a")
        await lt.add("b", group="g2")
        await lt.send("a", "1")
        await lt.send("b", "2")
        assert await lt.some() == [("a", "1")]
        assert await lt.some(group="g2") == [("b", "2")]
        assert await lt.bodies() == []


async def test_d10_who_adds_what_it_has_keeps_it_and_d11_a_complete_set_excludes_others(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("x", model="Exclusive")
        await lt.add("rx", client="x1", group="x")
        await lt.add("rx", client="x1", group="x")
        assert await lt.queues("x1", "x") == ["%LMQ%$L$rx"]
        assert (await lt.ctl("COMPLETE_ADD", "rx", client="x2", group="x")).code == 0
        (owner,) = lt.lite.registry.subscribers("%LMQ%$L$rx", "x")
        assert owner.client_id == "x2"


async def test_the_loser_of_an_exclusive_lite_topic_is_told(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("x", model="Exclusive", reset_offset_exclusive="true")
        told = []
        lt.lite.on_excluded = lambda client, name: told.append((client.client_id, name))
        await lt.add("rx", client="x1", group="x")
        await lt.send("rx", "0")
        first = await lt.pop(client="x1", group="x", poll=60_000)
        assert (await lt.ack("rx", 0, first, group="x")).code == 0
        await lt.add("rx", client="x2", group="x")
        assert told == [("x1", "rx")]
        assert await lt.some(client="x2", group="x") == [("rx", "0")]


async def test_d13_an_older_set_that_comes_late_changes_nothing(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a", version=2)
        assert (await lt.ctl("COMPLETE_ADD", "b", version=1)).code == 0
        assert await lt.queues() == ["%LMQ%$L$a"]


async def test_what_waits_for_a_client_that_leaves_goes_to_another(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a", client="c1")
        await lt.send("a", "1")
        await until_async(lambda: lt.lite.registry.get(GROUP, "c1").events)
        await lt.add("a", client="c2")
        assert (await lt.ctl("COMPLETE_REMOVE", client="c1")).code == 0
        assert await lt.some(client="c2") == [("a", "1")]


@pytest.mark.parametrize(
    ("option", "bodies"),
    [
        (None, "01234"), ({"type": "POLICY", "value": 1}, "01234"),
        ({"type": "POLICY", "value": 2}, ""), ({"type": "OFFSET", "value": 2}, "234"),
        ({"type": "OFFSET", "value": 77}, ""), ({"type": "OFFSET", "value": -5}, "01234"),
        ({"type": "TAIL_N", "value": 2}, "34"), ({"type": "TIMESTAMP", "value": 1}, "01234"),
        ({"type": "TIMESTAMP", "value": 1 << 60}, ""),
    ],
)  # fmt: skip
async def test_options_say_where_a_client_begins(store_path, option, bodies):
    """TAIL_N means the last messages, and a time counts."""
    async with lite_broker(store_path) as lt:
        await lt.send("a", *"01234")
        await lt.add("a", option=option)
        assert "".join(body for _, body in await lt.bodies()) == bodies
        await lt.send("a", "5")
        if not bodies:
            assert await lt.some() == [("a", "5")]


async def test_d11_quota_counts_a_complete_set_too(store_path):
    """A request that adds may go beyond it, as at Apache's, but by no more than it is."""
    async with lite_broker(store_path, maxLiteSubscriptionCount=3) as lt:
        assert (await lt.ctl("COMPLETE_ADD", *"abcd")).code == 2018
        assert (await lt.ctl("PARTIAL_ADD", *"abcd")).code == 2018
        assert (await lt.ctl("PARTIAL_ADD", *"ab")).code == 0
        assert (await lt.ctl("PARTIAL_ADD", *"cde")).code == 0
        assert (await lt.ctl("PARTIAL_ADD", "a")).code == 2018


async def test_who_comes_and_goes_waits_for_the_memory_of_those_who_left(store_path, monkeypatch):
    async with lite_broker(store_path, maxLiteSubscriptionCount=2) as lt:
        totals, leaving, there = lt.lite.registry.totals, [3, 4, 5], []

        def told():
            if not leaving:
                return totals()
            there.append(lt.lite.registry.get(GROUP, "c"))
            return replace(totals(), leaving=leaving.pop())

        monkeypatch.setattr(lt.lite.registry, "totals", told)
        await lt.add("a")
        assert there == [None] * 3


async def test_refusals_of_subscriptions_are_upstreams(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("w", wildcard="true")
        cases = [
            (b"", 604), (b'{"subscriptionSet":[]}', 604), (b"xx", 1),
        ]  # fmt: skip
        for body, code in cases:
            assert (await lt.p.ask(Code.LITE_SUBSCRIPTION_CTL, body)).code == code
        assert (await lt.ctl(None, "a")).code == 1
        assert (await lt.ctl("NONE", "a")).code == 1
        assert (await lt.ctl("PARTIAL_ADD", "a", client="")).code == 0
        assert (await lt.ctl("PARTIAL_ADD", "a", group="w")).code == 604
        assert (await lt.ctl("PARTIAL_ADD", "a$b")).code == 1
        assert (await lt.ctl("COMPLETE_REMOVE", client="nobody")).code == 0
        assert lt.lite.registry.get(GROUP, "nobody") is None
        assert (await lt.ctl("PARTIAL_REMOVE", "a", client="nobody")).code == 0
        assert lt.lite.registry.get(GROUP, "nobody").queues == 0  # it is known now, as at Apache's
        row = {"action": "PARTIAL_ADD", "clientId": "c", "group": GROUP, "topic": "t" * 300}
        body = mqjson.dumps({"subscriptionSet": [row | {"liteTopicSet": ["a"]}]})
        answer = await lt.p.ask(Code.LITE_SUBSCRIPTION_CTL, body)
        assert (answer.code, answer.remark[:34]) == (1, "the topic has more than 127 bytes:")


async def test_a_wildcard_group_reads_every_lite_topic_old_and_new(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("w", wildcard="true")
        await lt.send("old", "1")
        assert (await lt.ctl("COMPLETE_ADD", group="w")).code == 0
        assert await lt.some(group="w") == [("old", "1")]
        await lt.send("new", "2")
        assert await lt.some(group="w") == [("new", "2")]


async def test_network_threads_serve_pops_and_acknowledgements(store_path, monkeypatch):
    """Once one of the group was found right, as long as topics and groups stay as they are."""
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        assert await lt.bodies() == []
        seen = []
        monkeypatch.setattr(lt.lite, "join", lambda *given: seen.append(given))
        monkeypatch.setattr(LiteProcessor, "ack", None)
        waits = asyncio.ensure_future(lt.pop(poll=60_000))
        await until_async(lambda: lt.lite.registry.get(GROUP, "c").polls)
        await lt.send("a", "1")
        answer = await waits
        assert (answer.code, (await lt.ack("a", 0, answer)).code) == (0, 0)
        assert (lt.committed("a"), seen) == (1, [])
        lt.group("other")
        await lt.bodies()
        assert seen


@pytest.mark.parametrize("wildcard", [False, True])
async def test_events_that_found_no_room_come_when_there_is_some(store_path, monkeypatch, wildcard):
    """At once to a client that pops."""
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    names = [f"n{i}" for i in range(25)]
    async with lite_broker(store_path) as lt:
        given = {"client.max.event.cnt": "10"} | ({"wildcard": "true"} if wildcard else {})
        lt.group("w", **given)
        for name in names:
            await lt.send(name, "1")
        action, wanted = ("COMPLETE_ADD", []) if wildcard else ("PARTIAL_ADD", names)
        assert (await lt.ctl(action, *wanted, group="w")).code == 0
        got = []
        while len(got) < 25:
            got += await lt.some(group="w", most=7)
        assert sorted(got) == sorted((name, "1") for name in names)


async def test_who_has_not_joined_is_not_subscribed_in_silence(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        with pytest.raises(BadArgument, match="no client nobody of the group g"):
            lt.lite.registry.add(GROUP, "nobody", ["%LMQ%$L$a"])


async def test_there_are_as_many_clients_as_subscriptions_at_most(store_path, monkeypatch):
    """Whoever invents ids needs no subscription for them; a thousand there may always be."""
    monkeypatch.setattr(lite_topics, "_CLIENTS_LEAST", 2)
    async with lite_broker(store_path, maxLiteSubscriptionCount=2) as lt:
        for client in ("c0", "c1"):
            assert (await lt.ctl("PARTIAL_ADD", client=client)).code == 0
        for answer in (await lt.ctl("PARTIAL_ADD", client="c2"), await lt.pop("c2")):
            assert (answer.code, "2 clients" in answer.remark) == (2018, True)
        assert (await lt.pop("c1")).code == 210
        lt.lite.leave(lt.lite.registry.get(GROUP, "c0"))
        assert (await lt.pop("c2")).code == 210
        for answer in (await lt.ctl("PARTIAL_ADD", client="x" * 256), await lt.pop("x" * 256)):
            assert (answer.code, "255 bytes" in answer.remark) == (29, True)


async def test_the_names_of_a_client_live_until_the_core_has_answered(store_path):
    """They were freed before: now and then a subscription was of nobody, and lost in silence."""

    def seen(_, who):
        others = [b"%d" % n * 20 for n in range(1000)]  # takes the room of what is freed
        assert len(others) == 1000
        return [bytes(ffi.buffer(name, size)) for name, size in
                ((who.group, who.group_len), (who.id, who.id_len))]  # fmt: skip

    async with lite_broker(store_path) as lt:
        for n in range(100):
            group, client = f"group-{n}" * 9, f"client-{n}" * 9
            found = lt.lite.registry._ask(seen, group, client)
            assert found == [group.encode(), client.encode()]


async def test_consumer_offsets_of_lite_topics_are_limited(store_path):
    """By a refusal that names the setting; those that are there go on."""
    async with lite_broker(store_path, maxOffsetsPerBroker=1024) as lt:
        await lt.add("old", "new")
        await lt.send("old", "0")
        first = await lt.pop(poll=60_000)
        assert (await lt.ack("old", 0, first)).code == 0
        for queue in range(1024):
            lt.p.broker.services.offsets.commit("other", "T", queue, 1)
        await lt.send("new", "1")
        refused = await lt.pop(poll=60_000)
        assert refused.code == 1 and "maxOffsetsPerBroker" in refused.remark
        assert lt.committed("new") is None
        await lt.p.broker.services.offsets.delete("other", "T")
        assert await lt.some() == [("new", "1")]


# ---- restart, expiry ----


async def test_d15_and_d17_what_is_out_and_acknowledged_survives_a_restart(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("r")
        await lt.send("r", "0", "1", "2")
        first = await lt.pop(poll=60_000)
        assert (await lt.ack("r", 1, first)).code == 0
    async with lite_broker(store_path) as lt:
        await lt.add("r")
        assert (await lt.pop()).code == 210  # the batch is still out
        assert (await lt.ack("r", 0, first)).code == 0
        assert lt.committed("r") == 2
        assert (await lt.ack("r", 2, first)).code == 0
        await lt.send("r", "3")
        assert await lt.some() == [("r", "3")]


async def test_d19_what_is_acknowledged_far_behind_a_failed_one_stays_away_from_small_pops(
    store_path,
):
    async with lite_broker(store_path) as lt:
        await lt.send("a", *"0123456")
        await lt.add("a")
        first = await lt.pop(poll=60_000)
        for offset in (0, 2, 4, 6):
            assert (await lt.ack("a", offset, first)).code == 0
        for offset in (1, 3, 5):
            assert (await lt.change("a", offset, first, 0)).code == 0
        for offset in (1, 3, 5):
            again = await lt.pop(most=1, poll=60_000)
            assert [body for _, body, *_ in records(again.body)] == [b"%d" % offset]
            assert (await lt.ack("a", offset, again)).code == 0
            assert again.ext["orderCountInfo"] == f"0 qo0%{offset} 1"
        assert lt.committed("a") == 7


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_what_is_acknowledged_stays_so_after_a_kill(store_path, tmp_path, role):
    """Also at the slave of a master that waits for it, which has the log alone."""
    async with lite_broker(store_path, brokerRole=role) as lt:
        await lt.send("a", "1", "2", "3")
        await lt.add("a")
        for offset in range(3):
            answer = await lt.pop(most=1, poll=60_000)
            assert (await lt.ack("a", offset, answer)).code == 0
        assert lt.committed("a") == 3
        snapshot(store_path, tmp_path / "killed")
    if role == "SYNC_MASTER":
        for suffix in ("json", "journal"):
            (tmp_path / "killed" / "config" / f"consumerOrderInfo.{suffix}").unlink(missing_ok=True)
    async with lite_broker(tmp_path / "killed") as lt:
        await lt.send("a", "4")
        await lt.add("a")
        assert await lt.some() == [("a", "4")]


async def test_d17_a_client_that_is_back_after_a_restart_need_not_subscribe(store_path):
    async with lite_broker(store_path) as lt:
        lt.group("w", wildcard="true")
        await lt.add("r")
        assert (await lt.ctl("COMPLETE_ADD", client="cw", group="w")).code == 0
        await lt.send("r", "0")
    async with lite_broker(store_path) as lt:
        assert await lt.bodies() == [("r", "0")]
        assert await lt.some(client="cw", group="w") == [("r", "0")]
        await lt.send("new", "1")
        assert await lt.some(client="cw", group="w") == [("new", "1")]


async def test_d17_many_subscriptions_are_written_and_read_by_the_piece(store_path, monkeypatch):
    """So that nobody holds all of them, and what changes meanwhile is in the next file."""
    monkeypatch.setattr(registry, "_NAMES_BYTES", 1024)
    monkeypatch.setattr(kept, "_PIECE_BYTES", 4096)
    names, late = [f"session-{n}" for n in range(1000)], asyncio.Event()
    put, pieces = kept._put, []
    loop = asyncio.get_running_loop()

    def slow(file, rows, end):
        before = file.tell()
        put(file, rows, end)
        pieces.append(file.tell() - before)
        loop.call_soon_threadsafe(late.set)

    monkeypatch.setattr(kept, "_put", slow)
    async with lite_broker(store_path) as lt:
        await lt.add(*names)
        await lt.add("own", client="other")
        await late.wait()
        await lt.add("late", client="other")
        assert (await lt.ctl("PARTIAL_REMOVE", names[0])).code == 0
        assert (await lt.ctl("COMPLETE_ADD", *names[1:], "late")).code == 0
    assert len(pieces) > 5 and max(pieces) <= 3 * 4096
    rows = json.loads((store_path / "config" / "liteSubscriptions.json").read_bytes())["clients"]
    assert len([row for row in rows if row["clientId"] == "c"]) > 10
    async with lite_broker(store_path) as lt:
        assert sorted(await lt.queues()) == sorted(f"%LMQ%$L${n}" for n in [*names[1:], "late"])
        assert await lt.queues("other") == ["%LMQ%$L$own", "%LMQ%$L$late"]
        # In one row, as an older version wrote it.
        old = [{key: row[key] for key in rows[0] if key != "more"} for row in rows[-1:]]
    (store_path / "config" / "liteSubscriptions.json").write_text(json.dumps({"clients": old}))
    async with lite_broker(store_path) as lt:
        assert lt.lite.registry.totals().clients == 1


async def test_d17_a_broken_file_of_subscriptions_is_as_none(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("r")
    file = store_path / "config" / "liteSubscriptions.json"
    client = json.loads(file.read_bytes())["clients"][0]
    wrong = {"liteTopicSet": ["n" * 300]}, {"topic": "t" * 300}, {"liteTopicSet": ["a", "b$c"]}
    too_long = json.dumps({"clients": [client | each for each in wrong]}).encode()
    cut = b'{"clients":[\n{"group":'
    for broken in (b"{", cut, too_long):
        file.write_bytes(broken)
        async with lite_broker(store_path) as lt:
            assert (await lt.pop()).code == 210
            assert lt.lite.registry.totals().pairs == 0


async def test_d2b_a_lite_topic_expires_when_its_topic_says(store_path):
    """40,000 minutes are more than 32 bits of milliseconds hold; what it says may change."""
    by_hand = {"minLiteTTl": 1000, "liteTtlCheckInterval": 3_600_000}
    async with lite_broker(store_path, expiration=40_000, **by_hand) as lt:
        await lt.add("t")
        await lt.send("t", "0", "1")
        first = await lt.pop(poll=60_000)
        for offset in (0, 1):
            assert (await lt.ack("t", offset, first)).code == 0
        assert await lt.lite.expire() == 0
        lt.shift(40_000 * 60_000 + 1000)
        lt.topic(-1)
        assert await lt.lite.expire() == 0
        lt.topic(40_000)
        assert await lt.lite.expire() == 1
        assert lt.lite.lights.range("%LMQ%$L$t") is None
        assert lt.committed("t") is None
        await lt.send("t", "anew")
        assert await lt.some() == [("t", "anew")]
        assert lt.lite.lights.range("%LMQ%$L$t") == (0, 1)


async def test_a_deleted_topic_takes_its_lite_topics_along(store_path):
    async with lite_broker(store_path) as lt:
        await lt.send("a", "1")
        await lt.p.ask(Code.DELETE_TOPIC_IN_BROKER, topic=PARENT)
        assert lt.lite.lights.count == 0


# ---- figures ----


def lag_of(lt, group=GROUP):
    """Messages, and lite topics with some, after a group's offsets."""
    (found,) = (each for each in lt.lite.registry.lags() if each.group == group)
    return found.messages, found.queues


async def test_d21_lag_is_kept_at_messages_and_commits_and_over_a_restart(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a", "b", "c")
        await lt.send("a", "0", "1", "2")
        await lt.send("b", "0")
        assert lag_of(lt) == (0, 0)  # no offset yet, as upstream has it
        await until_async(lambda: lt.lite.registry.totals().events == 2)
        answer = await lt.pop()
        assert lag_of(lt) == (4, 2)
        assert (await lt.ack("a", 0, answer)).code == 0
        assert lag_of(lt) == (3, 2)
        await lt.send("b", "1")
        await until_async(lambda: lag_of(lt) == (4, 2))
    async with lite_broker(store_path) as lt:
        assert lag_of(lt) == (4, 2)
        lt.group(parent="M")
        assert lag_of(lt) == (0, 0)
        lt.group()
        assert lag_of(lt) == (4, 2)
        await lt.lite.delete(["%LMQ%$L$a"], [GROUP], Pieces())
        assert lag_of(lt) == (2, 1)
        lt.p.broker.services.groups.delete(GROUP)
        assert lt.lite.registry.lags() == []


async def test_messages_without_a_lite_topic_are_taken_as_by_apache_and_told(store_path, caplog):
    """5.5.0 answers 0 over remoting, and stores them where groups of lite topics do not look."""
    async with lite_broker(store_path) as lt:
        await lt.send("a", "0")
        lt.lite.tell_plain()
        for _ in range(2):
            assert (await lt.p.send(b"plain", topic=PARENT)).code == 0
        lt.lite.tell_plain()
        lt.lite.tell_plain()
        said = [each.getMessage() for each in caplog.records if "without" in each.getMessage()]
        assert [each[:32] for each in said] == ["2 messages came without a lite t"]
        assert lt.lite.plain_sends() == {PARENT: 2}
        told = mqjson.loads(bytes((await lt.p.ask(Code.GET_BROKER_LITE_INFO)).body))
        assert told["plainSends"] == {PARENT: 2}


async def test_a_scrape_has_lite_topics_by_the_topic_they_are_below(store_path):
    async with lite_broker(store_path, metricsExporterType="PROM", metricsPromExporterPort=0) as lt:
        await lt.add("a", "b", "c")
        await lt.send("a", "0", "1", "2")
        await lt.send("b", "0")
        await until_async(lambda: lt.lite.registry.totals().events == 2)
        assert value(await scrape(lt.p.broker), "pystore_lite_events") == 2
        answer = await lt.pop()
        assert (await lt.ack("a", 0, answer)).code == 0
        page = await scrape(lt.p.broker)
        of = {"consumer_group": GROUP, "topic": PARENT}
        for name, wanted in (
            ("rocketmq_consumer_lag_messages", 3),
            ("rocketmq_consumer_ready_messages", 3),
            ("rocketmq_messages_out_total", 4),
            ("pystore_lite_topics_behind", 2),
        ):
            assert value(page, name, **of) == wanted, name
        for name, wanted in (
            ("topics", 2), ("topics_max", 0), ("clients", 1), ("subscriptions", 3),
            ("subscriptions_max", 100_000), ("polls", 0),
        ):  # fmt: skip
            assert value(page, f"pystore_lite_{name}") == wanted, name
        assert "%LMQ%" not in page


async def test_a_scrape_says_how_old_the_oldest_message_is_that_a_group_has_not_read(store_path):
    """In time as in messages: of the lite topic that waits longest."""
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    async with lite_broker(store_path, liteLagLatencyMetricsEnable=True, **settings) as lt:
        place = "rocketmq_consumer_lag_latency_milliseconds"
        of = {"consumer_group": GROUP, "topic": PARENT}
        await lt.add("a", "b", "c")
        for name in "abc":
            await lt.send(name, "0")
        await until_async(lambda: lt.lite.registry.totals().events == 3)
        answer = await lt.pop()
        for name in "ac":
            assert (await lt.ack(name, 0, answer)).code == 0
        lt.shift(5_000_000)
        assert 5_000_000 <= value(await scrape(lt.p.broker), place, **of) < 6_000_000
        assert (await lt.ack("b", 0, answer)).code == 0
        assert value(await scrape(lt.p.broker), place, **of) == 0


# ---- questions ----


async def test_tools_are_told_of_topics_clients_and_groups(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("ra", "rb")
        await lt.send("ra", "0", "1")
        await lt.some(most=1)

        async def body(code, **ext):
            answer = await lt.p.ask(code, **ext)
            assert answer.code == 0, answer.remark
            return mqjson.loads(bytes(answer.body))

        info = await body(Code.GET_BROKER_LITE_INFO)
        assert (info["currentLmqNum"], info["liteSubscriptionCount"]) == (1, 2)
        assert (info["maxLmqNum"], info["orderInfoCount"]) == (20_000, 1)
        assert info["groupMeta"] == {PARENT: [GROUP]}
        parent = await body(Code.GET_PARENT_TOPIC_INFO, topic=PARENT)
        assert (parent["liteTopicCount"], parent["ttl"]) == (1, -1)
        topic = await body(Code.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="ra")
        assert topic["topicOffset"]["maxOffset"] == 2
        assert topic["subscriber"] == [{"clientId": "c", "group": GROUP}]
        client = await body(
            Code.GET_LITE_CLIENT_INFO, parentTopic=PARENT, group=GROUP, clientId="c", maxCount=1
        )
        assert (client["liteTopicCount"], client["liteTopicSet"]) == (2, ["%LMQ%$L$ra"])
        group = await body(Code.GET_LITE_GROUP_INFO, group=GROUP, liteTopic="ra")
        assert (group["totalLagCount"], group["liteTopicOffsetWrapper"]["brokerOffset"]) == (2, 2)
        top = await body(Code.GET_LITE_GROUP_INFO, group=GROUP, topK=5)
        assert [each["liteTopic"] for each in top["lagCountTopK"]] == ["ra"]
        queue = "%LMQ%$L$ra"
        for code, ext, offset in (
            (Code.GET_MAX_OFFSET, {"topic": queue, "queueId": 0}, "2"),
            (Code.GET_MIN_OFFSET, {"topic": queue, "queueId": 0}, "0"),
            (Code.SEARCH_OFFSET_BY_TIMESTAMP,
             {"topic": PARENT, "liteTopic": "ra", "queueId": 0, "timestamp": 1 << 60}, "2"),
            (Code.SEARCH_OFFSET_BY_TIMESTAMP,
             {"topic": PARENT, "liteTopic": "ra", "queueId": 1, "timestamp": 1 << 60}, "0"),
        ):  # fmt: skip
            assert (await lt.p.ask(code, **ext)).ext["offset"] == offset
        for code, ext, wanted in (
            (Code.GET_PARENT_TOPIC_INFO, {"topic": "none"}, 17),
            (Code.GET_PARENT_TOPIC_INFO, {"topic": "TBW102"}, 29),
            (Code.GET_LITE_GROUP_INFO, {"group": "plain", "topK": 5}, 29),
            (Code.GET_LITE_GROUP_INFO, {"group": GROUP}, 1),
            (200072, {}, 3),
        ):
            assert (await lt.p.ask(code, **ext)).code == wanted


async def told(lt, group):
    """How many lite topics tools are told of, and how far the group is behind: in all, and in
    which."""

    async def body(code, **ext):
        answer = await lt.p.ask(code, **ext)
        assert answer.code == 0, answer.remark
        return mqjson.loads(bytes(answer.body))

    count = (await body(Code.GET_PARENT_TOPIC_INFO, topic=PARENT))["liteTopicCount"]
    said = await body(Code.GET_LITE_GROUP_INFO, group=group, topK=100)
    first = await body(Code.GET_LITE_GROUP_INFO, group=group, topK=2)
    lags = [each["lagCount"] for each in said["lagCountTopK"]]
    assert lags == sorted(lags, reverse=True)
    assert [each["lagCount"] for each in first["lagCountTopK"]] == lags[:2]
    behind = {each["liteTopic"]: each["lagCount"] for each in said["lagCountTopK"]}
    assert len(behind) == len(lags)
    return count, said["totalLagCount"], behind


async def walked(lt, group):
    """The same, by a look at each."""
    found = [each async for each in lt.lite.walk(PARENT)]
    behind = {}
    for each in found:
        name = each.name.rpartition("$")[2]
        offset = lt.committed(name, group)
        if offset is not None and offset < each.high:
            behind[name] = each.high - offset
    return len(found), sum(behind.values()), behind


async def waits_since(lt, group, behind):
    """When the oldest message was stored that a group has not read, of lite topics in which it is
    behind."""
    found = [
        lt.lite.lights.read(f"%LMQ%$L${name}", lt.committed(name, group), 1) for name in behind
    ]
    return min((rows[0].store_timestamp for rows in found if rows), default=None)


async def go_on(lt, rng):
    """Something that happens to a lite topic."""
    name, offsets = f"n{rng.randrange(9)}", lt.p.broker.services.offsets
    match rng.choice("sssssccpprdde"):
        case "s":
            await lt.send(name, *"012"[: rng.randrange(1, 4)])
        case "c":
            offsets.commit("h", f"%LMQ%$L${name}", 0, rng.randrange(5))
        case "p":
            answer = await lt.pop(most=rng.randrange(1, 9))
            for _, _, said, *_ in records(answer.body):
                at = int(said["INNER_MULTI_QUEUE_OFFSET"])
                assert (await lt.ack(said["__LITE_TOPIC"], at, answer)).code == 0
        case "r":
            kind = rng.choice(["OFFSET", "TAIL_N"])
            await lt.add(name, option={"type": kind, "value": rng.randrange(4)})
        case "d":
            await lt.lite.delete([f"%LMQ%$L${name}"], [GROUP, "h"], Pieces())
        case "e" if rng.randrange(3) == 0:
            lt.shift(40_000 * 60_000)
            await lt.lite.expire()


async def test_d21_tools_are_told_what_a_walk_over_all_lite_topics_finds(store_path, rng):
    """After sends, commits, resets, deletions and expiry, also over a restart and a rebuild."""
    by_hand = {"minLiteTTl": 1000, "liteTtlCheckInterval": 10**9}
    for life in range(3):
        if life == 2:
            shutil.rmtree(store_path / "lightqueue")
        async with lite_broker(store_path, expiration=40_000, **by_hand) as lt:
            lt.group("h")
            await lt.add(*(f"n{i}" for i in range(9)))
            assert ("n0" in (await told(lt, "h"))[2]) == (life > 0)
            for _ in range(12):
                for group in (GROUP, "h"):
                    assert await told(lt, group) == (found := await walked(lt, group))
                    since = await lt.lite.registry.oldest_ms(group, Pieces())
                    assert since == await waits_since(lt, group, found[2])
                for _ in range(5):
                    await go_on(lt, rng)
            await lt.send("n0", "last")
            lt.p.broker.services.offsets.commit("h", "%LMQ%$L$n0", 0, 0)


async def test_lists_of_lite_topics_are_made_one_after_the_other(store_path, monkeypatch):
    """Also those of several connections: each has up to 10,000 rows."""
    async with lite_broker(store_path) as lt, RemotingClient() as other:
        await lt.send("a", "0")
        furthest, running, most = lt.lite.registry.furthest, 0, 0

        async def counted(group, count):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)  # others have their turn
            async for each in furthest(group, count):
                yield each
            running -= 1

        monkeypatch.setattr(lt.lite.registry, "furthest", counted)
        asked = [
            client.request(
                lt.p.broker.address,
                Command(Code.GET_LITE_GROUP_INFO, {"group": GROUP, "topK": "5"}),
                timeout=BOUND_S,
            )
            for client in (lt.p.client, other)
        ]
        assert [answer.code for answer in await asyncio.gather(*asked)] == [0, 0]
        assert most == 1


async def test_who_is_dropped_at_a_take_over_leaves_no_connection_behind(store_path):
    async with lite_broker(store_path) as lt:
        await lt.add("a")
        assert list(lt.lite._peers) == [(GROUP, "c")]
        await lt.lite.take_over([], all_there_are=True)
        assert lt.lite._peers == {}
