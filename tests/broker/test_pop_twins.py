"""Twins: the same pops and acknowledgements are served once by the core and once by Python, of two
stores. Answers and records are equal. PS_SEED repeats a run, PS_POP_TWINS says how many."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager

from popping import popping, records, run

from broker.remoting.codes import RequestCode as Code
from broker.services.pop import Pop

CASES = int(os.environ.get("PS_POP_TWINS", "300"))
TIMERS = "rmq_sys_wheel_timer"


def records_of(p):
    """What the two have put for timers, times of storing apart."""
    store, found, at = p.broker.store, [], 0
    while at < store.range(TIMERS, 0)[1]:
        for message in store.read(TIMERS, 0, at, max_messages=64):
            found.append((message.queue, message.properties, bytes(message.body)))
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


def test_core_and_python_acknowledge_alike(tmp_path, rng, monkeypatch):
    now = time.time_ns() // 1_000_000
    monkeypatch.setattr(Pop, "now_ms", lambda self: now)

    async def work():
        async with popping(tmp_path / "core") as one, popping(tmp_path / "python") as two:
            two.broker.services.core.hand_on_pops()
            sides = one, two
            for p in sides:
                p.make_topic(queues=3)
                p.pop_service.batches.random.seed(5)
                for queue in range(3):
                    p.put(*map(str, range(40)), queue=queue)
            out = []
            for n in range(8):
                asked = {"most": 1 + 4 * n, "invisible": 60_000 + n}
                both = [await p.handles(**asked) for p in sides]
                assert both[0] == both[1]
                out += both[0]
            for _ in range(CASES):
                handle, topic, _ = rng.choice(out)
                fields = {
                    "consumerGroup": "g", "topic": topic, "queueId": handle.queue,
                    "offset": handle.offset, "extraInfo": handle.text,
                }  # fmt: skip
                fields = changed(rng, fields, handle)
                answers = [await p.ask(Code.ACK_MESSAGE, **fields) for p in sides]
                said = [(a.code, a.ext, a.body, a.serialize, a.flag) for a in answers]
                assert said[0] == said[1], fields
                # They say where they were asked from.
                remarks = [(a.remark or "").partition(" consumer:[")[0] for a in answers]
                assert remarks[0] == remarks[1], fields
            put = [records_of(p) for p in sides]
            assert put[0] == put[1]
            left = [[(ck.row, ck.open) for ck in p.pop_service.points] for p in sides]
            assert sorted(left[0]) == sorted(left[1])
            flight = [[p.pop_service.in_flight("T", "g", q) for q in range(3)] for p in sides]
            assert flight[0] == flight[1]
            acks = [each for each in put[0] if each[1]["TAGS"] == "ack"]
            assert sum(flight[0]) == len(out) - len(acks) and acks

    run(work())


#: What the clocks and the turns of the two have no reason to agree on.
_OF_A_SIDE = ("popTime", "reviveQid")


def asked_to_pop(rng):
    """The fields of a pop; one in four is unusual."""
    fields = {
        "queue": rng.randrange(3), "most": rng.randrange(1, 33),
        "invisible": rng.randrange(60_000, 70_000),
    }  # fmt: skip
    name = rng.choice((None,) * 12 + ("most", "queue", "invisible", "exp", "born"))
    if name in ("most", "queue", "invisible"):
        # Not a time so short that a message comes back meanwhile.
        small = () if name == "invisible" else (33, 99)
        fields[name] = rng.choice((-1 << 63, -2, 0, *small, 1 << 31, 1 << 62, "", "x"))
    elif name == "exp":
        fields |= rng.choice(
            ({"exp": "A"}, {"exp": ""}, {"expType": "SQL92", "exp": "a = 1"}, {"expType": "?"})
        )
    elif name == "born":
        fields["bornTime"] = rng.choice((0, 1, -5, 1 << 62))
    return fields


def test_core_and_python_pop_alike(tmp_path, rng):
    async def work():
        async with popping(tmp_path / "core") as one, popping(tmp_path / "python") as two:
            two.broker.services.core.hand_on_pops()
            sides, bodies = (one, two), [f"{n}" * rng.randrange(1, 4) for n in range(200)]
            for p in sides:
                p.make_topic(queues=3)
                for queue in range(3):
                    await p.pop(queue=queue)  # the first visit of the group
                    p.put(*bodies, queue=queue)
                subscribe(p)
            walks, by_core = count_walks(one), 0
            for _ in range(CASES // 4):
                fields, before = asked_to_pop(rng), len(walks)
                answers = [await p.pop(**fields) for p in sides]
                said = [
                    (a.code, {k: v for k, v in a.ext.items() if k not in _OF_A_SIDE}, a.serialize)
                    for a in answers
                ]
                assert said[0] == said[1], fields
                bodies = [[each[:2] for each in records(a.body)] for a in answers]
                assert bodies[0] == bodies[1], fields
                by_core += answers[0].code == 0 and len(walks) == before
            rows = [
                sorted((r.key.queue, r.key.start, r.offsets, r.invisible_ms) for r in all_rows(p))
                for p in sides
            ]
            assert rows[0] == rows[1] and by_core > 5
            flight = [[p.pop_service.in_flight("T", "g", q) for q in range(3)] for p in sides]
            assert flight[0] == flight[1]
            taken = [p.broker.services.statistics.current()["GROUP_GET_NUMS", "T@g"] for p in sides]
            assert taken[0] == taken[1] == sum(flight[0])

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


def subscribe(p):
    """The core pops for groups that are subscribed."""
    p.broker.services.core.publish_subscription("g", "T", tags=None, sub_version=1, own=True)


@asynccontextmanager
async def popped_by_core(store_path):
    """A topic that the group has been at, and what Python is asked for."""
    async with popping(store_path) as p:
        p.make_topic()
        await p.pop()
        subscribe(p)
        yield p, count_walks(p)


def all_rows(p):
    return [ck.row for ck in p.pop_service.points]


def test_the_core_leaves_what_came_back_to_python(store_path):
    """And finds the rest of the topic by itself."""

    async def work():
        async with popped_by_core(store_path) as (p, walks):
            p.put("a", "b", "c")
            assert [body for *_, body in await p.handles(most=1)] == [b"a"]
            assert not walks
            p.shift(61_000)
            came = []
            while len(came) < 3:
                came += [body for *_, body in await p.handles(most=1)]
                await asyncio.sleep(0.01)
            assert sorted(came) == [b"a", b"b", b"c"] and walks

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
            got = records_of(p)
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
