"""What has one place in the tree stands nowhere else: magics, separators, names of topics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from parsed import PACKAGES, ROOT, files

#: What -> the pattern of it in code, and the only files that may hold it.
ONE_PLACE = {
    "the magics of records": (
        r"0x(?:DAA320A7|DAA320AB|CBD43194)",
        # The log of timers, which Java reads, has a magic of its own that happens to be the same.
        {"csrc/format/layout.h", "pystore/store/timer_files.py"},
    ),
    "the separators of properties, in C": (
        r"\"[^\"\n]*(?:\\x0[12]|\\[12](?!\d))[^\"\n]*\"",
        {"csrc/format/property.h"},
    ),
    "names of system topics": (
        r"\"(?:SCHEDULE_TOPIC_XXXX|rmq_sys_wheel_timer|RMQ_SYS_TRANS_(?:OP_)?HALF_TOPIC"
        r"|TRANS_CHECK_MAX_TIME_TOPIC|%RETRY%|%DLQ%|RMQ_SYS_DAMAGED|rmq_sys_REVIVE_LOG_|TBW102)\"",
        {"csrc/format/names.h", "pystore/format/names.py"},
    ),
}
_C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def product() -> list[Path]:
    paths = (path.relative_to(ROOT) for path in files() if path.suffix in (".c", ".h", ".py"))
    return [p for p in paths if p.parts[0] in ("csrc", *PACKAGES) and "tests" not in p.parts]


@pytest.mark.parametrize("what", ONE_PLACE)
def test_what_has_one_place_stands_nowhere_else(what: str) -> None:
    pattern, allowed = ONE_PLACE[what]
    found = []
    for path in product():
        if what.endswith("in C") and path.suffix == ".py":
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.suffix != ".py":
            text = _C_COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line) and path.as_posix() not in allowed:
                found.append(f"{path}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
