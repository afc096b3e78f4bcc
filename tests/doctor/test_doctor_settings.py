"""Settings that are refused, have no effect, do not go together; `pystore broker --check-conf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.doctor.settings import check_settings, loaded


def seen(**given: Any) -> dict[str, str]:
    return {each.check: each.text for each in check_settings(loaded(None, given), "broker.conf")}


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
    (diagnosis,) = check_settings(loaded(conf, {}), str(conf))
    assert diagnosis.where == f"{conf}:3"
