"""`pystore doctor` as a command, its page and its table."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from examining import names, running

from broker.doctor import CHECKS
from pystore.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "doctor.md"


def test_the_page_lists_every_check_as_the_table_has_it() -> None:
    page = PAGE.read_text("utf-8")
    rows = set(re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \| (.*) \|$", page, re.M))
    assert rows == {(c.name, c.severity.name.lower(), c.why, c.mend) for c in CHECKS.values()}


def test_every_check_is_made_and_every_check_has_a_test() -> None:
    """A name that is only in the table finds nothing; one without test was never seen to."""

    def named(folder: Path) -> set[str]:
        return {
            node.value
            for file in folder.glob("*.py")
            if file.name != "findings.py"
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    settings = (
        ROOT / "broker" / "services", ROOT / "broker", ROOT / "pystore",
        ROOT / "pystore" / "configuration",
    )  # fmt: skip
    made = set.union(*(named(each) for each in (ROOT / "broker" / "doctor", *settings)))
    assert set(CHECKS) <= made
    assert set(CHECKS) <= named(Path(__file__).parent)


def test_what_is_wrong_is_said_in_text_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with names() as server:
        assert main(["doctor", server]) == 5
        out = capsys.readouterr().out
        assert "no-brokers" in out and f"pystore broker -n {server}" in out
        assert main(["doctor", server, "--json"]) == 5
        found = json.loads(capsys.readouterr().out)
    assert found["looked at"] == {"what": "name server", "where": server}
    (finding,) = found["findings"]
    assert (finding["check"], finding["severity"]) == ("no-brokers", "error")


def test_nothing_wrong_is_exit_code_0(tmp_path: Path) -> None:
    from waiting import until

    with running(tmp_path / "s") as broker:
        until(lambda: main(["doctor", broker.address]) == 0, "nothing")


@pytest.mark.parametrize(
    "words",
    [
        ["no-port:"], ["127.0.0.1:99999"], ["127.0.0.1:1", "-c", "broker.conf"],
        ["/nonexistent/store", "-n", "127.0.0.1:9876"],
    ],
)  # fmt: skip
def test_bad_usage_ends_with_2(words: list[str]) -> None:
    assert main(["doctor", *words]) == 2
