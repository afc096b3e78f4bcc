"""Verbs of the command line that need a broker or a name server; pyproject.toml announces them."""

from __future__ import annotations

from broker.cli import (
    acl,
    admin,
    admin_lite,
    admin_messages,
    admin_offsets,
    admin_static,
    broker,
    clone,
    consume,
    controlled,
    doctor,
    ha,
    namesrv,
    promote,
    proxy,
    send,
    timers,
    top,
    tx,
    web,
)
from pystore.cli.verbs import Verb

__all__ = [
    "ACL", "ADMIN", "BROKER", "CLONE", "CONSUME", "DOCTOR", "HA", "NAMESRV", "PROXY", "SEND",
    "TIMERS", "TOP", "TX", "WEB",
]  # fmt: skip

ACL = (
    Verb("acl list", acl.list_, server=True, group="List, change and check access control."),
    Verb("acl add", acl.add, server=True, writes=True),
    Verb("acl remove", acl.remove, server=True, writes=True),
    Verb("acl check", acl.check, server=True),
)
_LOOK = "Look into running brokers, ours or Apache's, and change what they hold."
ADMIN = (
    Verb("admin cluster", admin.cluster, server=True, group=_LOOK),
    Verb("admin broker", admin.broker, server=True),
    Verb("admin config get", admin.config_get, server=True, group=f"{_LOOK} | Settings."),
    Verb("admin config set", admin.config_set, server=True, writes=True),
    Verb("admin certificates", admin.certificates, server=True),
    Verb("admin topic list", admin.topic_list, server=True, group=f"{_LOOK} | Topics."),
    Verb("admin topic show", admin.topic_show, server=True),
    Verb("admin topic create", admin.topic_create, server=True, writes=True),
    Verb("admin topic delete", admin.topic_delete, server=True, writes=True),
    Verb("admin static show", admin_static.show, server=True, group=f"{_LOOK} | Static topics."),
    Verb("admin static create", admin_static.create, server=True, writes=True),
    Verb("admin static remap", admin_static.remap, server=True, writes=True),
    Verb("admin lite broker", admin_lite.broker, server=True, group=f"{_LOOK} | Lite topics."),
    Verb("admin lite parent", admin_lite.parent, server=True),
    Verb("admin lite topic", admin_lite.topic, server=True),
    Verb("admin lite client", admin_lite.client, server=True),
    Verb("admin lite group", admin_lite.group, server=True),
    Verb("admin lite dispatch", admin_lite.dispatch, server=True),
    Verb("admin group list", admin.group_list, server=True, group=f"{_LOOK} | Consumer groups."),
    Verb("admin group show", admin.group_show, server=True),
    Verb("admin group create", admin.group_create, server=True, writes=True),
    Verb("admin group delete", admin.group_delete, server=True, writes=True),
    Verb("admin client list", admin_offsets.client_list, server=True, group=f"{_LOOK} | Clients."),
    Verb("admin offset lag", admin_offsets.lag, server=True, group=f"{_LOOK} | Offsets of groups."),
    Verb("admin offset reset", admin_offsets.reset, server=True, writes=True),
    Verb("admin offset skip", admin_offsets.skip, server=True, writes=True),
    Verb(
        "admin message get", admin_messages.message_get, server=True, group=f"{_LOOK} | Messages."
    ),
    Verb("admin message find", admin_messages.message_find, server=True),
    Verb("admin message trace", admin_messages.message_trace, server=True),
    Verb("admin dlq list", admin_messages.dlq_list, server=True, group=f"{_LOOK} | Dead letters."),
    Verb("admin dlq get", admin_messages.dlq_get, server=True),
    Verb("admin dlq redrive", admin_messages.dlq_redrive, server=True, writes=True),
)
BROKER = Verb("broker", broker.run, server=True)
CLONE = Verb("clone", clone.run, server=True, writes=True)
CONSUME = Verb("consume", consume.run, server=True)
DOCTOR = Verb("doctor", doctor.run, server=True)
HA = (
    Verb("ha status", ha.status, server=True, group="Look after masters and slaves."),
    Verb("ha promote", promote.run, server=True, writes=True),
    Verb("ha group", controlled.group, server=True),
    Verb("ha move", controlled.move, server=True, writes=True),
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
TOP = Verb("top", top.run, server=True)
TX = (
    Verb("tx ls", tx.ls, group="List, show and decide open transactions."),
    Verb("tx show", tx.show),
    Verb("tx commit", tx.commit, writes=True),
    Verb("tx rollback", tx.rollback, writes=True),
    Verb("tx resume", tx.resume, writes=True),
    Verb("tx stats", tx.stats),
)
WEB = Verb("web", web.run)
