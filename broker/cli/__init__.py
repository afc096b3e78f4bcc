"""Verbs of the command line that need a broker or a name server; pyproject.toml announces them."""

from __future__ import annotations

from broker.cli import acl, broker, clone, consume, ha, namesrv, promote, proxy, send, timers, tx
from pystore.cli.verbs import Verb

__all__ = ["ACL", "BROKER", "CLONE", "CONSUME", "HA", "NAMESRV", "PROXY", "SEND", "TIMERS", "TX"]

ACL = (
    Verb("acl list", acl.list_, server=True, group="List, change and check access control."),
    Verb("acl add", acl.add, server=True, writes=True),
    Verb("acl remove", acl.remove, server=True, writes=True),
    Verb("acl check", acl.check, server=True),
)
BROKER = Verb("broker", broker.run, server=True)
CLONE = Verb("clone", clone.run, server=True, writes=True)
CONSUME = Verb("consume", consume.run, server=True)
HA = (
    Verb("ha status", ha.status, server=True, group="Look after masters and slaves."),
    Verb("ha promote", promote.run, server=True, writes=True),
)
NAMESRV = Verb("namesrv", namesrv.run, server=True)
PROXY = Verb("proxy", proxy.run, server=True)
SEND = Verb("send", send.run, server=True)
TIMERS = (
    Verb("timers ls", timers.ls, group="List, count and change messages that wait for a time."),
    Verb("timers stats", timers.stats),
    Verb("timers get", timers.get),
    Verb("timers cancel", timers.cancel, writes=True),
    Verb("timers reschedule", timers.reschedule, writes=True),
)
TX = (
    Verb("tx ls", tx.ls, group="List, show and decide open transactions."),
    Verb("tx show", tx.show),
    Verb("tx commit", tx.commit, writes=True),
    Verb("tx rollback", tx.rollback, writes=True),
    Verb("tx resume", tx.resume, writes=True),
    Verb("tx stats", tx.stats),
)
