"""What the core pops by itself; and twins: the same acknowledgements are served once by it and once
by Python, of two stores. Answers and records are equal. PS_SEED repeats a run, PS_POP_TWINS says
how many."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager

from popping import popping, records, run

from broker.remoting.codes import RequestCode as Code

CASES = int(os.environ.get("PS_POP_TWINS", "300"))
TIMERS = "rmq_sys_wheel_timer"


#: Times of popping and of storing, in ms.
_TIME = re.compile(r"\b[0-9]{13}\b")


def records_of(p, without=_TIME):
    """What was put for timers."""
    store, found, at = p.broker.store, [], 0
    while at < store.range(TIMERS, 0)[1]:
        for message in store.read(TIMERS, 0, at, max_messages=64):
            body = bytes(message.body).decode()
            said = dict(message.properties)
            if without is not None:
                body = without.sub("T", body)
                said = {name: without.sub("T", value) for name, value in said.items()}
            found.append((message.queue, said, body.encode()))
            at = message.queue_offset + 1
    return found


def changed(rng, fields, handle):
    """The fields of an acknowledgement, perhaps with one that is wrong or missing."""
    parts = handle.text.split(" ")
    kind = rng.choice(("good",) * 12 + ("part", "field", "gone", "long", "order", "twice"))
    if kind == "part":
        parts[rng.randrange(8)] = rng.choice(("", "-1", "x", "7", "9" * 18, "9" * 19, "٣"))
    elif kind == "field":
        name = rng.choice(("topic", "queueId", "offset", "consumerGroup"))
        fields[name] = rng.choice(("", "-1", "0", "1", "x", "99", str(1 << 62), str(1 << 64)))
    elif kind == "gone":
        del fields[rng.choice(list(fields))]
    elif kind == "long":
        parts[5] = "b" * rng.choice((900, 2000))
    elif kind == "order":
        parts[3] = "999"
    elif kind == "twice":
        parts.append(rng.choice(("5", "")))
    if "extraInfo" in fields:
        fields["extraInfo"] = " ".join(parts)
    return fields


def test_core_and_python_acknowledge_alike(tmp_path, rng):
    async def work():
        async with popping(tmp_path / "core") as one, popping(tmp_path / "python") as two:
            two.broker.services.core.hand_on_pops()
            sides = one, two
            for p in sides:
                p.make_topic(queues=3)
                for queue in range(3):
                    p.put(*map(str, range(40)), queue=queue)
            out = []
            for n in range(8):
                asked = {"most": 1 + 4 * n, "invisible": 60_000 + n, "queue": n % 3}
                out += zip(*[await p.handles(**asked) for p in sides], strict=True)
            for _ in range(CASES):
                answers, both, state = [], rng.choice(out), rng.getstate()
                for p, (handle, topic, _) in zip(sides, both, strict=True):
                    rng.setstate(state)
                    fields = {
                        "consumerGroup": "g", "topic": topic, "queueId": handle.queue,
                        "offset": handle.offset, "extraInfo": handle.text,
                    }  # fmt: skip
                    answers.append(await p.ask(Code.ACK_MESSAGE, **changed(rng, fields, handle)))
                said = [(a.code, a.ext, a.body, a.serialize, a.flag) for a in answers]
                assert said[0] == said[1], both
                # They say where they were asked from.
                remarks = [(a.remark or "").partition(" consumer:[")[0] for a in answers]
                assert remarks[0] == remarks[1], both
            put = [records_of(p) for p in sides]
            assert put[0] == put[1]
            left = [
                sorted(
                    (ck.queue, ck.start, ck.row.offsets, ck.acked) for ck in p.pop_service.points
                )
                for p in sides
            ]
            assert left[0] == left[1]
            flight = [[p.pop_service.in_flight("T", "g", q) for q in range(3)] for p in sides]
            assert flight[0] == flight[1]
            acks = [each for each in put[0] if each[1]["TAGS"] == "ack"]
            assert sum(flight[0]) == len(out) - len(acks) and acks

    run(work())


def count_walks(p):
    """Requests that Python looks for messages for, from now on."""
    batches, walks = p.pop_service.batches, []
    walk = batches.pop

    def counted(request):
        walks.append(request)
        return walk(request)

    batches.pop = counted
    return walks


def subscribe(p, group="g"):
    """The core pops for groups that are subscribed."""
    p.broker.services.core.publish_subscription(group, "T", tags=None, sub_version=1, own=True)


@asynccontextmanager
async def popped_by_core(store_path):
    """A topic that the group has been at, and what Python is asked for."""
    async with popping(store_path) as p:
        p.make_topic()
        await p.pop()
        subscribe(p)
        yield p, count_walks(p)


def test_the_core_pops_what_came_back_under_the_name_of_its_topic(store_path):
    """With its handle, by which it is acknowledged, and the rest of the topic beside it."""

    async def work():
        async with popped_by_core(store_path) as (p, walks):
            p.put("a", "b", "c")
            assert [body for *_, body in await p.handles(most=1)] == [b"a"]
            p.shift(61_000)
            came = []
            while len(came) < 3:
                answer = await p.pop(most=1)
                for (handle, name, _), record in zip(
                    p.handles_of(answer), records(answer.body), strict=True
                ):
                    _, body, said, topic, times = record
                    came.append((body, handle.retry, topic, times))
                    assert said.get("POP_CK") == (handle.text if handle.retry != "0" else None)
                    assert (await p.ack(handle, name)).code == 0
                await asyncio.sleep(0.01)
            again = ("2", "1")[p.broker.services.pop.batches.looked_at == ["1"]]
            assert sorted(came) == [(b"a", again, "T", 1), (b"b", "0", "T", 0), (b"c", "0", "T", 0)]
            assert len(p.pop_service.points) == 0
            assert not [each for each in walks if each.most != 1]

    run(work())


def test_the_core_pops_what_a_filter_takes(store_path):
    """Tags at once; SQL92 once the broker has checked the expression."""

    async def work():
        async with popped_by_core(store_path) as (p, walks):
            for n in range(6):
                said = {"TAGS": "ab"[n % 2], "n": str(n)}
                p.broker.store.put("T", f"{n}", properties=said, queue=0)
            got = await p.pop(most=2, exp="a || c")
            assert [each[1] for each in records(got.body)] == [b"0", b"2"] and not walks
            for n, expected in (4, b"4"), (5, b"5"):
                sql = {"expType": "SQL92", "exp": f"n >= 4 AND n <= {n}"}
                got = await p.pop(most=1, **sql)
                assert [each[1] for each in records(got.body)] == [expected]
                assert len(walks) == n - 3
            p.broker.store.put("T", "7", properties={"n": "5"}, queue=0)
            got = await p.pop(**sql)
            assert [each[1] for each in records(got.body)] == [b"7"] and len(walks) == 2

    run(work())


def test_the_core_pops_on_a_first_visit(store_path):
    """From the first message, and of a queue that is not young from the last one."""

    async def work():
        settings = {"initPopOffsetByCheckMsgInMem": "false"}
        async with popping(store_path, **settings) as p:
            p.make_topic()
            p.put(*"abc")
            walks = count_walks(p)
            for group, mode, expected in ("g", 0, [b"a", b"b", b"c"]), ("h", 1, [b"c"]):
                subscribe(p, group)
                got = await p.pop(group=group, initMode=mode)
                assert [each[1] for each in records(got.body)] == expected
            assert not walks

    run(work())


def test_a_pop_of_a_syncing_broker_is_answered_after_its_check_point_is_on_the_disk(store_path):
    async def work():
        async with popping(store_path, flushDiskType="SYNC_FLUSH") as p:
            p.make_topic()
            subscribe(p)
            await asyncio.to_thread(p.put, "a")
            walks = count_walks(p)
            got = await p.pop()
            assert [each[1] for each in records(got.body)] == [b"a"] and not walks
            assert p.broker.store.info().log_flushed >= p.pop_service.log.end > 0

    run(work())


def test_what_the_core_popped_comes_back_by_itself(store_path):
    async def work():
        async with popped_by_core(store_path) as (p, walks):
            p.put("a")
            assert [body for *_, body in await p.handles(invisible=1)] == [b"a"]
            assert not walks
            answer = await p.pop(poll=60_000)
            assert [record[1] for record in records(answer.body)] == [b"a"]

    run(work())


def test_records_are_what_apaches_broker_writes(store_path):
    """Their bodies, member by member, and what makes timers of them."""

    async def work():
        broker = "broker-a"
        async with popping(store_path, brokerName=broker) as p:
            p.make_topic()
            p.put("a", "b", "c", "d")
            found = await p.handles(most=3, invisible=20_000)
            handle = found[0][0]
            pop_ms, turn = handle.pop_ms, handle.revive_queue
            for which in (1,), (0, 2):
                p.pop_service.acks.ack("T", "g", handle, which)
            named = {"bn": broker, "c": "g"}
            where = {"pt": pop_ms, "q": 0, "so": 0, "t": "T"}
            ck = {
                "bm": 0, **named, "d": [0, 1, 2], "it": 20_000, "n": 3, "pt": pop_ms, "q": 0,
                "reviveTime": pop_ms + 20_000, "ro": 0, "so": 0, "t": "T",
            }  # fmt: skip
            bodies = [ck, {"ao": 1, **named, **where}, {"ao": -1, "aol": [0, 2], **named, **where}]
            got = records_of(p, None)
            assert [body for *_, body in got] == [
                json.dumps(each, separators=(",", ":")).encode() for each in bodies
            ]
            end = f"@g@{pop_ms}@{broker}@"
            said = [
                (each["TAGS"], each["UNIQ_KEY"], int(each["TIMER_DELIVER_MS"]) - pop_ms)
                for _, each, _ in got
            ]
            assert said == [
                ("ck", f"T@0@0{end}ck", 19_000),
                ("ack", f"T@0@1{end}ack", 20_000),
                ("bAck", f"T@0@-1{end}ack", 20_000),
            ]
            assert {(each["REAL_TOPIC"], each["REAL_QID"]) for _, each, _ in got} == {
                (p.pop_service.log.topic, str(turn))
            }
            assert len(p.pop_service.points) == 0

    run(work())
