"""The name server's settings, under upstream's names (NamesrvConfig, NettyServerConfig, tls.*)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from broker.remoting.tls import TlsSettings
from pystore.errors import BadArgument
from pystore.javaproperties import edit_java_properties, parse_java_properties
from pystore.setting_problems import (
    BadSettings,
    SettingProblem,
    about_text,
    about_unknown,
    nearest,
    refuse,
)
from pystore.settings import TABLE
from pystore.upstream_settings import NAMESRV, UPSTREAM

__all__ = ["USED", "NamesrvSettings"]

Value = str | int | bool

_INT_MAX = 2**31 - 1
_FILE_MAX_BYTES = 4 << 20

#: What acts here: name to (default, what it does). The type is the default's.
USED: dict[str, tuple[Value, str]] = {
    "bindAddress": ("127.0.0.1", "address to listen on; `pystore namesrv`: 0.0.0.0"),
    "listenPort": (9876, "port to listen on; 0: any free port"),
    "serverSocketBacklog": (1024, "backlog of the listening socket"),
    "serverChannelMaxIdleTimeSeconds": (
        120,
        "idle connections are closed after this time; 0: never",
    ),
    "shutdownWaitTimeSeconds": (30, "how long a stop waits for requests in progress"),
    "kvConfigPath": ("", "file of the key-value configuration; empty: memory only"),
    "configStorePath": ("", "file that mqadmin changes of settings are saved to; empty: not saved"),
    "configBlackList": (
        "configBlackList;configStorePath;kvConfigPath",
        "settings that mqadmin may not change, separated by ';'",
    ),
    "orderMessageEnable": (False, "routes carry orderTopicConf"),
    "returnOrderTopicConfigToBroker": (True, "responses to registrations carry the order topics"),
    "scanNotActiveBrokerInterval": (5000, "interval of the scan for brokers without heartbeat"),
    "supportActingMaster": (False, "a slave may act for a missing master"),
    "enableAllTopicList": (True, "serve the list of all topics (206)"),
    "enableTopicList": (True, "serve the lists of cluster and unit topics"),
    "notifyMinBrokerIdChanged": (False, "notify brokers when the lowest broker id changes"),
    "needWaitForService": (
        False,
        "refuse route requests for waitSecondsForService after the start",
    ),
    "waitSecondsForService": (45, "how long needWaitForService refuses"),
    "metricsExporterType": ("DISABLE", "PROM: metrics, /health and /ready by HTTP"),
    "metricsPromExporterPort": (5557, "port of the metrics; 0: any free port"),
    "metricsPromExporterHost": ("", "address that it listens on; empty: bindAddress"),
    "deleteTopicWithBrokerRegistration": (False, "remove topics missing from a registration"),
}

#: Accepted and shown, without effect here: threads and their queues, and parts that do not exist.
UNUSED: dict[str, Value] = {
    "rocketmqHome": "",
    "productEnvName": "center",
    "clusterTest": False,
    "clientRequestThreadPoolNums": 8,
    "defaultThreadPoolNums": 16,
    "clientRequestThreadPoolQueueCapacity": 50000,
    "defaultThreadPoolQueueCapacity": 10000,
    "unRegisterBrokerQueueCapacity": 3000,
    "enableControllerInNamesrv": False,
}

#: What only a start takes over.
AT_START = frozenset({
    "bindAddress", "listenPort", "serverSocketBacklog", "serverChannelMaxIdleTimeSeconds",
    "waitSecondsForService", "metricsExporterType", "metricsPromExporterPort",
    "metricsPromExporterHost",
})  # fmt: skip

_PORTS = ("listenPort", "metricsPromExporterPort")

#: What would make another server of it, and what to do instead.
_REFUSED = {
    "enableControllerInNamesrv": "run a controller as a process of its own",
    "clusterTest": "ask the other cluster's name server",
}

#: Upstream's processor adds these to configBlackList.
_ALWAYS_BLACK = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")


def _defaults() -> dict[str, Value]:
    made: dict[str, Value] = {
        name: default
        for name, (_, default) in UPSTREAM["NettyServerConfig"].items()
        if isinstance(default, str | int | bool)
    }
    made.update(UNUSED)
    made.update({name: default for name, (default, _) in USED.items()})
    return made


DEFAULTS = _defaults()
TLS_NAMES = {*TlsSettings.NAMES, "tls.config.file"}


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
        self._values: dict[str, Value] = dict(DEFAULTS)
        self._tls: dict[str, str] = {}
        #: What was passed over; of a file that is used, no errors.
        self.problems: list[SettingProblem] = []
        for name, value in (under or {}).items():
            self._set(name, value, "default")
        if conf is not None:
            path = Path(conf)
            for name, (line, text) in _read(path).items():
                self._set(name, text, f"{path}:{line}")
        for name, value in (given or {}).items():
            self._set(name, value, "keyword")
        refuse(self.problems)

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
        return self._values[name]

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
            found = {name: text for name, (_, text) in _read(Path(file)).items()}
            given = found | given
        return TlsSettings.from_names(given)

    def _set(self, name: str, value: object, where: str) -> None:
        if name in TLS_NAMES:
            self._tls[name] = str(value)
            return
        if name not in self._values:
            self.problems.append(_unknown(name, where))
            return
        try:
            self._values[name] = _converted(name, value, where)
        except BadArgument as bad:
            self.problems.append(SettingProblem(name, where, bad.text))
            return
        is_changed = name in UNUSED and self._values[name] != UNUSED[name]
        if is_changed and where not in ("default", "keyword"):
            self.problems.append(_without_effect(name, where))

    @property
    def black_list(self) -> frozenset[str]:
        return frozenset((*_ALWAYS_BLACK, *self.text("configBlackList").split(";")))

    def update(self, changes: Mapping[str, str]) -> None:
        """Changes all of them or none; unknown names are passed over, as upstream does. Raises:
        BadArgument, also for one that only a start takes over."""
        known = {
            name: _converted(name, text, "the request")
            for name, text in changes.items()
            if name in self._values
        }
        for name, value in known.items():
            if name in AT_START and value != self._values[name]:
                raise BadArgument(
                    f"{name} takes effect only at a start: write it to the settings file"
                )
        self._values.update(known)

    def dumped(self) -> str:
        """Returns a properties file, sorted by name: the answer to GET_NAMESRV_CONFIG."""
        values = ((name, self._values[name]) for name in sorted(self._values))
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in values
        }
        return edit_java_properties("", texts)


def _unknown(name: str, where: str) -> SettingProblem:
    if where in ("default", "keyword"):
        near = nearest(name, [*DEFAULTS, *TLS_NAMES])
        hint = f"; the nearest name is '{near}'" if near else ""
        return SettingProblem(name, where, f"unknown name server setting '{name}'{hint}")
    if name in NAMESRV or name in UPSTREAM["NettyClientConfig"]:
        return _without_effect(name, where)
    found = about_unknown(name, where, [*DEFAULTS, *TLS_NAMES, *NAMESRV], {})
    if not found.is_error and name in TABLE:
        text = f"{name}: it is a setting of a broker, and has no effect here"
        return replace(found, text=text, mend="write it to broker.conf")
    return found


def _without_effect(name: str, where: str) -> SettingProblem:
    text = f"{name} has no effect here"
    return SettingProblem(name, where, text, False, "no-effect", "delete the line")


def _converted(name: str, value: object, where: str) -> Value:
    """Converts a value to the type of the default. Raises: BadArgument."""
    default = DEFAULTS[name]
    text = str(value).strip()
    hint = about_text(text) if where not in ("default", "keyword", "the request") else ""
    if hint:
        raise BadArgument(f"{name} = '{text}': {hint}", where)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise BadArgument(f"{name} = '{text}' is not true or false", where)
        if name in _REFUSED and text.lower() == "true":
            raise BadArgument(f"{name} has no effect here: {_REFUSED[name]}", where)
        return text.lower() == "true"
    if isinstance(default, int):
        if not text.lstrip("-").isdigit() or not text.isascii():
            raise BadArgument(f"{name} = '{text}' is not an integer", where)
        number = int(text)
        high = 65535 if name in _PORTS else _INT_MAX
        if not 0 <= number <= high:
            raise BadArgument(f"{name} = {number} is not between 0 and {high}", where)
        return number
    if not {"\n", "\r", "\0"}.isdisjoint(text):
        raise BadArgument(f"{name} contains a line break or a NUL character", where)
    if name == "metricsExporterType" and text not in ("PROM", "DISABLE"):
        raise BadArgument(f"{name} = {text}: a name server knows PROM and DISABLE", where)
    return text


def _read(path: Path) -> dict[str, tuple[int, str]]:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            raise BadArgument(
                f"the settings file is larger than {_FILE_MAX_BYTES} bytes", str(path)
            )
        return parse_java_properties(data.decode("utf-8-sig"))
    except OSError as failed:
        raise BadArgument(f"cannot read the settings ({failed.strerror})", str(path)) from failed
    except ValueError as bad:
        if isinstance(bad, BadArgument):
            raise
        raise BadArgument(str(bad), str(path)) from None
