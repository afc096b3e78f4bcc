"""The blocks of tutorial, how-to and README do what they say: each is run, page by page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "docs/tutorial.md",
    "docs/howto.md",
    "docs/sql92.md",
    "docs/broker.md",
    "docs/client.md",
    "README.md",
)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[int, str, str]]:
    """(line, language, text) of every block that is to be run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, m.start()) + 2, m.group(1), m.group(2)) for m in BLOCK.finditer(text)
    ]


def run_console(text: str, folder: Path) -> None:
    """Lines that begin with a dollar; what stands between them is output, shown for the reader."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "pystore"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pystore.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line[2:]],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(
    page: str, tmp_path: Path, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in one folder and one Python; `store` and `crashed` are a Java broker's folders."""
    blocks = blocks_of(page)
    assert blocks
    text = (ROOT / page).read_text(encoding="utf-8")
    if "import duckdb" in text:
        for name in ("pyarrow", "polars", "duckdb"):
            pytest.importorskip(name)
    golden("normal-exit").rename(tmp_path / "store")
    golden("killed").rename(tmp_path / "crashed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for line, language, code in blocks:
        if language == "console":
            run_console(code, tmp_path)
        elif "import duckdb" in code:
            # In a process of its own: DuckDB complains at exit beside what else a test run loads.
            alone = f"import pyarrow as pa\nimport pystore\n{code}"
            subprocess.run([sys.executable, "-c", alone], cwd=tmp_path, check=True)
        else:
            exec(compile("\n" * (line - 1) + code, str(ROOT / page), "exec"), names)
