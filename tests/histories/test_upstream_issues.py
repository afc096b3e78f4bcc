"""Scenes of three issues of Apache's controller mode (upstream_issues.py), for brokers of ours and
of Java under Apache's controller. Java's are asked first whether they still fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run

pytestmark = [pytest.mark.long, pytest.mark.java]

ISSUES = ("5663", "6662", "7689")


def wrong_with(folder: Path, issue: str, make: str) -> list[str]:
    checker = run.program()
    if checker is None:
        pytest.skip("Go, or Porcupine as its module, is missing")
    if why := run.may_run("apache"):
        pytest.skip(why)
    out, wrong = run.one(folder, checker, "apache", 0, 1, 1, issue, make)
    if not out:
        pytest.fail(wrong[0])
    return wrong


@pytest.mark.parametrize("issue", ISSUES)
def test_ours_do_not_fail(tmp_path: Path, issue: str) -> None:
    assert wrong_with(tmp_path, issue, "ours") == []


@pytest.mark.parametrize("issue", ISSUES)
def test_java_fails(tmp_path: Path, issue: str) -> None:
    if not wrong_with(tmp_path, issue, "java"):
        pytest.skip(f"Apache 5.3.3 does not fail in the scene of {issue} any more")
