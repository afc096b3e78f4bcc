"""Fuzzes the readers of metadata, and of subscriptions to lite topics:
``python -m tests.fuzz.metadata json|lmdb``.

Damages whole files at random, PS_FUZZ_RUNS times (1,000), after the files of ``museum/json`` and
``museum/lmdb``. Every run either says by name what is wrong or gives rows that can be written and
read again. A database that the page check lets through is read by LMDB itself, in this process,
from PS_FUZZ_FIND (build/fuzz-find), where what ends it is found. PS_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import lmdb

from broker.services.lite.kept import clients_of
from broker.services.lite.names import subscription_problem
from broker.wire import mqjson
from pystore.meta import _pages
from pystore.meta.configfiles import SECTIONS, check_json
from pystore.metadata import Metadata, SubscriptionGroup, TopicConfig
from pystore.store.light_queues import names_in

MUSEUM = Path(__file__).parent / "museum"
FIND = Path(os.environ.get("PS_FUZZ_FIND", "build/fuzz-find"))
WORDS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"-", b"0", b"1e999", b"NaN", b"1.5",
    b"9223372036854775808", b"-1", b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"\0", b'"a":1,',
    b"[" * 99, b"true", b"{0:", b'{"', b"1" * 5000,
)  # fmt: skip

SUBSCRIPTIONS = "liteSubscriptions.json"

Case = tuple[str, bytes]


def make_sound(folder: Path, rows: int) -> tuple[list[Case], bytes]:
    """Every configuration file of a store, and its database. rows: of each table; few make a file
    that is read quickly, many make a tree of pages."""
    with Metadata(folder) as meta:
        for i in range(rows):
            meta.topics.put(TopicConfig(f"topic{i}" * 9, 4, 4, 6))
            meta.groups.put(SubscriptionGroup(f"group{i}"))
            meta.offsets.commit(f"group{i}", "topic", i % 4, i << 40)
        for i in range(8):
            meta.offsets.commit("again", "topic", 0, i)
    files = [(path.name, path.read_bytes()) for path in sorted((folder / "config").glob("*.json"))]
    client = {"group": "g", "clientId": "c", "topic": "t", "wildcard": False}
    clients = [client | {"liteTopicSet": [f"n{i}" for i in range(rows)]}] * rows
    lines = b",\n".join(map(mqjson.dumps, clients))
    files.append((SUBSCRIPTIONS, b'{"clients":[\n%s\n]}\n' % lines))
    return files, (folder / "meta" / "data.mdb").read_bytes()


class Page:
    """The file that each input is written to, opened once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def write(self, data: bytes) -> None:
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))


# ---- JSON ----


def damage_text(text: bytes, dice: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        some = dice.randrange(1, 20)
        match dice.randrange(5):
            case 0:
                data[at : at + 1] = dice.randbytes(1)
            case 1:
                data[at:at] = dice.choice(WORDS)
            case 2:
                data[at : at + some] = dice.choice(WORDS)
            case 3:
                data[at:at] = data[dice.randrange(len(data) + 1) :][:some]
            case _:
                del data[at : at + some]
    return bytes(data)


def try_json(name: str, data: bytes) -> bool:
    """Whether the file was read."""
    if name == SUBSCRIPTIONS:
        return try_subscriptions(data)
    section = next((s for s in SECTIONS.values() if s.file == name), None)
    try:
        if section is None:
            check_json(data)
            return True
        parts = section.loads(data)
    except ValueError as bad:
        assert str(bad)
        return False
    again = section.loads(section.dumps(parts))
    assert (again.rows, again.version) == (parts.rows, parts.version)
    return True


def try_subscriptions(data: bytes) -> bool:
    """Whether the file was read: then the core can have each of its names."""
    try:
        clients = list(clients_of(BytesIO(data)))
    except ValueError as bad:
        assert str(bad)
        return False
    for each in clients:
        f"{each.group}{each.client_id}".encode()
        assert not subscription_problem(each.parent, names_in(each.names))
    return True


# ---- LMDB ----


def damage_pages(whole: bytes, dice: random.Random) -> bytes:
    data = bytearray(whole)
    page = dice.choice([0, 1, dice.randrange(len(data) // 4096)]) * 4096
    other = dice.randrange(len(data) // 4096) * 4096
    at = page + dice.choice([dice.randrange(24), dice.randrange(200), dice.randrange(4090)])
    match dice.randrange(6):
        case 0:
            data[at] ^= 1 << dice.randrange(8)
        case 1:
            data[at : at + 2] = dice.choice([b"\0\0", b"\xff\xff", b"\0\x10", b"\x10\0"])
        case 2:
            data[at : at + 8] = dice.randrange(len(data) // 2048).to_bytes(8, "little")
        case 3:
            data[at : at + 6] = dice.randbytes(6)
        case 4:
            data[page : page + 4096] = data[other : other + 4096]
        case _:
            del data[dice.randrange(1, len(data)) :]
    return bytes(data)


def try_lmdb(page: Page, data: bytes) -> bool:
    """Whether the database was let through, and read by LMDB."""
    page.write(data)
    try:
        _pages.check_pages(page.path)
    except _pages.PageError as bad:
        assert str(bad)
        return False
    with (
        contextlib.suppress(lmdb.Error),
        lmdb.open(str(page.path), subdir=False, readonly=True, lock=False, max_dbs=20) as env,
        env.begin() as txn,
    ):
        for name, _ in txn.cursor():
            with txn.cursor(env.open_db(name, txn=txn, create=False)) as rows:
                for _ in rows:  # reads each value, too
                    pass
    return True


# ---- the run ----


def run(what: str, runs: int, seed: int, folder: Path) -> int:
    """How many of the inputs were read."""
    dice = random.Random(seed)
    attempt: Callable[[Case], bool]
    if what == "json":
        sound, _ = make_sound(folder / "sound", rows=2)
        change, attempt = damage_text, lambda case: try_json(*case)
    else:
        FIND.parent.mkdir(exist_ok=True)
        page = Page(FIND)
        sound, change = [("data.mdb", make_sound(folder / "sound", rows=30)[1])], damage_pages
        attempt = lambda case: try_lmdb(page, case[1])  # noqa: E731
    kept = sorted((MUSEUM / what).glob("*/*"))  # museum/json/topics.json/what_was_wrong
    cases = [(path.parent.name, path.read_bytes()) for path in kept]
    read = 0
    for i in range(-len(cases) - len(sound), runs):
        if i >= 0:
            name, data = dice.choice(sound)
            case = (name, change(data, dice))
        else:
            case = (cases + sound)[i]
        if i and i % 1_000_000 == 0:
            print(f"{what}: {i} inputs so far", flush=True)
        try:
            read += attempt(case)
        except Exception:
            FIND.parent.mkdir(exist_ok=True)
            FIND.write_bytes(case[1])
            print(f"PS_SEED={seed}, {case[0]}: the input is in {FIND}")
            raise
    return read


def main() -> None:
    what, runs = sys.argv[1], int(os.environ.get("PS_FUZZ_RUNS", "1000"))
    seed = int(os.environ.get("PS_SEED", time.time_ns()))
    with tempfile.TemporaryDirectory(prefix="pystore-fuzz-") as folder:
        print(f"{what}: PS_SEED={seed}", flush=True)
        read = run(what, runs, seed, Path(folder))
    print(f"{what}: {runs} inputs, {read} of them read")
    FIND.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
