"""The lists that docs/codes.md is made from, beside the constants of upstream's jars."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java]

LISTS = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "upstream_codes.py"))
CONSTANT = re.compile(r"public static final int (\w+) = (\d+);")


def codes(reference, version: str, name: str) -> dict[int, str]:
    reference.run("fetch", timeout=reference.setup_s, RMQ_VERSION=version)
    printed = reference.run("constants", name, RMQ_VERSION=version).stdout
    return {int(code): text for text, code in CONSTANT.findall(printed)}


def test_the_lists_are_upstreams(reference):
    new = codes(reference, "5.3.3", "org.apache.rocketmq.remoting.protocol.RequestCode")
    assert new == LISTS["UPSTREAM_5_3"]
    newest = codes(reference, "5.5.0", "org.apache.rocketmq.remoting.protocol.RequestCode")
    of_lite = {code: name for code, name in newest.items() if "LITE" in name and code not in new}
    assert of_lite.items() <= LISTS["SINCE_5_5"].items()
    assert LISTS["SINCE_5_5"].items() <= newest.items()
    old = codes(reference, "4.9.7", "org.apache.rocketmq.common.protocol.RequestCode")
    assert {code: old[code] for code in old.keys() - new.keys()} == LISTS["ONLY_4_9"]
