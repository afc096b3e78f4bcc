"""rmq-proxy.json: Apache's own is taken, what has no effect is said, a mistyped name is refused."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("broker.grpc._http2")

from calls_that_store import message
from consuming import calls_of_python, codes, run, serving

from broker import Broker
from broker.grpc.proxy import Proxy
from broker.grpc.settings import CLUSTER, LOCAL, ProxySettings
from pystore.configuration.problems import BadSettings
from pystore.configuration.upstream import PROXY
from pystore.errors import BadArgument

#: The file that Apache's distribution has, of 5.0.0 to 5.5.0.
APACHES = '{\n  "rocketMQClusterName": "DefaultCluster"\n}'


def written(folder: Path, given: str | dict[str, object]) -> Path:
    path = folder / "rmq-proxy.json"
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return path


def test_apaches_own_file_is_taken_by_a_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = written(tmp_path, APACHES)
    with Broker(tmp_path / "s", listenPort=0, grpc_port=0, proxy_conf=conf, drain_s=0.1) as broker:
        assert broker.grpc_port
    assert "rocketMQClusterName" in caplog.text


def test_apaches_own_file_is_taken_by_a_proxy(tmp_path: Path) -> None:
    made, problems = ProxySettings.look(written(tmp_path, APACHES), CLUSTER)
    assert made.cluster == "DefaultCluster" and not problems


@pytest.mark.parametrize("mode", [LOCAL, CLUSTER])
def test_every_name_of_upstreams_is_taken_or_served(mode: str, tmp_path: Path) -> None:
    """But those that would leave a door open where they are passed over."""
    refused = set()
    for name in sorted(PROXY):
        value = {"enableACL": True, "metricsExporterType": "DISABLE", "proxyMode": mode}.get(name)
        _, problems = ProxySettings.look(written(tmp_path, {name: value}), mode)
        if any(each.is_error and "which is not" not in each.text for each in problems):
            refused.add(name)
    assert refused <= {"enableACL", "enableAclRpcHookForClusterMode"}
    assert "enableACL" in refused


def test_what_asks_for_access_control_is_not_passed_over(tmp_path: Path) -> None:
    conf = written(tmp_path, {"authenticationEnabled": True})
    with pytest.raises(BadArgument, match="the broker says who is let in"):
        ProxySettings.read(conf, LOCAL)


def test_all_that_is_refused_is_named_at_once(tmp_path: Path) -> None:
    conf = written(tmp_path, {
        "grpcServerPort": "8081", "grpcServerPrt": 1, "remotingListenPort": 70_000,
        "metricsExporterType": "STDOUT", "grpcThreadPoolNums": 8, "somethingElse": 1,
    })  # fmt: skip
    _, problems = ProxySettings.look(conf, CLUSTER)
    assert {each.name for each in problems if not each.is_error} == {
        "grpcThreadPoolNums", "somethingElse",
    }  # fmt: skip
    with pytest.raises(BadSettings) as caught:
        ProxySettings.read(conf, CLUSTER)
    assert {each.name for each in caught.value.problems} == {
        "grpcServerPort", "grpcServerPrt", "remotingListenPort", "metricsExporterType",
    }  # fmt: skip


def test_a_placeholder_is_refused_and_a_second_value_named(tmp_path: Path) -> None:
    text = '{"namesrvAddr": "${NAMES}", "grpcServerPort": 1, "grpcServerPort": 2}'
    made, problems = ProxySettings.look(written(tmp_path, text), CLUSTER)
    said = {each.name: (each.check, each.is_error) for each in problems}
    assert said == {
        "namesrvAddr": ("refused-setting", True),
        "grpcServerPort": ("given-twice", False),
    }
    assert made.port == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 100_000])
def test_a_file_that_is_not_one_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="cannot be read"):
        ProxySettings.read(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="No such file"):
        ProxySettings.read(tmp_path / "none.json")


def test_a_file_that_is_read_again_changes_what_calls_look_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file with a mistake changes nothing."""
    conf = written(tmp_path, {"renewMaxTimeMillis": 1000})
    proxy = Proxy("127.0.0.1:1", conf=conf)
    settings = proxy.settings
    caplog.set_level(logging.INFO, "broker.settings")
    conf.write_text('{"renewMaxTimeMillis": 2000, "grpcServerPort": 1, "maxMessageSize": 5}')
    asyncio.run(_reload(proxy))
    assert settings.renew_max_ms == 2000 and settings.port == 8081
    said = [record.getMessage() for record in caplog.records]
    assert f"Read {conf} again; changed: renewMaxTimeMillis" in said
    assert "Only a start takes over: grpcServerPort, maxMessageSize" in said
    conf.write_text('{"renewMaxTimeMillis": 3000, "grpcServerPort": "x"}')
    asyncio.run(_reload(proxy))
    assert settings.renew_max_ms == 2000
    assert "Kept the settings of before" in caplog.text


async def _reload(proxy: Proxy) -> None:
    proxy.reload()


LATE = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100}


def test_a_broker_reads_the_file_again_and_its_network_thread_serves_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s", proxy=LATE) as raw:
            raw.put("first")
            await raw.take(invisible=1500)  # the thread knows the client from here on
            seen = calls_of_python(monkeypatch)
            raw.put("second")
            assert len(await raw.take(invisible=1500)) == 1 and not seen
            written(tmp_path, LATE | {"minInvisibleTimeMillsForRecv": 2_000_000})
            raw.broker.reload()
            refused, _ = await raw.receive(invisible=1500)
            assert codes(refused) == "ILLEGAL_INVISIBLE_TIME"
            raw.put("third")
            await raw.take(invisible=2500)
            seen.clear()
            raw.put("fourth")
            assert len(await raw.take(invisible=2500)) == 1 and not seen
            refused, _ = await raw.receive(invisible=1500)
            assert codes(refused) == "ILLEGAL_INVISIBLE_TIME"

    run(check())


def test_a_broker_that_reads_the_file_again_refuses_a_type_that_it_took(tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s", proxy={"enableTopicMessageTypeCheck": False}) as raw:
            for _ in range(3):  # the network thread puts the later ones
                answer = await raw.call("SendMessage", message("T", "FIFO", message_group="g"))
                assert codes(answer.status) == "OK"
            written(tmp_path, {})
            raw.broker.reload()
            answer = await raw.call("SendMessage", message("T", "FIFO", message_group="g"))
            assert codes(answer.status) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"

    run(check())


def test_what_was_changed_while_it_ran_holds_in_the_next_role(tmp_path: Path) -> None:
    """By a request or a file that was read again; a file with a mistake keeps no broker from its
    role."""
    conf = written(tmp_path, {"renewMaxTimeMillis": 1000})
    with Broker(tmp_path / "s", listenPort=0, grpc_port=0, proxy_conf=conf, drain_s=0.1) as broker:

        async def change() -> None:
            port = broker.grpc_port
            broker.services.settings.update({"fileReservedTime": 7, "deliveryMaxTps": 9})
            written(tmp_path, {"renewMaxTimeMillis": 2000})
            broker.reload()
            written(tmp_path, "{")
            await broker._restart(lambda: None)
            now = broker.services.settings
            assert (now["fileReservedTime"], now["deliveryMaxTps"]) == (7, 9)
            assert broker.store.settings["fileReservedTime"] == 7
            assert broker._options.proxy.renew_max_ms == 2000 and broker.grpc_port == port

        broker.run(change())
