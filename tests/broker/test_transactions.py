"""Transactions over sockets: each check of docs/internals/services.md#deciding, the rounds of
docs/internals/services.md#checking, the weak points of upstream's. The clock is the test's."""

from __future__ import annotations

import asyncio
import json
import lzma
from pathlib import Path

import pytest
from transacting import (
    COMMIT,
    DISCARDED,
    HALF,
    OP,
    ROLLBACK,
    Clock,
    Half,
    asked_of,
    scenario,
    transacting,
)
from waiting import until_async

from broker.wire import codec
from broker.wire.command import Command
from pystore import Reader
from pystore.store.pending_log import find_pending

# ---- the half ----


@scenario()
async def test_answer_to_a_half_names_its_place_and_the_queue_asked_for(t):
    p = await t.producer()
    await p.half(key="first", e=1)
    answer = await p.send(key="second", e=3, h=77, properties={"KEYS": "k"})
    assert answer.ext["queueOffset"] == "1"
    assert answer.ext["queueId"] == "3"
    assert answer.ext["transactionId"] == "second"
    stored = t.store.message_by_id(answer.ext["msgId"])
    assert (stored.topic, stored.queue, stored.queue_offset) == (HALF, 0, 1)
    assert (stored.sys_flag & 12, stored.flag) == (0, 77)
    found = stored.properties
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("orders", "3")
    assert found["__transactionId__"] == "second"
    assert t.texts("orders") == []


@scenario()
async def test_half_does_not_believe_what_a_client_says_of_halves(t):
    p = await t.producer()
    lies = {
        "REAL_TOPIC": "elsewhere", "REAL_QID": "9", "TRANSACTION_CHECK_TIMES": "14",
        "TRAN_PREPARED_QUEUE_OFFSET": "0", "__transactionId__": "x",
    }  # fmt: skip
    for _ in range(2):  # the first goes through Python, which makes the topic
        half = await p.half(key="true", properties=lies)
        found = t.store.message(half.place).properties
        assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("orders", "0")
        assert found["__transactionId__"] == "true"
        assert "TRANSACTION_CHECK_TIMES" not in found
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in found


@scenario()
async def test_retry_that_leaked_the_property_is_no_half(t):
    p = await t.producer()
    answer = await p.send(properties={"DELAY": "1"}, j=1)
    assert (answer.code, t.service.halves.state().open) == (0, 0)


@pytest.mark.parametrize("first", [True, False])
async def test_reject_transaction_message(tmp_path, small, first):
    async with transacting(tmp_path / "s", small, rejectTransactionMessage=first) as t:
        p = await t.producer()
        if not first:
            await p.half()
            t.broker.services.settings.update({"rejectTransactionMessage": "true"})
        answer = await p.send()
        assert (answer.code, "forbidden" in answer.remark) == (16, True)


@scenario()
async def test_half_without_group_is_refused(t):
    p = await t.producer()
    await p.half()
    for group in ("", "g" * 256):
        answer = await p.send(properties={"PGROUP": group})
        assert (answer.code, "PGROUP" in answer.remark) == (13, True)


# ---- END_TRANSACTION, a.4 and a.5 ----


@scenario()
async def test_commit_brings_the_message_as_it_was_sent(t):
    p = await t.producer()
    half = await p.half(body=b"paid", key="id", e=2, h=5, properties={"TAGS": "a", "u": "v"})
    assert (await p.end(half, COMMIT)).code == 0
    (message,) = t.bodies("orders")
    assert (bytes(message.body), message.queue, message.flag) == (b"paid", 2, 5)
    assert message.sys_flag & 12 == 8
    assert message.prepared_transaction_offset == half.place
    assert message.properties == t.store.message(half.place).properties
    assert message.tags == "a"


@scenario()
async def test_rollback_brings_nothing_and_leaves_its_op_at_once(t):
    p = await t.producer()
    half = await p.half()
    assert (await p.end(half, ROLLBACK)).code == 0
    assert t.texts("orders") == []
    (op,) = t.bodies(OP)
    assert (bytes(op.body), op.tags) == (b"0,", "d")


@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
@scenario()
async def test_decision_that_comes_twice_counts_once(t, how):
    p = await t.producer()
    half = await p.half()
    for _ in range(3):
        assert (await p.end(half, how)).code == 0
    p.end_oneway(half, how)
    await t.settled()
    assert len(t.bodies("orders")) == (how == COMMIT)
    assert t.service.repeated == 3


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
@scenario()
async def test_first_decision_counts(t, first, second):
    p = await t.producer()
    half = await p.half()
    await p.end(half, first)
    answer = await p.end(half, second)
    assert (answer.code, "first decision counts" in answer.remark) == (604, True)
    assert len(t.bodies("orders")) == (first == COMMIT)


REFUSED = [
    ({"commitOrRollback": 4}, 1, "commitOrRollback field wrong"),
    ({"producerGroup": "others"}, 1, "The producer group wrong"),
    ({"tranStateTableOffset": 1}, 1, "The transaction state table offset wrong"),
    ({"commitLogOffset": 10**9}, 1, "Find prepared transaction message failed"),
    ({"commitLogOffset": 5}, 1, "Find prepared transaction message failed"),
    ({"topic": "others"}, 1, "is not one of topic[others]"),
    ({"tranStateTableOffset": "x"}, 1, "tranStateTableOffset"),
]


@pytest.mark.parametrize(("fields", "code", "remark"), REFUSED)
@scenario()
async def test_refused_decision(t, fields, code, remark):
    p = await t.producer()
    half = await p.half()
    answer = await p.end(half, COMMIT, **fields)
    assert (answer.code, remark in answer.remark) == (code, True), answer.remark
    assert t.service.halves.state().open == 1
    assert (await p.end(half, COMMIT)).code == 0


@scenario()
async def test_message_that_is_no_half_cannot_be_committed(t):
    p = await t.producer()
    put = t.store.put("plain", b"x", properties={"PGROUP": "makers", "TRAN_MSG": "true"})
    answer = await p.end(Half(0, put.physical_offset), COMMIT)
    assert (answer.code, "not a half message" in answer.remark) == (1, True)


@scenario()
async def test_copy_of_a_half_elsewhere_cannot_be_committed(t):
    """The right offset with the place of another record of the same group."""
    p = await t.producer()
    half = await p.half()
    other = await p.half()
    answer = await p.end(Half(half.offset, other.place), COMMIT)
    assert (answer.code, answer.remark) == (1, "The transaction state table offset wrong")


@scenario()
async def test_decision_of_a_slave_is_refused(t):
    p = await t.producer()
    # No broker starts as one yet.
    settings = t.broker.services.settings
    settings.current = settings.current.replaced(brokerRole="SLAVE")
    t.service.configure()
    assert (await p.end(Half(0, 0), COMMIT)).code == 11


@scenario()
async def test_unknown_state_is_not_answered(t):
    p = await t.producer()
    half = await p.half()
    p.wire.write(p.end_command(half, 0))
    # The next answer is that of the next request.
    assert (await p.end(half, ROLLBACK)).code == 0


@pytest.mark.parametrize(
    ("immunity", "late", "code"),
    [("10", 9, 0), ("10", 11, 604), ("2", 5, 0), ("2", 7, 604), ("x", 7, 604), (None, 1000, 0)],
)
@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
@scenario()
async def test_late_decision_of_a_half_with_immunity(t, immunity, late, code, how):
    p = await t.producer()
    named = {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity} if immunity else {}
    half = await p.half(properties=named)
    t.clock.ms = t.store.message(half.place).store_timestamp + late * 1000
    t.service.configure()
    assert (await p.end(half, how)).code == code
    if code:  # the answer to a check is never late
        assert (await p.end(half, how, fromTransactionCheck=True)).code == 0


@scenario(messageDelayLevel="1s 20s 1h")
async def test_commit_with_a_delay_comes_after_it(t):
    p = await t.producer()
    soon = await p.half(body=b"soon", properties={"DELAY": "1"})
    late = await p.half(body=b"late", properties={"DELAY": "3"})
    assert (await p.end(soon, COMMIT)).code == (await p.end(late, COMMIT)).code == 0
    await until_async(lambda: t.texts("orders"))
    assert t.texts("orders") == [b"soon"]
    (waited,) = (m for m in t.bodies("SCHEDULE_TOPIC_XXXX") if m.queue == 0)
    (came,) = t.bodies("orders")
    assert came.store_timestamp - waited.store_timestamp >= 1000
    assert {m.queue for m in t.bodies("SCHEDULE_TOPIC_XXXX")} == {0, 2}


@scenario(flushDiskType="SYNC_FLUSH")
async def test_decisions_wait_for_the_disk_where_it_is_asked_for(t):
    p = await t.producer()
    for how in (COMMIT, ROLLBACK):
        half = await p.half()
        assert t.store.info().log_flushed > half.place
        assert (await p.end(half, how)).code == 0
    end = t.bodies("orders")[0].physical_offset
    assert t.store.info().log_flushed > end


async def test_send_hooks_see_halves_too(tmp_path, small):
    class Hook:
        def before(self, context):
            seen.append(context.message_type)

        def after(self, context):
            pass

    seen = []

    async with transacting(tmp_path / "s", small) as t:
        t.broker.add_send_hook(Hook())
        p = await t.producer()
        half = await p.half()
        await p.half(key="open")
        assert (await p.end(half, COMMIT)).code == 0
        assert (len(seen), t.texts("orders")) == (2, [b"hello"])
        assert t.service.halves.state().open == 1


# ---- ops ----


@scenario(transactionOpMsgMaxSize=40)
async def test_ops_of_commits_are_gathered(t):
    p = await t.producer()
    for _ in range(50):
        assert (await p.end(await p.half(), COMMIT)).code == 0
    written = [bytes(m.body) for m in t.bodies(OP)]
    assert all(40 <= len(body) <= 43 for body in written)
    t.service.halves.write_ops()
    named = b"".join(bytes(m.body) for m in t.bodies(OP))
    assert named == b"".join(b"%d," % i for i in range(50))


@scenario(transactionOpBatchInterval=1000)
async def test_ops_do_not_wait_longer_than_the_interval(t):
    for job in t.broker.services.duties["transactions"]._running:
        job.due_s = float("inf")  # it is done by hand
    p = await t.producer()
    await p.end(await p.half(), COMMIT)
    assert t.bodies(OP) == []
    await asyncio.sleep(0.01)
    t.service.tick()
    assert [bytes(m.body) for m in t.bodies(OP)] == [b"0,"]
    await t.service._saving


# ---- checks, a.8 and a.11 ----


@scenario()
async def test_check_asks_with_the_message_as_it_is_to_become(t):
    p = await t.producer()
    half = await p.half(body=b"what of it", key="id", e=3, h=9)
    assert (await t.round()).asked == 1
    (asked,) = await p.checks()
    assert (asked.offset, asked.place) == (half.offset, half.place)
    assert (asked.queue, asked.body) == (3, b"what of it")
    assert asked.properties["topic"] == "orders"
    ext = asked.properties["ext"]
    assert ext["msgId"] == ext["transactionId"] == "id"
    assert int(ext["offsetMsgId"][-16:], 16) == half.place
    p.end_oneway(asked, COMMIT, fromTransactionCheck=True)
    await t.settled()
    assert t.texts("orders") == [b"what of it"]
    assert (await t.round()).asked == 0


#: So long no golden store is too old for its halves to be asked about.
CENTURY_HOURS = 24 * 36525
WIRE = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"
TIMES = "TRANSACTION_CHECK_TIMES"


def captured_checks():
    """The checks that Apache's broker sent, by the half they ask about: properties and body."""
    found = {}
    with lzma.open(WIRE, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["code"] != 39 or line["from"] != "server":
                continue
            asked = asked_of(codec.decode(bytes.fromhex(line["hex"])))
            del asked.properties["ext"]
            asked.properties.pop("TRAN_PREPARED_QUEUE_OFFSET", None)  # of one that was put back
            found.setdefault(asked.properties["UNIQ_KEY"], []).append(asked)
    return list(found.values())


async def test_checks_say_what_captured_checks_say(tmp_path, small):
    """All properties, and the number of the check, which rises by one from check to check. Apache's
    begins at 2 where a half was put back for its immunity before, which is not a check here."""
    captured = captured_checks()
    assert sum(map(len, captured)) == 45
    made = ("topic", "REAL_TOPIC", "REAL_QID", "__transactionId__", TIMES)

    async with transacting(tmp_path / "s", small, transactionCheckMax=100) as t:
        producers = {}
        for theirs in captured:
            first = theirs[0].properties
            group = first["PGROUP"]
            if group not in producers:
                producers[group] = await t.producer(group, client=group)
            p = producers[group]
            sent = {name: value for name, value in first.items() if name not in made}
            await p.half(
                first["topic"], theirs[0].body, key=first["UNIQ_KEY"], e=theirs[0].queue,
                properties=sent,
            )  # fmt: skip
            ours = []
            while len(ours) < len(theirs):
                assert (await t.round()).asked == 1
                while not (asked := await p.checks()):
                    pass
                ours += asked
            for i, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
                del mine.properties["ext"]
                times = int(mine.properties.pop(TIMES)), int(expected.properties.pop(TIMES))
                assert times[0] == 1 + i
                assert times[1] - times[0] in (0, 1)
                assert mine.properties == expected.properties
                assert (mine.queue, mine.body) == (expected.queue, expected.body)
            await p.end(ours[-1], ROLLBACK, fromTransactionCheck=True)


@scenario(fileReservedTime=1)
async def test_retention_comes_before_immunity(t):
    """Its file is about to be deleted: a copy is kept, however long its producer wanted to be left
    alone."""
    p = await t.producer()
    half = await p.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "360000"})
    t.clock.ms = t.store.message(half.place).store_timestamp + 3_600_000
    assert (await t.round(0)).given_up == 0
    assert (await t.round(0.001)).given_up == 1
    (copy,) = t.bodies(DISCARDED)
    assert copy.properties["REAL_TOPIC"] == "orders"
    assert await p.checks() == []


@scenario()
async def test_check_waits_for_the_time_out(t):
    p = await t.producer()
    half = await p.half()
    stored = t.store.message(half.place).store_timestamp
    t.clock.ms = stored + 5999
    assert (await t.round(0)).asked == 0
    # Exactly the limit is enough: upstream spins there.
    t.clock.ms = stored + 6000
    assert (await t.round(0)).asked == 1


@pytest.mark.parametrize(("immunity", "first"), [("60", 60), ("1", 1), ("x", 6), ("-1", 6)])
@scenario()
async def test_immunity_counts_no_checks(t, immunity, first):
    p = await t.producer()
    half = await p.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity})
    t.clock.ms = t.store.message(half.place).store_timestamp + first * 1000 - 1
    for _ in range(20):
        assert (await t.round(0)).asked == 0
    assert (await t.round(0.001)).asked == 1
    assert t.service.halves.find(half.offset).checks == 1


@scenario()
async def test_fifteen_checks_then_it_is_given_up(t):
    p = await t.producer()
    half = await p.half(body=b"whose", key="id", h=3, properties={"KEYS": "k"})
    reports = [await t.round() for _ in range(17)]
    assert [r.asked for r in reports] == [1] * 15 + [0, 0]
    assert [r.given_up for r in reports] == [0] * 15 + [1, 0]
    assert len(await p.checks()) == 15
    (copy,) = t.bodies(DISCARDED)
    assert (bytes(copy.body), copy.flag, copy.queue) == (b"whose", 3, 0)
    assert copy.properties["REAL_TOPIC"] == "orders"
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert t.broker.services.topics.get(DISCARDED).perm == 6
    answer = await p.end(half, COMMIT)
    assert (answer.code, "DISCARD" in answer.remark) == (604, True)


@scenario(transactionCheckMax=1)
async def test_resume_has_it_checked_again(t):
    p = await t.producer()
    await p.half(body=b"again", h=3)
    await t.round(), await t.round()
    (copy,) = t.bodies(DISCARDED)
    await p.checks()
    answer = await p.ask(Command(323, {"msgId": copy.offset_message_id}))
    assert answer.code == 0
    t.clock.ms = max(t.clock.ms, t.bodies(HALF)[-1].store_timestamp)
    assert (await t.round()).asked == 1
    (asked,) = await p.checks()
    p.end_oneway(asked, COMMIT, fromTransactionCheck=True)
    await t.settled()
    (message,) = t.bodies("orders")
    assert (bytes(message.body), message.flag) == (b"again", 3)


@scenario()
async def test_resume_of_an_open_half_forgets_its_checks(t):
    p = await t.producer()
    half = await p.half()
    await t.round()
    answer = await p.ask(Command(323, {"msgId": t.store.message(half.place).offset_message_id}))
    assert (answer.code, t.service.halves.find(half.offset).checks) == (0, 0)
    assert (await p.end(half, COMMIT)).code == 0


@scenario()
async def test_resume_of_another_topics_half_is_refused(t):
    """Who may change the topic that the request names is asked; message ids can be guessed."""
    p = await t.producer()
    half = await p.half()
    await t.round()
    fields = {"msgId": t.store.message(half.place).offset_message_id}
    answer = await p.ask(Command(323, fields | {"topic": "mine"}))
    assert (answer.code, t.service.halves.find(half.offset).checks) == (1, 1)
    for topic in ("orders", HALF):
        assert (await p.ask(Command(323, fields | {"topic": topic}))).code == 0


@pytest.mark.parametrize("msg_id", ["zz", "7F00000100002A9F0000000000000000", ""])
@scenario()
async def test_resume_of_nothing(t, msg_id):
    p = await t.producer()
    t.store.put("plain", b"x")
    assert (await p.ask(Command(323, {"msgId": msg_id}))).code == 1


@scenario()
async def test_no_check_is_spent_while_nobody_is_there(t):
    p = await t.producer(beats=False)
    half = await p.half()
    for _ in range(40):
        report = await t.round()
        assert (report.asked, report.unheard, report.given_up) == (0, 1, 0)
    other = await t.producer(client="p2")
    assert (await t.round()).asked == 1
    assert len(await other.checks()) == 1
    assert t.service.halves.find(half.offset).checks == 1


@scenario()
async def test_producers_of_a_group_are_asked_in_turn(t):
    one, two = await t.producer(client="p1"), await t.producer(client="p2")
    await t.producer("others")
    await one.half()
    await t.round(), await t.round()
    assert (len(await one.checks()), len(await two.checks())) == (1, 1)


@scenario()
async def test_other_group_is_not_asked(t):
    mine, other = await t.producer("mine"), await t.producer("others")
    await mine.half()
    await t.round()
    assert (len(await mine.checks()), await other.checks()) == (1, [])


@scenario(fileReservedTime=1)
async def test_half_older_than_retention_is_given_up_although_nobody_is_there(t):
    p = await t.producer(beats=False)
    await p.half()
    assert (await t.round(3590)).given_up == 0
    assert (await t.round(60)).given_up == 1
    assert len(t.bodies(DISCARDED)) == 1


@scenario()
async def test_age_is_not_the_clients_to_say(t):
    p = await t.producer()
    for born in (1, 1 << 45):
        await p.half(g=born)
    report = await t.round(1)
    assert (report.asked, report.given_up) == (0, 0)
    assert (await t.round(30)).asked == 2


@scenario()
async def test_half_that_is_fresh_holds_no_other_up(t):
    p = await t.producer()
    await p.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
    for _ in range(5):
        await p.half()
    assert (await t.round()).asked == 5


@scenario()
async def test_nothing_is_written_while_a_half_waits(t):
    p = await t.producer()
    await p.half()
    before = t.store.info().log_max
    for _ in range(15):
        await t.round()
    assert t.store.info().log_max == before


@scenario()
async def test_original_decision_still_counts_after_checks(t):
    p = await t.producer()
    half = await p.half()
    await t.round(), await t.round()
    first, second = await p.checks()
    assert (await p.end(half, COMMIT)).code == 0
    for asked in (first, second):
        p.end_oneway(asked, COMMIT, fromTransactionCheck=True)
    await t.settled()
    assert len(t.bodies("orders")) == 1


# ---- progress, metadata, restart ----


@scenario()
async def test_progress_is_where_java_would_go_on(t):
    p = await t.producer()
    halves = [await p.half() for _ in range(5)]
    await p.end(halves[0], COMMIT)
    await p.end(halves[1], ROLLBACK)
    await p.end(halves[3], ROLLBACK)
    t.service.tick()
    offsets = t.broker.services.offsets
    assert offsets.get("CID_RMQ_SYS_TRANS", HALF, 0) == 2
    # The second op names half 3, which lies beyond.
    assert offsets.get("CID_RMQ_SYS_TRANS", OP, 0) == 1
    await p.end(halves[2], ROLLBACK)
    await p.end(halves[4], ROLLBACK)
    t.service.tick()
    assert offsets.get("CID_RMQ_SYS_TRANS", HALF, 0) == 5
    assert offsets.get("CID_RMQ_SYS_TRANS", OP, 0) == 4
    await t.service._saving


def rows(found):
    """Without what only the metadata knows."""
    return {h.offset: h._replace(checks=0, asked_ms=0) for h in found.rows.values()}


@pytest.mark.parametrize("whole", [True, False])
async def test_table_from_the_log_equals_the_one_that_was_kept(tmp_path, small, rng, whole):
    async with transacting(tmp_path / "s", small) as t:
        p = await t.producer()
        opened = []
        for _ in range(rng.randrange(50, 150)):
            if opened and rng.random() < 0.6:
                half = opened.pop(rng.randrange(len(opened)))
                assert (await p.end(half, rng.choice((COMMIT, ROLLBACK)))).code == 0
            else:
                named = {"CHECK_IMMUNITY_TIME_IN_SECONDS": rng.choice(("5", "x"))}
                opened.append(await p.half(properties=rng.choice((None, named))))
            if rng.random() < 0.1:
                await t.service.persist()
        if whole:
            await t.service.persist()
        there = {h.offset: h for h in t.service.halves.all()}
        assert set(there) == {h.offset for h in opened}
        kept, found = find_pending(t.store), find_pending(t.store, anew=True)
        assert rows(kept) == rows(found) == there
        assert (kept.half_next, kept.op_next) == (found.half_next, found.op_next)
    with Reader(tmp_path / "s") as reader:
        assert rows(find_pending(reader)) == rows(find_pending(reader, anew=True)) == there


async def test_checks_are_remembered_over_a_restart(tmp_path, small):
    clock = Clock()
    async with transacting(tmp_path / "s", small, clock=clock) as t:
        p = await t.producer()
        half = await p.half()
        for _ in range(3):
            await t.round()
    async with transacting(tmp_path / "s", small, clock=clock) as t:
        assert t.service.halves.find(half.offset).checks == 3
        p = await t.producer()
        reports = [await t.round() for _ in range(13)]
        assert [r.asked for r in reports] == [1] * 12 + [0]
        assert reports[-1].given_up == 1


async def test_decisions_are_remembered_over_a_restart(tmp_path, small):
    async with transacting(tmp_path / "s", small) as t:
        p = await t.producer()
        committed, rolled_back = await p.half(), await p.half()
        await p.end(committed, COMMIT), await p.end(rolled_back, ROLLBACK)
    async with transacting(tmp_path / "s", small) as t:
        p = await t.producer()
        for half in (committed, rolled_back):
            await p.end(half, COMMIT)
        assert len(t.bodies("orders")) == 1


async def test_commit_without_its_op_is_found_in_the_log(tmp_path, small):
    """What a kill between the final message and its op leaves, be there metadata or not."""
    async with transacting(tmp_path / "s", small) as t:
        p = await t.producer()
        done, still = await p.half(body=b"done"), await p.half(body=b"still")
        await p.end(done, COMMIT)
        for anew in (True, False):
            found = find_pending(t.store, anew=anew)
            assert set(found.rows) == {still.offset}
            assert found.owed == [done.offset]


async def test_log_that_is_shorter_than_the_metadata_counts(tmp_path, small):
    """A power failure took the end of the log, and what the metadata knows of it."""
    async with transacting(tmp_path / "s", small) as t:
        p = await t.producer()
        await p.half()
        await t.service.persist()
        mark, kept = t.store.metadata.pending.load()
        assert len(kept) == 1
        from dataclasses import replace

        ghost = kept[0]._replace(offset=99, physical=1 << 40)
        ahead = replace(mark, log_end=1 << 41, half_next=100)
        t.store.metadata.pending.apply([ghost], [], ahead)
        assert set(find_pending(t.store).rows) == {0}


@scenario()
async def test_transaction_metrics_say_what_is_open(t, tmp_path):
    p = await t.producer()
    halves = [await p.half(topic) for topic in ("a", "a", "b")]
    t.service.metrics.write()
    path = tmp_path / "s/config/transactionMetrics"
    said = json.loads(path.read_text())
    assert {k: v["count"] for k, v in said["transactionCount"].items()} == {"a": 2, "b": 1}
    for half in halves:
        for _ in range(2):
            await p.end(half, COMMIT)
    t.service.metrics.write()
    assert json.loads(path.read_text())["transactionCount"] == {}


# ---- Java's stores ----


@pytest.mark.parametrize(("name", "orphans"), [("killed", 3), ("normal-exit", 7)])
def test_pending_transactions_of_a_java_broker(golden, name, orphans):
    """Of those that Java has put back again and again, what its ops decided stays decided."""
    with Reader(golden(name)) as reader:
        found = find_pending(reader)
        keys = [reader.message(half.physical).keys[0] for half in found.rows.values()]
        assert len(keys) == orphans
        assert all(key.startswith("orphan") for key in keys)


@pytest.mark.parametrize(("name", "orphans"), [("killed", 3), ("normal-exit", 7)])
async def test_broker_finishes_the_transactions_of_a_java_broker(golden, name, orphans):
    root = golden(name)

    async with transacting(root, {"fileReservedTime": CENTURY_HOURS}) as t:
        assert t.service.halves.state().open == orphans
        (group,) = {half.group for half in t.service.halves.all()}
        p = await t.producer(group)
        first = [half.root for half in t.service.halves.all()]
        assert (await t.round()).asked == orphans
        asked = await p.checks()
        for i, half in enumerate(asked):
            how = COMMIT if i % 2 else ROLLBACK
            assert (await p.end(half, how, fromTransactionCheck=True)).code == 0
        assert t.service.halves.state().open == 0
        # Both copies of each are done with, for Java too.
        named = b"".join(bytes(m.body) for m in t.bodies(OP)).split(b",")
        t.service.halves.write_ops()
        named = b"".join(bytes(m.body) for m in t.bodies(OP)).split(b",")
        assert {b"%d" % offset for offset in first} <= set(named)
        assert {b"%d" % half.offset for half in asked} <= set(named)


# ---- a half whose topic is deleted ----


@pytest.mark.parametrize("again", [False, True])
async def test_half_of_a_deleted_topic_is_not_committed(tmp_path, small, again):
    """Not into the topic's next life either, whoever asks, before and after a restart. It can be
    rolled back, or is discarded in the end; one that came since is committed."""
    clock, given = Clock(), small | {"transactionCheckMax": 1}
    async with transacting(tmp_path / "s", given, clock=clock) as t:
        p = await t.producer()
        halves = [await p.half(body=b"old") for _ in range(3)]
        assert (await p.ask(Command(215, {"topic": "orders"}))).code == 0
        answer = await p.end(halves[0], COMMIT)
        assert answer.code == 13 and "topic orders was deleted" in answer.remark
        assert (await p.end(halves[1], ROLLBACK)).code == 0
        if again:
            new = await p.half(body=b"new")
    async with transacting(tmp_path / "s", given, clock=clock) as t:
        p = await t.producer()
        assert (await p.end(halves[2], COMMIT, fromTransactionCheck=True)).code == 13
        if again:
            assert (await p.end(new, COMMIT, fromTransactionCheck=True)).code == 0
        assert (await t.round()).asked == 2
        assert (await t.round()).given_up == 2
        assert [bytes(m.body) for m in t.bodies(DISCARDED)] == [b"old"] * 2
        assert t.texts("orders") == [b"new"] * again
        assert ("orders" in t.store.topics()) is again


# ---- a half whose file is deleted, and tools that reach for the broker's own offsets ----


@pytest.mark.parametrize("beats", [True, False])
@scenario()
async def test_half_whose_file_a_full_disk_took_is_lost(t, beats):
    """Whether or not somebody could be asked; the others stay."""
    p = await t.producer(beats=beats)
    gone = await p.half(key="gone")
    for _ in range(3):
        t.store.put("orders", b"x" * 600_000)
    stays = await p.half(key="stays")
    t.store.clean(immediate=True)
    assert t.store.info().log_min > gone.place
    report = await t.round()
    assert (report.lost, report.given_up) == (1, 0)
    answer = await p.end(gone, COMMIT)
    assert (answer.code, "Find prepared" in answer.remark) == (1, True)
    state = t.service.halves.state()
    assert (state.open, state.lost, state.half_progress) == (1, 1, stays.offset)
    assert (await p.end(stays, COMMIT)).code == 0
    assert t.bodies(DISCARDED) == []


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (15, {"consumerGroup": "CID_RMQ_SYS_TRANS", "queueId": 0, "commitOffset": 9}),
        (222, {"group": "CID_RMQ_SYS_TRANS", "timestamp": 0, "isForce": "true", "offset": 0}),
        (314, {"srcGroup": "mine", "destGroup": "CID_RMQ_SYS_TRANS"}),
        (207, {"groupName": "CID_RMQ_SYS_TRANS", "cleanOffset": "true"}),
    ],
)
@scenario()
async def test_progress_is_no_tools_to_change(t, code, fields):
    p = await t.producer()
    await p.end(await p.half(), COMMIT)
    t.service.tick()
    t.broker.services.offsets.commit("mine", HALF, 0, 77)
    ext = {"topic": HALF} | {name: str(value) for name, value in fields.items()}
    answer = await p.ask(Command(code, ext))
    assert (answer.code, "belongs to the broker" in answer.remark) == (16, True)
    assert t.broker.services.offsets.get("CID_RMQ_SYS_TRANS", HALF, 0) == 1


def runtime(answer):
    table = json.loads(bytes(answer.body))["table"]
    return {name: int(value) for name, value in table.items() if name.startswith("rocketmq_")}


async def runtime_entries(p):
    table = json.loads(bytes((await p.ask(Command(28, {}))).body))["table"]
    return {name for name in table if not name.startswith("scheduleMessageOffset_")}


@scenario()
async def test_decisions_are_counted_by_topic_and_commits_by_their_age(t):
    """Under upstream's names, in its buckets, where the broker tells its statistics."""
    p = await t.producer()
    assert runtime(await p.ask(Command(28, {"metrics": "transactions"}))) == {}
    entries = await runtime_entries(p)
    # Of the client's clock: one is ahead, one says nothing sensible.
    ages_s = (0, 5, 6, 60, 61, 90_000, -100)
    for age in ages_s:
        t.service.configure()
        half = await p.half(g=t.clock.ms - age * 1000)
        assert (await p.end(half, COMMIT)).code == 0
    await p.end(await p.half("bills"), ROLLBACK)
    await p.half("bills")
    found = runtime(await p.ask(Command(28, {"metrics": "transactions"})))
    assert found['rocketmq_half_messages{topic="bills"}'] == 1
    assert found['rocketmq_commit_messages_total{topic="orders"}'] == len(ages_s)
    assert found['rocketmq_rollback_messages_total{topic="orders"}'] == 0
    assert found['rocketmq_rollback_messages_total{topic="bills"}'] == 1
    name = "rocketmq_finish_message_latency_milliseconds"
    bounds = ("5.0", "60.0", "600.0", "3600.0", "43200.0", "86400.0", "+Inf")
    buckets = [found[f'{name}_bucket{{topic="orders",le="{le}"}}'] for le in bounds]
    assert buckets == [3, 5, 6, 6, 6, 6, 7]
    # They are told apart from upstream's, beside which a busy machine leaves traces of its own.
    more = await runtime_entries(p) - entries
    assert all(name.startswith("loopHeld") for name in more)
    assert found[f'{name}_sum{{topic="orders"}}'] == sum(age for age in ages_s if age > 0)
    assert found[f'{name}_count{{topic="orders"}}'] == len(ages_s)
