"""The broker's settings while it runs: tools may change some of them (UPDATE_BROKER_CONFIG)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from broker.services.access import access_forms
from broker.services.setting_forms import malformed
from pystore.configuration.problems import SettingProblem, refuse
from pystore.configuration.rows import Setting, Value, shown
from pystore.errors import BadArgument
from pystore.meta.configfiles import DataVersion
from pystore.settings import (
    NOT_SERVED,
    SECRETS,
    TABLE,
    Settings,
    edit_conf,
    unserved,
    without_password,
)

__all__ = ["Config", "served", "store_alone", "unfit", "without_unserved"]


def served(settings: Settings) -> Settings:
    """Returns the settings as they are true of this broker, where upstream's defaults are not.

    Raises: BadSettings for those that ask for what this broker cannot do, all at once."""
    refuse(unfit(settings))
    return without_unserved(settings)


def unfit(settings: Settings) -> Iterator[SettingProblem]:
    """Yields settings that this broker cannot serve, or whose form is wrong. No I/O: a start asks,
    and so does each change while it runs."""
    yield from unserved(settings, by_broker=True)
    yield from malformed(settings)
    yield from access_forms(settings)
    if settings["enableControllerMode"]:
        yield from _of_controlled(settings)
        return
    yield from _without_effect(
        settings, "without enableControllerMode = true", lambda row: row.with_controller is True
    )
    if settings["brokerId"] < 0:
        yield _problem(
            settings, "brokerId",
            "brokerId = -1 has no meaning without enableControllerMode = true",
            "write 0 for a master, 1 or more for a slave",
        )  # fmt: skip
    if settings["brokerRole"] == "SLAVE" and settings["brokerId"] == 0:
        yield _problem(
            settings, "brokerRole",
            "brokerRole = SLAVE needs a brokerId of its own, from 1 on: 0 is the master's",
        )  # fmt: skip
    yield from _of_replicas(settings)


def _problem(settings: Settings, name: str, text: str, mend: str = "") -> SettingProblem:
    return SettingProblem(name, settings.source(name), text, mend=mend)


def _of_controlled(settings: Settings) -> Iterator[SettingProblem]:
    """Yields settings that would have no effect under a controller."""
    if not settings["controllerAddr"]:
        yield _problem(
            settings, "enableControllerMode", "enableControllerMode needs controllerAddr"
        )
    for name, allowed in (
        ("brokerRole", "SLAVE"),
        ("brokerId", -1),
        ("allAckInSyncStateSet", True),
    ):
        if name in settings.explicit and settings[name] != allowed:
            yield _problem(
                settings, name,
                f"{name} = {shown(settings[name])} has no effect with enableControllerMode:"
                f" leave it out, or set it to {shown(allowed)}",
            )  # fmt: skip
    yield from _without_effect(
        settings, "with enableControllerMode", lambda row: row.with_controller is False
    )


def _without_effect(
    settings: Settings, when: str, is_idle: Callable[[Setting], bool]
) -> Iterator[SettingProblem]:
    """Yields settings that have another value than their default, although they do nothing."""
    for name, row in TABLE.items():
        if is_idle(row) and settings[name] != row.default:
            value = shown(without_password(settings[name]))
            yield _problem(settings, name, f"{name} = {value} has no effect {when}")


def without_unserved(settings: Settings) -> Settings:
    """Returns the settings; those that a file may have and no broker serves have their only
    value."""
    untrue = {
        name: TABLE[name].only
        for name in NOT_SERVED
        if settings[name] != TABLE[name].only and not TABLE[name].by_broker
    }
    return settings.replaced(**untrue) if untrue else settings


def _of_replicas(settings: Settings) -> Iterator[SettingProblem]:
    """Yields settings that would have no effect, or that nothing can fulfil. A slave may have those
    of the master that it may become."""
    if settings["brokerRole"] == "ASYNC_MASTER":
        yield from _without_effect(
            settings, "without brokerRole = SYNC_MASTER", lambda row: row.of_sync_master
        )
    for name in ("haFlowControlEnable", "haTruncateDiverged"):
        if settings[name] and not {"brokerRole", "haListenPort"} & settings.explicit:
            yield _problem(
                settings, name, f"{name} has no effect without brokerRole: nobody replicates"
            )
    least, most = settings["minInSyncReplicas"], settings["inSyncReplicas"]
    if least > most:
        yield _problem(
            settings, "minInSyncReplicas",
            f"minInSyncReplicas = {least} is more than inSyncReplicas = {most}",
        )  # fmt: skip


def store_alone() -> dict[str, Any]:
    """Returns settings of a broker as its store by itself takes them: replication is the
    broker's, and a store that is asked for it refuses."""
    return {row.name: row.only for row in TABLE.values() if row.by_broker}


class Config:
    """The settings at this moment, used like Settings: ``config["name"]``. `changed` is called
    with the names of settings that got another value; `file` is the broker.conf that was given,
    or None."""

    def __init__(self, settings: Settings, file: Path | None = None) -> None:
        self.current = settings
        self.file = file
        self._writing = asyncio.Lock()
        self.version = DataVersion(0, 0, time.time_ns() // 1_000_000)
        self.changed: list[Callable[[frozenset[str]], None]] = []

    def __getitem__(self, name: str) -> Any:
        return self.current[name]

    @property
    def store_host(self) -> bytes:
        return self.current.store_host

    async def update_and_keep(self, changes: Mapping[str, str]) -> None:
        """Updates the settings, and writes them into the file first if there is one. Raises:
        StoreError as well."""
        async with self._writing:
            self._checked(changes)
            if self.file is not None:
                await asyncio.to_thread(edit_conf, self.file, changes)
            self.update(changes)

    def update(self, changes: Mapping[str, object]) -> None:
        """Updates all of these settings or none, until the broker stops.

        Raises: BadArgument for an unknown name or invalid value, and for settings that only a start
        takes over."""
        made, names = self._checked(changes)
        if not names:
            return
        self.current = made
        self.version = self.version.bumped()
        for listener in self.changed:
            listener(names)

    def reload(self, made: Settings) -> tuple[frozenset[str], frozenset[str]]:
        """Takes over what the file, read again, has otherwise. Returns the names that hold now, and
        those that only a start takes over. Raises: BadArgument for settings that cannot be served:
        everything stays as it was."""
        changed = {
            name
            for name, row in TABLE.items()
            if row.used_by != "none" and made[name] != self.current[name]
        }
        later = {name for name in changed if TABLE[name].at_start or made[name] is None}
        taken = {name: made[name] for name in changed - later}
        self.update(taken)
        return frozenset(taken), frozenset(later)

    def _checked(self, changes: Mapping[str, object]) -> tuple[Settings, frozenset[str]]:
        made = served(self.current.replaced(**changes))
        names = frozenset(name for name in changes if made[name] != self.current[name])
        for name in sorted(names):
            if TABLE[name].at_start:
                raise BadArgument(f"{name} takes effect only at a start: write it to broker.conf")
        return made, names

    def as_text(self, store: Path) -> str:
        """Returns ``name=value`` lines of every setting that has a value, as GET_BROKER_CONFIG has
        them, without secrets. store: the folder of the store. What upstream works out from the
        machine is worked out as it does."""
        settings = self.current
        values = _of_the_machine(os.cpu_count() or 1) | {
            name: value for name, value in settings.as_dict().items() if value is not None
        }
        folders = ",".join(map(str, settings.commitlog_dirs(store)))
        values |= {"storePathRootDir": str(store), "storePathCommitLog": folders}
        values.setdefault("brokerIP2", settings["brokerIP1"])
        if home := os.environ.get("ROCKETMQ_HOME"):
            values.setdefault("rocketmqHome", home)
        lines = []
        for name, value in sorted(values.items()):
            if name not in SECRETS:
                lines.append(f"{name}={shown(without_password(value))}\n")
        return "".join(lines)


def _of_the_machine(processors: int) -> dict[str, Value]:
    """Returns upstream's default sizes of pools of threads (BrokerConfig and NettyClientConfig of
    5.3.3). They are without effect here, as all such sizes are."""
    few, many = min(processors, 4), 16 + 2 * processors
    return {
        "clientCallbackExecutorThreads": processors,
        "endTransactionThreadPoolNums": max(8 + 2 * processors, 4 * few),
        "heartbeatThreadPoolNums": min(32, processors),
        "litePullMessageThreadPoolNums": many,
        "processReplyMessageThreadPoolNums": many,
        "pullMessageThreadPoolNums": many,
        "putMessageFutureThreadPoolNums": few,
        "queryMessageThreadPoolNums": 8 + processors,
        "sendMessageThreadPoolNums": few,
    }
