"""Runs the blocks of one page of the documents: `python run_page.py PAGE`, in an empty directory.

All blocks of a page run in order, in the current directory; those in Python share their names. A
block that cannot run has a mark above it that says why:

    <!-- not run: needs a cluster -->

Commands that are `pystore` and its arguments alone run in this process, as the program itself does:
a shell, a Python and, for a job of Spark's, a virtual machine for each would be most of the work.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Languages of blocks that are run.
RUN = ("python", "console")
#: Languages of blocks that show something: output, settings, pictures, other people's languages.
SHOWN = ("text", "mermaid", "properties", "java", "go", "sql", "c", "json", "toml", "xml")
#: What only a shell understands.
_SHELL = re.compile(r"[|&;<>$`*?~(){}\[\]]")

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.*?) -->\n)?^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line of text. why: the reason why it is not run."""

    line: int
    language: str
    text: str
    why: str | None

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.why is None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, m.start("text")) + 1, m["language"], m["text"], m["why"])
        for m in _BLOCK.finditer(text)
    ]


def run_command(line: str) -> None:
    """Raises: CalledProcessError."""
    if not line.startswith("pystore ") or _SHELL.search(line):
        subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True)
        return
    from pystore.cli import main as program

    code = program(shlex.split(line, comments=True)[1:])
    if code:
        raise subprocess.CalledProcessError(code, line)


def run_console(block: Block) -> None:
    """Runs the lines that begin with a dollar; the others are output, shown for the reader."""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            run_command(line[2:])


def run_page(page: Path, but: str | None = None) -> None:
    """but: blocks with this word are left out. Raises: whatever a block raises."""
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks_of(page):
        if not block.runs or (but is not None and but in block.text):
            continue
        print(f"{page.name}:{block.line}", flush=True)
        if block.language == "console":
            run_console(block)
        else:
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def main(page: Path) -> None:
    run_page(page)
    sys.stdout.flush()
    # DuckDB prints about its own objects at exit, beside what other libraries leave.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
