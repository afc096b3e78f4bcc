"""The documents do what they say: every block of every page runs, page by page."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_page import RUN, SHOWN, blocks_of
from waiting import BOUND_S

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
#: Pages for people: the README of the project and its documents.
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SPARK_PAGES = sorted((ROOT / "docs").glob("spark*.md"))
#: What a page may import that an installation may lack.
EXTRAS = ("pyarrow", "polars", "duckdb")
MAKEFILES = ("Makefile", "benches/Makefile.inc", "tools/aarch64.inc")
#: A page is a dozen jobs one after the other.
PAGE_S = 4 * BOUND_S


def pages_that_run() -> list[Any]:
    """All but those of Spark, which run in the session of tests/spark/test_pages.py."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if page not in SPARK_PAGES and any(b.runs for b in blocks_of(page))
    ]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with the program `pystore`, for the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "pystore"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pystore.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return folder


def test_pages_install_the_package_from_a_wheel() -> None:
    """It is not on a package index yet."""
    lines = [line for page in PAGES for b in blocks_of(page) for line in b.text.splitlines()]
    installs = [line for line in lines if re.search(r"pip install\b.*rocketmq-pystore", line)]
    assert installs == []


@pytest.mark.parametrize("page", pages_that_run())
def test_page_runs(
    page: Path, tmp_path: Path, disk_path: Path, programs: Path, golden: Callable[[str], Path]
) -> None:
    """In a fresh interpreter and directory; `store` and `crashed` are a Java broker's stores."""
    code = "\n".join(block.text for block in blocks_of(page) if block.runs)
    for name in EXTRAS:
        used = re.search(rf"^ *(import|from) {name}\b", code, re.MULTILINE)
        # Looked for, not imported: the page runs in a process of its own.
        if used and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if "grpc_port" in code and importlib.util.find_spec("broker.grpc._http2") is None:
        pytest.skip("built without nghttp2")
    # The doctor finds fault with a store that lies in memory, where folders of tests may lie.
    work = (disk_path if "doctor" in code else tmp_path) / "work"
    work.mkdir()
    shutil.move(golden("normal-exit"), work / "store")
    shutil.move(golden("killed"), work / "crashed")
    env = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, RUNNER, page],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-9000:]}"


def test_every_block_runs_or_is_marked() -> None:
    """A block is run, shows something, or has a mark with the reason why it is not run."""
    wrong = []
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs" / "internals"):
            continue  # formats and traces, nothing to type
        for block in blocks_of(page):
            place = f"{page.relative_to(ROOT)}:{block.line}"
            if block.language not in RUN + SHOWN:
                wrong.append(f"{place} language '{block.language}': use {', '.join(RUN + SHOWN)}")
            elif block.language == "text" and re.search(r"^(\$ )?pystore ", block.text, re.M):
                wrong.append(f"{place} holds commands: make it a `console` block")
            if block.why is not None and len(block.why.split()) < 3:
                wrong.append(f"{place} is not run, and the reason is missing")
            if re.search(r"\.__a?(enter|exit)__", block.text):
                wrong.append(f"{place} calls what `with` calls: use `with`, or an ExitStack")
    assert not wrong, "\n".join(wrong)


def test_every_make_target_that_a_page_names_exists() -> None:
    rules = "".join((ROOT / name).read_text() for name in MAKEFILES)
    targets = set(re.findall(r"^([a-z0-9-]+):", rules, re.M))
    wrong = [
        f"{page.relative_to(ROOT)} make {name}"
        for page in [*PAGES, *ROOT.glob("*/README.md"), *ROOT.glob("csrc/*/README.md")]
        for name in re.findall(r"`make ([a-z0-9-]+)`", page.read_text("utf-8"))
        if name not in targets
    ]
    assert not wrong, "\n".join(wrong)


def test_every_limit_on_attackers_names_its_test() -> None:
    """Rows of docs/attackers.md and docs/trust.md name tests that exist; those of the first say so
    where nothing stops it."""
    page = (ROOT / "docs" / "attackers.md").read_text("utf-8")
    code = "".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^(?:async )?def (test_\w+)\(", code, re.M))
    core = "".join(file.read_text("utf-8") for file in (ROOT / "csrc" / "tests").glob("test_*.c"))
    known |= set(re.findall(r"^static void (test_\w+)\(", core, re.M))
    trust = (ROOT / "docs" / "trust.md").read_text("utf-8")
    wrong = sorted(set(re.findall(r"`(test_[^`]+)`", page + trust)) - known)
    for row in re.findall(r"^\| (?!attempt|-).*\|$", page, re.M):
        stopped = "**works**" not in row
        if stopped != ("`test_" in row.rstrip("| ").rpartition("|")[2]):
            wrong.append(row)
    assert not wrong, "\n".join(wrong)


def test_the_report_makes_the_page_of_benchmarks_as_it_is() -> None:
    """A section written by hand would be gone after the next run."""
    words = [sys.executable, "-c", "from benches.report import page; print(page(), end='')"]
    made = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    assert made == (ROOT / "docs" / "benchmarks.md").read_bytes()


def test_a_failing_block_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, code in (
        ("```python\nassert 1 == 2\n```\n", 1),
        ("```console\n$ false\n```\n", 1),
        ("<!-- not run: for this test -->\n```console\n$ false\n```\n", 0),
        ("```python\na = 1\n```\n\n```python\nassert a == 1\n```\n", 0),
    ):
        page.write_text(text)
        done = subprocess.run([sys.executable, RUNNER, page], capture_output=True, check=False)
        assert done.returncode == code, text
