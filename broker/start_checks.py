"""Everything that can be said of a broker's settings before it starts: what a start checks, and
what `pystore broker --check-conf` checks.

Entry points: :func:`read_start` (a file and keywords, to settings and what is wrong with them) and
:func:`on_this_machine` (addresses, folders, files, ports). Forms and combinations, which need no
I/O and hold for changes at run time as well, are those of services/config.py `unfit`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.remoting.client import parse_address
from broker.remoting.server import listening_socket
from broker.services.access import conf_folder
from broker.services.config import unfit, without_unserved
from broker.services.plain_access import PlainAccess
from broker.services.replication.replication import replicates
from broker.services.setting_forms import servers_of
from broker.services.setting_rules import at_odds
from pystore.configuration.problems import SettingProblem
from pystore.errors import BadArgument, StoreError
from pystore.settings import Settings, read_settings

__all__ = ["Ask", "bind_address", "on_this_machine", "read_start"]

#: What exports need, by metricsExporterType.
_OTLP = {
    "LOG": "opentelemetry.sdk.metrics.export",
    "OTLP_GRPC": "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a broker is to be started with. folder: of the store, over storePathRootDir. grpc_port:
    None: as proxy_conf says, else no gRPC service. proxy_conf: an rmq-proxy.json. thorough: ports
    must be free, and names of other hosts known; a start sees to both later."""

    settings: Settings
    conf: Path | None = None
    folder: Path | None = None
    grpc_port: int | None = None
    proxy_conf: Path | None = None
    thorough: bool = False

    @property
    def store(self) -> Path:
        return self.folder or self.settings.root or Path.home() / "store"


def read_start(
    conf: str | os.PathLike[str] | None, given: Mapping[str, object]
) -> tuple[Settings, list[SettingProblem]]:
    """Returns the settings as a broker has them, and all that is wrong with them or worth knowing;
    what is refused has its default there. Raises: BadArgument for a file that cannot be read."""
    made, problems = read_settings(conf, given)
    wrong = {each.name for each in problems if each.is_error}
    problems += [each for each in unfit(made) if each.name not in wrong]
    wrong = {each.name for each in problems if each.is_error}
    problems += [each for each in at_odds(made) if each.name not in wrong]
    return without_unserved(made), problems


def on_this_machine(ask: Ask, wrong: frozenset[str] = frozenset()) -> Iterator[SettingProblem]:
    """Yields what is wrong with settings on this machine: addresses, folders, files, ports. wrong:
    names that are refused already. Blocks, since it looks names up."""
    found = [*_folders(ask), *_addresses(ask), *_rules(ask), *_extras(ask), *_of_grpc(ask)]
    yield from (each for each in found if each.name not in wrong)
    wrong |= {each.name for each in found}
    yield from _listening(ask, wrong)


def bind_address(settings: Settings) -> str:
    """Returns where to listen: by default on loopback when clients are given such an address, else
    on every interface."""
    if "bindAddress" in settings.explicit:
        return str(settings["bindAddress"])
    told = settings["brokerIP1"]
    try:
        return told if ipaddress.ip_address(told.strip("[]")).is_loopback else "0.0.0.0"
    except ValueError:  # a name
        return "127.0.0.1" if told == "localhost" else "0.0.0.0"


def _problem(
    s: Settings, name: str, text: str, mend: str = "", check: str = "refused-setting",
    *, is_error: bool = True,
) -> SettingProblem:  # fmt: skip
    return SettingProblem(name, s.source(name), text, is_error, check, mend)


# ---- folders ----


def _folders(ask: Ask) -> Iterator[SettingProblem]:
    s, store = ask.settings, ask.store
    why = _why_not(store)
    if why:
        text = f"the store cannot be at {store}: {why}"
        yield _problem(s, "storePathRootDir", text, "name another directory, or make this one")
    with contextlib.suppress(BadArgument):  # its form is wrong
        for folder in s.commitlog_dirs(store) if s["storePathCommitLog"] else ():
            why = _why_not(folder)
            if why:
                text = f"storePathCommitLog = {folder}: {why}"
                yield _problem(s, "storePathCommitLog", text, "name another directory")
        for folder in s.commitlog_dirs(store) if s["storePathCommitLog"] else ():
            if not folder.parent.exists() and not folder.is_relative_to(store):
                text = f"storePathCommitLog: {folder} is not there; a start makes it, on whatever"
                mend = "mount its disk first, or make it"
                yield _problem(
                    s, "storePathCommitLog", f"{text} disk that is", mend, "log-missing",
                    is_error=False,
                )  # fmt: skip
        if s["storePathCommitLog"] and _is_gone(store, s.commitlog_dirs(store)):
            text = (
                f"storePathCommitLog = {s['storePathCommitLog']}: {store} is a store, and its log"
            )
            yield _problem(
                s,
                "storePathCommitLog",
                f"{text} is not there",
                "mount its disk, or say where it is",
            )


def _why_not(folder: Path) -> str:
    """Returns why files cannot be made and read in a folder; empty: they can, or it can be made."""
    try:
        if folder.is_dir():
            can = os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
            return "" if can else "this user may not read and write there"
        if folder.exists():
            return "it is not a directory"
        above = next(each for each in folder.parents if each.exists())
        if not above.is_dir():
            return f"{above} is not a directory"
        can = os.access(above, os.W_OK | os.X_OK, effective_ids=True)
        return "" if can else f"this user may make nothing in {above}"
    except OSError as failed:
        return failed.strerror or str(failed)


def _is_gone(store: Path, log: Sequence[Path]) -> bool:
    """Says whether a store that was used would begin its log again: its queues would be emptied."""
    try:
        if any(each.is_dir() for each in log):
            return False
        return any((store / name).exists() for name in ("checkpoint", "consumequeue", "abort"))
    except OSError:  # which _why_not has said
        return False


# ---- addresses ----


def _addresses(ask: Ask) -> Iterator[SettingProblem]:
    s = ask.settings
    try:
        _ = s.store_host
    except BadArgument as bad:
        yield _problem(s, "brokerIP1", bad.text, "write an address of this host")
    # What is asked again and again may come later: nothing ends for it.
    rows = [(name, servers_of(s[name])) for name in ("namesrvAddr", "haMasterAddress")]
    controllers = re.sub(r"^etcds?://(.*@)?", "", s["controllerAddr"] or "").replace(",", ";")
    rows.append(("controllerAddr", servers_of(controllers) if s["enableControllerMode"] else []))
    if s["brokerIP2"]:
        rows.append(("brokerIP2", [f"{s['brokerIP2']}:0"]))
    for name, servers in rows if ask.thorough else ():
        for each in servers:
            with contextlib.suppress(ValueError):  # its form is wrong
                host = parse_address(each)[0]
                if not _has_address(host):
                    text = f"{name}: the name {host} has no address here"
                    mend = "correct the name, or add it to DNS or /etc/hosts"
                    yield _problem(s, name, text, mend, "server-unknown", is_error=False)


def _has_address(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


# ---- ports ----


def _listening(ask: Ask, wrong: frozenset[str]) -> Iterator[SettingProblem]:
    """Binds what would be bound, or only its address if the ports may be another's."""
    with contextlib.ExitStack() as bound:
        taken: dict[int, str] = {}
        for name, host, number in _ports(ask):
            if name in wrong or "bindAddress" in wrong:
                continue
            other = taken.setdefault(number, name) if number else name
            if other != name:
                text = f"{other} and {name} are both {number}"
                yield _problem(ask.settings, name, text, "give each its own port", "ports-clash")
                continue
            try:
                sock = listening_socket(host, number if ask.thorough else 0)
                bound.callback(sock.close)
            except (OSError, UnicodeError) as failed:
                yield _about_bind(ask.settings, name, host, number, failed)


def _ports(ask: Ask) -> Sequence[tuple[str, str, int]]:
    """Returns the settings of ports, with hosts and numbers."""
    s, host = ask.settings, bind_address(ask.settings)
    main = s["listenPort"]
    found = [("listenPort", host, main)]
    if replicates(s):
        given = "haListenPort" in s.explicit
        slaves = s["haListenPort"] if given else 0
        if main or slaves:
            found.append(("haListenPort", host, slaves or main + 1))
    port = ask.grpc_port
    if port is None and ask.proxy_conf is not None:
        from broker.grpc.settings import ProxySettings

        port = ProxySettings.look(ask.proxy_conf)[0].port
    if port is not None:
        found.append(("grpcServerPort", host, port))
    if s["metricsExporterType"] == "PROM":
        at = s["metricsPromExporterHost"] or s["brokerIP1"]
        found.append(("metricsPromExporterPort", at, s["metricsPromExporterPort"]))
    return found


def _about_bind(
    s: Settings, name: str, host: str, number: int, failed: Exception
) -> SettingProblem:
    number_of_error = failed.errno if isinstance(failed, OSError) else None
    place = name if name in s else "listenPort"
    if number_of_error in (errno.EADDRINUSE, errno.EACCES):
        why = "is taken" if number_of_error == errno.EADDRINUSE else "needs rights of root"
        text = f"{name} = {number} {why}"
        return _problem(
            s, place, text, "stop the other process, or name another port", "port-taken"
        )
    if name == "metricsPromExporterPort":
        place = "metricsPromExporterHost" if s["metricsPromExporterHost"] else "brokerIP1"
        text = f"metrics cannot be at {host}, which is not an address of this host"
        return _problem(s, place, text, "set metricsPromExporterHost, to 0.0.0.0 for example")
    text = f"bindAddress = {host} is not an address of this host"
    return _problem(s, "bindAddress", text, "write 0.0.0.0, or an address of this host")


# ---- files, packages ----


def _rules(ask: Ask) -> Iterator[SettingProblem]:
    s = ask.settings
    for name in ("aclEnable", "migrateAuthFromV1Enabled"):
        users = s["authenticationEnabled"] or s["authorizationEnabled"]
        if not s[name] or (name != "aclEnable" and not users):
            continue
        try:
            PlainAccess(conf_folder(s, ask.conf, ask.store), lambda: None).load()
        except StoreError as bad:
            where = f" ({bad.where})" if bad.where else ""
            yield _problem(s, name, f"{name} = true: {bad.text}{where}", "see docs/access.md")


def _extras(ask: Ask) -> Iterator[SettingProblem]:
    s = ask.settings
    kind = s["metricsExporterType"]
    if kind in _OTLP and (kind == "LOG" or s["metricsGrpcExporterTarget"]):
        try:
            importlib.import_module(_OTLP[kind])
        except ImportError:
            text = f"metricsExporterType={kind} needs the OpenTelemetry SDK"
            mend = "pip install 'rocketmq-pystore[otlp]'"
            yield _problem(s, "metricsExporterType", text, mend)
    tier = s["tieredStoreFilePath"]
    if "://" in tier and importlib.util.find_spec("obstore") is None:
        text = f"tieredStoreFilePath = {tier} needs a package that is not installed"
        yield _problem(s, "tieredStoreFilePath", text, "pip install 'rocketmq-pystore[cold]'")
    elif tier and "://" not in tier:
        yield from _of_tier(s, tier)


def _of_tier(s: Settings, folder: str) -> Iterator[SettingProblem]:
    """Yields why a folder cannot be that of a cold tier, before anything waits for it."""
    from pystore.cold.failures import NotATier
    from pystore.cold.objects import open_objects
    from pystore.cold.places import broker_folder
    from pystore.cold.tier import refuse_upstreams

    why, mend = _why_not(Path(folder)), "name another directory, or make this one"
    try:
        if not why:
            own = broker_folder(str(s["brokerClusterName"]), str(s["brokerName"]))
            refuse_upstreams(open_objects(folder).below(own))
    except NotATier as taken:
        why, mend = taken.text, taken.next_step
    except StoreError as failed:
        why = str(failed)
    if why:
        yield _problem(s, "tieredStoreFilePath", f"tieredStoreFilePath = {folder}: {why}", mend)


def _of_grpc(ask: Ask) -> Iterator[SettingProblem]:
    if ask.grpc_port is None and ask.proxy_conf is None:
        return
    from broker.grpc import what_is_missing

    try:
        importlib.import_module("broker.grpc.service")
    except ImportError as missing:
        yield SettingProblem("--grpc", "", what_is_missing(missing))
    if ask.proxy_conf is not None:
        from broker.grpc.settings import ProxySettings

        yield from ProxySettings.look(ask.proxy_conf)[1]
