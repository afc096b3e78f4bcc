"""What a broker does by itself begins and ends while it runs: nothing is lost, or comes twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from loops import until
from popping import popping
from storeview import everything

from broker.services.duties import BrokerRole, Duties, Duty, PeriodicJob
from broker.wire.codes import RequestCode as Code
from pystore.meta.configfiles import SubscriptionGroup

#: Rounds of the load; and how often a duty is stopped and started meanwhile.
ROUNDS, STOPS = 40, 4
TOPICS = ("delayed", "timed", "decided", "popped")
NAMES = (
    "registration", "delays", "timers", "transactions", "revive", "ordered batches", "retention",
    "static topics", "consumer offsets", "clients", "statistics",
)  # fmt: skip
MASTERS = ("delays", "timers", "transactions", "revive", "static topics")

# ---- the mechanism ----


class Log:
    """Duties that write down what they are asked."""

    def __init__(self):
        self.seen = []

    def duty(self, name, role, *jobs):
        return Duty(
            name, role, *jobs,
            begin=lambda: self.seen.append(f"+{name}"), end=lambda: self.seen.append(f"-{name}"),
        )  # fmt: skip


async def test_duties_start_in_the_order_of_the_table_and_stop_in_the_opposite():
    log = Log()
    duties = Duties([log.duty("a", None), log.duty("b", BrokerRole.MASTER), log.duty("c", None)])
    await duties.start()
    await duties.stop()
    assert log.seen == ["+a", "+b", "+c", "-c", "-b", "-a"]


async def test_a_change_of_role_stops_what_the_role_does_not_have_and_starts_what_it_has():
    log = Log()
    table = [
        log.duty("a", None),
        log.duty("b", BrokerRole.MASTER),
        log.duty("c", BrokerRole.MASTER),
    ]
    duties = Duties([*table, log.duty("s", BrokerRole.SLAVE)])
    duties.on_role.append(lambda role: log.seen.append(role))
    await duties.start()
    log.seen.clear()
    await duties.change_role(BrokerRole.SLAVE)
    assert log.seen == ["-c", "-b", BrokerRole.SLAVE, "+s"]
    log.seen.clear()
    await duties.change_role(BrokerRole.SLAVE)
    assert log.seen == []
    await duties.change_role(BrokerRole.MASTER)
    assert log.seen == ["-s", BrokerRole.MASTER, "+b", "+c"]
    await duties.stop()
    log.seen.clear()
    await duties.change_role(BrokerRole.SLAVE)  # nothing begins any more
    assert log.seen == []


async def test_a_stop_waits_for_the_job_that_runs_and_no_other_begins():
    begun, free, ended = asyncio.Event(), asyncio.Event(), []

    async def save():
        begun.set()
        await free.wait()
        ended.append(1)

    duty = Duty("saving", None, PeriodicJob("save", save, lambda: 0.0))
    await duty.start()
    now = asyncio.get_running_loop().time()
    duty.tick(now + 10)
    duty.tick(now + 20)  # it runs still
    await begun.wait()
    stopping = asyncio.ensure_future(duty.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    free.set()
    await stopping
    duty.tick(now + 30)
    assert ended == [1]


async def test_a_job_that_fails_runs_again_and_a_duty_that_fails_to_stop_holds_up_no_other():
    tries, log = [], Log()

    def fail():
        tries.append(1)
        raise ValueError("no")

    duties = Duties(
        [
            log.duty("a", None),
            Duty("bad", None, PeriodicJob("fail", fail, lambda: 0.0), end=fail),
        ]
    )
    await duties.start()
    now = asyncio.get_running_loop().time()
    duties["bad"].tick(now + 10)
    duties["bad"].tick(now + 20)
    assert len(tries) == 2
    with pytest.raises(ValueError, match="no"):
        await duties.stop()
    assert log.seen == ["+a", "-a"]
    assert not duties["bad"].is_on


async def test_a_duty_that_fails_to_start_is_not_on():
    def fail():
        raise OSError("no")

    duty = Duty("bad", None, begin=fail)
    with pytest.raises(OSError, match="no"):
        await duty.start()
    assert not duty.is_on
    await duty.stop()


# ---- a broker's own ----


class Load:
    """Messages that wait for a level, a timer, a decision, and those that nobody acknowledges."""

    def __init__(self, p):
        self.p, self.count = p, 0
        for topic in TOPICS:
            p.make_topic(topic)
        p.broker.services.groups.update(SubscriptionGroup("g"))

    async def one(self):
        p, body = self.p, b"%d" % self.count
        self.count += 1
        assert (await p.send(body, topic="delayed", DELAY="1")).code == 0
        assert (await p.send(body, topic="timed", TIMER_DELAY_MS="1000")).code == 0
        await self.decide(body)
        assert (await p.send(body, topic="popped")).code == 0
        p.broker.store.range("popped", 0)
        while not await p.handles(topic="popped", most=1, invisible=1000):
            await asyncio.sleep(0)

    async def decide(self, body):
        p = self.p
        half = await p.send(body, topic="decided", TRAN_MSG="true", PGROUP="p")
        assert half.code == 0
        return await p.ask(
            Code.END_TRANSACTION, producerGroup="p", tranStateTableOffset=half.ext["queueOffset"],
            commitLogOffset=int(half.ext["msgId"][16:], 16), commitOrRollback=8,
            fromTransactionCheck="false", msgId="K", transactionId="K",
        )  # fmt: skip

    def bodies(self, topic):
        return Counter(bytes(message.body) for message in everything(self.p.broker.store, topic))

    def retry_topic(self):
        return next(
            (q.topic for q in self.p.broker.store.queues() if q.topic.startswith("%RETRY%g")), None
        )

    async def all_came_once(self):
        """The clock goes on; then nothing more comes, however far it goes on."""
        expected = Counter(b"%d" % n for n in range(self.count))
        self.p.shift(5_000)
        for topic in ("delayed", "timed", "decided"):
            await until(lambda topic=topic: self.bodies(topic).total() >= self.count)
        await until(
            lambda: self.retry_topic() and self.bodies(self.retry_topic()).total() >= self.count
        )
        self.p.shift(5_000)
        await asyncio.sleep(0.05)
        for topic in ("delayed", "timed", "decided", self.retry_topic()):
            assert self.bodies(topic) == expected, topic


def opened(path, **settings):
    """Pops take what came back last, so that each message of the load is popped once."""
    given = {"messageDelayLevel": "1s 2s", "popFromRetryProbability": 0}
    return popping(path, with_namesrv=True, **given | settings)


async def test_the_table_names_every_duty_and_whose_it_is(tmp_path):
    async with opened(tmp_path) as p:
        duties = p.broker.services.duties
        assert tuple(duties.names) == NAMES
        roles = {name: duties[name].role for name in NAMES}
        assert {name for name in NAMES if roles[name] is BrokerRole.MASTER} == set(MASTERS)
        assert all(duties[name].is_on for name in NAMES)
    assert not any(duties[name].is_on for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_a_duty_stops_and_starts_under_load(tmp_path, name):
    async with opened(tmp_path) as p:
        load, duty = Load(p), p.broker.services.duties[name]

        async def switch():
            for n in range(STOPS):
                await until(lambda n=n: load.count >= (n + 1) * ROUNDS // (STOPS + 1))
                await duty.stop()
                assert not duty.is_on
                seen = load.count
                await until(lambda seen=seen: load.count >= min(seen + 3, ROUNDS))
                await duty.start()

        switching = asyncio.ensure_future(switch())
        for _ in range(ROUNDS):
            await load.one()
            p.shift(100)
        await switching
        await load.all_came_once()


async def test_a_slave_delivers_nothing_and_a_master_again_all_of_it_once(tmp_path):
    async with opened(tmp_path) as p:
        load, duties = Load(p), p.broker.services.duties
        for _ in range(5):
            await load.one()
        await duties.change_role(BrokerRole.SLAVE)
        assert [name for name in NAMES if not duties[name].is_on] == list(MASTERS)
        p.shift(10_000)
        assert (await load.decide(b"refused")).code == 11
        await asyncio.sleep(0.05)
        assert not load.bodies("delayed") and not load.bodies("timed")
        assert load.retry_topic() is None
        await duties.change_role(BrokerRole.MASTER)
        for _ in range(5):
            await load.one()
        await load.all_came_once()
        assert all(duties[name].is_on for name in NAMES)


async def test_a_change_of_role_under_load_loses_nothing(tmp_path):
    async with opened(tmp_path) as p:
        load, duties = Load(p), p.broker.services.duties

        async def switch():
            for n in range(STOPS):
                await until(lambda n=n: load.count >= (n + 1) * ROUNDS // (STOPS + 1))
                await duties.change_role(BrokerRole.SLAVE)
                await duties.change_role(BrokerRole.MASTER)

        switching = asyncio.ensure_future(switch())
        for _ in range(ROUNDS):
            await load.one()
            p.shift(100)
        await switching
        # What was decided while it was a slave was refused, and is decided again.
        for half in list(p.broker.services.transactions.halves.all()):
            await p.ask(
                Code.END_TRANSACTION, producerGroup="p", tranStateTableOffset=half.offset,
                commitLogOffset=half.physical, commitOrRollback=8,
                fromTransactionCheck="true", msgId="K", transactionId="K",
            )  # fmt: skip
        await load.all_came_once()


async def test_an_open_half_is_asked_about_after_the_checks_rested(tmp_path):
    """The round that was due meanwhile comes with the first tick after the start."""
    async with opened(tmp_path, transactionTimeOut=1, transactionCheckInterval=1) as p:
        p.make_topic("decided")
        duty = p.broker.services.duties["transactions"]
        await duty.stop()
        half = await p.send(b"open", topic="decided", TRAN_MSG="true", PGROUP="p")
        assert half.code == 0
        transactions = p.broker.services.transactions
        assert transactions.halves.state().open == 1
        await asyncio.sleep(0.005)  # older than its time of a millisecond
        await duty.start()
        report = await transactions.check()
        assert (report.asked, report.unheard) == (0, 1)
        await duty.stop()
        _, kept = p.broker.store.metadata.pending.load()
        assert [each.offset for each in kept] == [int(half.ext["queueOffset"])]


async def test_a_broker_leaves_its_routes_and_comes_back(tmp_path):
    async with opened(tmp_path) as p:
        p.make_topic("T")
        await p.broker.services.registration.settled()
        duty = p.broker.services.duties["registration"]

        async def is_routed():
            answer = await p.client.request(p.broker.namesrv_address, _route_of_t())
            return answer.code == 0

        for _ in range(3):
            assert await is_routed()
            await duty.stop()
            assert not await is_routed()
            await duty.start()
        assert await is_routed()


def _route_of_t():
    from broker.wire.command import Command

    return Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})


async def test_retention_rests_while_its_duty_does(tmp_path):
    """Segments that expired stay until it goes on."""
    settings = {
        "mappedFileSizeCommitLog": 64 << 10, "fileReservedTime": 0, "cleanResourceInterval": 10,
        "flushIntervalConsumeQueue": 10,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "deleteCommitLogFilesInterval": 0,
    }  # fmt: skip
    async with opened(tmp_path, **settings) as p:
        p.make_topic("T")
        duty, store = p.broker.services.duties["retention"], p.broker.store
        await duty.stop()
        begin = store.info().log_min
        for n in range(200):
            store.put("T", bytes(2000), queue=0, keys=str(n))
        time.sleep(0.2)  # of many rounds of the keeper
        assert store.info().log_min == begin
        await duty.start()
        await until(lambda: store.info().log_min > begin)
