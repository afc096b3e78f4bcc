"""Why something failed, in log lines and elsewhere: never an empty text."""

from __future__ import annotations

import logging

import pytest

from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger

ERRORS = [(TimeoutError(), "TimeoutError"), (ConnectionError("it is gone"), "it is gone")]


@pytest.mark.parametrize(("failed", "reason"), ERRORS, ids=repr)
def test_the_reason_of_an_error(failed: Exception, reason: str) -> None:
    assert reason_of(failed) == reason


@pytest.mark.parametrize(("failed", "reason"), ERRORS, ids=repr)
def test_a_line_of_a_log_says_it(
    failed: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "broker.reasons"):
        SafeLogger("broker.reasons").info("It failed: %s", failed)
    assert [record.getMessage() for record in caplog.records] == [f"It failed: {reason}"]
