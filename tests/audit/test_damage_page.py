"""docs/damage.md names every kind of finding, in the words of the table in findings.py.

``python tests/audit/test_damage_page.py`` writes the table into the page again.
"""

from __future__ import annotations

import re
from pathlib import Path

from pystore.audit import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "damage.md"
HEAD = "| kind | severity | what it means, what is lost | Apache RocketMQ | what mends it |"
TABLE = re.compile(re.escape(HEAD) + r"\n(?:\|.*\n)*")


def table() -> str:
    rows = [HEAD, "|---|---|---|---|---|"]
    for k in KINDS.values():
        fix = re.sub(r"pystore [a-z]+ STORE(?: --[a-z]+)?", r"`\g<0>`", k.fix)
        rows.append(f"| `{k.name}` | {k.severity.name} | {k.meaning} | {k.java} | {fix} |")
    return "\n".join(rows) + "\n"


def test_the_page_has_every_kind():
    assert TABLE.findall(PAGE.read_text(encoding="utf-8")) == [table()]


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")))
