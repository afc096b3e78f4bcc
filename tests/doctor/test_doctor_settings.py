"""Settings that are refused, have no effect, do not go together; `pystore broker --check-conf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.doctor.settings import loaded, of_problems
from pystore.cli import main


def seen(**given: Any) -> dict[str, str]:
    _, problems = loaded(None, given)
    return {each.check: each.text for each in of_problems(problems, "broker.conf")}


def test_the_defaults_go_together() -> None:
    assert not seen()
    assert not seen(brokerRole="SYNC_MASTER", inSyncReplicas=2, namesrvAddr="127.0.0.1:9876")


@pytest.mark.parametrize(
    ("check", "given"),
    [
        ("refused-setting", {"flushDiskTyp": "SYNC_FLUSH"}),
        ("refused-setting", {"brokerRole": "SLAVE"}),
        ("no-effect", {"sendMessageThreadPoolNums": 16}),
        ("ratios-crossed", {"diskMaxUsedSpaceRatio": 90, "diskSpaceWarningLevelRatio": 80}),
        ("message-over-segment", {"maxMessageSize": 8 << 20, "mappedFileSizeCommitLog": 4 << 20}),
        ("bound-elsewhere", {"bindAddress": "127.0.0.1", "brokerIP1": "192.0.2.7"}),
        ("advertised-loopback", {"namesrvAddr": "192.0.2.1:9876"}),
        ("sync-alone", {"brokerRole": "SYNC_MASTER"}),
        ("slave-lost", {"brokerRole": "SLAVE", "brokerId": 1}),
        ("master-with-id", {"brokerId": 1}),
        ("ports-clash", {"brokerRole": "ASYNC_MASTER", "listenPort": 10911, "haListenPort": 10909}),
        ("rights-without-users", {"authorizationEnabled": True}),
        ("message-over-frame", {"maxMessageSize": 64 << 20}),
        ("advertised-nowhere", {"brokerIP1": "0.0.0.0"}),
        ("reserved-nothing", {"fileReservedTime": 0}),
        ("half-open", {"brokerPermission": 4}),
        ("half-open", {"brokerPermission": 2}),
        ("sends-later", {"startAcceptSendRequestTimeStamp": 1 << 50}),
        ("silence-too-short", {"serverChannelMaxIdleTimeSeconds": 20}),
        ("silence-too-short", {"channelExpiredTimeout": 20_000}),
        ("silence-too-short", {"haHousekeepingInterval": 5000, "brokerRole": "ASYNC_MASTER"}),
        ("silence-too-short", {"brokerNotActiveTimeoutMillis": 1000,
                               "enableSlaveActingMaster": True}),
        ("transactions-over-retention", {"transactionTimeOut": 90_000_000, "fileReservedTime": 24}),
        ("follows-itself", {"brokerRole": "SLAVE", "brokerId": 1, "brokerIP1": "192.0.2.7",
                            "haMasterAddress": "192.0.2.7:10912"}),
        ("registers-at-itself", {"brokerIP1": "192.0.2.7",
                                 "namesrvAddr": "192.0.2.1:9876;192.0.2.7:10911"}),
        ("metrics-nowhere", {"metricsExporterType": "OTLP_GRPC"}),
        ("checks-give-up-early", {"transactionCheckMax": 1, "transactionCheckInterval": 1000,
                                  "transactionTimeOut": 1000}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named(check: str, given: dict[str, Any]) -> None:
    assert check in seen(**given)


def test_roles_are_the_controllers_where_there_is_one() -> None:
    given: dict[str, Any] = {"brokerRole": "SLAVE", "enableControllerMode": True}
    assert not seen(**given, controllerAddr="127.0.0.1:9878")


def test_the_place_in_the_file_is_named(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\n\nsendMessageThreadPoolNums=16\n")
    (diagnosis,) = of_problems(loaded(conf, {})[1], str(conf))
    assert diagnosis.where == f"{conf}:3"


def test_retention_that_begins_in_time_is_not_named() -> None:
    """Above diskSpaceCleanForciblyRatio it begins, whatever diskMaxUsedSpaceRatio says."""
    assert not seen(diskMaxUsedSpaceRatio=95)
    assert "ratios-crossed" in seen(diskMaxUsedSpaceRatio=95, cleanFileForciblyEnable=False)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("noSuchThing=1\n", "unknown-setting"),
        ("brokerName=a\nbrokerName=b\n", "given-twice"),
        ("\N{BYTE ORDER MARK}brokerName=a\n", "byte-order-mark"),
        ("namesrvAddr=no-such-host.invalid:9876\nbrokerIP1=192.0.2.7\n", "server-unknown"),
    ],
)
def test_what_another_reader_takes_otherwise_is_a_warning(
    text: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start takes it; --strict takes it not."""
    conf = tmp_path / "broker.conf"
    conf.write_text(text, "utf-8")
    words = ["broker", "-c", str(conf), "--check-conf", "--port", "0", "--json"]
    words += ["--store", str(tmp_path / "s")]
    assert main(words) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["severity"]) == (check, "warning")
    assert finding["where"].startswith(str(conf))
    assert main([*words, "--strict"]) == 2
    if check != "server-unknown":  # a start asks for the name later, again and again
        assert main([*words[:3], "--strict", *words[4:]]) == 2, "neither does a start"
