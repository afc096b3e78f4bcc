"""docs/settings.md says which of upstream's settings the broker reads: the code is the judge."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from fakes import send_command
from loops import Wire
from waiting import until_async

from broker import Broker
from broker.grpc.settings import TABLE as PROXYS
from broker.namesrv import NameServer
from broker.namesrv.settings import TABLE as NAMESRVS
from broker.namesrv.settings import NamesrvSettings
from broker.services.config import Config
from broker.wire.command import Command, texts
from pystore.errors import BadArgument
from pystore.settings import NOT_SERVED, TABLE, load

BROKER = Path(__file__).resolve().parents[2] / "broker"
NAME = re.compile(r"""(?:\[|_of\(s, )["']([A-Za-z0-9]+)["'][])]""")


def read_by_the_broker() -> set[str]:
    """Names between brackets, or in the table of duties; the name server has its own settings."""
    files = [path for path in BROKER.rglob("*.py") if path.parent.name != "namesrv"]
    return set(NOT_SERVED) | {
        name for path in files for name in NAME.findall(path.read_text("utf-8")) if name in TABLE
    }


def test_what_the_broker_reads_is_marked():
    """None of them is listed as being without effect."""
    assert {name for name in read_by_the_broker() if TABLE[name].used_by == "none"} == set()


def test_what_is_marked_is_read():
    """No setting is said to act in a broker that never looks at it."""
    marked = {row.name for row in TABLE.values() if row.used_by == "broker"}
    assert marked - read_by_the_broker() == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("traceOn", "false"),
        ("longPollingEnable", "false"),
        ("shortPollingTimeMills", "10"),
        ("serverChannelMaxIdleTimeSeconds", "7"),
        ("listenPort", "1"),
    ],
)
def test_what_only_a_start_takes_over_is_refused_while_running(name, value):
    """A tool that changes it gets an error, instead of success."""
    config = Config(load({}))
    with pytest.raises(BadArgument, match="only at a start"):
        config.update({name: value})


# ---- a start with every setting ----

#: What a test has to choose: places, ports and sizes of files.
CHOSEN = {
    "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1",
    "listenPort": "0", "haListenPort": "0", "mappedFileSizeCommitLog": str(1 << 20),
    "namesrvAddr": "127.0.0.1:1",
}  # fmt: skip


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def another(name: str) -> str:
    """A value that is not the default, as a file would hold it."""
    row = TABLE[name]
    if name in CHOSEN:
        return CHOSEN[name]
    if row.type == "boolean":
        return text_of(not row.default)
    if row.choices:
        return next(str(each) for each in row.choices if each != row.default)
    if isinstance(row.default, (int, float)):
        more = row.default + 1 <= row.high
        return text_of(row.default + 1 if more else row.default - 1)
    return str(row.default or "")


def started(folder: Path, given: dict[str, str]) -> None:
    """A broker of a broker.conf that says this starts and ends. Raises: BadArgument."""
    folder.mkdir()
    conf = folder / "broker.conf"
    given = given | {name: CHOSEN[name] for name in ("listenPort", "mappedFileSizeCommitLog")}
    conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()), "utf-8")
    with Broker(folder / "store", conf=conf, drain_s=0.0) as broker:
        for name, value in given.items():
            if name not in ("listenPort", "haListenPort", "namesrvAddr") and value:
                assert broker.settings[name] == load({name: value})[name], name


async def test_nothing_is_sent_before_the_time_that_a_setting_names(store_path):
    """Neither when it was so from the start, nor when it is said later; and then it is over."""
    late, name = time.time_ns() // 1_000_000 + 3_600_000, "startAcceptSendRequestTimeStamp"
    async with (
        Broker(store_path, listenPort=0, **{name: late}) as broker,
        await Wire.to(broker.port) as wire,
    ):
        broker.create_topic("orders", 1)
        codes = []
        for until in (late, 0, late, 1):
            broker.services.settings.update({name: str(until)})
            codes.append((await wire.ask(send_command("orders"))).code)
        assert codes == [1, 0, 1, 0]


async def test_lite_pulls_end_with_their_setting(store_path):
    """Others of the same group go on."""
    ext = {
        "consumerGroup": "r", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "expressionType": "TAG", "subVersion": 0,
    }  # fmt: skip
    async with Broker(store_path, listenPort=0) as broker, await Wire.to(broker.port) as wire:
        broker.create_topic("orders", 1)
        assert (await wire.ask(send_command("orders"))).code == 0
        codes = []
        for setting, code in ("true", 361), ("true", 361), ("false", 361), ("false", 11):
            broker.services.settings.update({"litePullMessageEnable": setting})
            codes.append((await wire.ask(Command(code, texts(ext)))).code)
        assert codes == [0, 0, 16, 0]


async def test_the_rate_of_deliveries_follows_its_setting(store_path):
    async with Broker(store_path, listenPort=0) as broker:
        broker.services.settings.update({"deliveryMaxTps": "7"})
        assert broker.services.schedule.max_tps == 7


def test_a_broker_starts_with_every_setting_at_its_default_in_a_file(tmp_path):
    given = {
        name: text_of(row.default)
        for name, row in TABLE.items()
        if row.default not in (None, "") and name not in CHOSEN
    }
    started(tmp_path / "all", given)


@pytest.mark.parametrize("turn", range(4))
def test_a_broker_starts_with_every_setting_changed_or_refuses_it_by_name(tmp_path, turn):
    """Those that are refused alone are left out of the start that all others share."""
    names = [name for name, row in TABLE.items() if row.used_by != "none"][turn::4]
    good = {}
    for name in names:
        value = another(name)
        try:
            Broker(tmp_path / "none", **{name: value})  # type: ignore[arg-type]
        except BadArgument as bad:
            assert name in str(bad), bad
        else:
            good[name] = value
    start_together(tmp_path, good)


def start_together(folder: Path, given: dict[str, str]) -> None:
    """Starts with all of these, or with halves of them where they cannot be together."""
    try:
        started(folder / "-".join([min(given), max(given)]), given)
    except BadArgument as bad:
        names = sorted(given)
        if len(names) == 1:
            assert names[0] in str(bad), bad
            return
        for some in (names[: len(names) // 2], names[len(names) // 2 :]):
            start_together(folder, {name: given[name] for name in some})


REFUSED = {name for name, row in NAMESRVS.items() if row.because}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_name_server_refuses_what_would_make_another_server_of_it(name):
    with pytest.raises(BadArgument, match=f"{name} has no effect here"):
        NamesrvSettings(given={name: "true"})


@pytest.mark.parametrize("name", ["listenPort", "metricsExporterType", "waitSecondsForService"])
def test_a_name_server_refuses_a_change_that_only_a_start_takes_over(name):
    """The value that it has already is not a change; nothing of the request holds."""
    settings = NamesrvSettings()
    settings.update({name: text_of(settings[name])})
    with pytest.raises(BadArgument, match=f"{name} takes effect only at a start"):
        another = "PROM" if name == "metricsExporterType" else "7"
        settings.update({"orderMessageEnable": "true", name: another})
    assert not settings.flag("orderMessageEnable")


def test_a_name_servers_file_is_read_as_java_reads_it(tmp_path):
    """Latin-1 where it is not UTF-8; and what stands there twice is told."""
    conf = tmp_path / "namesrv.conf"
    conf.write_bytes("productEnvName=B\u00fcro\nlistenPort=1\nlistenPort=2\n".encode("latin-1"))
    settings = NamesrvSettings(conf)
    assert settings.text("productEnvName") == "B\u00fcro" and settings.number("listenPort") == 2
    assert {each.check for each in settings.problems} == {"no-effect", "given-twice"}


def test_a_name_server_starts_with_every_setting_changed(tmp_path):
    defaults = {name: row.default for name, row in NAMESRVS.items()}
    given = {name: text_of(default) for name, default in defaults.items() if default != ""}
    for name, default in defaults.items():
        if isinstance(default, bool):
            given[name] = text_of(not default and name not in REFUSED)
        elif isinstance(default, int):
            given[name] = str(default + 1)
    given |= {"listenPort": "0", "bindAddress": "127.0.0.1", "kvConfigPath": str(tmp_path / "kv")}
    given["configStorePath"] = str(tmp_path / "conf")
    conf = tmp_path / "namesrv.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()), "utf-8")
    with NameServer.in_thread(conf) as names:
        assert names.address.startswith("127.0.0.1:")


def test_the_service_of_grpc_starts_with_every_setting_changed(tmp_path):
    given: dict[str, object] = {}
    for name, (_, row) in PROXYS.items():
        default = row.default
        if row.used_by == "grpc":
            changed = not default if isinstance(default, bool) else default
            given[name] = changed + 1 if type(changed) is int else changed
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps(given | {"proxyMode": "LOCAL"}))
    with Broker(tmp_path / "store", listenPort=0, grpc_port=0, proxy_conf=conf, drain_s=0.0) as it:
        assert it.grpc_port


# ---- a change while it runs is checked as at a start ----


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namesrvAddr", "127.0.0.1"),
        ("namesrvAddr", "127.0.0.1:9876,127.0.0.1:9877"),
        ("namesrvAddr", "127.0.0.1:9876;x"),
        ("namesrvAddr", "${names}"),
        ("namesrvAddr", '"127.0.0.1:9876"'),
        ("brokerIP2", "a b"),
        ("msgTraceTopicName", "a b"),
        ("minInSyncReplicas", "2"),
        ("fileReservedTime", "-1"),
        ("logLevels", "other=INFO"),
        ("duplicationEnable", "true"),
    ],
)
def test_what_a_start_refuses_a_change_refuses_too(name, value):
    config = Config(load({}))
    before = config.current.as_dict()
    with pytest.raises(BadArgument):
        Broker("never-made", **{name: value})
    with pytest.raises(BadArgument):
        config.update({name: value})
    assert config.current.as_dict() == before


async def test_name_servers_change_while_it_runs_and_a_bad_one_does_not_stop_the_others(
    store_path, tmp_path
):
    """A list that ends with a semicolon, and one of whose servers has no address."""
    from broker import NameServer

    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b1\n")
    async with NameServer(listenPort=0) as names, Broker(
        store_path, conf=conf, listenPort=0, drain_s=0.0
    ) as broker, await Wire.to(broker.port) as wire:  # fmt: skip
        wanted = f"namesrvAddr=no-such-host.invalid:1;127.0.0.1:{names.port};\n".encode()
        assert (await wire.ask(Command(25, {}, wanted))).code == 0
        await until_async(lambda: "b1" in names.routes.cluster_info()["brokerAddrTable"])
        refused = await wire.ask(Command(25, {}, b"namesrvAddr=127.0.0.1\n"))
        assert refused.code == 1 and "host:port" in refused.remark
        assert "b1" in names.routes.cluster_info()["brokerAddrTable"]
    assert "no-such-host.invalid" in conf.read_text()
    async with Broker(store_path, conf=conf, listenPort=0, drain_s=0.0) as again:
        assert len(again.services.registration.servers) == 2


async def test_a_name_server_whose_address_cannot_be_used_does_not_end_registration(store_path):
    """Whatever put it there."""
    from broker import NameServer

    async with NameServer(listenPort=0) as names, Broker(
        store_path, listenPort=0, drain_s=0.0, brokerName="b1"
    ) as broker:  # fmt: skip
        broker.services.registration.use(["no port", f"127.0.0.1:{names.port}"])
        broker.services.registration.again()
        await until_async(lambda: "b1" in names.routes.cluster_info()["brokerAddrTable"])
        states = broker.services.registration.states
        wanted = [("no port", False), (f"127.0.0.1:{names.port}", True)]
        await until_async(lambda: states() == wanted)
