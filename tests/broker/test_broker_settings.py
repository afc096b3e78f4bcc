"""docs/settings.md says which of upstream's settings the broker reads: the code is the judge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.services.config import _NOT_SERVED, Config
from pystore.errors import BadArgument
from pystore.settings import TABLE, load

BROKER = Path(__file__).resolve().parents[2] / "broker"
NAME = re.compile(r"""\[["']([A-Za-z0-9]+)["']\]""")


def read_by_the_broker() -> set[str]:
    """Names of settings between brackets; the name server has settings of its own."""
    files = [path for path in BROKER.rglob("*.py") if path.parent.name != "namesrv"]
    return set(_NOT_SERVED) | {
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
