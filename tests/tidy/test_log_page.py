"""The page of log lines sees every logger."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gen_logs  # noqa: E402


@pytest.mark.parametrize(
    ("source", "logger"),
    [
        ("log = logging.getLogger(__name__)", ("a.b", False)),
        ("log = logging.getLogger('x')", ("x", False)),
        ("log = SafeLogger('x')", ("x", False)),
        ("log = SafeLogger('x')\nlog = RateLimitedLogger(log)", ("x", True)),
        ("log = RateLimitedLogger(SafeLogger(__name__))", ("a.b", True)),
        ("log = 7", None),
    ],
)
def test_loggers_of_a_module(source: str, logger: tuple[str, bool] | None) -> None:
    assert gen_logs.loggers_in("a.b", ast.parse(source)).get("log") == logger


@pytest.mark.parametrize(
    ("call", "limited", "line"),
    [
        ("log.info('It is %s', x)", False, ("n", "INFO", "It is %s", False)),
        ("log.warning('a kind that is longer', 'It is %s', x)", True,
         ("n", "WARNING", "It is %s", False)),
        ("log.error(('kind', 1), failed, 'It failed')", True, ("n", "ERROR", "It failed", True)),
        ("log.exception('It failed')", False, ("n", "ERROR", "It failed", True)),
        ("log.log(logging.INFO, 'kind', 'It is')", True, ("n", "INFO", "It is", False)),
    ],
)  # fmt: skip
def test_lines_of_a_logger(call: str, limited: bool, line: tuple[str, str, str, bool]) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert gen_logs.line_of(gen_logs.Logger("n", limited), node) == line


def test_every_module_that_limits_its_lines_is_on_the_page() -> None:
    modules = {
        path
        for path in (ROOT / "broker").rglob("*.py")
        if path.name != "rate_limited_log.py" and "RateLimitedLogger(" in path.read_text("utf-8")
    }
    for path in modules:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        known = gen_logs.loggers_in(module, ast.parse(path.read_text("utf-8")))
        assert any(each.limited for each in known.values()), path
