"""The name server's settings, under upstream's names (NamesrvConfig, NettyServerConfig, tls.*)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.access.addresses import OWN_HOST, parse_patterns
from broker.remoting.tls import TABLE as TLS_TABLE
from broker.remoting.tls import TlsSettings
from pystore.configuration.problems import (
    BadSettings,
    SettingProblem,
    about_unknown,
    nearest,
    refuse,
)
from pystore.configuration.rows import Setting, convert, convert_of_file, read_conf, row_of, shown
from pystore.configuration.upstream import NAMESRV, PROXY, UPSTREAM
from pystore.errors import BadArgument
from pystore.files.javaproperties import edit_java_properties
from pystore.settings import TABLE as BROKERS

__all__ = ["TABLE", "NamesrvSettings"]

Value = str | int | bool


def _one_line(text: str) -> None:
    if not {"\n", "\r"}.isdisjoint(text):
        raise ValueError("it contains a line break")


def _row(name: str, default: Value, meaning: str = "", **more: Any) -> Setting:
    more = {"used_by": "namesrv", "check": _one_line if default.__class__ is str else None} | more
    return row_of(name, default, meaning, **more)


def _idle(name: str, default: Value, **more: Any) -> Setting:
    """Returns the row of what is accepted and shown, but has no effect: threads and their queues,
    and parts that do not exist."""
    return _row(name, default, used_by="none", **more)


#: What acts here, what is refused, and what is only accepted.
_ROWS = (
    _row("bindAddress", "127.0.0.1", "address it listens on; `pystore namesrv`: 0.0.0.0",
         at_start=True),
    _row("listenPort", 9876, "port it listens on; 0 takes a free one", high=65535, at_start=True),
    _row("serverSocketBacklog", 1024, "connections that wait to be accepted", at_start=True),
    _row("serverChannelMaxIdleTimeSeconds", 120,
         "a connection unused for so long is closed; 0: never", at_start=True),
    _row("shutdownWaitTimeSeconds", 30,
         "how many seconds a stop waits at most for requests in progress"),
    _row("trustedProxies", OWN_HOST,
         "proxies whose PROXY header says where a client is, separated by ';'; *: all",
         check=parse_patterns, at_start=True),
    _row("kvConfigPath", "", "file of the key-value configuration; empty: in memory only",
         by_request="nobody", at_start=True),
    _row("configStorePath", "",
         "file in which settings changed by mqadmin are saved; empty: not saved",
         by_request="nobody"),
    _row("configBlackList", "configBlackList;configStorePath;kvConfigPath",
         "settings that mqadmin must not change, separated by ';'", by_request="nobody"),
    _row("orderMessageEnable", False, "routes carry orderTopicConf"),
    _row("returnOrderTopicConfigToBroker", True,
         "a registration is answered with the order topics"),
    _row("scanNotActiveBrokerInterval", 5000, "ms between two checks for silent brokers"),
    _row("supportActingMaster", False, "a slave acts as master while the master is gone"),
    _row("enableAllTopicList", True, "the list of all topics may be requested (206)"),
    _row("enableTopicList", True,
         "the lists of a cluster's topics and of unit topics may be requested"),
    _row("notifyMinBrokerIdChanged", False, "notify brokers when the lowest broker id changes"),
    _row("needWaitForService", False,
         "route requests are refused for `waitSecondsForService` after the start"),
    _row("waitSecondsForService", 45, "how long, in seconds", at_start=True),
    _row("metricsExporterType", "DISABLE",
         "`PROM`: [metrics](metrics.md#name-server), `/health` and `/ready` by HTTP",
         choices=("PROM", "DISABLE"), at_start=True),
    _row("metricsPromExporterPort", 5557, "their port; 0 takes a free one", high=65535,
         at_start=True),
    _row("metricsPromExporterHost", "", "the address it listens on; empty: `bindAddress`",
         at_start=True),
    _row("deleteTopicWithBrokerRegistration", False,
         "topics missing from a registration are removed"),
    _idle("rocketmqHome", "", by_request="nobody"),
    _idle("productEnvName", "center"),
    _idle("clientRequestThreadPoolNums", 8),
    _idle("defaultThreadPoolNums", 16),
    _idle("clientRequestThreadPoolQueueCapacity", 50000),
    _idle("defaultThreadPoolQueueCapacity", 10000),
    _idle("unRegisterBrokerQueueCapacity", 3000),
    # What would make another server of it, and what to do instead.
    _idle("clusterTest", False, only=False, because="ask the other cluster's name server"),
    _idle("enableControllerInNamesrv", False, only=False,
          because="run a controller as a process of its own"),
)  # fmt: skip


def _make_table() -> dict[str, Setting]:
    idle = {
        name: _idle(name, default)
        for name, (_, default) in UPSTREAM["NettyServerConfig"].items()
        if isinstance(default, str | int | bool)
    }
    return idle | {row.name: row for row in _ROWS}


#: Every setting that is accepted, by name.
TABLE: dict[str, Setting] = _make_table()
_TLS_NAMES = {*TLS_TABLE, "tls.config.file"}


class NamesrvSettings:
    """Values by name: ``settings["listenPort"]``. A change by mqadmin takes effect at once, where
    the setting is not one of the socket."""

    def __init__(
        self,
        conf: str | Path | None = None,
        given: Mapping[str, object] | None = None,
        under: Mapping[str, object] | None = None,
    ) -> None:
        """Reads settings. conf: a properties file. given: over it. under: below it, in place of the
        defaults.

        Raises: BadArgument, for all that is refused at once.
        """
        self._values: dict[str, Any] = {name: row.default for name, row in TABLE.items()}
        self._tls: dict[str, str] = {}
        #: What was passed over; of a file that is used, no errors.
        self.problems: list[SettingProblem] = []
        for name, value in (under or {}).items():
            self._set(name, value, "default")
        if conf is not None:
            path = Path(conf)
            entries, found = read_conf(path)
            self.problems += found
            for name, (line, text) in entries.items():
                self._set(name, text, f"{path}:{line}")
        for name, value in (given or {}).items():
            self._set(name, value, "keyword")
        refuse(self.problems)
        self._sources = conf, given, under
        #: As they were read last; requests change others.
        self._read = dict(self._values)

    @classmethod
    def look(
        cls,
        conf: str | Path | None,
        given: Mapping[str, object] | None = None,
        under: Mapping[str, object] | None = None,
    ) -> list[SettingProblem]:
        """Returns all that is wrong with settings, and what would only be passed over."""
        try:
            made = cls(conf, given, under)
            made.tls()
        except BadSettings as bad:
            return list(bad.all_found)
        except BadArgument as bad:
            return [SettingProblem("", bad.where or str(conf or ""), bad.text)]
        return made.problems

    def __getitem__(self, name: str) -> Value:
        found: Value = self._values[name]
        return found

    def flag(self, name: str) -> bool:
        return self._values[name] is True

    def number(self, name: str) -> int:
        return int(self._values[name])

    def text(self, name: str) -> str:
        return str(self._values[name])

    def tls(self) -> TlsSettings:
        """Returns the settings of TLS, from the command line's names and from the file that
        tls.config.file names. Raises: BadArgument."""
        given = dict(self._tls)
        file = given.get("tls.config.file", "")
        if file:
            found = {name: text for name, (_, text) in read_conf(Path(file))[0].items()}
            given = found | given
        return TlsSettings.from_names(given)

    def _set(self, name: str, value: object, where: str) -> None:
        if name in _TLS_NAMES:
            self._tls[name] = str(value)
            return
        row = TABLE.get(name)
        if row is None:
            self.problems.append(_unknown(name, where))
            return
        of_file = where not in ("default", "keyword")
        try:
            self._values[name] = _converted(row, value, of_file=of_file)
        except BadArgument as bad:
            self.problems.append(SettingProblem(name, where, bad.text))
            return
        if of_file and row.used_by == "none" and self._values[name] != row.default:
            self.problems.append(_without_effect(name, where))

    @property
    def black_list(self) -> frozenset[str]:
        """The settings that no request may change; upstream's processor adds some to
        configBlackList."""
        never = {name for name, row in TABLE.items() if row.by_request == "nobody"}
        return frozenset(never | set(self.text("configBlackList").split(";")))

    def update(self, changes: Mapping[str, str]) -> None:
        """Changes all of them or none; unknown names are passed over, as upstream does. Raises:
        BadArgument, also for one that only a start takes over."""
        known = {
            name: _converted(TABLE[name], text) for name, text in changes.items() if name in TABLE
        }
        for name, value in known.items():
            if TABLE[name].at_start and value != self._values[name]:
                raise BadArgument(
                    f"{name} takes effect only at a start: write it to the settings file"
                )
        self._values.update(known)

    def reload(self) -> tuple[list[SettingProblem], frozenset[str], frozenset[str]]:
        """Reads the file again. What has changed there holds from now on, also over a change by
        mqadmin. Returns what was passed over, the names that hold now, and those that only a start
        takes over. Raises: BadArgument for a file that cannot be used: everything stays."""
        made = NamesrvSettings(*self._sources)
        made.tls()
        changed = {
            name for name, value in made._values.items()
            if TABLE[name].used_by != "none" and value != self._read[name]
        }  # fmt: skip
        now = {name: made._values[name] for name in changed if not TABLE[name].at_start}
        self._values.update(now)
        self._read.update(now)
        later = changed - now.keys() | {name for name, _ in made._tls.items() ^ self._tls.items()}
        return made.problems, frozenset(now), frozenset(later)

    def dumped(self) -> str:
        """Returns a properties file, sorted by name: the answer to GET_NAMESRV_CONFIG."""
        texts = {name: shown(value) for name, value in sorted(self._values.items())}
        return edit_java_properties("", texts)


def _unknown(name: str, where: str) -> SettingProblem:
    if where in ("default", "keyword"):
        near = nearest(name, [*TABLE, *_TLS_NAMES])
        hint = f"; the nearest name is '{near}'" if near else ""
        return SettingProblem(name, where, f"unknown name server setting '{name}'{hint}")
    if name in NAMESRV or name in UPSTREAM["NettyClientConfig"]:
        return _without_effect(name, where)
    others = {"broker": BROKERS, "proxy": PROXY}
    return about_unknown(name, where, [*TABLE, *_TLS_NAMES, *NAMESRV], {}, others)


def _without_effect(name: str, where: str) -> SettingProblem:
    text = f"{name} has no effect here"
    return SettingProblem(name, where, text, False, "no-effect", "delete the line")


def _converted(row: Setting, value: object, *, of_file: bool = False) -> Value:
    """Returns the value with the type of its row. Raises: BadArgument."""
    try:
        given = str(value)
        made: Any = convert_of_file(row, given) if of_file else convert(row, given)
    except ValueError as bad:
        raise BadArgument(f"{row.name} = {str(value)!r}: {bad}") from None
    if row.because and made != row.only:
        raise BadArgument(f"{row.name} has no effect here: {row.because}")
    return made  # type: ignore[no-any-return]
