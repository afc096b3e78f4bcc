"""Writes the frames of the golden wire file one after the other, as `fuzz_command` reads them.

    python tests/fuzz/frames.py FILE

Bodies are cut to a few bytes: the fuzzer is after headers.
"""

from __future__ import annotations

import json
import lzma
import struct
import sys
from pathlib import Path

WIRE = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"
BODY = 16


def frames() -> dict[bytes, None]:
    """Each frame once, in order."""
    found = {}
    with lzma.open(WIRE, "rt", encoding="utf-8") as text:
        for line in text:
            data = bytes.fromhex(json.loads(line)["hex"])
            (word,) = struct.unpack_from(">I", data, 4)
            data = data[4 : 8 + (word & 0xFFFFFF) + BODY]
            found[struct.pack(">i", len(data)) + data] = None
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(b"".join(frames()))
