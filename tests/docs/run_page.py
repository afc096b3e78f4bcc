"""Runs the blocks of one page of the documents: `python run_page.py PAGE`, in an empty directory.

All blocks of a page run in order, in the current directory; those in Python share their names. A
block that cannot run has a mark above it that says why:

    <!-- not run: needs a cluster -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Languages of blocks that are run.
RUN = ("python", "console")
#: Languages of blocks that show something: output, settings, pictures, other people's languages.
SHOWN = ("text", "mermaid", "properties", "java", "go", "sql", "c", "json", "toml", "xml")

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


def run_console(block: Block) -> None:
    """Runs the lines that begin with a dollar; the others are output, shown for the reader."""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            subprocess.run(["bash", "-o", "pipefail", "-c", line[2:]], check=True)


def main(page: Path) -> None:
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks_of(page):
        if not block.runs:
            continue
        print(f"{page.name}:{block.line}", flush=True)
        if block.language == "console":
            run_console(block)
        else:
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
    if "spark" in names:
        names["spark"].stop()  # type: ignore[attr-defined]
    sys.stdout.flush()
    # DuckDB prints about its own objects at exit, beside what other libraries leave.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
