"""The duties of a broker, and whose each is. The one place that says what is started."""

from __future__ import annotations

from collections.abc import Callable

from broker.services.acting.acting import Acting
from broker.services.acting.mastership import Mastership
from broker.services.context import Services
from broker.services.duties import BrokerRole, Duty, PeriodicJob
from broker.services.pop import Pop
from broker.services.replication.replication import Replication
from broker.services.schedule import Schedule
from broker.services.static_topics.static_topics import StaticTopics
from broker.services.transaction import Transactions
from pystore.store import hosting

__all__ = ["duties_of"]


def duties_of(
    s: Services, acting: Acting | None = None, mastership: Mastership | None = None
) -> list[Duty]:
    """Returns the duties in the order of their starts; clients find the broker by the first one.
    acting: of a slave that may act as master; mastership: of a master that one may act for.
    The schedule, the transactions and POP must be there."""
    assert s.schedule is not None and s.transactions is not None and s.pop is not None
    return [
        Duty(
            "registration", None,
            PeriodicJob("registration", s.registration.tick, _every(1)),
            begin=s.registration.start, end=s.registration.stop,
        ),
        *_replicating(s.replication),
        *_acting(acting, s.schedule),
        *_leading(mastership),
        *_delivering(s, s.schedule),
        *_deciding(s, s.transactions),
        *_popping(s, s.pop),
        Duty(
            "retention", None,
            begin=lambda: hosting.clean_by_itself(s.store, True),
            end=lambda: hosting.clean_by_itself(s.store, False),
        ),
        *_cooling(s),
        *_mapping(s, s.static),
        Duty(
            "consumer offsets", None,
            PeriodicJob("save consumer offsets", s.offsets.persist,
                _of(s, "flushConsumerOffsetInterval")),
            end=s.offsets.persist,
        ),
        Duty(
            "clients", None,
            PeriodicJob("find clients that are gone", s.clients.scan, _every(10)),
            PeriodicJob("find locks that are over", s.locks.scan, _every(30)),
        ),
        Duty(
            "statistics", None,
            PeriodicJob("sample the statistics", s.statistics.sample, _every(10)),
            begin=s.statistics.sample,
        ),
    ]  # fmt: skip


def _replicating(replication: Replication | None) -> list[Duty]:
    if replication is None:
        return []
    return [
        Duty(
            "replication", None,
            PeriodicJob("look at slaves, or for the master", replication.look, _every(1)),
            PeriodicJob("take over what the master has", replication.synchronize, _every(3)),
            begin=replication.start, end=replication.stop,
        ),
    ]  # fmt: skip


def _acting(acting: Acting | None, schedule: Schedule) -> list[Duty]:
    if acting is None:
        return []
    return [
        Duty(
            "master's absence", None,
            PeriodicJob("look whether the master is gone", acting.look, _every(1)),
        ),
        Duty(
            "master's timers", BrokerRole.SLAVE,
            PeriodicJob("read the master's timers", schedule.follow_timers, _every(5)),
        ),
        Duty("escape", BrokerRole.ACTING, begin=acting.start, end=acting.stop),
    ]  # fmt: skip


def _leading(mastership: Mastership | None) -> list[Duty]:
    if mastership is None:
        return []
    return [
        Duty(
            "mastership", None,
            PeriodicJob("make sure that no slave acts", mastership.look, _every(1)),
            begin=mastership.start, end=mastership.stop,
        ),
    ]  # fmt: skip


def _delivering(s: Services, schedule: Schedule) -> list[Duty]:
    return [
        Duty(
            "delays", BrokerRole.MASTER,
            PeriodicJob("save delay offsets", schedule.persist_later,
                        _of(s, "flushDelayOffsetInterval")),
            begin=schedule.begin_levels, end=schedule.stop_levels,
        ),
        Duty(
            "timers", BrokerRole.MASTER,
            PeriodicJob("save timers", schedule.save_timers, _of(s, "timerFlushIntervalMs"),
                changed=schedule.timers_changed),
            PeriodicJob("put old timers again", schedule.roll_timers, _every(600)),
            PeriodicJob("sample the timers", schedule.sample_timers, _every(1)),
            begin=schedule.start_timers, end=schedule.stop_timers,
        ),
    ]  # fmt: skip


def _deciding(s: Services, transactions: Transactions) -> list[Duty]:
    return [
        Duty(
            "transactions", BrokerRole.MASTER,
            PeriodicJob("check transactions", transactions.tick, _every(1)),
            end=transactions.stop,
        ),
    ]  # fmt: skip


def _popping(s: Services, pop: Pop) -> list[Duty]:
    return [
        Duty(
            "revive", BrokerRole.MASTER,
            PeriodicJob("commit the progress of revives", pop.tick, _of(s, "reviveInterval")),
            begin=pop.revive.start, end=pop.revive.stop,
        ),
        Duty(
            "ordered batches", None,
            PeriodicJob("save batches of ordered groups", pop.save_order, _every(1),
                changed=lambda: pop.order.changed),
            end=pop.save_order,
        ),
    ]  # fmt: skip


def _cooling(s: Services) -> list[Duty]:
    if s.cold is None:
        return []
    return [
        Duty("cold tier", None, begin=s.cold.start, end=s.cold.stop),
        Duty("writing out", BrokerRole.MASTER, begin=s.cold.lead, end=s.cold.follow),
    ]


def _mapping(s: Services, static: StaticTopics | None) -> list[Duty]:
    if static is None:
        return []
    return [
        Duty(
            "static topics", BrokerRole.MASTER,
            PeriodicJob("clean the mappings of static topics", static.clean, _every(300),
                changed=static.is_time_to_clean),
        ),
    ]  # fmt: skip


def _every(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def _of(s: Services, setting: str) -> Callable[[], float]:
    """Returns the seconds that a setting in ms says, which may change."""
    return lambda: float(s.settings[setting]) / 1000
