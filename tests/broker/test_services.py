"""What a broker knows: topics, groups, clients, offsets, locks, statistics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes import FakeCore, FakePeer, services

from broker.loop import turns
from broker.services import locks as locks_module
from broker.services.clients import Beat, Channel, Subscription
from broker.services.config import Config
from broker.services.hooks import AbortProcessException, Hooks
from broker.services.locks import Locks
from broker.services.statistics import Statistics
from broker.wire.command import Refused
from broker.wire.mqjson import MessageQueue
from pystore import BadArgument, SubscriptionGroup, TopicConfig, settings
from pystore.store import hosting


@pytest.fixture
def s(tmp_path, small):
    with services(tmp_path / "store", small) as made:
        yield made


def refusal(call, *args, **more):
    with pytest.raises(Refused) as caught:
        call(*args, **more)
    return caught.value.code


# ---- topics ----


def test_built_in_topics_are_there_and_published(s):
    template = s.topics.get("TBW102")
    assert (template.write_queue_nums, template.perm) == (8, 7)
    assert s.core.topics["TBW102"] == (8, 8, 7, True)
    assert s.core.topics["SCHEDULE_TOPIC_XXXX"][3] is False
    assert {"TBW102", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} <= s.core.topics.keys()


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (1000, 8), (0, 1), (-3, 1)])
def test_send_makes_a_topic_with_as_many_queues_as_both_want(s, asked, made):
    config = s.topics.for_send("orders", "TBW102", asked)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)
    assert s.core.topics["orders"] == (made, made, 6, True)


def test_a_topic_has_a_filter_type_that_there_is(s):
    assert (
        refusal(s.topics.update, TopicConfig("orders", 1, 1, topic_filter_type="x" * 40_000)) == 29
    )
    assert s.topics.get("orders") is None


def test_topic_is_made_only_from_one_that_lets_inherit(s):
    assert s.topics.for_send("orders", "BenchmarkTest", 4) is None
    assert s.topics.for_send("orders", "nothing", 4) is None
    s.settings.update({"autoCreateTopicEnable": "false"})
    assert s.topics.for_send("orders", "TBW102", 4) is None
    assert s.topics.for_send("%RETRY%readers", "TBW102", 4).write_queue_nums == 1


def test_sends_to_retry_topics_come_up(s):
    s.topics.for_send("%RETRY%readers", "TBW102", 4)
    assert s.core.topics["%RETRY%readers"] == (4, 4, 6, False)
    assert s.topics.dead_letter_topic("readers").name == "%DLQ%readers"
    assert s.core.topics["%DLQ%readers"] == (1, 1, 6, True)


def test_changes_are_told(s):
    told = []
    s.topics.changed = told.append
    s.topics.update(TopicConfig("orders", 2, 3))
    s.topics.update(TopicConfig("orders", 2, 3))
    s.topics.delete("orders")
    s.topics.delete("orders")
    assert [[each.name for each in configs] for configs in told] == [["orders"], []]
    assert "orders" not in s.core.topics


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 128, "TBW102", "rmq_sys_x"])
def test_names_that_no_tool_may_use(s, name):
    assert refusal(s.topics.update, TopicConfig(name)) == 29


@pytest.mark.parametrize(
    ("changes", "code"),
    [("+message.type=MIXED", 29), ("+queue.type=BatchCQ", 29), ("+cleanup.policy=COMPACTION", 29),
     ("+message.type=X", 1), ("+a=b", 1), ("-message.type", 1), ("message.type=A", 1)],
)  # fmt: skip
def test_invalid_attributes(s, changes, code):
    """Upstream answers 1 to what it cannot read; 29 is ours, for what it would serve."""
    assert refusal(s.topics.update, TopicConfig("orders"), changes) == code
    assert s.topics.get("orders") is None


@pytest.mark.parametrize(("name", "kind"), [("queue.type", "BatchCQ"),
                                            ("cleanup.policy", "COMPACTION")])  # fmt: skip
def test_a_kind_of_topic_that_only_its_master_serves_is_named(s, caplog, name, kind):
    """A slave of Apache's broker has it, and what it would lose as its copy."""
    s.topics.take(TopicConfig("orders", attributes={name: kind}))
    assert "The topic 'orders' is served as an ordinary one" in caplog.text


def test_attributes_change_by_sign(s):
    s.topics.update(TopicConfig("orders"), "+message.type=FIFO,+reserve.time=3")
    s.topics.update(TopicConfig("orders"), "-reserve.time")
    assert s.topics.get("orders").attributes == {"message.type": "FIFO"}


def test_version_counts_changes(s):
    before = s.topics.version.counter
    s.topics.update(TopicConfig("orders"))
    assert s.topics.version.counter == before + 1


def test_topic_that_may_not_be_read_anywhere_while_the_broker_may_not(tmp_path, small):
    with services(tmp_path / "store", small | {"brokerPermission": 2}) as s:
        assert s.core.topics["TBW102"][2] == 3


# ---- groups ----


def test_reserved_groups_are_there(s):
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"} <= {g.name for g in s.groups.all()}


def test_groups_make_themselves_unless_forbidden(s):
    assert s.groups.find("readers").retry_max_times == 16
    assert s.groups.find("not a name") is None
    s.settings.update({"autoCreateSubscriptionGroup": "false"})
    assert refusal(s.groups.found, "others") == 26


# ---- clients ----


def channel(peer, client="c1"):
    return Channel(peer, client, 0, 479)


def a_beat(*topics, version=1, group="readers", model="CLUSTERING", expression="*", kind="TAG"):
    subs = tuple(Subscription(t, expression, version=version, kind=kind) for t in topics)
    return Beat(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", subs)


def test_members_are_told_when_their_group_changes(s):
    one, two = FakePeer(1), FakePeer(2)
    s.clients.consumer_beat(channel(one), a_beat("orders"))
    assert one.notices() == ["readers"]
    s.clients.consumer_beat(channel(one), a_beat("orders"))
    assert one.notices() == []
    s.clients.consumer_beat(channel(one), a_beat("orders", version=2))
    assert one.notices() == []  # a newer version alone is not a change
    s.clients.consumer_beat(channel(two, "c2"), a_beat("orders", version=2))
    assert (one.notices(), two.notices()) == (["readers"], ["readers"])
    s.clients.consumer_beat(channel(one), a_beat("orders", "bills", version=3))
    assert (one.notices(), two.notices()) == (["readers"], ["readers"])
    s.clients.departed(two)
    assert (one.notices(), two.notices()) == (["readers"], [])
    assert s.clients.consumers["readers"].client_ids() == ["c1"]


def test_broadcasting_groups_are_not_told(s):
    one = FakePeer()
    s.clients.consumer_beat(channel(one), a_beat("orders", model="BROADCASTING"))
    assert one.notices() == []


def test_subscriptions_reach_the_core_and_leave_it(s):
    one = FakePeer()
    s.clients.consumer_beat(channel(one), a_beat("orders", expression="A || B", version=5))
    assert s.core.subscriptions["readers", "orders"][:3] == (frozenset("AB"), None, 5)
    s.clients.consumer_beat(channel(one), a_beat("orders", expression="C", version=4))
    assert s.core.subscriptions["readers", "orders"][0] == frozenset("AB")  # an older one
    s.clients.consumer_beat(channel(one), a_beat("bills", version=6))
    assert s.core.subscriptions.keys() == {("readers", "bills")}
    s.clients.leave(one, "c1", "", "readers")
    assert not s.core.subscriptions
    assert not s.clients.consumers


@pytest.mark.parametrize("change", ["consume", "broadcast", "forbid"])
def test_groups_without_the_right_to_read_are_not_served_by_the_core(s, change):
    one = FakePeer()
    model = "BROADCASTING" if change == "broadcast" else "CLUSTERING"
    s.clients.consumer_beat(channel(one), a_beat("orders", model=model))
    assert s.core.subscriptions
    group = s.groups.get("readers")
    if change == "forbid":
        s.groups.forbid("readers", "orders", True)
    else:
        member = "consumeEnable" if change == "consume" else "consumeBroadcastEnable"
        s.groups.update(s.groups.from_json(s.groups.to_json(group) | {member: False}))
    assert not s.core.subscriptions


def test_sql_is_published_where_it_is_allowed_and_right(s):
    beat = a_beat("orders", kind="SQL92", expression="a > 1")
    s.clients.consumer_beat(channel(FakePeer()), beat)
    sql, is_shared = 1, 5
    assert not s.core.subscriptions["readers", "orders"][sql]
    assert not s.core.subscriptions["readers", "orders"][is_shared]  # pulls ask Python
    s.settings.update({"enablePropertyFilter": "true"})
    s.clients.republish("readers")
    assert s.core.subscriptions["readers", "orders"][:2] == (None, "a > 1")


def test_clients_that_are_silent_are_dropped(s):
    one, two = FakePeer(1), FakePeer(2)
    s.clients.consumer_beat(channel(one), a_beat("orders"))
    s.clients.producer_beat(channel(one), "makers")
    s.clients.consumer_beat(channel(two, "c2"), a_beat("orders"))
    for old in (s.clients.consumers["readers"].channels[one], s.clients.producers["makers"][one]):
        old.seen -= 121
    s.clients.scan()
    assert (one.closed, two.closed) == (True, False)
    assert s.clients.consumers["readers"].client_ids() == ["c2"]
    assert not s.clients.producers


def test_members_of_another_role_stay_until_they_had_time_to_come_again(s, tmp_path, small):
    """Queues stay divided among all of them: who is here first takes none of the others'."""
    s.clients.consumer_beat(channel(FakePeer(1)), a_beat("orders"))
    s.clients.consumer_beat(channel(FakePeer(2), "c2"), a_beat("orders"))
    s.clients.consumer_beat(channel(FakePeer(3), "c3"), a_beat("orders"))
    with services(tmp_path / "next", small) as next_role:
        clients, core = next_role.clients, next_role.core
        clients.expect(s.clients.members())
        group = clients.consumers["readers"]
        assert core.subscriptions.keys() == {("readers", "orders")}
        assert clients.online("readers") is None
        one = FakePeer(4)
        assert not clients.consumer_beat(channel(one), a_beat("orders"))
        assert (sorted(group.client_ids()), one.notices()) == (["c1", "c2", "c3"], [])
        clients.leave(FakePeer(5), "c3", "", "readers")
        assert (group.client_ids(), one.notices()) == (["c1", "c2"], ["readers"])
        clients.departed(one)  # it was not answered in time, and comes again
        clients.scan()
        assert group.client_ids() == ["c1", "c2"]
        clients.consumer_beat(channel(one), a_beat("orders"))
        clients._awaits_until -= 36
        clients.scan()
        assert (group.client_ids(), one.notices()) == (["c1"], ["readers"])
        clients.departed(one)
        assert not clients.consumers and not core.subscriptions


def test_what_clients_say_of_themselves_takes_so_much_memory(s, monkeypatch):
    """Who says most goes first, whoever came last."""
    monkeypatch.setattr("broker.services.clients.SIZE_MAX", 30_000)
    large, small = FakePeer(1), FakePeer(2)
    for n in range(60):
        s.clients.producer_beat(channel(large), f"makers-{n}")
    for n in range(20):
        s.clients.consumer_beat(channel(small, "c2"), a_beat("orders", group=f"readers-{n}"))
    assert (large.closed, small.closed, s.clients.producers) == (True, False, {})
    more = [refusal(s.clients.consumer_beat, channel(small, "c2"), a_beat(*("t" * n for n in
            range(1, 40)), version=2))]  # fmt: skip
    assert (more, small.closed, s.clients.size, s.clients.consumers) == ([2], True, 0, {})


def test_what_a_client_takes_back_counts_no_more(s):
    one = FakePeer()
    for _ in range(3):  # the same again is no more than once
        s.clients.producer_beat(channel(one), "makers")
        s.clients.consumer_beat(channel(one), a_beat("orders"))
        s.clients.consumer_sign(channel(one), "readers")
    both = s.clients.size
    s.clients.leave(one, "c1", "makers", "")
    assert 0 < s.clients.size < both
    s.clients.leave(one, "c1", "", "readers")
    assert (s.clients.size, s.clients.producer_channel("c1")) == (0, None)


def test_a_connection_that_goes_is_looked_for_in_its_own_groups_alone(s):
    class Unlisted(dict):
        def __iter__(self):
            raise AssertionError("all groups are gone through")

        items = values = keys = __iter__

    one, two = FakePeer(1), FakePeer(2)
    s.clients.producers, s.clients.consumers = Unlisted(), Unlisted()
    for peer, name in ((one, "c1"), (two, "c2")):
        s.clients.producer_beat(channel(peer, name), "makers")
        s.clients.consumer_beat(channel(peer, name), a_beat("orders"))
    assert s.clients.producer_channel("c2").peer is two
    s.clients.departed(one)
    s.clients.scan()
    assert next(iter(dict.values(s.clients.producers))).keys() == {two}


async def turns_until(done, most=1000):
    """Turns of the event loop."""
    for count in range(most):
        if done():
            return count
        await asyncio.sleep(0)
    raise AssertionError("it does not end")


def test_connections_with_very_many_groups_leave_in_turns(s):
    peers = [FakePeer(n) for n in range(100)]
    for n, peer in enumerate(peers):
        for i in range(20):
            s.clients.producer_beat(channel(peer, f"c{n}"), f"makers-{n}-{i}")

    async def leave():
        for peer in peers:
            s.clients.departed(peer)
        assert len(s.clients.producers) > 1500
        return await turns_until(lambda: not s.clients.producers)

    assert asyncio.run(leave()) > 5


def test_members_of_a_large_group_are_notified_in_turns(s):
    peers = [FakePeer(n) for n in range(2000)]

    async def join():
        for n, peer in enumerate(peers):
            s.clients.consumer_beat(channel(peer, f"c{n}"), a_beat("orders"))
        await turns_until(lambda: not s.clients._changed and s.clients._left is None)
        for peer in peers:
            peer.notices()
        for version, topic in enumerate(("bills", "orders", "bills"), 2):
            s.clients.consumer_beat(channel(peers[0], "c0"), a_beat(topic, version=version))
        assert not any(peer.sent for peer in peers)
        return await turns_until(lambda: all(peer.sent for peer in peers))

    assert asyncio.run(join()) > 5
    assert {len(peer.notices()) for peer in peers} == {1}


def test_producer_is_found_by_its_name(s):
    one = FakePeer()
    s.clients.producer_beat(channel(one, "p1"), "makers")
    assert s.clients.producer_channel("p1").peer is one
    assert s.clients.producer_channel("p2") is None
    one.close()
    assert s.clients.producer_channel("p1") is None


# ---- offsets ----


def test_offsets_survive(tmp_path, small):
    with services(tmp_path / "store", small) as s:
        for queue in (0, 3):
            s.store.put_many("orders", [b"m"] * 17, queue=queue)
        s.offsets.commit("readers", "orders", 3, 17)
        s.offsets.commit("readers", "orders", 3, 5)  # clients may go back
        s.offsets.commit("bad@name", "orders", 0, 1)
        asyncio.run(s.offsets.persist())
        s.offsets.commit("readers", "orders", 0, 2)
        s.offsets.persist_now()
    with services(tmp_path / "store", small) as s:
        assert s.offsets.get("readers", "orders", 3) == 5
        assert s.offsets.get("readers", "orders", 0) == 2
        assert s.offsets.groups_of("orders") == {"readers"}
        assert not s.core.changed
        s.offsets.commit("readers", "orders", 0, 9)
        asyncio.run(s.offsets.delete(group="readers"))
        asyncio.run(s.offsets.persist())
        assert s.offsets.get("readers", "orders", 0) is None
        assert not s.store.metadata.offsets.all()


@pytest.mark.parametrize("at_the_end", [False, True])
def test_offsets_are_written_after_the_records_that_they_rest_on(tmp_path, small, at_the_end):
    """A copy that was sent back, and the offset that passes its message over."""
    lazy = {"flushIntervalCommitLog": 600_000, "flushCommitLogThoroughInterval": 600_000}
    with services(tmp_path / "store", small | lazy) as s:
        s.store.put("%RETRY%readers", b"copy")
        end = s.store.info().log_max
        assert s.store.info().log_flushed < end
        s.offsets.commit("readers", "orders", 0, 1)
        if at_the_end:
            s.offsets.persist_now()
        else:
            asyncio.run(s.offsets.persist())
        assert s.store.info().log_flushed >= end


async def test_many_changed_offsets_are_saved_in_pieces(s, monkeypatch):
    """No batch is large, other work runs between two pieces, and the mark, which says that all are
    saved, comes with the last."""
    monkeypatch.setattr(turns, "PIECE_S", 0.0)
    monkeypatch.setattr("broker.services.offsets._BATCH", 100)
    monkeypatch.setattr(s.core, "PIECE", 40, raising=False)
    batches, steps = [], []
    write = s.offsets._write

    def written(rows, mark, end):
        batches.append((len(rows), mark is not None))
        write(rows, mark, end)

    async def step():
        while True:
            steps.append(1)
            await asyncio.sleep(0)

    monkeypatch.setattr(s.offsets, "_write", written)
    for queue in range(500):
        s.offsets.commit("readers", "orders", queue, queue)
    others = asyncio.get_running_loop().create_task(step())
    await s.offsets.persist()
    others.cancel()
    assert [each for _, each in batches] == [False] * (len(batches) - 1) + [True]
    assert max(count for count, _ in batches) <= 140 and len(steps) > len(batches) > 3
    saved = s.store.metadata.offsets.all("readers", "orders")
    assert {each.queue: each.offset for each in saved} == {n: n for n in range(500)}


def test_offsets_that_could_not_be_saved_are_saved_later(s, monkeypatch):
    s.offsets.commit("readers", "orders", 0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(s.offsets, "_write", lambda rows, mark, end: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(s.offsets.persist())
    s.offsets.commit("readers", "orders", 1, 2)
    asyncio.run(s.offsets.persist())
    assert {(o.queue, o.offset) for o in s.store.metadata.offsets.all()} == {(0, 1), (1, 2)}


def test_a_walk_over_all_groups_lets_others_have_their_turn(s, monkeypatch):
    """And says what was there when it began."""
    monkeypatch.setattr(turns, "PIECE_S", 0.0)
    for number in range(20):
        s.offsets.commit(f"g{number % 7}", f"t{number}", 0, number)

    async def walk():
        walking = asyncio.ensure_future(s.offsets.topics_by_group())
        others = 0
        while not walking.done():
            await asyncio.sleep(0)
            others += 1
            s.offsets.commit("late", "t", 0, 1)
        return walking.result(), others

    found, others = asyncio.run(walk())
    assert others > 20
    assert found["g6"] == {"t6", "t13"} and len(found) - ("late" in found) == 7


def test_the_deletion_of_a_group_lets_others_have_their_turn(s, monkeypatch):
    """It may have read a million lite topics."""
    monkeypatch.setattr(turns, "PIECE_S", 0.0)
    for number in range(40):
        s.offsets.commit("g", f"t{number}", 0, 1)
    s.offsets.commit("h", "t1", 0, 1)

    async def delete():
        deleting = asyncio.ensure_future(s.offsets.delete(group="g"))
        seen = set()
        while not deleting.done():
            await asyncio.sleep(0)
            seen.add(sum(s.offsets.get("g", f"t{number}", 0) is not None for number in range(40)))
        return await deleting or len(seen)

    assert asyncio.run(delete()) > 20
    assert [(o.group, o.topic) for o in s.store.metadata.offsets.all()] == [("h", "t1")]


# ---- locks ----


def test_locks_belong_to_one_client_until_they_are_old():
    now = [0.0]
    locks = Locks(lambda: now[0])
    queues = [MessageQueue("orders", "b", i) for i in range(2)]
    assert locks.lock("g", "c1", queues) == queues
    assert locks.lock("g", "c2", queues) == []
    assert locks.lock("other", "c2", queues) == queues
    locks.unlock("g", "c2", queues)
    locks.unlock("g", "c1", queues[:1])
    assert locks.lock("g", "c2", queues) == queues[:1]
    assert locks.is_orderly("g")
    now[0] = 61.0
    assert not locks.is_orderly("g")
    locks.scan()
    assert locks.lock("g", "c2", queues) == queues


def test_locks_of_ever_new_queues_take_so_much_memory(monkeypatch):
    """What is held is renewed all the same, and there is room again once locks are old."""
    monkeypatch.setattr(locks_module, "SIZE_MAX", 100_000)
    now = [0.0]
    locks = Locks(lambda: now[0])
    mine = [MessageQueue("orders", "b", 0)]
    assert locks.lock("mine", "me", mine) == mine

    def fill():
        for i in range(1000):
            locks.lock(f"g{i}", "c", [MessageQueue(f"t{i}", "b", 0)])

    assert refusal(fill) == 2
    assert 90_000 < locks.size <= 100_000
    assert locks.lock("mine", "me", mine) == mine
    now[0] = 61.0
    locks.scan()
    assert locks.size == 0
    assert refusal(fill) == 2


# ---- statistics ----


def test_windows_show_what_came_within_them():
    now, wall, core = [0.0], [1_700_000_000.0], FakeCore()
    statistics = Statistics(core, "C", lambda: now[0], lambda: wall[0])
    statistics.sample()
    assert statistics.view("TOPIC_PUT_NUMS", "orders") is None
    core.counters = [("orders", None, 120, 6000), ("orders", "readers", 40, 2000)]
    now[0] = 10.0
    minute = statistics.view("TOPIC_PUT_NUMS", "orders")["statsMinute"]
    assert minute == {"sum": 120, "tps": 12.0, "avgpt": 1.0}
    assert statistics.view("TOPIC_PUT_SIZE", "orders")["statsHour"]["avgpt"] == 50.0
    assert statistics.view("GROUP_GET_NUMS", "orders@readers")["statsDay"]["sum"] == 40
    assert statistics.view("BROKER_PUT_NUMS", "C")["statsMinute"]["sum"] == 120
    for _ in range(30):
        statistics.sample()
        now[0] += 10.0
    assert statistics.view("TOPIC_PUT_NUMS", "orders")["statsMinute"]["sum"] == 0
    assert statistics.view("TOPIC_PUT_NUMS", "orders")["statsHour"]["sum"] == 120
    assert (
        statistics.rates("BROKER_PUT_NUMS", statistics.sums()["BROKER_PUT_NUMS"]).split()[0]
        == "0.0"
    )
    assert (
        float(statistics.rates("BROKER_PUT_NUMS", statistics.sums()["BROKER_PUT_NUMS"]).split()[2])
        > 0
    )


def test_a_window_leaves_out_what_another_counted_at_the_same_place():
    """The place of a topic that was deleted is another's from the next sample on."""
    now, core = [0.0], FakeCore()
    statistics = Statistics(core, "C", lambda: now[0])
    core.counters = [("deleted", None, 500, 5000)]
    statistics.sample()
    core.counters, core.since = [("made", None, 30, 300)], core.samples + 1
    now[0] = 10.0
    assert statistics.view("TOPIC_PUT_NUMS", "made")["statsMinute"]["sum"] == 30


def test_a_sample_is_numbers_alone_and_rates_keep_none_of_topics():
    """Sixty copies of all names and counters of 20,000 topics were half a gigabyte."""
    core = FakeCore()
    core.counters = [(f"topic-{i}", None, 1, 10) for i in range(2000)]
    now = [0.0]
    statistics = Statistics(core, "C", lambda: now[0])
    for _ in range(70):
        statistics.sample()
        now[0] += 10.0
    samples = [s for w in statistics._windows.values() for s in w.samples]
    assert len(samples) < 40
    assert {(len(s.core), s.core.itemsize) for s in samples} == {(4000, 8)}
    assert all(len(s.core) == 0 for s in statistics._rates.samples)


def test_mornings_move_on_at_midnight():
    core, wall = FakeCore(), [1_700_000_000.0]
    statistics = Statistics(core, "C", lambda: wall[0], lambda: wall[0])
    statistics.sample()
    core.counters = [("orders", None, 7, 70)]
    wall[0] += 86400
    statistics.sample()
    assert statistics.mornings["BROKER_PUT_NUMS"] == (0, 7)


# ---- hooks, settings ----


class Noisy:
    name = "noisy"

    def __init__(self, error):
        self.error = error

    def before(self, context):
        raise self.error

    after = before


def test_only_the_abort_of_a_hook_counts():
    hooks = Hooks()
    hooks.add(Noisy(ValueError("a mistake")))
    hooks.before("context")
    hooks.add(Noisy(AbortProcessException(604, "no")))
    with pytest.raises(AbortProcessException):
        hooks.before("context")
    hooks.after("context")


def test_settings_change_all_or_none():
    config = Config(settings.load(None, {}))
    told = []
    config.changed.append(told.append)
    for wrong in ({"traceOn": "perhaps"}, {"traceOm": "true"}, {"brokerName": "x"},
                  {"flushDiskType": "SYNC_FLUSH"}):  # fmt: skip
        with pytest.raises(BadArgument):
            config.update(wrong | {"brokerPermission": "4"})
    assert (config["brokerPermission"], config.version.counter, told) == (6, 0, [])
    config.update({"brokerPermission": "4", "brokerName": config["brokerName"]})
    assert (config["brokerPermission"], config.version.counter) == (4, 1)
    assert told == [{"brokerPermission"}]
    assert "brokerPermission=4\n" in config.as_text(Path("/store"))


def test_retention_follows_a_change_at_once(s):
    for _ in range(3):
        s.store.put("orders", b"x" * 500_000)
    s.store.flush()
    old = s.store.clean(dry_run=True, now_ms=2_000_000_000_000)
    s.settings.update({"fileReservedTime": str(1 << 30)})
    hosting.retain(s.store, s.settings.current)
    assert old.log_files > 0
    assert s.store.clean(dry_run=True, now_ms=2_000_000_000_000).log_files == 0
    assert s.store.settings["fileReservedTime"] == 1 << 30


def test_groups_are_in_the_order_of_their_names(s):
    names = [f"g{number * 7 % 20:02}" for number in range(20)]
    for name in names:
        s.groups.update(SubscriptionGroup(name))
    s.groups.update(SubscriptionGroup("g03", retry_queue_nums=2))
    assert s.groups.delete("g04") and not s.groups.delete("g04")
    own = [each.name for each in s.groups.all() if each.name.startswith("g")]
    assert own == sorted({*names} - {"g04"})


def test_the_text_of_a_group_is_that_of_now_and_goes_with_it(s):
    groups = s.groups
    groups.update(SubscriptionGroup("g", retry_queue_nums=4))
    first = groups.text(groups.get("g"))
    assert groups.text(groups.get("g")) is first and '"retryQueueNums":4' in first
    groups.update(SubscriptionGroup("g", retry_queue_nums=8))
    old = groups.get("g")
    assert '"retryQueueNums":8' in groups.text(old)
    assert groups.delete("g")
    assert '"retryQueueNums":8' in groups.text(old) and "g" not in groups._texts._kept


def test_the_text_of_a_topic_is_that_of_now_and_goes_with_it(s):
    topics = s.topics
    topics.update(TopicConfig("t", 4, 4))
    first = topics.text(topics.get("t"))
    assert topics.text(topics.get("t")) is first and '"readQueueNums":4' in first
    topics.update(TopicConfig("t", 8, 8))
    old = topics.get("t")
    assert '"readQueueNums":8' in topics.text(old)
    assert topics.delete("t")
    assert '"readQueueNums":8' in topics.text(old) and "t" not in topics._texts._kept
