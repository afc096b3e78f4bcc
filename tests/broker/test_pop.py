"""POP: messages are handed out with a check point, acknowledged one by one, and come back
(docs/internals/pop.md)."""

from __future__ import annotations

from popping import popping, records, run


def test_acknowledged_messages_are_gone_and_others_come_back(store_path):
    async def work():
        async with popping(store_path) as p:
            p.make_topic()
            p.put("a", "b", "c")
            answer = await p.pop(invisible=30_000)
            assert (answer.code, answer.remark) == (0, "FOUND")
            assert answer.ext["startOffsetInfo"] == "0 0 0"
            assert answer.ext["msgOffsetInfo"] == "0 0 0,1,2"
            found = p.handles_of(answer)
            assert [body for _, _, body in found] == [b"a", b"b", b"c"]
            assert (await p.ack(found[1][0])).code == 0
            empty = await p.pop()
            assert (empty.code, empty.remark) == (210, "NO_MESSAGE_IN_QUEUE")
            waiting = p.pop(poll=60_000, invisible=50_000)
            p.shift(30_100)
            again = await waiting
            assert again.ext["msgOffsetInfo"] == "1 0 0,1"
            got = [(body, topic, times) for _, body, _, topic, times in records(again.body)]
            assert got == [(b"a", "T", 1), (b"c", "T", 1)]
            for handle, topic, _ in p.handles_of(again):
                assert (await p.ack(handle, topic)).code == 0
            p.shift(100_000)
            assert (await p.pop()).code == 210
            assert len(p.pop_service.points) == 0 and not p.pop_service.points.in_flight

    run(work())


def test_a_restart_forgets_nothing(store_path):
    async def first():
        async with popping(store_path) as p:
            p.make_topic()
            p.put("a", "b", "c", "d")
            found = await p.handles(most=3, invisible=20_000)
            await p.ack(found[0][0])
            return found

    async def second(found):
        async with popping(store_path) as p:
            assert [ck.open for ck in p.pop_service.points] == [2]
            assert (await p.ack(found[2][0])).code == 0
            rest = await p.handles(invisible=20_000)
            assert [body for _, _, body in rest] == [b"d"]
            await p.ack(rest[0][0])
            p.shift(21_000)
            back = await p.handles(poll=10_000)
            assert [body for _, _, body in back] == [b"b"]

    run(second(run(first())))
