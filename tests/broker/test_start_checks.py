"""What a start says of its settings: what `--check-conf` passes starts, and what it refuses does
not; all of a file at once. Files of people who run RocketMQ, among them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from broker import Broker
from broker.grpc.settings import TABLE as PROXIES
from broker.grpc.settings import ProxySettings
from broker.namesrv.settings import TABLE as NAMES
from broker.namesrv.settings import NamesrvSettings
from broker.start_checks import Ask, on_this_machine, read_start
from pystore.configuration.problems import BadSettings, SettingProblem
from pystore.configuration.upstream import (
    IN_GUIDES,
    NAMESRV,
    OTHER_VERSIONS,
    PROXY,
    RENAMED,
    UPSTREAM,
)
from pystore.errors import BadArgument
from pystore.settings import TABLE, read_settings

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "broker-conf"


def checked(
    conf: Path | None, given: dict[str, Any] | None = None, **more: Any
) -> list[SettingProblem]:
    """What `--check-conf` finds, and what a start refuses."""
    try:
        settings, problems = read_start(conf, given or {})
    except BadArgument as bad:
        return [SettingProblem("", bad.where or "", bad.text)]
    wrong = frozenset(each.name for each in problems if each.is_error)
    return [*problems, *on_this_machine(Ask(settings, conf, **more), wrong)]


def errors(found: list[SettingProblem]) -> dict[str, str]:
    return {each.name: each.text for each in found if each.is_error}


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "broker.conf"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# ---- files of the wild ----

#: Of each public file: which names are refused, and which are passed over.
WILD: dict[str, tuple[set[str], set[str]]] = {
    "01-plain": (set(), {"mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue"}),
    "03-plain": (set(), set()),
    "05-percent": ({"diskMaxUsedSpaceRatio"},
                   {"mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue"}),
    "07-plain": (set(), set()),
    "09-plain": (set(), {"enableMessageIndex"}),
    "11-plain": (set(), set()),
    "13-both": (set(), {"mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue",
                        "heartbeatThreadPoolNums", "endTransactionThreadPoolNums"}),
    "15-noname": (set(), {"storePathConsumeQueue", "storeCheckpoint", "abortFile"}),
    "17-placeholder": (set(), set()),
    "19-controller_acl": ({"brokerId", "controllerAddr"},
                          {"enableDLedgerController", "dLegerGroup", "brokerRegisterPeriodMs",
                           "sendMessageTimeout", "compressMsgBodyOverHowmuch", "enableTrace",
                           "traceTopicName"}),
    "21-wrongcase": ({"BrokerClusterName", "BrokerName", "BrokerId", "BrokerRole"}, set()),
    "23-windows": ({"storePathRootDir", "storePathCommitLog"}, set()),
    "25-misspelt": ({"storePathConsumerQueue", "autoCreateTopicEnable", "brokerName"},
                    {"permittedIP", "brokerName"}),
    "27-bom": (set(), {"brokerClusterName"}),
    "29-quoted": ({"namesrvAddr", "brokerIP1"}, set()),
    "31-gbk": (set(), set()),
}  # fmt: skip


@pytest.mark.skipif(not CASES.is_dir(), reason="the public files are not here")
@pytest.mark.parametrize("name", WILD)
def test_a_public_file_is_taken_or_all_its_bad_lines_are_named(name: str) -> None:
    refused, passed_over = WILD[name]
    _, problems = read_start(CASES / f"{name}.conf", {})
    assert set(errors(problems)) == refused
    assert {each.name for each in problems if not each.is_error} >= passed_over
    assert all(each.place for each in problems if each.name in refused | passed_over)


@pytest.mark.skipif(not CASES.is_dir(), reason="the public files are not here")
@pytest.mark.parametrize("name", WILD)
def test_a_public_file_starts_when_the_check_passes_it(name: str, tmp_path: Path) -> None:
    """At another port and address, since these are not this machine's."""
    conf = CASES / f"{name}.conf"
    ours: dict[str, Any] = {"listenPort": 0, "storePathRootDir": None, "drain_s": 0.0}
    if name not in ("17-placeholder", "29-quoted"):
        ours["brokerIP1"] = "127.0.0.1"
    given = {name: value for name, value in ours.items() if name in TABLE}
    store = tmp_path / "s"
    if name == "15-noname":
        given["storePathCommitLog"] = ours["storePathCommitLog"] = str(store / "commitlog")
    refused = errors(checked(conf, given, folder=store))
    with contextlib.ExitStack() as stack:
        if refused:
            stack.enter_context(pytest.raises(BadArgument))
        with Broker(store, conf=conf, namesrvAddr="127.0.0.1:1", **ours) as broker:
            assert broker.port
    assert store.exists() is not bool(refused), "nothing is made before the settings are sound"


# ---- names ----


def test_every_name_of_every_version_is_known() -> None:
    assert set(OTHER_VERSIONS) <= set(TABLE) and set(RENAMED) <= set(OTHER_VERSIONS)
    assert set(RENAMED.values()) <= set(TABLE)
    assert not set(IN_GUIDES) & set(TABLE)


def test_a_name_of_an_older_version_says_what_became_of_it(tmp_path: Path) -> None:
    conf = written(tmp_path, "brokerName=a\nmapedFileSizeCommitLog=1048576\n")
    settings, (said,) = read_settings(conf)
    assert (said.check, said.is_error, said.place) == ("no-effect", False, f"{conf}:2")
    assert "4.5.0" in said.text and "mappedFileSizeCommitLog" in said.mend
    assert settings["mappedFileSizeCommitLog"] == 1 << 30, "as 5.3.3, which passes over it, too"


def test_no_name_of_another_program_counts_as_mistyped(tmp_path: Path) -> None:
    """As enableControllerInNamesrv in a broker.conf, which is nearly a name of ours."""
    strange = sorted((NAMESRV | PROXY) - set(TABLE) - set(IN_GUIDES))
    conf = written(tmp_path, "".join(f"{name}=1\n" for name in strange))
    found = {each.name: each for each in read_settings(conf)[1]}
    assert set(found) == set(strange) and not errors([*found.values()])
    servers = "".join(f"{name}=1\n" for name in sorted(set(TABLE) - set(NAMES) - NAMESRV))
    assert not errors(NamesrvSettings.look(written(tmp_path, servers)))
    conf = tmp_path / "rmq-proxy.json"
    of_others = sorted((set(TABLE) | NAMESRV) - set(PROXIES) - PROXY - set(UPSTREAM["AuthConfig"]))
    conf.write_text(json.dumps(dict.fromkeys(of_others, "x")))
    assert not errors(ProxySettings.look(conf)[1])


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("brokername=a", "brokerName"),
        ("BrokerName=a", "brokerName"),
        ("flushDiscType=SYNC_FLUSH", "flushDiskType"),
        ("enableAcl=true", "aclEnable"),
        ("brokerIP=10.0.0.1", "brokerIP1"),
        ("autoCreateTopic=true", "autoCreateTopicEnable"),
    ],
)
def test_a_mistyped_name_is_refused(line: str, meant: str, tmp_path: Path) -> None:
    _, (said,) = read_settings(written(tmp_path, line + "\n"))
    assert said.is_error and f"'{meant}'" in said.text and meant in said.mend


@pytest.mark.parametrize("name", ["storePathIndex", "abortFile", "noSuchThing", "fastListenPort"])
def test_a_hint_does_not_lead_astray(name: str, tmp_path: Path) -> None:
    _, (said,) = read_settings(written(tmp_path, f"{name}=1\n"))
    assert not said.is_error and "nearest" not in said.text and said.mend == "delete the line"


def test_a_setting_of_another_server_is_said_to_be_one(tmp_path: Path) -> None:
    conf = written(tmp_path, "grpcServerPort=8081\nkvConfigPath=/x\ntls.server.mode=enforcing\n")
    _, problems = read_settings(conf)
    texts = {each.name: each.text + each.mend for each in problems}
    assert "proxy" in texts["grpcServerPort"] and "name server" in texts["kvConfigPath"]
    assert "--tls" in texts["tls.server.mode"]
    assert not errors(problems)


def test_what_is_said_as_apache_has_it_by_default_is_no_news(tmp_path: Path) -> None:
    """A file with every setting, as `getBrokerConfig` gives it."""
    lines = [
        f"{name}={str(default).lower() if isinstance(default, bool) else default}"
        for table in UPSTREAM.values()
        for name, (_, default) in table.items()
        if default is not None and TABLE[name].used_by == "none"
    ]
    assert len(lines) > 100
    assert read_settings(written(tmp_path, "\n".join(lines)))[1] == []


def test_a_name_given_twice_is_named_with_its_lines(tmp_path: Path) -> None:
    settings, (said,) = read_settings(written(tmp_path, "brokerId=0\n\nbrokerId=3\n"))
    assert settings["brokerId"] == 3 and said.check == "given-twice" and "1, 3" in said.text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_of_powershell_is_refused(encoding: str, tmp_path: Path) -> None:
    """Its `>` writes UTF-16, in which Apache's reader, too, finds no name that it knows."""
    conf = written(tmp_path, "\ufeffbrokerIP1=10.0.0.3\r\n".encode(encoding))
    with pytest.raises(BadArgument, match="UTF-16"):
        read_start(conf, {})


def test_a_byte_order_mark_is_named_where_apache_loses_a_line_by_it(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    settings, (said,) = read_settings(written(tmp_path, mark + b"brokerClusterName=C\n"))
    assert settings["brokerClusterName"] == "C" and said.check == "byte-order-mark"
    assert read_settings(written(tmp_path, mark + b"# settings\nbrokerName=a\n"))[1] == []


# ---- values ----


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('brokerIP1="10.0.0.3"', "quotes"),
        ("brokerName='a'", "quotes"),
        ("brokerName=broker-a   # the master", "line of its own"),
        ("brokerId=1 # the slave", "line of its own"),
        ("brokerIP1=${POD_IP}", "placeholder"),
        ("namesrvAddr=<address>", "placeholder"),
        ("namesrvAddr=${names}", "placeholder"),
        ("storePathRootDir=$HOME/store", "placeholder"),
        ("storePathRootDir=/home/$USER/store", "placeholder"),
        ("namesrvAddr=10.0.0.1:$PORT", "placeholder"),
        ("storePathRootDir=~/store", "placeholder"),
        ("storePathCommitLog=/a,~/b", "placeholder"),
        ("storePathCommitLog=/a;/b", "separated by ','"),
        ("brokerName\uff1dbroker-a", "full-width"),
        ("namesrvAddr=10.0.0.1:9876,10.0.0.2:9876", "comma"),
        ("namesrvAddr=10.0.0.1", "not host:port"),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2", "not host:port"),
        ("namesrvAddr=http://10.0.0.1:9876", "scheme"),
        ("brokerIP1=10.0.0.1:10911", "port"),
        ("brokerIP1=10.0.0.1 10.0.0.2", "one address"),
        ("brokerIP1=no-such-host.invalid", "resolvable"),
        ("brokerName=broker a", "letters, digits"),
        ("brokerClusterName=a.b", "letters, digits"),
        ("diskMaxUsedSpaceRatio=75%", "write 75"),
        ("aclEnable=true", "no access list"),
        ("trustedProxies=10.0.0.x", "not an address"),
        ("trustedSlaves=10.0.0.x", "not an address"),
        ("passwordsFor=10.0.0.x", "not an address"),
        ("ownAddresses=10.0.0.7", "not host:port"),
        ("metricsExporterType=PROM\nmetricsLabel=1:2", "not a label"),
        ("bindAddress=192.0.2.7", "not an address of this host"),
        ("metricsExporterType=PROM\nmetricsPromExporterHost=192.0.2.7", "not an address of this"),
        ("authenticationEnabled=true\ninitAuthenticationUser=root", "not JSON"),
        ("authenticationEnabled=true\nauthenticationWhitelist=x", "not a request code"),
        ("storePathRootDir=C:\\\\store", "Windows"),
        ("enableControllerMode=true\ncontrollerAddr=10.0.0.1", "not host:port"),
        ("enableControllerMode=true\ncontrollerAddr=etcd://x", "not host:port"),
        ("brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=10.0.0.1", "not host:port"),
    ],
)
def test_what_would_end_the_start_is_named_before(line: str, why: str, tmp_path: Path) -> None:
    conf = written(tmp_path, line + "\n")
    found = errors(checked(conf, folder=tmp_path / "s"))
    assert any(why in text for text in found.values()), found
    with (
        pytest.raises(BadArgument, match=why),
        Broker(tmp_path / "s", conf=conf, listenPort=0, drain_s=0.0),
    ):
        pass
    assert not (tmp_path / "s").exists()


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    conf = written(
        tmp_path,
        "brokername=a\nbrokerId=x\nbrokerRole=SLAVE\naclEnable=true\nbrokerIP1=no.invalid\n",
    )
    found = [each for each in checked(conf) if each.is_error]
    assert {each.place for each in found} == {f"{conf}:{line}" for line in (1, 2, 3, 4, 5)}
    with pytest.raises(BadSettings) as caught:
        Broker(tmp_path / "s", conf=conf)
    assert [each.name for each in caught.value.problems] == ["brokername", "brokerId", "brokerRole"]
    assert all(f"{conf}:{line}" in str(caught.value) for line in (1, 2, 3))


def test_a_name_server_without_an_address_yet_is_a_warning(tmp_path: Path) -> None:
    """It may come later: the broker asks again and again."""
    conf = written(tmp_path, "namesrvAddr=no-such-host.invalid:9876\n")
    (said,) = [
        each for each in checked(conf, thorough=True, folder=tmp_path) if each.check[0] == "s"
    ]
    assert (said.check, said.is_error) == ("server-unknown", False)


@pytest.mark.parametrize("switch", ["", "authenticationEnabled=false\n"])
def test_users_of_a_broker_that_asks_nobody_who_he_is_are_a_warning(
    switch: str, tmp_path: Path
) -> None:
    lines = 'initAuthenticationUser={"username":"a","password":"b"}\nauthorizationWhitelist=10\n'
    found = checked(written(tmp_path, switch + lines))
    named = {each.name for each in found if each.check == "no-effect" and not each.is_error}
    assert named == {"initAuthenticationUser", "authorizationWhitelist"}
    assert not errors(found)


# ---- this machine ----


@contextlib.contextmanager
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held.getsockname()[1]


@pytest.mark.parametrize("name", ["listenPort", "haListenPort", "metricsPromExporterPort"])
def test_a_port_that_is_taken_is_named(name: str, tmp_path: Path) -> None:
    with taken() as port:
        given = {
            "bindAddress": "127.0.0.1", "listenPort": 0, "metricsExporterType": "PROM",
            "metricsPromExporterPort": 0, "brokerRole": "ASYNC_MASTER",
                "haListenPort": free_port(), name: port,
        }  # fmt: skip
        found = checked(None, given, thorough=True, folder=tmp_path / "s")
    assert [(each.name, each.check) for each in found] == [(name, "port-taken")]


def test_two_settings_that_name_one_port_clash(tmp_path: Path) -> None:
    given = {"listenPort": 0, "metricsExporterType": "PROM", "metricsPromExporterPort": 8081}
    found = checked(None, given, grpc_port=8081, folder=tmp_path / "s")
    assert [each.check for each in found] == ["ports-clash"]


def test_a_store_whose_log_is_not_mounted_is_not_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "disk" / "commitlog"
    given: dict[str, Any] = {"storePathCommitLog": str(log), "listenPort": 0, "drain_s": 0.0,
                             "mappedFileSizeCommitLog": 1 << 20}  # fmt: skip
    with Broker(tmp_path / "s", **given):
        pass
    log.rename(tmp_path / "elsewhere")
    with pytest.raises(BadArgument, match="its log is not there"), Broker(tmp_path / "s", **given):
        pass
    assert not log.exists()


def test_a_name_that_no_file_system_has_is_named(tmp_path: Path) -> None:
    for name in ("storePathCommitLog", "storePathRootDir"):
        assert "too long" in errors(checked(None, {name: str(tmp_path / ("x" * 300))}))[name]


def test_a_place_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "store"):
        assert "not a directory" in errors(checked(None, folder=folder))["storePathRootDir"]


def test_the_page_says_what_comes_of_settings_that_are_not_supported(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "broker.md").read_text("utf-8")
    section = page.partition("## What is not supported")[2]
    rows = re.findall(r"^\|[^|]*\| (`\w+=[^|]*) \| (the start ends|a warning)", section, re.M)
    assert len(rows) >= 4
    for asking, outcome in rows:
        for line in re.findall(r"`(\w+=[^`]*)`", asking):
            (found,) = (p for p in checked(written(tmp_path, line)) if p.name in line)
            assert (found.is_error, found.check) == {
                "the start ends": (True, "refused-setting"), "a warning": (False, "no-effect"),
            }[outcome], line  # fmt: skip
